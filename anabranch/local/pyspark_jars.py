"""Finds tools among the jars that pyspark brings: Ivy, Janino, py4j.

Neighbours: `anabranch.local.fetching` and `anabranch.local.compiling`.
"""

from __future__ import annotations

from pathlib import Path

from runtime.java_home import SetupError


def pyspark_jar(name: str) -> Path:
    """The jar of that name, whatever its version; raises `SetupError` when pyspark is damaged."""
    import pyspark

    jars = sorted((Path(pyspark.__file__).parent / "jars").glob(f"{name}-[0-9]*.jar"))
    if not jars:
        raise SetupError(
            f"pyspark's own {name} jar is missing: the virtual environment is damaged, install it again (in a clone: "
            "make clean setup)"
        )
    return jars[0]
