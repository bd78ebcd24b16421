"""What the browser is given that we have not written: named, licensed, and byte for byte as it was published."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import anabranch.web

HOME = Path(anabranch.web.__file__).parent


def test_vendored_files_listed_with_digest():
    listed = json.loads((HOME / "vendored.json").read_text())
    digests = {one["file"]: one["sha256"] for one in listed}
    found = {
        file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in (HOME / "static" / "vendor").iterdir()
    }
    assert found == digests
    assert all(one["licence"] in ("0BSD", "MIT") and one["version"] and one["package"] for one in listed)
    assert {one["package"] for one in listed if one["file"].endswith("LICENSE")} == {one["package"] for one in listed}


def test_no_page_has_a_script_or_a_style_of_its_own():
    for file in (HOME / "templates").iterdir():
        text = file.read_text()
        assert "<style" not in text, file
        assert " style=" not in text, file
        assert " on" + "click=" not in text, file
        assert "|safe" not in text, file
        assert text.count("<script") == text.count("<script src="), file
