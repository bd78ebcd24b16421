"""Settings for tests of the local run: the project's, with all state in a folder of the test."""

from __future__ import annotations

from pathlib import Path


def home_with(tmp_path: Path, **local) -> Path:
    """A settings file over the project's, with all state under `tmp_path`."""
    text = f'[lake]\npath = "{tmp_path}/lake"\n[stream]\ncheckpoint = "{tmp_path}/checkpoints/stream"\n'
    local = {"folder": f"{tmp_path}/var", **local}
    text += f'[collect]\nfolder = "{tmp_path}/collect"\n'
    text += "[local]\n" + "".join(f"{key} = {value!r}\n".replace("'", '"') for key, value in local.items())
    file = tmp_path / "over.toml"
    file.write_text(text)
    return file
