"""What every command is given: the settings, read when first asked for, and the logging set-up."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from anabranch.logs import start_logging
from schemas.settings import Settings, load_settings

DEMONSTRATION = Path("conf/demonstration.toml")
"""Laid over `conf/anabranch.toml` by a local run that is given no settings of its own."""


@dataclass
class Context:
    """The options before the command's name."""

    config: tuple[Path, ...] = ()
    home: Path | None = None
    log_level: str = "info"
    log_format: str | None = None
    """`text` or `json`, instead of `[log] format` of the settings."""
    extra: list[Path] = field(default_factory=list)

    @cached_property
    def settings(self) -> Settings:
        """`conf/anabranch.toml` with the given files laid over it; raises `SettingsError`."""
        return load_settings([*self.extra, *self.config], self.home)

    def start_logging(self, part: str) -> None:
        """Log lines of a long-running part to stderr, as `[log] format` or the option says; raises `SettingsError`."""
        start_logging(part, self.log_level, self.log_format or self.settings.log.format)
