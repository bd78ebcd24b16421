"""What every command is given: the settings, read when first asked for, and the logging set-up."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from schemas.settings import Settings, load_settings

DEMONSTRATION = Path("conf/demonstration.toml")
"""Laid over `conf/anabranch.toml` by a local run that is given no settings of its own."""


@dataclass
class Context:
    """The options before the command's name."""

    config: tuple[Path, ...] = ()
    home: Path | None = None
    log_level: str = "info"
    extra: list[Path] = field(default_factory=list)

    @cached_property
    def settings(self) -> Settings:
        """`conf/anabranch.toml` with the given files laid over it; raises `SettingsError`."""
        return load_settings([*self.extra, *self.config], self.home)

    def start_logging(self, part: str) -> None:
        """Log lines of a long-running part to stderr: time, level, part, logger, message."""
        logging.basicConfig(
            level=self.log_level.upper(),
            format=f"%(asctime)s %(levelname)s {part} %(name)s: %(message)s",
            datefmt="%Y-%m-%dT%H:%M:%S%z",
        )
        for noisy in ("py4j", "httpx", "httpcore", "uvicorn.access"):
            logging.getLogger(noisy).setLevel(logging.WARNING)
