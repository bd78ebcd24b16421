"""Policies to try, parsed from text, and the changes to a policy's file that lead to another policy.

Stage: under the command line and `suggesting`. Pure, but for the files that it is asked to read.
"""

import difflib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from anabranch.simulation.backtest.running import resolved, violation
from decisions.autoscale.policy import POLICY_FIELDS, PROFILES, PolicyError, read_policy
from engine.autoscale.topics import ConfiguredPolicy

_SETTING = re.compile(r"([^,=]+)=([^,]*)")


def read_candidate(text: str, ran: ConfiguredPolicy) -> tuple[str, ConfiguredPolicy]:
    """Return name and policy for a profile, a TOML file, or `name:key=value,key=value`.

    A file is laid over the profile that ran, settings over the policy that ran. Raises `PolicyError`.
    """
    if text in PROFILES:
        return text, ConfiguredPolicy(text, None)  # type: ignore[arg-type]
    name, separator, settings = text.partition(":")
    if separator and "=" in settings and not Path(text).exists():
        candidate = name, with_settings(ran, _settings(settings))
    else:
        try:
            override = read_policy(Path(text).read_text(encoding="utf-8")).to_json()
        except OSError as error:
            raise PolicyError(
                f"{text} is no profile ({', '.join(PROFILES)}), no name:key=value, and no file that can be read: "
                f"{error.strerror}"
            ) from None
        except UnicodeDecodeError:
            raise PolicyError(f"{text} is no TOML file: it is not text in UTF-8") from None
        candidate = Path(text).stem, ConfiguredPolicy(ran.profile, override)
    if broken := violation(candidate[1]):
        raise PolicyError(f"{text}: {broken}")
    return candidate


def with_settings(policy: ConfiguredPolicy, settings: Mapping[str, Any]) -> ConfiguredPolicy:
    """Return a policy with other values of some keys (wire names)."""
    override = json.loads(policy.override) if policy.override else {}
    return ConfiguredPolicy(policy.profile, json.dumps({**override, **settings}, sort_keys=True))


def settings_of(policy: ConfiguredPolicy) -> dict[str, Any]:
    """Return the override of the profile, by wire name."""
    override: dict[str, Any] = json.loads(policy.override) if policy.override else {}
    return override


def differences(policy: ConfiguredPolicy, other: ConfiguredPolicy) -> dict[str, Any]:
    """Return the settings that turn `policy` into `other`, by wire name."""
    before, after = resolved(policy), resolved(other)
    return {
        wire: field.outside(getattr(after, field.name))
        for wire, field in POLICY_FIELDS.items()
        if getattr(before, field.name) != getattr(after, field.name)
    }


def diff(text: str, settings: Mapping[str, Any], file: str) -> str:
    """Return the change to a policy's TOML file that sets these keys, as a unified diff."""
    lines = text.splitlines()
    for key, value in settings.items():
        line_of_key = f"{key} = {json.dumps(value)}"
        matching = [number for number, line in enumerate(lines) if re.match(rf"\s*\"?{re.escape(key)}\"?\s*=", line)]
        if matching:
            lines[matching[0]] = line_of_key
        else:
            lines.append(line_of_key)
    changed = difflib.unified_diff(text.splitlines(), lines, f"a/{file}", f"b/{file}", lineterm="")
    return "".join(f"{line}\n" for line in changed)


def _settings(text: str) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    for pair in text.split(","):
        if _SETTING.fullmatch(pair) is None:
            raise PolicyError(f"{pair!r} is no key=value")
        key, _, value = pair.partition("=")
        settings |= json.loads(read_policy(f"{key.strip()} = {_toml(value.strip())}").to_json())
    return settings


def _toml(value: str) -> str:
    return value if re.fullmatch(r"true|false|-?\d+(\.\d+)?", value) else json.dumps(value)
