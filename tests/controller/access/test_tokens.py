"""The file of tokens: what is in it, what is refused with the line that is wrong, and editing it."""

from __future__ import annotations

import stat
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.auth.tokens import (
    MAX_TOKENS,
    TokenEntry,
    TokensError,
    add_token,
    digest_of,
    parse_tokens,
    read_tokens,
    remove_token,
)

DIGEST = "ab" * 32


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "new" / "tokens"


def test_token_shown_once_and_stored_as_digest(file: Path) -> None:
    token = add_token(file, "executor", "operate")
    assert read_tokens(file) == [TokenEntry("executor", "operate", digest_of(token.encode()))]
    assert token not in file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert add_token(file, "other", "operate") != token


def test_what_a_person_wrote_into_the_file_stays(file: Path) -> None:
    add_token(file, "one", "read")
    file.write_text(f"# ours\n\n  one\tread {DIGEST}   \n#two admin {DIGEST}\nthree admin {'cd' * 32}")
    file.chmod(0o640)
    add_token(file, "four", "operate")
    remove_token(file, "one")
    assert [entry[:2] for entry in read_tokens(file)] == [("three", "admin"), ("four", "operate")]
    assert file.read_text().startswith(f"# ours\n\n#two admin {DIGEST}\nthree admin ")
    assert stat.S_IMODE(file.stat().st_mode) == 0o640


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (f"one read {DIGEST} a/b/c", "line 2: the scope of one, word 4, is neither a tenant nor tenant/namespace"),
        (f"one read {DIGEST} a b/ s3cret", "line 2: the scope of one, word 5, is neither"),
        (f"one read {DIGEST} a%62", "line 2: the scope of one, word 4, is not spelt as in the names of topics"),
        (f"one read {DIGEST} #s3cret", "line 2: the scope of one, word 4, is not spelt"),
        ("s3cret", "line 2: 1 words"),
        (f"one reed {DIGEST}", "line 2: the role of one must be one of read, operate, admin, not 'reed'"),
        ("one read s3cret", "line 2: the third word of one is not a SHA-256"),
        (f"one read {DIGEST.upper()}", "line 2: the third word of one is not a SHA-256"),
        (f"-one read {DIGEST}", "line 2: '-one' is not a name"),
        (f"zero read {DIGEST}", "line 2: 'zero' is there twice"),
    ],
)
def test_bad_line_named_without_showing_token(file: Path, line: str, said: str) -> None:
    with pytest.raises(TokensError) as refused:
        parse_tokens(file, f"zero admin {DIGEST}\n{line}\n")
    assert said in str(refused.value)
    assert "s3cret" not in str(refused.value)


def test_a_token_is_bound_to_tenants_and_namespaces(file: Path) -> None:
    add_token(file, "one", "admin", ["globex", "acme/odd name", "acme%2Fx"])
    add_token(file, "two", "read")
    assert [entry.scope for entry in read_tokens(file)] == [{"globex", "acme/odd%20name", "acme%2Fx"}, frozenset()]
    for wrong in ("", "/", "a/", "/b", "a/b/c", "%ff"):
        with pytest.raises(TokensError, match="is neither a tenant nor tenant/namespace"):
            add_token(file, "three", "read", [wrong])


@given(st.text())
def test_any_text_is_tokens_or_refused(text: str) -> None:
    try:
        entries = parse_tokens(Path("tokens"), text)
    except TokensError:
        return
    assert all(len(entry.digest) == 64 for entry in entries)


def test_names_are_taken_once_and_end_somewhere(file: Path) -> None:
    add_token(file, "one", "read")
    with pytest.raises(TokensError, match="has a token one already"):
        add_token(file, "one", "admin")
    with pytest.raises(TokensError, match="has no token two"):
        remove_token(file, "two")
    for name in ("", "two words", "#one", "a" * 65, "two\nthree"):
        with pytest.raises(TokensError, match="is not a name for a token"):
            add_token(file, name, "read")
    file.write_text("".join(f"t{number} read {number:064x}\n" for number in range(MAX_TOKENS)))
    with pytest.raises(TokensError, match=f"{MAX_TOKENS} tokens, and more are not possible"):
        add_token(file, "more", "read")


def test_a_file_that_is_missing_or_no_text_is_refused(file: Path) -> None:
    with pytest.raises(TokensError, match="No such file"):
        read_tokens(file)
    add_token(file, "one", "read")
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(TokensError, match="not text in UTF-8"):
        read_tokens(file)


def test_tokens_that_are_made_at_once_are_all_kept(file: Path) -> None:
    names = [f"t{number}" for number in range(12)]
    threads = [threading.Thread(target=add_token, args=(file, name, "read")) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(entry.name for entry in read_tokens(file)) == sorted(names)
