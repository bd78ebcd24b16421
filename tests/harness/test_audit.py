"""The audit of lock files: pins, hashes, known advisories."""

from __future__ import annotations

import pytest

from tests.harness.audit import faults, main

KNOWN = {"some-package": [{"id": "CVE-1", "fixed_in": "1.10"}]}


def test_own_lock_files_have_no_fault(capsys):
    assert (main(), capsys.readouterr().out) == (0, "")


@pytest.mark.parametrize(
    ("lock", "fault"),
    [
        ("some-package==1.9 \\\n    --hash=sha256:ab\n", "CVE-1, fixed in 1.10"),
        ("Some_Package==1.9 ; python_version < '4' \\\n    --hash=sha256:ab\n", "CVE-1"),
        ("some-package==1.10\n", "without a hash"),
        ("some-package>=1.10 --hash=sha256:ab\n", "not pinned"),
        ("git+https://example.org/x\n", "not pinned"),
    ],
)
def test_fault_is_named(lock, fault):
    [line] = faults(lock, KNOWN)
    assert fault in line


def test_fixed_version_is_no_fault():
    assert list(faults("# a comment\nsome-package[x]==1.10.1 \\\n    --hash=sha256:ab\n", KNOWN)) == []
