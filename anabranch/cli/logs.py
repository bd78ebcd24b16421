"""Log lines of the long-running parts, on stderr: text, or one JSON object a line."""

import json
import logging
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from schemas.printable import printable

NOISY = ("py4j", "httpx", "httpcore", "uvicorn.access")
"""Loggers that say too much below warnings."""
TALKATIVE = ("kazoo",)
"""Loggers that say secrets below information: kazoo writes down its requests, the password of a log-in among them."""


class TextLines(logging.Formatter):
    """One line for each record; what strangers sent cannot end it, nor colour or turn what follows.

    The lines of a traceback begin with `  | `, as a text inside it may look like a line of the log.
    """

    def __init__(self, part: str) -> None:
        super().__init__(f"%(asctime)s %(levelname)s {part} %(name)s: %(message)s", "%Y-%m-%dT%H:%M:%S%z")

    def formatMessage(self, record: logging.LogRecord) -> str:
        record.message = printable(record.message)
        return super().formatMessage(record)

    def formatException(self, ei: Any) -> str:
        return self.formatStack(super().formatException(ei))

    def formatStack(self, stack_info: str) -> str:
        return "\n".join(f"  | {printable(line)}" for line in stack_info.split("\n"))


class JsonLines(logging.Formatter):
    """Formatter for one JSON object a line.

    Keys: `ts` (UTC, ISO 8601), `level`, `part`, `logger`, `message`; `batch_id` on lines about one micro-batch, and
    `error`, with its traceback, when there was one.
    """

    def __init__(self, part: str) -> None:
        super().__init__()
        self._part = part

    def format(self, record: logging.LogRecord) -> str:
        ts = datetime.fromtimestamp(record.created, timezone.utc).isoformat(timespec="milliseconds")
        line: dict[str, object] = {
            "ts": ts.replace("+00:00", "Z"),
            "level": record.levelname,
            "part": self._part,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if hasattr(record, "batch_id"):
            line["batch_id"] = record.batch_id
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        text = json.dumps(line, ensure_ascii=False)
        # JSON may have directions of writing and much else as it is; a terminal that shows the log may not.
        return text if text.isprintable() else "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in text)


def start_logging(part: str, level: str, log_format: str, file: Path | None = None) -> None:
    """Log `part` to stderr or a file, in place of an earlier log, with `log_format` `text` or `json`."""
    handler = logging.StreamHandler() if file is None else logging.FileHandler(file, encoding="utf-8")
    handler.setFormatter(JsonLines(part) if log_format == "json" else TextLines(part))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=file is not None)
    for name, least in (*((name, logging.WARNING) for name in NOISY), *((name, logging.INFO) for name in TALKATIVE)):
        logging.getLogger(name).setLevel(max(least, logging.getLogger().level))
