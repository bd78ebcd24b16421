"""Which redirects are followed, and to which addresses a token goes along."""

from __future__ import annotations

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.admin.redirects import TokenAddresses, next_hop

PLAIN = httpx.URL("http://one:8080/admin/v2/x?force=true")
SECURE = httpx.URL("https://one:8443/admin/v2/x")


@pytest.mark.parametrize(
    ("asked", "location", "url"),
    [
        (PLAIN, "http://two:8080/admin/v2/x", "http://two:8080/admin/v2/x"),
        (PLAIN, "https://two/x", "https://two/x"),
        (PLAIN, "/y?z=1", "http://one:8080/y?z=1"),
        (PLAIN, "//two/x", "http://two/x"),
        (PLAIN, "HTTP://two/x", "http://two/x"),
        (SECURE, "https://two/x", "https://two/x"),
        (SECURE, "/y", "https://one:8443/y"),
    ],
)
def test_a_redirect_leads_to_any_http_address(asked, location, url):
    assert next_hop(asked, location) == httpx.URL(url)


@pytest.mark.parametrize(
    "location", ["http://one:8443/x", "http://two/x", "https://[::b/", "https://me@two/x", "https://one:8443@two/x"]
)
def test_redirect_from_https_or_nowhere_refused(location):
    assert next_hop(SECURE, location) is None


@pytest.mark.parametrize(
    "location", ["ftp://two/x", "javascript:0", "file:///x", "http://[::b", "http://h:port/", "http://a:b@two/"]
)
def test_redirect_to_other_scheme_refused(location):
    assert next_hop(PLAIN, location) is None


LOCAL, CLUSTER, TLS = "http://127.0.0.1:8080/base", "http://one:8080", "https://one:8443"
NODES = ("http://two:8080/", "https://three", "http://[fd00::2]:8080", "https://xn--bcher-kva.example:8443")


@pytest.mark.parametrize(
    ("base", "target", "goes"),
    [
        (CLUSTER, "http://one:8080/x", True),
        (CLUSTER, "http://ONE:8080/x", True),
        (CLUSTER, "http://two:8080/x", True),
        (CLUSTER, "https://three/x", True),
        (CLUSTER, "https://three:443/x", True),
        (CLUSTER, "http://[fd00:0::2]:8080/x", True),
        (CLUSTER, "https://bücher.example:8443/x", True),
        (CLUSTER, "https://one/x", True),
        (CLUSTER, "https://two:9/x", True),
        (CLUSTER, "http://one/x", False),
        (CLUSTER, "http://one:8081/x", False),
        (CLUSTER, "http://one.:8080/x", False),
        (CLUSTER, "http://one.evil.example:8080/x", False),
        (CLUSTER, "http://evil.example/one:8080", False),
        (CLUSTER, "http://evil.example:8080/x", False),
        (CLUSTER, "http://one:8080@evil.example/x", False),
        (CLUSTER, "http://one:8080\\@evil.example/x", False),
        (CLUSTER, "http://me:pass@one:8080/x", False),
        (CLUSTER, "http://three/x", False),
        (CLUSTER, "http://three:443/x", False),
        (CLUSTER, "https://three:8443/x", False),
        (CLUSTER, "https://fоur/x", False),
        (CLUSTER, "http://127.0.0.1:8080/x", False),
        (CLUSTER, "http://localhost:8080/x", False),
        (TLS, "https://one:8443/x", True),
        (TLS, "https://one/x", False),
        (TLS, "https://one:8444/x", False),
        (TLS, "https://evil.example:8443/x", False),
        (LOCAL, "http://127.0.0.1:8081/x", True),
        (LOCAL, "http://localhost:8081/x", True),
        (LOCAL, "http://[::1]:8081/x", True),
        (LOCAL, "http://127.0.0.2:8081/x", False),
        (LOCAL, "http://127.1:8081/x", False),
        (LOCAL, "http://2130706433:8081/x", False),
        (LOCAL, "http://localhost.evil.example/x", False),
        (LOCAL, "http://10.0.0.1:8080/x", False),
        (LOCAL, "https://127.0.0.1:8443/x", True),
    ],
)
def test_a_token_goes_to_configured_addresses_alone(base, target, goes):
    found = next_hop(httpx.URL(base), target)
    assert (found is not None and TokenAddresses(base, NODES).admit(found)) == goes


@pytest.mark.parametrize("listed", [b"", b"{}", b"[", b"[1, null, [], {}]", b"[" * 100_000, b'["", "@", "a@b", "::"]'])
def test_a_list_that_names_nobody_changes_nothing(listed):
    addresses = TokenAddresses(TLS)
    addresses.learn(listed)
    assert addresses.admit(SECURE)
    assert not addresses.admit(httpx.URL("https://b/"))


def test_tls_server_listed_gets_token_by_https_only():
    """Addresses listed by a server with a certificate get the token through https alone."""
    addresses = TokenAddresses(TLS)
    addresses.learn(b'["one:8443", "two:8443", "two", "three:1/x", "me@four:8443"]')
    for url, goes in [
        ("https://two:8443/x", True),
        ("https://two/x", True),
        ("http://two:8443/x", False),
        ("https://two:1/x", False),
        ("https://four:8443/x", False),
        ("https://one:8443/x", True),
    ]:
        assert addresses.admit(httpx.URL(url)) == goes, url
    addresses.learn(b'["one:8443"]')
    assert not addresses.admit(httpx.URL("https://two:8443/x"))


locations = st.one_of(
    st.text(max_size=40),
    st.builds(
        "{}{}{}{}".format,
        st.sampled_from(["http://", "https://", "//", "HTTP:\\\\", "http:///", "http:/", ""]),
        st.sampled_from(["", "one:8080@", "me@", "one:8080#@", "one:8080\\@", "one:8080%2f@", "[::1]@"]),
        st.sampled_from(["evil.example", "one", "ONE.", "127.0.0.1", "[::1]", "[::ffff:127.0.0.1]", "０ne", "one\t"]),
        st.sampled_from(["", ":8080", ":80", ":443", "/one:8080", "?@one:8080", ":8080@evil.example", ":0x1F90"]),
    ),
)


@given(locations)
def test_token_goes_to_configured_hosts_only(location):
    """A token goes only to configured hosts, regardless of the Location header."""
    asked = httpx.URL("http://one:8080/admin")
    found = next_hop(asked, location)
    if found is not None and TokenAddresses("http://one:8080").admit(found):
        # What is connected to is this host and port, and nothing else of the text.
        assert (found.raw_host, found.userinfo) == (b"one", b"")
        assert found.scheme == "https" or found.port == 8080
