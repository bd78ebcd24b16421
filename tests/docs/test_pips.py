"""docs/pip-483.md and docs/pip-468.md are complete and current: every row leads to code, tests and keys that exist."""

from __future__ import annotations

import pytest

from tests.docs import pip_pages as page
from tests.docs.pip_pages import PIPS, ROOT, problems


@pytest.mark.parametrize("pip", PIPS)
def test_headings_and_properties_have_valid_rows(pip):
    """Their keys, functions and tests exist."""
    assert not problems(pip), "\n".join(["after a move, first: python -m tests.docs.pip_pages --mend", *problems(pip)])


@pytest.mark.parametrize("pip", PIPS)
def test_the_page_is_what_the_map_says(pip):
    assert (ROOT / "docs" / f"{pip}.md").read_text() == page.page(pip), "make schemas writes it"


@pytest.fixture
def mapped(tmp_path, monkeypatch):
    """Puts a map of one section in place of those of the PIPs."""
    (tmp_path / "outline.toml").write_text('[pip-483]\ntitle = "t"\nheadings = ["# Caps"]\nproperties = ["p"]\n')
    (tmp_path / "pip-468.toml").write_text("section = []\n")
    monkeypatch.setattr(page, "FOLDER", tmp_path)

    def write(rows: str, heading: str = "Caps") -> list[str]:
        (tmp_path / "pip-483.toml").write_text(f'[[section]]\nheading = "{heading}"\nrows = [{rows}]\n')
        return problems("pip-483")

    return write


HERE = "tests/docs/test_pips.py::test_the_page_is_what_the_map_says"


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (
            f'property = "p", code = "tests.docs.pip_pages:gone", test = "{HERE}"',
            "there is no tests.docs.pip_pages:gone",
        ),
        (f'property = "p", code = "no.such:page", test = "{HERE}"', "there is no no.such:page"),
        (
            f'property = "p", code = "decisions.autoscale.policy:decide", test = "{HERE}"',
            "decisions.autoscale.decide:d",
        ),
        ('property = "p", code = "schemas.ids:digest", test = "tests/x.py::test_a"', "there is no test tests/x.py::"),
        ('property = "p", code = "schemas.ids:digest"', "not_built"),
        ('property = "p", key = "maxSegment", not_built = "x"', "there is no key maxSegment;"),
        ('property = "q", not_built = "x"', "property p is in 0 rows"),
    ],
)
def test_dangling_row_named_with_correction(mapped, row, said):
    (found,) = [line for line in mapped(f'{{ rule = "r", {row} }}') if said in line]
    assert found.startswith("docs/pips/pip-483.toml")


def test_a_heading_that_is_left_out_is_named(mapped):
    assert "first at 'Caps'" in mapped('{ rule = "r", property = "p", not_built = "x" }', "Cap")[0]


def test_what_was_only_moved_is_followed(mapped):
    moved = HERE.replace("test_pips", "test_former")
    assert mapped(f'{{ rule = "r", property = "p", code = "schemas.codecs.bulk:canonical_json", test = "{moved}" }}')
    assert len(page.mend()) == 2
    assert problems("pip-483") == []
