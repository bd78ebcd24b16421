"""Settings from the environment: `ANABRANCH_SECTION__KEY` for every key, `__` between path names.

Stage: a part of `schemas.settings.root`, which overrides all files. Text is taken literally; other values are in TOML
or JSON: `8`, `true`, `["a", "b"]`. A variable of this form that names no key is an error, with the nearest name; so is
one with single underscores that is nearly a variable's name.
"""

import json
import re
import sys
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from difflib import get_close_matches
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel, SecretStr

from schemas.settings.section import SettingsError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PREFIX = "ANABRANCH_"
_PORT_OF_A_SERVICE = ("tcp://", "udp://", "sctp://")
"""Beginnings of values that Kubernetes gives to variables such as ANABRANCH_WEB_PORT: no settings."""
_OF_A_SERVICE = re.compile(r"_SERVICE_(HOST|PORT)(_|$)|_PORT_\d+_")
"""In names of other variables that Kubernetes sets for a service, as in ANABRANCH_WEB_SERVICE_PORT."""

Path = tuple[str, ...]


def variable_of(path: Path) -> str:
    """Return the variable of a key."""
    return PREFIX + "__".join(path).upper()


def environment_keys(model: type[BaseModel], path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Yield path and type of every key that a variable can set; secrets have separate variables."""
    for name, field in model.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from environment_keys(kind, (*path, name))
        elif path and SecretStr not in type_parts(kind):
            yield (*path, name), kind


def read_environment(
    environment: Mapping[str, str], model: type[BaseModel], also_allowed: Collection[str] = ()
) -> dict[Path, Any]:
    """Return the keys set by the environment, with their values; an empty variable sets nothing.

    `also_allowed`: variables with another meaning. Raises `SettingsError` for a variable that names no key.
    """
    keys = {variable_of(path): (path, kind) for path, kind in environment_keys(model)}
    flat = {name.replace("__", "_"): name for name in keys}
    values = {}
    for name, text in environment.items():
        if not name.startswith(PREFIX) or name in also_allowed or not text:
            continue
        if name in keys:
            path, kind = keys[name]
            values[path] = text if kind is str or get_origin(kind) is Literal else _value(name, text)
        elif "__" in name:
            raise SettingsError(f"the environment variable {name} names no setting{_nearest(name, keys, also_allowed)}")
        elif text.startswith(_PORT_OF_A_SERVICE) or _OF_A_SERVICE.search(name):
            continue
        elif name in flat:
            raise SettingsError(f"the environment variable {name} has no effect: did you mean {flat[name]}?")
        else:
            if similar := get_close_matches(name, [*flat, *also_allowed], 1, 0.95):
                meant = similar[0] if similar[0] in also_allowed else flat[similar[0]]
                raise SettingsError(f"the environment variable {name} has no effect: did you mean {meant}?")
    return values


def _nearest(name: str, keys: Collection[str], also_allowed: Collection[str]) -> str:
    """Return which variable may be meant; a secret's has single underscores."""
    single = name.replace("__", "_")
    if single in also_allowed:
        return f": did you mean {single}?"
    short = {key.removeprefix(PREFIX): key for key in keys}
    nearest = get_close_matches(name.removeprefix(PREFIX), short, 1, 0.7)
    return f": did you mean {short[nearest[0]]}?" if nearest else " (anabranch config schema describes all)"


def type_parts(kind: Any) -> Iterator[Any]:
    """Yield a type and the types of which it is composed."""
    yield kind
    for part in get_args(kind):
        yield from type_parts(part)


def _value(name: str, text: str) -> Any:
    with suppress(tomllib.TOMLDecodeError):
        parsed = tomllib.loads(f"value = {text}")
        if parsed.keys() == {"value"}:
            return parsed["value"]
    with suppress(json.JSONDecodeError):
        return json.loads(text)
    raise SettingsError(f'the environment variable {name} is no TOML value: write it like 8, true or ["a", "b"]')
