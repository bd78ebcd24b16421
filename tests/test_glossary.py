"""Every place in docs/glossary.md exists."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import pytest

GLOSSARY = Path(__file__).resolve().parents[1] / "docs/glossary.md"
ENTRIES = re.findall(r"^\| ([^|]+?) \| [^|]+ \| `([\w.]+)(?::(\w+))?` \|$", GLOSSARY.read_text(), re.MULTILINE)


def test_glossary_has_forty_words():
    assert len(ENTRIES) == len({word for word, _, _ in ENTRIES}) == 40


@pytest.mark.parametrize(("module", "name"), [entry[1:] for entry in ENTRIES], ids=[entry[0] for entry in ENTRIES])
def test_word_is_defined_in_the_code(module, name):
    assert not name or hasattr(import_module(module), name)
