"""Which addresses the gateway may listen on, and which URLs it may call."""

import pytest

from trunkline.config.addresses import (
    AddressError,
    is_confidential,
    is_http_url,
    is_http_url_without_user,
    split_address,
)


@pytest.mark.parametrize(
    ("address", "host_and_port"),
    [
        ("127.0.0.1:8080", ("127.0.0.1", 8080)),
        ("127.1.2.3:0", ("127.1.2.3", 0)),
        ("localhost:1", ("localhost", 1)),
        ("[::1]:65535", ("::1", 65535)),
    ],
)
def test_a_loopback_address_is_split_into_host_and_port(
    address: str, host_and_port: tuple[str, int]
) -> None:
    assert split_address(address) == host_and_port


@pytest.mark.parametrize("address", ["", "8080", ":8080", "::1:80", "a b:80", "0.0.0.0:80"])
def test_any_other_address_is_refused(address: str) -> None:
    with pytest.raises(AddressError, match=r"expected a (host and a port|loopback address).*; w"):
        split_address(address)


@pytest.mark.parametrize(
    ("url", "is_http", "without_user", "confidential"),
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
def test_a_url_is_checked_for_scheme_user_and_confidentiality(
    url: str, is_http: bool, without_user: bool, confidential: bool
) -> None:
    assert (is_http_url(url), is_http_url_without_user(url), is_confidential(url)) == (
        is_http,
        without_user,
        confidential,
    )
