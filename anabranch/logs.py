"""Log lines of the long-running parts, on stderr: as text for people, or one JSON object a line for machines."""

from __future__ import annotations

import json
import logging
from datetime import datetime, timezone

NOISY = ("py4j", "httpx", "httpcore", "uvicorn.access")
"""Loggers that say too much below warnings."""


class JsonLines(logging.Formatter):
    """One JSON object a line: `ts` (UTC, ISO 8601), `level`, `part`, `logger`, `message`; `batch_id` on lines about one
    micro-batch, and `error`, with its traceback, when there was one."""

    def __init__(self, part: str) -> None:
        super().__init__()
        self._part = part

    def format(self, record: logging.LogRecord) -> str:
        ts = datetime.fromtimestamp(record.created, timezone.utc).isoformat(timespec="milliseconds")
        line: dict[str, object] = {
            "ts": ts.replace("+00:00", "Z"), "level": record.levelname, "part": self._part, "logger": record.name,
            "message": record.getMessage(),
        }  # fmt: skip
        if hasattr(record, "batch_id"):
            line["batch_id"] = record.batch_id
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def start_logging(part: str, level: str, log_format: str) -> None:
    """Begins the log of `part` on stderr; `log_format` is `text` or `json`."""
    handler = logging.StreamHandler()
    handler.setFormatter(
        JsonLines(part)
        if log_format == "json"
        else logging.Formatter(f"%(asctime)s %(levelname)s {part} %(name)s: %(message)s", "%Y-%m-%dT%H:%M:%S%z")
    )
    logging.basicConfig(level=level.upper(), handlers=[handler])
    for noisy in NOISY:
        logging.getLogger(noisy).setLevel(logging.WARNING)
