"""What URLs name, and which addresses are on the public internet."""

import asyncio

import pytest

from trunkline.http.address import (
    HttpUrl,
    TrustedProxies,
    check_target,
    client_network,
    is_loopback_address,
    is_public_address,
    names_remote_hop,
    parse_http_url,
    resolve_host,
)

PUBLIC = """
1.1.1.1 8.8.8.8 93.184.215.14 100.63.255.255 100.128.0.0 126.255.255.255 128.0.0.0
168.63.129.15 169.253.255.255 169.255.0.0 172.15.255.255 172.32.0.0 191.255.255.255 192.0.1.0
192.167.255.255 192.169.0.0 198.17.255.255 198.20.0.0 223.255.255.255 11.0.0.0 9.255.255.255
2606:4700:4700::1111 2a00:1450:4001:82b::200e 2001:200::1 2001:db7:ffff::1 2001:db9::1
3ffe:ffff::1 2003::1
::ffff:8.8.8.8 ::8.8.8.8 64:ff9b::8.8.8.8 2002:808:808::1 2001:0:808:808::f7f7:f7f7
"""

NOT_PUBLIC = """
0.0.0.0 0.1.2.3 10.0.0.1 10.255.255.255 100.64.0.1 100.127.255.255 127.0.0.1 127.255.255.255
169.254.0.1 172.16.0.1 172.31.255.255 192.0.0.1 192.0.0.170 192.0.2.1 192.88.99.1 192.168.0.1
198.18.0.1 198.19.255.255 198.51.100.1 203.0.113.1 224.0.0.1 239.255.255.255 240.0.0.1
255.255.255.255
169.254.169.254 169.254.170.2 100.100.100.200 168.63.129.16 192.0.0.192 fd00:ec2::254
:: ::1 fc00::1 fd12:3456::1 fe80::1 fe80::1%eth0 fec0::1 ff02::1 ff0e::1 100::1 1::1 4000::1
2001:2::1 2001:10::1 2001:20::1 2001:1ff::1 2001:db8::1 3fff::1 3fff:fff::1 5f00::1
::ffff:127.0.0.1 ::ffff:10.0.0.1 ::ffff:169.254.169.254 ::ffff:0:8.8.8.8
::127.0.0.1 ::10.0.0.1 ::2
64:ff9b::127.0.0.1 64:ff9b::192.168.0.1 64:ff9b::a9fe:a9fe
64:ff9b:1::8.8.8.8 64:ff9b:1::10.0.0.1 64:ff9b:2::8.8.8.8
2002:7f00:1::1 2002:a00:1::1 2002:c0a8:1::1 2002:a9fe:a9fe::
2001:0:7f00:1::f7f7:f7f7 2001:0:808:808::f5ff:fffe 2001:0:808:808::80ff:fffe
localhost example.com 127.1 0x7f000001 2130706433 8.8.8.8/32 8.8.8.08 [2606:4700::1111] 8.8.8.8:80
"""


@pytest.mark.parametrize("address", PUBLIC.split())
def test_public_addresses(address: str) -> None:
    assert is_public_address(address)


@pytest.mark.parametrize("address", [*NOT_PUBLIC.split(), "", " 8.8.8.8"])
def test_addresses_that_are_not_public_in_any_form(address: str) -> None:
    assert not is_public_address(address)


@pytest.mark.parametrize(
    ("url", "origin", "name", "authority"),
    [
        ("http://h", HttpUrl(False, "h", 80, "/"), "h:80", "h"),
        ("https://h", HttpUrl(True, "h", 443, "/"), "h:443", "h"),
        ("http://h:443/", HttpUrl(False, "h", 443, "/"), "h:443", "h:443"),
        ("https://h:443/a/b?c=d&e#f", HttpUrl(True, "h", 443, "/a/b?c=d&e"), "h:443", "h"),
        ("http://h?q", HttpUrl(False, "h", 80, "/?q"), "h:80", "h"),
        (
            "HTTP://H.Example:8080/A",
            HttpUrl(False, "h.example", 8080, "/A"),
            *["h.example:8080"] * 2,
        ),
        ("http://[0:0::1]:80/", HttpUrl(False, "::1", 80, "/"), "[::1]:80", "[::1]"),
        ("https://[::1]:81/", HttpUrl(True, "::1", 81, "/"), *["[::1]:81"] * 2),
        ("http://é.example/%C3%A9", HttpUrl(False, "xn--9ca.example", 80, "/%C3%A9"), "", ""),
        ("http://my_host-1/", HttpUrl(False, "my_host-1", 80, "/"), "my_host-1:80", "my_host-1"),
    ],
)
def test_a_url_has_a_host_a_port_and_a_target(
    url: str, origin: HttpUrl, name: str, authority: str
) -> None:
    found = parse_http_url(url)
    assert found == origin
    if name:
        assert (found.name, found.authority) == (name, authority)


NO_URLS = """
h h:80 //h ftp://h ws://h file:///etc/passwd http:h http:///p http://:80 https://? http://[::1
http://[::1%25eth0]/ http://[::g]/ http://h:0 http://h:65536 http://h:x http://a..b http://a,b
http://a\\b http://a%0d%0ab http://h/é
"""
NASTY_URLS = ["", "http://h/a b", "http://h/\r\nx: y", "\thttp://h", "http://h/\n", "http://h/\0"]


@pytest.mark.parametrize("url", [*NO_URLS.split(), *NASTY_URLS, f"http://{'a' * 64}.example/"])
def test_other_urls_are_rejected(url: str) -> None:
    with pytest.raises(ValueError, match=r"^expected "):
        parse_http_url(url)


@pytest.mark.parametrize(
    "url",
    """
    http://u:secret@h/ http://secret@h/ ftp://u:secret@h u:secret@h/ secret@h http://u:secret@℀/
    http://u:secret/@h http://u:secret@h:x/
    """.split(),
)
def test_a_url_with_credentials_is_rejected_without_quoting_them(url: str) -> None:
    with pytest.raises(ValueError, match="URL") as error:
        parse_http_url(url)
    assert "secret" not in str(error.value)


def test_the_error_says_where_credentials_belong() -> None:
    with pytest.raises(ValueError, match="put them into headers"):
        parse_http_url("http://u:secret@h/")


@pytest.mark.parametrize("target", ["/", "/a?b=c", "/%20", "//x"])
def test_a_target_is_kept_unchanged(target: str) -> None:
    assert check_target(target) == target


@pytest.mark.parametrize(
    "target", ["", "a", "*", "/a b", "/\r", "/\n", "/\0", "/é", "/#x", "/\x7f"]
)
def test_a_target_that_cannot_be_sent_is_rejected(target: str) -> None:
    with pytest.raises(ValueError, match="percent-encoded"):
        check_target(target)


@pytest.mark.parametrize(
    ("host", "address"),
    [("127.0.0.1", "127.0.0.1"), ("0x7f.1", "127.0.0.1"), ("2130706433", "127.0.0.1")],
)
async def test_a_host_is_resolved_to_connectable_addresses(host: str, address: str) -> None:
    assert await resolve_host(asyncio.get_running_loop(), host, 80) == [address]


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("", ""),
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::9", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("not:an:address", "not:an:address"),
    ],
)
def test_addresses_of_one_customer_count_as_one(address: str, network: str) -> None:
    assert client_network(address) == network


@pytest.mark.parametrize("address", ["127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1"])
def test_a_loopback_address_is_on_this_machine(address: str) -> None:
    assert is_loopback_address(address)


@pytest.mark.parametrize(
    "address", ["", "localhost", "0.0.0.0", "10.0.0.1", "::", "::ffff:10.0.0.1", "fe80::1", "::2"]
)
def test_other_and_unknown_addresses_are_not_on_this_machine(address: str) -> None:
    assert not is_loopback_address(address)


PROXIES = TrustedProxies(["127.0.0.1", "10.0.0.0/8", "fd00::/8"])
FORWARDED_FOR, FORWARDED = b"x-forwarded-for", b"forwarded"


@pytest.mark.parametrize(
    ("peer", "headers", "client"),
    [
        ("10.0.0.1", {}, "10.0.0.1"),
        ("10.0.0.1", {FORWARDED_FOR: b"192.0.2.1"}, "192.0.2.1"),
        ("::ffff:10.0.0.1", {FORWARDED_FOR: b"192.0.2.1"}, "192.0.2.1"),
        ("192.0.2.9", {FORWARDED_FOR: b"192.0.2.1"}, "192.0.2.9"),
        ("", {FORWARDED_FOR: b"192.0.2.1"}, ""),
        # From right to left, over trusted hops only: the client wrote the rest.
        ("10.0.0.1", {FORWARDED_FOR: b"127.0.0.1, 192.0.2.1 ,10.0.0.2"}, "192.0.2.1"),
        ("10.0.0.1", {FORWARDED_FOR: b"nonsense, 192.0.2.1"}, "192.0.2.1"),
        ("10.0.0.1", {FORWARDED_FOR: b"10.0.0.3, 10.0.0.2"}, "10.0.0.3"),
        ("fd00::1", {FORWARDED_FOR: b"2001:db8::1"}, "2001:db8::1"),
        # With ports.
        ("10.0.0.1", {FORWARDED_FOR: b"192.0.2.1:4711"}, "192.0.2.1"),
        ("10.0.0.1", {FORWARDED_FOR: b"[2001:db8::1]:4711"}, "2001:db8::1"),
        # No address: never that of the proxy, which may be a local one.
        ("127.0.0.1", {FORWARDED_FOR: b"unknown"}, ""),
        ("127.0.0.1", {FORWARDED_FOR: b""}, ""),
        ("127.0.0.1", {FORWARDED: b"by=10.0.0.1"}, ""),
        ("127.0.0.1", {FORWARDED: b"for=_hidden"}, ""),
        ("127.0.0.1", {FORWARDED_FOR: b"10.0.0.2," * 40 + b"10.0.0.2"}, ""),
        # RFC 7239.
        ("10.0.0.1", {FORWARDED: b'for=192.0.2.1;proto=https, For="[fd00::2]:80"'}, "192.0.2.1"),
        ("10.0.0.1", {FORWARDED: b'for="127.0.0.1, for=192.0.2.1'}, "192.0.2.1"),
        ("10.0.0.1", {FORWARDED: b"for=127.0.0.1", FORWARDED_FOR: b"192.0.2.1"}, "192.0.2.1"),
    ],
)
def test_a_trusted_proxy_names_the_address_of_the_client(
    peer: str, headers: dict[bytes, bytes], client: str
) -> None:
    assert PROXIES.client_address(peer, headers) == client


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({}, False),
        ({b"x-forwarded-for": b"127.0.0.1"}, False),
        ({b"x-forwarded-for": b"127.0.0.1, ::1"}, False),
        ({b"forwarded": b'for="[::1]:80", for=127.0.0.1;proto=https'}, False),
        ({b"x-forwarded-for": b"127.0.0.1, 192.0.2.1"}, True),
        ({b"x-forwarded-for": b"127.0.0.1", b"forwarded": b"for=192.0.2.1"}, True),
        ({b"forwarded": b"for=unknown"}, True),
        ({b"forwarded": b"proto=https"}, True),
        ({b"x-forwarded-for": b""}, True),
    ],
)
def test_a_hop_on_another_machine_is_found_in_either_header(
    headers: dict[bytes, bytes], expected: bool
) -> None:
    assert names_remote_hop(headers) is expected


def test_only_networks_can_be_trusted() -> None:
    assert "10.1.2.3" in PROXIES
    assert "11.1.2.3" not in PROXIES
    assert "" not in PROXIES
    with pytest.raises(ValueError, match="host bits set"):
        TrustedProxies(["10.0.0.1/8"])
