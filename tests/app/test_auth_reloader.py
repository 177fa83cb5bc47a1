"""Building the authenticator, and replacing it on a reload."""

from pathlib import Path
from typing import Any

import pytest

from tests.app.test_identity import settings
from tests.auth.issuer import token
from tests.endpoints.exchanges import FakeMcpService, make_request
from tests.identities import current_claims
from tests.tasks import settle, tidy
from trunkline.app.application import AuthReloader
from trunkline.auth.authenticator import WELL_KNOWN_PATH
from trunkline.config import AuthSettings, HttpSettings
from trunkline.endpoints.auth import AllowAll
from trunkline.endpoints.pages import HttpPage
from trunkline.endpoints.router import HttpRouter
from trunkline.mcp.identity import LOCAL_PRINCIPAL, Principal

HTTP = HttpSettings()


def auth_reloader(auth: AuthSettings | None) -> AuthReloader:
    return AuthReloader(auth, lambda address, why: None)


@pytest.mark.holds("C30")
@pytest.mark.parametrize("auth", [None, AuthSettings()])
async def test_without_auth_every_caller_is_the_local_principal(auth: AuthSettings | None) -> None:
    reloader = auth_reloader(auth)
    authenticator, pages = reloader.create_authenticator(HTTP)
    assert (reloader.is_required, isinstance(authenticator, AllowAll), pages) == (False, True, {})
    assert await reloader.identify({}) is LOCAL_PRINCIPAL


@tidy
async def test_with_auth_there_are_an_authenticator_and_metadata_pages() -> None:
    reloader = auth_reloader(settings())
    authenticator, pages = reloader.create_authenticator(HTTP)
    assert reloader.is_required
    assert authenticator.cached_principal(make_request()) is None
    assert sorted(pages) == [WELL_KNOWN_PATH, f"{WELL_KNOWN_PATH}/mcp"]
    with pytest.raises(ValueError, match="TRUNKLINE_TOKEN"):
        await reloader.identify({})
    reloader.stop()
    await settle()


def other_page(_: Any) -> HttpPage:
    return HttpPage(200, (), b"other")


@tidy
async def test_a_new_authenticator_replaces_pages_and_cached_principals() -> None:
    reloader = auth_reloader(settings())
    authenticator, pages = reloader.create_authenticator(HTTP)
    router = HttpRouter(
        FakeMcpService(), authenticator=authenticator, pages=pages | {"/metrics": other_page}
    )
    request = make_request(authorization=f"Bearer {token(**current_claims())}")
    assert isinstance(await router.authenticate(request), Principal)
    reloader.prepare(settings(issuer="https://other.example"), HTTP, router)()
    assert router.authenticator.cached_principal(request) is None
    assert not isinstance(await router.authenticate(request), Principal)
    assert (
        authenticator.cached_principal(request) is None
    )  # the old authenticator has an empty cache
    reloader.prepare(None, HTTP, router)()
    assert await router.authenticate(request) is LOCAL_PRINCIPAL
    assert list(router.pages) == ["/metrics"]
    reloader.prepare(settings(), HTTP, router)()
    assert len(router.pages) == 3
    reloader.stop()
    await router.aclose()


@tidy
async def test_an_authenticator_that_cannot_be_built_changes_nothing(tmp_path: Path) -> None:
    reloader = auth_reloader(settings())
    authenticator, pages = reloader.create_authenticator(HTTP)
    router = HttpRouter(FakeMcpService(), authenticator=authenticator, pages=pages)
    request = make_request(authorization=f"Bearer {token(**current_claims())}")
    await router.authenticate(request)
    bad = tmp_path / "keys.json"
    bad.write_text("nonsense")
    bad.chmod(0o600)
    with pytest.raises(ValueError, match=r"keys\.json"):
        reloader.prepare(AuthSettings(api_keys=bad), HTTP, router)
    assert router.authenticator is authenticator
    assert authenticator.cached_principal(request) is not None
    assert reloader.is_required
    assert (
        await reloader.identify({"TRUNKLINE_TOKEN": token(**current_claims())})
    ).subject == "ada"
    reloader.stop()
    await router.aclose()


async def test_auth_can_be_reloaded_without_a_router() -> None:
    reloader = auth_reloader(settings())
    reloader.prepare(None, HTTP, None)()
    assert not reloader.is_required
