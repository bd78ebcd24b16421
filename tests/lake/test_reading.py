"""Tables read by Arrow, with no Python in Arrow's threads."""

from __future__ import annotations

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyarrow.fs import PyFileSystem, SubTreeFileSystem

from lake.files import dataset_of, read_table


@pytest.mark.parametrize("name", ["lake", "a b", "50%", "ä#?&;+"])
def test_local_table_read_natively_in_any_folder(tmp_path, name):
    """The files are not read in Python."""
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
