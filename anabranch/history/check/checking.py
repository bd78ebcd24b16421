"""The whole check of a lake: files first, then rows. Read-only, and safe beside all writers.

Stage: under `anabranch lake check`, over `contents` (files) and `rows`; `findings` collects.
"""

from deltalake.exceptions import DeltaError

from anabranch.history.check.contents import Digests, damaged_files, missing_files
from anabranch.history.check.findings import Findings
from anabranch.history.check.rows import STUCK_SECONDS, RowChecks
from lake.files import table_path
from lake.tables import open_table
from schemas.tables.rows import BATCHES, DEAD_LETTERS, EVENTS, HOLDS, SEGMENT_LOAD, TABLES

_BY_JOB_ALONE = {table.name for table in (HOLDS, SEGMENT_LOAD, EVENTS, DEAD_LETTERS, BATCHES)}
"""Tables that only the job writes. It makes all tables of the lake before its first batch."""


def check_lake(lake: str, digests: Digests | None = None, stuck_seconds: float = STUCK_SECONDS) -> Findings:
    """Return the faults of a lake.

    Missing tables, and those with missing or damaged files, are left out of the checks on rows. With `digests` every
    byte is read and compared with them. Open decisions older than `stuck_seconds` are stuck.

    Raises `SqlError`, `DeltaError` or `OSError` when the check cannot be completed.
    """
    findings = Findings()
    broken, missing, has_batches = set(), set(), False
    for name, table in TABLES.items():
        try:
            opened = open_table(lake, table)
        except DeltaError as error:
            findings.add("unreadable", name, str(error).splitlines()[0])
            broken.add(name)
            continue
        if opened is None:
            missing.add(name)
            continue
        has_batches |= name in _BY_JOB_ALONE and opened.version() > 0
        for fault in missing_files(lake, table, opened):
            findings.add("missing file", name, fault)
            broken.add(name)
        if digests is None or name in broken:
            continue
        for fault in damaged_files(lake, table, opened, digests):
            findings.add("damaged file", name, fault)
            broken.add(name)
    for name in sorted(missing) if has_batches else ():
        findings.add("missing table", name, f"there is no Delta table at {table_path(lake, TABLES[name])}")
        broken.add(name)
    RowChecks(lake, broken, stuck_seconds).look(findings)
    return findings
