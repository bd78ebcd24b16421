"""Bill of materials of an image, in CycloneDX 1.5: `python sbom.py JARS > sbom.json`.

Lists the Python packages of the interpreter that runs it, and the jars below JARS with their SHA-256. Debian's packages
are listed in the image's /var/lib/dpkg/status, where scanners look for them.
"""

import hashlib
import json
import re
import sys
from importlib.metadata import distributions
from pathlib import Path
from typing import Any


def bill_of_materials(jars: Path) -> dict[str, Any]:
    """Return the bill; no jars if there is no such folder."""
    packages = {each.metadata["Name"]: each.version for each in distributions()}
    components: list[dict[str, Any]] = [
        {"type": "library", "name": name, "version": version, "purl": f"pkg:pypi/{name.lower()}@{version}"}
        for name, version in sorted(packages.items())
    ]
    for jar in sorted(jars.rglob("*.jar")):
        # Our own jars have no version.
        parts = re.fullmatch(r"(?P<name>.+?)-(?P<version>\d.*)", jar.stem)
        digest = {"alg": "SHA-256", "content": hashlib.sha256(jar.read_bytes()).hexdigest()}
        named = parts.groupdict() if parts else {"name": jar.stem}
        components.append({"type": "library", **named, "hashes": [digest]})
    return {"bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1, "components": components}


if __name__ == "__main__":
    print(json.dumps(bill_of_materials(Path(sys.argv[1])), indent=1))
