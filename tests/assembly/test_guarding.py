"""Who stands at the door, and who takes their place."""

from pathlib import Path
from typing import Any

import pytest

from tests.assembly.test_identity import settings
from tests.auth.issuer import token
from tests.identities import real_claims
from tests.jsonrpc.test_channel import settle, tidy
from tests.transports.exchanges import House, asked
from trunkline.assembly.guarding import Guarding
from trunkline.auth.metadata import WELL_KNOWN
from trunkline.config import AuthSettings, HttpSettings
from trunkline.mcp.principal import LOCAL, Principal
from trunkline.transports.http_guard import Open, Page
from trunkline.transports.http_server import HttpServer

HTTP = HttpSettings()


def guarding(auth: AuthSettings | None) -> Guarding:
    return Guarding(auth, lambda address, why: None)


@pytest.mark.holds("C30")
@pytest.mark.parametrize("auth", [None, AuthSettings()])
async def test_where_nobody_is_asked_everybody_is_local(auth: AuthSettings | None) -> None:
    made = guarding(auth)
    guard, pages = made.open(HTTP)
    assert (made.asks, isinstance(guard, Open), pages) == (False, True, {})
    assert await made.identify({}) is LOCAL


@tidy
async def test_where_somebody_is_asked_there_is_a_guard_and_what_it_tells() -> None:
    made = guarding(settings())
    guard, pages = made.open(HTTP)
    assert made.asks
    assert guard.recognise(asked()) is None
    assert sorted(pages) == [WELL_KNOWN, f"{WELL_KNOWN}/mcp"]
    with pytest.raises(ValueError, match="TRUNKLINE_TOKEN"):
        await made.identify({})
    made.stop()
    await settle()


def other(_: Any) -> Page:
    return Page(200, (), b"other")


@tidy
async def test_a_guard_is_changed_whole_and_what_was_proven_is_not_any_more() -> None:
    made = guarding(settings())
    guard, pages = made.open(HTTP)
    door = HttpServer(House(), guard=guard, pages=pages | {"/metrics": other})
    request = asked(authorization=f"Bearer {token(**real_claims())}")
    assert isinstance(await door.identify(request), Principal)
    made.prepare(settings(issuer="https://other.example"), HTTP, door)()
    assert door.guard.recognise(request) is None
    assert not isinstance(await door.identify(request), Principal)
    assert guard.recognise(request) is None  # the old one has forgotten everybody
    made.prepare(None, HTTP, door)()
    assert await door.identify(request) is LOCAL
    assert list(door.pages) == ["/metrics"]
    made.prepare(settings(), HTTP, door)()
    assert len(door.pages) == 3
    made.stop()
    await door.aclose()


@tidy
async def test_a_guard_that_cannot_be_made_changes_nothing(tmp_path: Path) -> None:
    made = guarding(settings())
    guard, pages = made.open(HTTP)
    door = HttpServer(House(), guard=guard, pages=pages)
    request = asked(authorization=f"Bearer {token(**real_claims())}")
    await door.identify(request)
    bad = tmp_path / "keys.json"
    bad.write_text("nonsense")
    bad.chmod(0o600)
    with pytest.raises(ValueError, match=r"keys\.json"):
        made.prepare(AuthSettings(keys=bad), HTTP, door)
    assert door.guard is guard
    assert guard.recognise(request) is not None
    assert made.asks
    assert (await made.identify({"TRUNKLINE_TOKEN": token(**real_claims())})).subject == "ada"
    made.stop()
    await door.aclose()


async def test_without_a_door_the_next_one_is_guarded_as_it_says() -> None:
    made = guarding(settings())
    made.prepare(None, HTTP, None)()
    assert not made.asks
