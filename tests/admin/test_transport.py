"""One exchange with a server that is slow, large, broken, somewhere else, or behind TLS: in time, and as a value."""

from __future__ import annotations

import gzip
import socket
import ssl
import threading
import time

import pytest
from httpcore._backends.sync import SyncBackend, SyncStream

from anabranch.admin import transport as transport_module
from anabranch.admin.answers import Lost, Misdirected, NotConnected, Response
from anabranch.admin.connections import only_while
from anabranch.admin.transport import BadAddress, PasswordInAddress, check_address
from tests.admin.conftest import transport
from tests.admin.server import CERTIFICATE, dribble, http, serving
from tests.waiting import wait_until

pytestmark = pytest.mark.process

DEADLINE = 0.4
LATE = 3
"""Far less than what a server that dribbles would need, and time enough for a slow machine."""


def timed(url: str, method: str = "GET", timeout_seconds: float = DEADLINE, **more):
    """The answer, within the deadline and a little."""
    one = transport(url, timeout_seconds=timeout_seconds, **more)
    began = time.monotonic()
    answer = one.exchange(method, "/x")
    assert time.monotonic() - began < LATE
    one.close()
    return answer


def test_an_answer_is_whole_with_any_status():
    with serving(http(418, b"tea", Content_Type="text/plain; charset=latin-1")) as server:
        answer = transport(server.url + "/base/").exchange("GET", "/x", {"a": ["1", "ü&"], "b": "2"})
    assert answer == Response(418, "Whatever", b"tea", f"{server.url}/base/x?a=1&a=%C3%BC%26&b=2", "latin-1")
    assert server.asked[0].startswith("GET /base/x?a=1&a=%C3%BC%26&b=2 HTTP/1.1\r\n")


def test_put_and_post_name_json_also_without_a_body():
    with serving(http(204)) as server:
        for method in ("GET", "PUT", "POST", "DELETE"):
            transport(server.url, "s3cret").exchange(method, "/x")
    assert ["application/json" in head.partition("Content-Type")[2] for head in server.asked] == [
        False,
        True,
        True,
        False,
    ]
    for head in server.asked:
        assert "Authorization: Bearer s3cret" in head
        assert "X-Pulsar-Auth-Method-Name: token" in head
        assert "User-Agent: test" in head


SLOW = {
    "silence": dribble(b"", every_s=60),
    "a status that dribbles": dribble(b"HTTP/1.1 200 ", 0.02),
    "headers that dribble": dribble(b"HTTP/1.1 200 OK\r\nX-Long: ", 0.02),
    "a body that dribbles": dribble(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n", 0.02),
    "a body without an end": dribble(b"HTTP/1.1 200 OK\r\n\r\n", 0.02),
    "chunks that dribble": dribble(
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", 0.02, end=b"1\r\na\r\n" * 1000
    ),
    "interim answers": dribble(b"", 0.001, end=b"HTTP/1.1 102 Wait\r\n\r\n" * 1000),
}


@pytest.mark.parametrize("script", SLOW.values(), ids=list(SLOW))
def test_no_answer_takes_longer_than_the_deadline(script):
    with serving(script) as server:
        answer = timed(server.url)
    assert isinstance(answer, Lost)
    assert not answer.may_be_done


def test_redirects_that_dawdle_do_not_add_up():
    with serving(dribble(b"", 0.006, end=http(307, Location="/again"))) as server:
        answer = timed(server.url, "POST")
    assert isinstance(answer, Lost)
    assert answer.may_be_done
    assert len(server.asked) <= 3


def test_a_silence_ends_before_the_deadline():
    with serving(dribble(b"", every_s=60)) as server:
        assert isinstance(timed(server.url, deadline_seconds=60), Lost)


def test_slow_body_read_within_long_deadline():
    with serving(dribble(b"", 0.02, end=http(200, b"a" * 60))) as server:
        answer = transport(server.url, timeout_seconds=1, deadline_seconds=30).exchange("GET", "/x")
    assert isinstance(answer, Response)
    assert answer.body == b"a" * 60


BROKEN = {
    "closed at once": b"",
    "not HTTP": b"\x00\xff hello\r\n\r\n",
    "half a head": b"HTTP/1.1 200 OK\r\nContent-",
    "half a body": b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc",
    "a bad length": b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\nabc",
    "two lengths": b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nabc",
    "bad chunks": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    "half a chunk": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab",
    "bad gzip": http(200, b"not gzip", Content_Encoding="gzip"),
    "a huge head": b"HTTP/1.1 200 OK\r\nX: " + b"a" * 1_000_000,
    "another protocol": b"SSH-2.0-OpenSSH_9.2\r\n",
}


@pytest.mark.parametrize("script", BROKEN.values(), ids=list(BROKEN))
def test_partial_answer_lost_and_change_not_resent(script):
    with serving(script) as server:
        for method in ("GET", "POST"):
            answer = timed(server.url, method)
            assert isinstance(answer, Lost)
            assert answer.why
            assert answer.may_be_done is (method == "POST")
            assert answer.asked == f"{method} {server.url}/x"
    assert len(server.asked) == 2


def test_a_body_that_is_too_large_is_not_read_on(monkeypatch):
    monkeypatch.setattr(transport_module, "MAX_BODY_BYTES", 100_000)
    endless = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\n"

    def pour(send):
        send(endless)
        while send(b"a" * 65536):
            pass

    for script in (
        pour,
        http(200, b"a" * 100_001),
        http(200, gzip.compress(b"a" * 10_000_000), Content_Encoding="gzip"),
    ):
        with serving(script) as server:
            answer = transport(server.url, timeout_seconds=10).exchange("GET", "/x")
        assert answer == Lost(f"GET {server.url}/x", "the answer is larger than 100000 bytes", may_be_done=False)
    with serving(http(200, b"a" * 100_000)) as server:
        assert isinstance(transport(server.url).exchange("GET", "/x"), Response)


def test_unreachable_address_not_connected():
    """Nobody listening, a name that is no host and no address at all."""
    for url in ("http://127.0.0.1:1", "http://no-such-host.invalid", "ftp://127.0.0.1", "http://[::bad", "nonsense"):
        answer = transport(url, timeout_seconds=5).exchange("POST", "/x")
        assert isinstance(answer, NotConnected), url
        assert answer.why


def test_redirect_keeps_method_body_and_token():
    """The answer names the redirecting server."""
    with serving(http(200, b"done")) as leader, serving(http(308, Location=f"{leader.url}/y")) as follower:
        answer = transport(follower.url, "s3cret").exchange("PUT", "/x", body="{}", headers={"X-One": "1"})
    assert isinstance(answer, Response)
    assert (answer.body, answer.url) == (b"done", f"{leader.url}/y")
    for head in (follower.asked[0], leader.asked[0]):
        assert "Authorization: Bearer s3cret" in head
        assert "X-One: 1" in head
        assert "Content-Length: 2" in head
    assert leader.asked[0].startswith("PUT /y ")


def test_token_not_sent_to_redirect_target():
    with serving(http(200), host="127.0.0.2") as thief, serving(http(307, Location=f"{thief.url}/x")) as server:
        answer = transport(server.url, "s3cret").exchange("POST", "/x", body="{}")
        configured = transport(server.url, "s3cret", nodes=[thief.url]).exchange("GET", "/x")
        nobody = transport(server.url).exchange("GET", "/x")
    assert isinstance(answer, Misdirected)
    assert thief.url in answer.why
    assert "controller.nodes" in answer.why
    assert isinstance(configured, Response)
    assert isinstance(nobody, Response)
    assert ["s3cret" in head for head in thief.asked] == [True, False]


@pytest.mark.parametrize("host", ["a" * 100, "127.0.0.1:999999", "x..y", "xn--ü"])
def test_redirect_to_impossible_host_stops(host):
    with serving(http(307, Location=f"http://{host}/")) as server:
        assert isinstance(timed(server.url, timeout_seconds=2), NotConnected | Misdirected)


def test_redirects_in_a_circle_end():
    with serving(http(307, Location="/x")) as server:
        assert transport(server.url).exchange("GET", "/x") == Misdirected(f"{server.url}: more than 5 redirects")
    assert len(server.asked) == 6


@pytest.mark.parametrize("status", [301, 302, 303])
def test_other_redirects_are_answers_and_not_followed(status):
    with serving(http(status, Location="/y")) as server:
        answer = transport(server.url).exchange("POST", "/x")
    assert isinstance(answer, Response)
    assert answer.status == status
    assert len(server.asked) == 1


def test_environment_gives_no_proxy_or_password(monkeypatch, tmp_path):
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    (tmp_path / ".netrc").write_text("default login me password s3cret\n")
    monkeypatch.setenv("NETRC", str(tmp_path / ".netrc"))
    with serving(http(200)) as server:
        assert isinstance(transport(server.url).exchange("GET", "/x"), Response)
    assert "uthorization" not in server.asked[0]


def believing() -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(CERTIFICATE))


def test_tls_with_a_certificate_that_is_believed():
    with serving(http(200, b"done"), tls=True) as server:
        answer = transport(server.url, "s3cret", tls=believing(), timeout_seconds=10).exchange("POST", "/x")
    assert isinstance(answer, Response)
    assert answer.body == b"done"
    assert "Bearer s3cret" in server.asked[0]


def test_untrusted_tls_server_gets_no_token():
    with serving(http(200), tls=True) as server:
        strange = transport(server.url, "s3cret", timeout_seconds=10).exchange("GET", "/x")
        other_name = server.url.replace("localhost", "127.0.0.1")
        other = transport(other_name, "s3cret", tls=believing(), timeout_seconds=10).exchange("GET", "/x")
    for answer in (strange, other):
        assert isinstance(answer, NotConnected)
        assert "certificate verify failed" in answer.why
    assert server.asked == []


def test_redirect_from_https_to_http_refused():
    with serving(http(200)) as plain, serving(http(307, Location=f"{plain.url}/x"), tls=True) as server:
        answer = transport(server.url, "s3cret", tls=believing(), timeout_seconds=10).exchange("GET", "/x")
    assert isinstance(answer, Misdirected)
    assert plain.url in answer.why
    assert plain.asked == []


def test_tls_announced_address_gets_token():
    with serving(http(200, b"done"), tls=True) as leader:
        moved = http(307, Location=f"{leader.url}/x")
        own = leader.url.removeprefix("https://").encode()
        with serving(moved, http(200, b'["' + own + b'"]'), moved, tls=True) as server:
            one = transport(server.url, "s3cret", tls=believing(), timeout_seconds=10)
            answers = [one.exchange("GET", "/x") for _ in range(2)]
        assert all(isinstance(answer, Response) and answer.body == b"done" for answer in answers)
        assert [head.split()[1] for head in server.asked] == ["/x", "/admin/v2/brokers", "/x"]
        with serving(moved, http(403), moved, tls=True) as server:
            one = transport(server.url, "s3cret", tls=believing(), timeout_seconds=10)
            answers = [one.exchange("GET", "/x") for _ in range(2)]
        assert all(isinstance(answer, Misdirected) for answer in answers)
        assert len(leader.asked) == 2
        assert len(server.asked) == 3


def test_endless_handshake_times_out():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        answer = timed(f"https://127.0.0.1:{silent.getsockname()[1]}")
    assert isinstance(answer, NotConnected)


def test_tls_body_keeps_the_deadline():
    start = b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n"
    with serving(dribble(start, 0.02), tls=True) as server:
        one = transport(server.url, tls=believing(), timeout_seconds=1)
        began = time.monotonic()
        assert isinstance(one.exchange("GET", "/x"), Lost)
        assert time.monotonic() - began < 3


@pytest.mark.parametrize(("body", "parts"), [(None, 1), ("{}", 2)], ids=["no body", "body"])
def test_whole_request_was_not_withheld(body, parts):
    """Permission is asked once for each part, and not again when all parts were sent."""
    with serving(http(200)) as server:
        permissions = iter([True] * parts)
        with only_while(lambda: next(permissions, False)):
            answer = transport(server.url).exchange("POST", "/x", body=body)
    assert isinstance(answer, Response)


def test_withheld_request_does_not_reach_the_server():
    with serving(http(200)) as server, only_while(lambda: False):
        assert isinstance(transport(server.url).exchange("POST", "/x", body="{}"), NotConnected)
    assert not any(server.asked)


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
def test_closing_ends_what_waits_and_what_comes_later(tls):
    answers = []
    with serving(dribble(b"", every_s=60), tls=tls) as server:
        one = transport(server.url, timeout_seconds=60, **({"tls": believing()} if tls else {}))
        thread = threading.Thread(target=lambda: answers.append(one.exchange("GET", "/x")))
        thread.start()
        wait_until(lambda: server.asked)
        one.close()
        thread.join(10)
        answers.append(one.exchange("GET", "/x"))
    assert [type(answer) for answer in answers] == [Lost, NotConnected]


def test_closing_leaves_a_socket_to_the_thread_that_uses_it(monkeypatch):
    """Otherwise its number could belong to another connection by the time the thread waits on it."""
    reading, closed, sockets, answers = threading.Event(), threading.Event(), [], []
    read = SyncStream.read

    def late(self, *arguments, **named):
        sockets.append(self.get_extra_info("socket"))
        reading.set()
        closed.wait(30)
        return read(self, *arguments, **named)

    monkeypatch.setattr(SyncStream, "read", late)
    with serving(dribble(b"", every_s=60)) as server:
        one = transport(server.url, timeout_seconds=60)
        thread = threading.Thread(target=lambda: answers.append(one.exchange("GET", "/x")))
        thread.start()
        assert reading.wait(30)
        one.close()
        while_used = sockets[0].fileno()
        closed.set()
        thread.join(10)
    assert while_used >= 0
    assert [type(answer) for answer in answers] == [Lost]
    assert sockets[0].fileno() == -1


def test_call_that_connects_while_its_client_closes_is_not_sent(monkeypatch):
    connecting, closed, answers = threading.Event(), threading.Event(), []
    connect = SyncBackend.connect_tcp

    def late(self, *arguments, **named):
        connecting.set()
        closed.wait(30)
        return connect(self, *arguments, **named)

    monkeypatch.setattr(SyncBackend, "connect_tcp", late)
    with serving(http(200)) as server:
        one = transport(server.url, timeout_seconds=60)
        thread = threading.Thread(target=lambda: answers.append(one.exchange("POST", "/x")))
        thread.start()
        assert connecting.wait(30)
        one.close()
        closed.set()
        thread.join(10)
    assert [type(answer) for answer in answers] == [Lost]
    assert not any(server.asked)


def test_transport_serves_threads_concurrently():
    """Each thread has its own deadline."""
    answers: dict[str, object] = {}
    with serving(http(200)) as quick, serving(dribble(b"", every_s=60)) as slow:
        one = transport(quick.url, timeout_seconds=0.5)
        other = transport(slow.url, timeout_seconds=0.5)

        def ask(name, who):
            answers[name] = who.exchange("GET", "/x")

        threads = [
            threading.Thread(target=ask, args=(f"{name} {number}", who))
            for number in range(8)
            for name, who in (("quick", one), ("slow", other))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10)
    assert {name.split()[0] for name, answer in answers.items() if isinstance(answer, Response)} == {"quick"}
    assert len(answers) == 16
    assert all(isinstance(answer, Lost) for name, answer in answers.items() if name.startswith("slow"))


@pytest.mark.parametrize("url", ["http://127.0.0.1:8080", "https://host/base", "http://[::1]:80/"])
def test_addresses_of_an_interface(url):
    check_address(url)


@pytest.mark.parametrize(
    "url",
    ["127.0.0.1:8080", "ftp://host", "http://", "http://host?x=1", "http://host#x", "http://h:port", "http://[::bad"],
)
def test_what_is_no_address_of_an_interface(url):
    with pytest.raises(BadAddress):
        check_address(url)


def test_a_password_in_the_address_is_not_shown():
    with pytest.raises(PasswordInAddress) as caught:
        check_address("http://me:s3cret@host")
    assert "s3cret" not in str(caught.value)
