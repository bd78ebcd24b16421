"""File of bearer tokens: one line per token with a name, a role and the token's SHA-256.

Stage: read for `anabranch.auth.callers`, edited by `anabranch config token`. A line is `executor operate
9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08` and may continue with the tenants and namespaces to
which the token is bound: `… acme/shop acme/billing globex`. Empty lines and lines that begin with `#` are preserved. A
plain digest is enough because tokens are 256 random bits generated here, not chosen by people: they cannot be guessed.
"""

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

from anabranch.auth.scopes import EVERYWHERE, Scope, ScopeError, read_scope

Role = Literal["read", "operate", "admin"]
"""Rights of a token; each role includes those before it."""
ROLES: tuple[Role, ...] = get_args(Role)

MAX_TOKENS = 1_000
MAX_FILE_BYTES = 1_048_576

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}", re.ASCII)
_DIGEST = re.compile(r"[0-9a-f]{64}", re.ASCII)


class TokensError(ValueError):
    """The file of tokens cannot be used or changed; the message says where and what to do."""


class TokenEntry(NamedTuple):
    """A line of the file."""

    name: str
    role: Role
    digest: bytes
    """SHA-256 of the token, as hexadecimal digits."""
    scope: Scope = EVERYWHERE


def digest_of(token: bytes) -> bytes:
    """Return the digest that the file stores for a token."""
    return hashlib.sha256(token).hexdigest().encode()


def role_suffices(role: Role, needed: Role) -> bool:
    """Return whether a role includes the needed one."""
    return ROLES.index(role) >= ROLES.index(needed)


def read_tokens(file: Path) -> list[TokenEntry]:
    """Read the tokens of a file. Raises `TokensError` if it is missing, readable by others, or malformed."""
    return parse_tokens(file, _text(file))


def add_token(file: Path, name: str, role: Role, scope: Iterable[str] = EVERYWHERE) -> str:
    """Generate a token, add its digest to the file, which is created if missing, and return it.

    `scope`: tenants and namespaces to which it is bound; empty: everywhere.
    """
    if not _NAME.fullmatch(name):
        raise TokensError(f"{name!r} is not a name for a token: letters, digits and . _ @ -, at most 64")
    scopes = set()
    for part in scope:
        try:
            scopes.add(read_scope(part))
        except ScopeError as error:
            raise TokensError(f"{part[:64]!r} {error}") from None
    with _lock_file(file):
        text = (
            _text(file)
            if file.exists()
            else f"# Tokens of the controller: name, role ({', '.join(ROLES)}), SHA-256, tenants and namespaces.\n"
        )
        entries = parse_tokens(file, text)
        if any(entry.name == name for entry in entries):
            raise TokensError(f"{file} has a token {name} already; remove it first or choose another name")
        if len(entries) >= MAX_TOKENS:
            raise TokensError(f"{file} has {MAX_TOKENS} tokens, and more are not possible; remove one first")
        token = secrets.token_urlsafe(32)
        end = "" if text.endswith("\n") or not text else "\n"
        _replace_text(
            file, f"{text}{end}{' '.join([name, role, digest_of(token.encode()).decode(), *sorted(scopes)])}\n"
        )
    return token


def remove_token(file: Path, name: str) -> None:
    """Remove a token from the file. Raises `TokensError` if it is not there."""
    with _lock_file(file):
        text = _text(file)
        if not any(entry.name == name for entry in parse_tokens(file, text)):
            raise TokensError(f"{file} has no token {name}")
        _replace_text(file, "".join(line for line in text.splitlines(True) if line.split()[:1] != [name]))


def parse_tokens(file: Path, text: str) -> list[TokenEntry]:
    """Parse the text of `file`, in order. Raises `TokensError` that names the faulty line."""
    entries: dict[str, TokenEntry] = {}
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        where = f"{file}, line {number}"
        if len(words) < 3:
            raise TokensError(f"{where}: {len(words)} words, expected name, role, SHA-256 of the token")
        name, role, digest, *scopes = words
        if not _NAME.fullmatch(name) or name in entries:
            problem = "is there twice" if name in entries else "is not a name for a token"
            raise TokensError(f"{where}: {name[:64]!r} {problem}")
        if role not in ROLES:
            raise TokensError(f"{where}: the role of {name} must be one of {', '.join(ROLES)}, not {role[:64]!r}")
        if not _DIGEST.fullmatch(digest):
            # Do not quote the word: it may be a token that was put there by mistake.
            raise TokensError(f"{where}: the third word of {name} is not a SHA-256 (64 digits 0-9 a-f)")
        entries[name] = TokenEntry(name, role, digest.encode(), _scope(scopes, f"{where}: the scope of {name}"))
    if len(entries) > MAX_TOKENS:
        raise TokensError(f"{file} has {len(entries)} tokens; at most {MAX_TOKENS} are possible")
    return list(entries.values())


def _scope(scopes: list[str], where: str) -> Scope:
    for number, scope in enumerate(scopes, 4):
        # Do not quote the word, as above.
        try:
            read = read_scope(scope)
        except ScopeError as error:
            raise TokensError(f"{where}, word {number}, {error}") from None
        if read != scope:
            raise TokensError(f"{where}, word {number}, is not spelt as in the names of topics")
    return frozenset(scopes)


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
def _lock_file(file: Path) -> Iterator[None]:
    """Lock the file against other editors; readers see either the old or the new content."""
    # Not filelock: its lock file would belong to the first editor and shut out the folder's other accounts.
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


def _replace_text(file: Path, text: str) -> None:
    new = file.with_name(f"{file.name}.new")
    new.unlink(missing_ok=True)
    with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as opened:
        opened.write(text)
        opened.flush()
        os.fsync(opened.fileno())
    if file.exists():
        status = file.stat()
        os.chmod(new, stat.S_IMODE(status.st_mode))
        if (status.st_uid, status.st_gid) != (os.geteuid(), os.getegid()):
            os.chown(new, status.st_uid, status.st_gid)
    os.replace(new, file)
