"""Where we may listen, and which urls can be called, and called safely."""

import pytest

from trunkline.config.addresses import AddressError, is_bare, is_safe, is_web, split_address


@pytest.mark.parametrize(
    ("address", "place"),
    [
        ("127.0.0.1:8080", ("127.0.0.1", 8080)),
        ("127.1.2.3:0", ("127.1.2.3", 0)),
        ("localhost:1", ("localhost", 1)),
        ("[::1]:65535", ("::1", 65535)),
    ],
)
def test_an_address_of_loopback_is_a_host_and_a_port(address: str, place: tuple[str, int]) -> None:
    assert split_address(address) == place


@pytest.mark.parametrize("address", ["", "8080", ":8080", "::1:80", "a b:80", "0.0.0.0:80"])
def test_any_other_is_refused(address: str) -> None:
    with pytest.raises(AddressError, match=r"expected a (host and a port|loopback address).*; w"):
        split_address(address)


@pytest.mark.parametrize(
    ("url", "web", "bare", "safe"),
    [
        ("https://a.example/x?y#z", True, True, True),
        ("http://a.example", True, True, False),
        ("http://LOCALHOST:8080", True, True, True),
        ("http://[::1]/", True, True, True),
        ("https://me:secret@a.example", True, False, True),
        ("https://@a.example", True, False, True),
        ("https://a.example/a b", False, False, True),
        ("https://a.example:port", False, False, False),
        ("http://[::1", False, False, False),
        ("https://", False, False, True),
        ("ftp://a.example", False, False, False),
        ("", False, False, False),
    ],
)
def test_a_url_is_looked_at_before_it_is_called(
    url: str, web: bool, bare: bool, safe: bool
) -> None:
    assert (is_web(url), is_bare(url), is_safe(url)) == (web, bare, safe)
