"""Certificates of the tests, made by `make.sh`: PEM files, each with its key beside it."""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).parent
CA = FOLDER / "ca.pem"
"""Has signed all but `stranger`."""


def certificate(name: str) -> Path:
    """The certificate of that name."""
    return FOLDER / f"{name}.pem"


def key(name: str) -> Path:
    """Its key."""
    return FOLDER / f"{name}.key"
