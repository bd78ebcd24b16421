"""Options that every command has: the settings, read when first asked for, and the logging set-up.

The models of the settings are imported where they are used, as `anabranch --help` needs none.
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import click

from anabranch.cli.logs import start_logging
from schemas.printable import printable

if TYPE_CHECKING:
    from schemas.settings.root import Settings

log = logging.getLogger(__name__)


def hide_new_files() -> None:
    """Make new files readable by this account alone.

    A umask that already hides them from all but a group stays. The lake has dead letters as they came, the controller's
    database all topics.
    """
    if (before := os.umask(0o077)) & 0o007 == 0o007:
        os.umask(before)


LOCAL = Path("conf/local.toml")
"""Laid over `conf/anabranch.toml` by every local run."""
DEMONSTRATION = Path("conf/demonstration.toml")
"""Laid over `conf/anabranch.toml` by a local run that is given no settings of its own."""
STORY = Path("conf/story.toml")
"""Laid over that by a local run without a Pulsar."""
WITH_CLIENTS = Path("conf/clients.toml")
"""Laid over that by a local run with real producers and consumers."""
WITH_GENERATED = Path("conf/generated.toml")
"""Laid over that by a local run with made-up samples, and no settings of its own."""
WITH_PULSAR = Path("conf/demonstration-pulsar.toml")
"""Laid over the demonstration's by a local run with a Pulsar."""


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
    def own(self) -> tuple[Path, ...]:
        """The files of `--config`; without any, `anabranch.toml` of the home if there is one."""
        from schemas.settings.root import OWN_FILE, default_home

        file = (self.home or default_home()) / OWN_FILE
        return self.config or ((file,) if file.is_file() else ())

    @property
    def files(self) -> list[Path]:
        """All settings files that are laid over `conf/anabranch.toml`, by absolute paths."""
        from schemas.settings.root import default_home, find_settings

        home = self.home or default_home()
        return [find_settings(file, home) for file in (*self.extra, *self.own)]

    @cached_property
    def settings(self) -> Settings:
        """`conf/anabranch.toml` with those files laid over it; raises `SettingsError`."""
        from schemas.settings.root import HOME_VARIABLE, PROJECT, SECRET_VARIABLES, default_home, load_settings

        home = self.home or default_home()
        if (
            self.home is None
            and HOME_VARIABLE not in os.environ
            and home != PROJECT
            and SECRET_VARIABLES & set(os.environ)
        ):
            click.echo(f"settings of {printable(str(home))}", err=True)
        return load_settings(self.files, home)

    def start_logging(self, part: str) -> None:
        """Log a long-running part to stderr, in the format of the option or of `[log] format`.

        The first lines warn of settings that are no longer read, and of clear-text traffic. Raises `SettingsError`.
        """
        from schemas.settings.exposure import exposures

        start_logging(part, self.log_level, self.log_format or self.settings.log.format)
        if self.settings.former_warning:
            log.warning("%s", self.settings.former_warning)
        for exposure in exposures(self.settings, part):
            log.warning("%s", exposure)

    def warn(self, part: str, settings: Settings | None = None) -> None:
        """Print warnings of clear-text traffic to stderr, for a command that keeps no log.

        `settings`: those to check instead of the context's own.
        """
        from schemas.settings.exposure import exposures

        if self.settings.former_warning:
            click.echo(f"Warning: {printable(self.settings.former_warning)}", err=True)
        for exposure in exposures(settings or self.settings, part):
            click.echo(f"Warning: {printable(exposure)}", err=True)
