"""The file of bearer tokens: one line a token, with a name, a role and the SHA-256 of the token, never the token.

Stage: read for `controller.access.callers`, edited by `anabranch token`. A line is

`executor operate 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08`

and may go on with the tenants and namespaces that the token is bound to: `… acme/shop acme/billing globex`.
Empty lines and lines that begin with `#` are left alone. A plain digest is enough because the tokens are 256 random
bits, which nobody finds by trying: they are made here, not chosen.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import secrets
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, NamedTuple, get_args

from controller.access.scopes import EVERYWHERE, Scope, ScopeError, read_scope

Role = Literal["read", "operate", "admin"]
"""What a token opens; each role opens all that those before it do."""
ROLES: tuple[Role, ...] = get_args(Role)

MAX_TOKENS = 1_000
MAX_FILE_BYTES = 1_048_576

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}", re.ASCII)
_DIGEST = re.compile(r"[0-9a-f]{64}", re.ASCII)


class TokensError(ValueError):
    """The file of tokens cannot be used, or not changed in this way; the message says where and what to do."""


class TokenEntry(NamedTuple):
    """A token, as far as the file knows it."""

    name: str
    role: Role
    digest: bytes
    """SHA-256 of the token, as hexadecimal digits."""
    scope: Scope = EVERYWHERE


def digest_of(token: bytes) -> bytes:
    """What the file has instead of a token."""
    return hashlib.sha256(token).hexdigest().encode()


def suffices(role: Role, needed: Role) -> bool:
    """Whether a role opens what needs another one."""
    return ROLES.index(role) >= ROLES.index(needed)


def read_tokens(file: Path) -> list[TokenEntry]:
    """The tokens of a file. `TokensError` for one that is missing, too open, or has a wrong line."""
    return parse_tokens(file, _text(file))


def add_token(file: Path, name: str, role: Role, scope: Iterable[str] = EVERYWHERE) -> str:
    """Make a token, put it into the file, which is made when it is missing, and answer it; it is nowhere else.

    `scope`: the tenants and namespaces that it is bound to, none for everywhere.
    """
    if not _NAME.fullmatch(name):
        raise TokensError(f"{name!r} is not a name for a token: letters, digits and . _ @ -, at most 64")
    places = set()
    for place in scope:
        try:
            places.add(read_scope(place))
        except ScopeError as error:
            raise TokensError(f"{place[:64]!r} {error}") from None
    with _alone(file):
        text = (
            _text(file)
            if file.exists()
            else f"# Tokens of the controller: name, role ({', '.join(ROLES)}), SHA-256, tenants and namespaces.\n"
        )
        known = parse_tokens(file, text)
        if any(entry.name == name for entry in known):
            raise TokensError(f"{file} has a token {name} already; remove it first or choose another name")
        if len(known) >= MAX_TOKENS:
            raise TokensError(f"{file} has {MAX_TOKENS} tokens, and more are not possible; remove one first")
        token = secrets.token_urlsafe(32)
        end = "" if text.endswith("\n") or not text else "\n"
        _replace(file, f"{text}{end}{' '.join([name, role, digest_of(token.encode()).decode(), *sorted(places)])}\n")
    return token


def remove_token(file: Path, name: str) -> None:
    """Take a token out of the file. `TokensError` when it is not in it."""
    with _alone(file):
        text = _text(file)
        if not any(entry.name == name for entry in parse_tokens(file, text)):
            raise TokensError(f"{file} has no token {name}")
        _replace(file, "".join(line for line in text.splitlines(True) if line.split()[:1] != [name]))


def parse_tokens(file: Path, text: str) -> list[TokenEntry]:
    """The tokens that the text of `file` holds, in order; `TokensError` names the line that is wrong."""
    entries: dict[str, TokenEntry] = {}
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        where = f"{file}, line {number}"
        if len(words) < 3:
            raise TokensError(f"{where}: {len(words)} words, expected name, role, SHA-256 of the token")
        name, role, digest, *places = words
        if not _NAME.fullmatch(name) or name in entries:
            problem = "is there twice" if name in entries else "is not a name for a token"
            raise TokensError(f"{where}: {name[:64]!r} {problem}")
        if role not in ROLES:
            raise TokensError(f"{where}: the role of {name} must be one of {', '.join(ROLES)}, not {role[:64]!r}")
        if not _DIGEST.fullmatch(digest):
            # Without the word itself: it may be a token that was put there by mistake.
            raise TokensError(f"{where}: the third word of {name} is not a SHA-256 (64 digits 0-9 a-f)")
        entries[name] = TokenEntry(name, role, digest.encode(), _scope(places, f"{where}: the scope of {name}"))
    if len(entries) > MAX_TOKENS:
        raise TokensError(f"{file} has {len(entries)} tokens; at most {MAX_TOKENS} are possible")
    return list(entries.values())


def _scope(places: list[str], where: str) -> Scope:
    for number, place in enumerate(places, 4):
        # Without the word itself, as above.
        try:
            read = read_scope(place)
        except ScopeError as error:
            raise TokensError(f"{where}, word {number}, {error}") from None
        if read != place:
            raise TokensError(f"{where}, word {number}, is not spelt as in the names of topics")
    return frozenset(places)


def _text(file: Path) -> str:
    try:
        with open(file, "rb") as opened:
            status = os.fstat(opened.fileno())
            content = opened.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise TokensError(f"cannot read the tokens in {file}: {error.strerror}") from error
    if status.st_mode & (stat.S_IRWXO | stat.S_IWGRP):
        raise TokensError(f"{file} is open to others (mode {stat.S_IMODE(status.st_mode):o}): chmod 600 {file}")
    if len(content) > MAX_FILE_BYTES:
        raise TokensError(f"{file} is above {MAX_FILE_BYTES} bytes")
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise TokensError(f"{file} is not text in UTF-8") from None


@contextmanager
def _alone(file: Path) -> Iterator[None]:
    """Nobody else edits the file meanwhile; readers see it as it was before or as it is after."""
    # Not filelock: its lock file would belong to the first who edits, and shut out the other accounts of the folder.
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        folder = os.open(file.parent, os.O_RDONLY)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)
            yield
        finally:
            os.close(folder)
    except OSError as error:
        raise TokensError(f"cannot change the tokens in {file}: {error.strerror}") from error


def _replace(file: Path, text: str) -> None:
    new = file.with_name(f"{file.name}.new")
    new.unlink(missing_ok=True)
    with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as opened:
        opened.write(text)
        opened.flush()
        os.fsync(opened.fileno())
    if file.exists():
        found = file.stat()
        os.chmod(new, stat.S_IMODE(found.st_mode))
        if (found.st_uid, found.st_gid) != (os.geteuid(), os.getegid()):
            os.chown(new, found.st_uid, found.st_gid)
    os.replace(new, file)
