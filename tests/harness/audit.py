"""`python -m tests.harness.audit`: check that packages are pinned with hashes and have no known advisory.

Stage: part of `make check`. Offline: advisories are those of `conf/advisories.toml`, which people bring up to date.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from packaging.version import Version

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

HOME = Path(__file__).parents[2]
LOCKS = ("requirements.lock", "conf/bootstrap.lock", "conf/tools.lock", "deploy/app.lock", "deploy/job.lock")
_PIN = re.compile(r"([A-Za-z0-9._-]+)(?:\[[^]]*\])?==([^\s;\\]+)")


def faults(lock: str, advisories: Mapping[str, list[dict[str, Any]]]) -> Iterator[str]:
    """Yield what is wrong with the text of a lock file, a line each."""
    for line in lock.replace("\\\n", " ").splitlines():
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        found = _PIN.match(text)
        if found is None:
            yield f"{text[:80]}: not pinned to one version"
            continue
        name, version = re.sub(r"[-_.]+", "-", found[1]).lower(), Version(found[2])
        if "--hash=sha256:" not in text:
            yield f"{name} {version}: without a hash"
        for known in advisories.get(name, ()):
            if version < Version(known["fixed_in"]):
                yield f"{name} {version}: {known['id']}, fixed in {known['fixed_in']}: make lock"


def main() -> int:
    """Print the faults of all lock files; 1 when there are some."""
    advisories = tomllib.loads((HOME / "conf" / "advisories.toml").read_text())["advisories"]
    found = [f"{name}: {fault}" for name in LOCKS for fault in faults((HOME / name).read_text(), advisories)]
    print("\n".join(found), end="\n" if found else "")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
