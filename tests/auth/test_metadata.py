"""What a client is told that has no token, and where it learns more."""

import json
import re

import pytest

from tests.transports.exchanges import asked
from trunkline.auth.metadata import WELL_KNOWN, Resource
from trunkline.auth.proof import Fault

PUBLIC = Resource(
    url="https://gw.example/mcp", servers=("https://id.example",), scopes=("mcp:tools", "b")
)


def told(header: bytes) -> dict[str, str]:
    scheme, _, rest = header.decode().partition(" ")
    assert scheme == "Bearer"
    return dict(re.findall(r'(\w+)="([^"]*)"', rest))


def test_what_we_are_is_to_be_read_in_both_places() -> None:
    pages = PUBLIC.pages()
    assert sorted(pages) == [WELL_KNOWN, f"{WELL_KNOWN}/mcp"]
    for page in pages.values():
        found = page(asked(method="GET"))
        assert (found.status, dict(found.headers)[b"content-type"]) == (200, b"application/json")
        assert json.loads(found.body) == {
            "resource": "https://gw.example/mcp",
            "authorization_servers": ["https://id.example"],
            "scopes_supported": ["mcp:tools", "b"],
            "bearer_methods_supported": ["header"],
            "resource_name": "Trunkline",
        }


def test_without_a_url_we_are_what_a_client_asked_for() -> None:
    page = Resource().page(asked(method="GET", host="localhost:8080"))
    assert json.loads(page.body)["resource"] == "http://localhost:8080/mcp"
    assert dict(page.headers)[b"cache-control"] == b"no-store"
    secure = Resource(secure=True, path="/").page(asked(method="GET", host="gw.example"))
    assert json.loads(secure.body)["resource"] == "https://gw.example/"
    assert "authorization_servers" not in json.loads(secure.body)


@pytest.mark.parametrize(
    ("resource", "places", "url"),
    [
        (Resource(), ["", "/mcp"], "http://localhost/.well-known/oauth-protected-resource/mcp"),
        (Resource(path="/"), [""], "http://localhost/.well-known/oauth-protected-resource"),
        (
            Resource(url="https://gw.example/a/mcp", path="/mcp"),
            ["", "/a/mcp", "/mcp"],
            "https://gw.example/.well-known/oauth-protected-resource/a/mcp",
        ),
        (
            Resource(url="https://gw.example", path="/mcp"),
            ["", "/mcp"],
            "https://gw.example/.well-known/oauth-protected-resource",
        ),
    ],
)
def test_the_place_is_where_rfc_9728_has_it(
    resource: Resource, places: list[str], url: str
) -> None:
    assert sorted(resource.pages()) == [WELL_KNOWN + place for place in places]
    challenge = resource.challenge(asked(host="localhost"), "no")
    assert told(challenge.headers[0][1])["resource_metadata"] == url


def test_who_made_no_mistake_is_told_of_none() -> None:
    challenge = PUBLIC.challenge(asked(), "expected a token")
    assert challenge.status == 401
    ((name, value),) = challenge.headers
    assert name == b"www-authenticate"
    assert told(value) == {
        "resource_metadata": f"https://gw.example{WELL_KNOWN}/mcp",
        "scope": "mcp:tools b",
    }


@pytest.mark.parametrize(
    ("fault", "status"),
    [("invalid_request", 400), ("invalid_token", 401), ("insufficient_scope", 403)],
)
def test_a_mistake_has_its_status_and_its_name(fault: Fault, status: int) -> None:
    challenge = PUBLIC.challenge(asked(), 'a "quoted" \\ reason', fault)
    assert challenge.status == status
    found = told(challenge.headers[0][1])
    assert (found["error"], found["error_description"]) == (fault, "a 'quoted' / reason")


def test_our_own_fault_is_not_the_clients() -> None:
    challenge = PUBLIC.challenge(asked(), "later", "unavailable")
    assert (challenge.status, challenge.headers) == (503, ((b"retry-after", b"5"),))


def test_a_host_cannot_add_to_a_header() -> None:
    challenge = Resource().challenge(asked(host='x", error="no\\'), "no")
    assert told(challenge.headers[0][1]).keys() == {"resource_metadata"}
