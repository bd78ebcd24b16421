"""The rules of `conf/alerts.yaml`: a statement on the lake, a threshold, and destinations.

Stage: read by `anabranch.alerts.evaluator`. Terms are those of Prometheus and Alertmanager where they have one.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import AfterValidator, BeforeValidator, Field, ValidationError, model_validator

from lake.files import is_remote
from schemas.settings.section import Section, SettingsError, StrictModel

MAX_FILE_BYTES = 1_000_000
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
"""Of rules, destinations and labels, as Prometheus writes them."""
INTERVAL_SECONDS, REMOTE_INTERVAL_SECONDS = 15.0, 30.0
"""Defaults of `interval` for a lake in a folder, and in an object store, where requests cost money."""


class RulesError(SettingsError):
    """The file of rules cannot be used; the message names the file, the rule and the valid values."""


def _read_seconds(value: object) -> object:
    """Convert `90`, `"90s"`, `"2m"`, `"1h"`, `"3d"` to seconds."""
    if isinstance(value, str):
        if (match := re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*([smhd])", value.strip())) is None:
            raise ValueError(f"{value!r} is no duration; write 90s, 2m, 1h or 3d")
        return float(match[1]) * _UNITS[match[2]]
    return value


def _name(value: str) -> str:
    if not NAME.fullmatch(value):
        raise ValueError(f"{value!r} is no name: letters, digits and _ only, no digit first")
    return value


def _web_address(value: str) -> str:
    if not re.match(r"https?://[^\s/]+", value):
        raise ValueError(f"{value!r} is no address like https://example.com/path")
    return value


Duration = Annotated[float, BeforeValidator(_read_seconds), Field(ge=0, le=86_400 * 30)]
Name = Annotated[str, AfterValidator(_name), Field(max_length=100)]
WebAddress = Annotated[str, AfterValidator(_web_address), Field(max_length=2_000)]
Severity = Literal["info", "warning", "critical"]


class Rule(Section):
    """One rule: each row of its statement whose `value` is beyond the threshold is an alert."""

    name: Name
    sql: Annotated[str, Field(min_length=1, max_length=20_000)]
    """One SELECT over the tables and views. `$now` is the instant that is asked about. A column `value` is compared;
    all others are labels, which tell the alerts of a rule apart."""
    above: float | None = None
    below: float | None = None
    """Beyond which `value` a row is an alert; neither: every row is one."""
    for_: Annotated[Duration, Field(alias="for")] = 0.0
    """How long a row has to be there without a break before it is an alert."""
    severity: Severity = "warning"
    labels: dict[Name, str] = Field(default_factory=dict)
    """Added to those of the rows."""
    summary: Annotated[str, Field(min_length=1, max_length=2_000)]
    """For a person; `{value}` and `{column}` are filled in."""
    runbook: Annotated[str, Field(max_length=2_000)] | None = None
    """What to do: an address, or a page of the docs."""
    destinations: tuple[Name, ...] | None = None
    """Where it is told; None: everywhere."""
    max_alerts: Annotated[int, Field(ge=1, le=10_000)] = 100
    """So many alerts at once; what else a statement answers is counted in one more."""

    @model_validator(mode="after")
    def _one_side(self) -> "Rule":
        if self.above is not None and self.below is not None:
            raise ValueError("above and below: give one of them")
        return self

    def is_beyond(self, value: float | None) -> bool:
        """Return True if a row with this `value` is an alert; without a threshold every row is."""
        if self.above is None and self.below is None:
            return True
        if value is None or value != value:
            return False
        return value > self.above if self.above is not None else value < self.below  # type: ignore[operator]


class Target(StrictModel):
    """Settings common to all destinations over HTTP."""

    url: WebAddress | None = None
    url_variable: Name | None = None
    """The environment variable that holds the address, where that is a secret; instead of `url`."""
    allow_local: bool = False
    """Whether the address may be of this machine or its link (127.0.0.0/8, 169.254.0.0/16, ::1, fe80::/10)."""
    timeout_seconds: Annotated[Duration, Field(gt=0)] = 10.0

    @model_validator(mode="after")
    def _one_address(self) -> "Target":
        if (self.url is None) == (self.url_variable is None):
            raise ValueError("give one of url and url_variable")
        return self


class Alertmanager(Target):
    kind: Literal["alertmanager"]
    token_variable: Name | None = None
    """The environment variable that holds a bearer token."""


class Slack(Target):
    kind: Literal["slack"]


class Webhook(Target):
    kind: Literal["webhook"]
    secret_variable: Name | None = None
    """The environment variable that holds the key of the signature; None: it is not signed."""


class Log(StrictModel):
    kind: Literal["log"]


Destination = Annotated[Alertmanager | Slack | Webhook | Log, Field(discriminator="kind")]


class Rules(Section):
    """The whole file."""

    interval: Annotated[Duration, Field(ge=1)] | None = None
    """Time between two looks at the lake, seconds; None: `interval_seconds` chooses."""
    destinations: dict[Name, Destination] = Field(default_factory=dict)
    rules: Annotated[tuple[Rule, ...], Field(min_length=1, max_length=1_000)]

    @model_validator(mode="after")
    def _names(self) -> "Rules":
        names = [rule.name for rule in self.rules]
        for name in names:
            if name == BROKEN.name:
                raise ValueError(f"the name {name} is taken by the rule for rules that fail: choose another")
            if names.count(name) > 1:
                raise ValueError(f"two rules are called {name}")
        for rule in self.rules:
            for name in rule.destinations or ():
                if name not in self.destinations:
                    listed = ", ".join(self.destinations) or "none"
                    raise ValueError(f"rule {rule.name}: no destination is called {name!r}; there are: {listed}")
        return self

    def interval_seconds(self, lake: str) -> float:
        """Return the time between two looks; each asks an object store once for every table that the rules read."""
        return self.interval or (REMOTE_INTERVAL_SECONDS if is_remote(lake) else INTERVAL_SECONDS)

    def rule(self, name: str) -> Rule | None:
        """Return the rule of a name."""
        return next((rule for rule in (*self.rules, BROKEN) if rule.name == name), None)

    def destinations_of(self, rule: Rule) -> tuple[str, ...]:
        """Return the destinations of a rule's alerts."""
        return tuple(self.destinations) if rule.destinations is None else rule.destinations


BROKEN = Rule.model_validate(
    {
        "name": "AlertRuleFails",
        "sql": "-",
        "for": "2m",
        "severity": "warning",
        "summary": "the alert rule {rule} cannot be evaluated: {error}",
    }
)
"""Fires for a rule that cannot be evaluated; built in, without SQL."""


def read_rules(file: Path) -> Rules:
    """Return the rules of a file. Raises `RulesError`."""
    try:
        if file.stat().st_size > MAX_FILE_BYTES:
            raise RulesError(f"{file} has more than {MAX_FILE_BYTES:,} bytes")
        return rules_of(yaml.safe_load(file.read_text(encoding="utf-8")), str(file))
    except OSError as error:
        raise RulesError(f"cannot read the alert rules {file}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise RulesError(f"{file} is no YAML: {' '.join(str(error).split())}") from error


def rules_of(content: Any, file: str) -> Rules:
    """Return the rules of a parsed file; `file`: its name in messages. Raises `RulesError`."""
    if not isinstance(content, Mapping):
        raise RulesError(f"{file} holds no rules: it needs a key rules with a list")
    try:
        return Rules.model_validate(content)
    except ValidationError as error:
        problems = "; ".join(
            f"{_where(content, item['loc'])}: {item['msg']}"
            for item in error.errors(include_url=False, include_input=False)
        )
        raise RulesError(f"wrong alert rules in {file}: {problems}") from error


def _where(content: Mapping[str, Any], location: tuple[int | str, ...]) -> str:
    """Return a location for people: `rules.3 (Thrash).above`."""
    parts: list[str] = []
    here: Any = content
    for part in location:
        try:
            here = here[part]
        except (KeyError, IndexError, TypeError):
            here = None
        name = here.get("name") if isinstance(part, int) and isinstance(here, Mapping) else None
        parts.append(str(part) if name is None else f"{part} ({name})")
    return ".".join(parts) or "the file"
