"""Which redirects are followed, and that the token goes along."""

from __future__ import annotations

import pytest

from admin.redirects import Hop, next_hop

PLAIN = Hop("http://one:8080/admin/v2/x?force=true", with_token=True)
SECURE = Hop("https://one:8443/admin/v2/x", with_token=True)


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
def test_a_redirect_to_any_host_is_followed_with_the_token(asked, location, url):
    assert next_hop(asked, location) == Hop(url, with_token=True)


@pytest.mark.parametrize(
    "location",
    ["http://one:8443/x", "http://two/x", "ftp://two/x", "javascript:0", "file:///x", "http://[::b", "https://[::b/"],
)
def test_a_redirect_away_from_https_or_to_nowhere_is_not_followed(location):
    assert next_hop(SECURE, location) is None


@pytest.mark.parametrize("location", ["ftp://two/x", "javascript:0", "http://[::b", "http://h:port/"])
def test_a_redirect_to_what_is_no_http_address_is_not_followed(location):
    assert next_hop(PLAIN, location) is None


def test_a_token_that_was_dropped_is_not_picked_up_again():
    assert next_hop(Hop(PLAIN.url, with_token=False), "http://two/x") == Hop("http://two/x", with_token=False)
