"""Who is let in, by the names that they use and the pages that they come from."""

import pytest

from trunkline.transports.http_rules import REQUEST_HEADERS, HttpRules, cors, preflight

OPEN = HttpRules(
    allowed_hosts=frozenset({"gateway.example", "other.example:8443"}),
    allowed_origins=frozenset({"https://app.example"}),
)


@pytest.mark.parametrize(
    "host",
    [b"localhost", b"localhost:8080", b"LocalHost:1", b"127.0.0.1", b"127.0.0.2:80", b"[::1]:80"],
)
def test_loopback_is_always_let_in(host: bytes) -> None:
    assert not HttpRules().refuses_host(host)
    assert not OPEN.refuses_host(host)


@pytest.mark.parametrize(
    "host",
    [
        None,
        b"",
        b"evil.example",
        b"localhost.evil.example",
        b"evil.example:localhost",
        b"localhost:80:80",
        b"localhost:",
        b"127.0.0.1.evil.example",
        b"127.0.0.1.1",
        b"127.evil.example",
        b"\xe9\xff",
    ],
)
def test_a_host_that_is_not_ours_is_refused(host: bytes | None) -> None:
    assert HttpRules().refuses_host(host)
    assert OPEN.refuses_host(host)


def test_a_host_is_let_in_by_name() -> None:
    for host in (b"gateway.example", b"gateway.example:99", b"Other.Example:8443"):
        assert not OPEN.refuses_host(host)
    assert OPEN.refuses_host(b"other.example:80")
    assert not HttpRules(allowed_hosts=frozenset("*")).refuses_host(b"any.example")


@pytest.mark.parametrize(
    "origin", [None, b"http://localhost:3000", b"https://127.1.2.3", b"http://[::1]:5"]
)
def test_no_origin_and_those_of_loopback_are_let_in(origin: bytes | None) -> None:
    assert not HttpRules().refuses_origin(origin)


@pytest.mark.parametrize(
    "origin",
    [
        b"",
        b"null",
        b"https://evil.example",
        b"http://localhost.evil.example",
        b"http://localhost@evil.example",
        b"file://localhost",
        b"chrome-extension://abc",
    ],
)
def test_an_origin_that_is_not_ours_is_refused(origin: bytes) -> None:
    assert HttpRules().refuses_origin(origin)


def test_an_origin_is_let_in_by_name() -> None:
    assert not OPEN.refuses_origin(b"https://app.example")
    assert OPEN.refuses_origin(b"http://app.example")
    assert not HttpRules(allowed_origins=frozenset("*")).refuses_origin(b"https://any.example")


def test_who_is_not_admitted_is_told_which_rule_it_was() -> None:
    rules = HttpRules()
    assert rules.refusal_of(b"localhost", None) is None
    for host, origin, status, word in (
        (b"evil.example", None, 421, "allowed_hosts"),
        (b"localhost", b"https://evil.example", 403, "allowed_origins"),
        (b"evil.example", b"https://evil.example", 421, "allowed_hosts"),
    ):
        refused = rules.refusal_of(host, origin)
        assert refused is not None
        assert refused[0] == status
        assert word in refused[1]


def test_a_page_may_read_the_headers_that_it_needs() -> None:
    assert cors(None) == ()
    found = dict(cors(b"http://localhost:3000"))
    assert found[b"access-control-allow-origin"] == b"http://localhost:3000"
    assert b"mcp-session-id" in found[b"access-control-expose-headers"]
    assert b"www-authenticate" in found[b"access-control-expose-headers"]
    assert found[b"vary"] == b"origin"


def test_a_page_may_send_what_mcp_needs_and_parameters_as_it_asks() -> None:
    plain = dict(preflight(None))
    assert plain[b"access-control-allow-headers"] == REQUEST_HEADERS.encode()
    for method in (b"GET", b"POST", b"DELETE"):
        assert method in plain[b"access-control-allow-methods"]
    wanted = b"Mcp-Param-Region, x-evil,Mcp-Param-A, content-type"
    found = dict(preflight(wanted))[b"access-control-allow-headers"]
    assert found == REQUEST_HEADERS.encode() + b", mcp-param-a, mcp-param-region"
