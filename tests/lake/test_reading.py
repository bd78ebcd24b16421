"""Tables read by Arrow, with no Python in Arrow's threads."""

from __future__ import annotations

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyarrow.fs import PyFileSystem, SubTreeFileSystem

from lake.reading import dataset_of, read_table


@pytest.mark.parametrize("name", ["lake", "a b", "50%", "ä#?&;+"])
def test_a_local_table_is_read_whatever_its_folder_is_called_and_not_by_files_in_python(tmp_path, name):
    folder = tmp_path / name
    folder.mkdir()
    rows = {"day": ["1 a", "2%"], "number": [1, 2]}
    write_deltalake(folder, pa.table(rows), partition_by=["day"])
    delta = DeltaTable(folder)
    assert read_table(delta).sort_by("number").to_pydict() == rows
    assert read_table(delta, ["number"], [("day", "=", "2%")]).to_pydict() == {"number": [2]}
    files = dataset_of(delta).filesystem
    assert isinstance(files, SubTreeFileSystem)
    assert not isinstance(files.base_fs, PyFileSystem)
