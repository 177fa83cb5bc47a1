"""A new kind of backend is one file and one line: it is configured, served, governed and closed."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest

import tests.app.echo_backend as kind_file
from tests.app.echo_backend import EchoBackend, EchoSettings
from tests.app.test_application_reload import AppHarness
from tests.gateway.servers import session_client, text_of
from tests.gateway.stateless_callers import stateless_caller
from trunkline.config import config_schema, load_config, read_raw_config, to_toml
from trunkline.config.server_table import BACKEND_KINDS
from trunkline.documents.errors import ConfigErrors
from trunkline.gateway.backend import BackendFeatures
from trunkline.gateway.gateway import Gateway
from trunkline.jsonrpc import METHOD_NOT_FOUND, to_raw
from trunkline.mcp.features import Feature, FeatureKind

ECHO = "[servers.e]\necho = 'hello ${NAME}'\n"
ENVIRON = {"NAME": "Anna"}


@pytest.fixture(autouse=True)
def _echo(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(BACKEND_KINDS, "echo", EchoSettings)


@asynccontextmanager
async def serving(folder: Path, *tables: str) -> AsyncGenerator[Gateway]:
    """Run a gateway with an echo server and these tables."""
    app = AppHarness(folder, ECHO, *tables, environ=ENVIRON).app
    async with app.running() as gateway:
        await gateway.registry.wait_complete()
        yield gateway


def echo_of(gateway: Gateway) -> EchoBackend:
    backend = gateway.registry.upstream("e").backend
    assert isinstance(backend, EchoBackend)
    return backend


def errors_of(folder: Path, text: str) -> list[str]:
    (folder / "bad.toml").write_text(text)
    with pytest.raises(ConfigErrors) as raised:
        load_config(folder / "bad.toml", {})
    return [line.partition("bad.toml:")[2] for line in str(raised.value).splitlines()]


def test_the_file_of_a_kind_is_short() -> None:
    assert len(Path(kind_file.__file__).read_text(encoding="utf-8").splitlines()) <= 40


# Configuration


def test_its_keys_are_resolved_and_checked(tmp_path: Path) -> None:
    (tmp_path / "good.toml").write_text(ECHO)
    (server,) = load_config(tmp_path / "good.toml", ENVIRON).servers
    assert (server.backend, server.effective_prefix) == (EchoSettings(echo="hello Anna"), "e")
    assert errors_of(tmp_path, "[servers.e]\necho = 1\nargs = []\n") == [
        "2: servers.e.echo: expected text, got a whole number; put it in quotes",
        "3: servers.e.args: belongs to a server with a command; leave it out",
    ]
    assert errors_of(tmp_path, "[servers.e]\necho = 'x'\ncommand = 'y'\n") == [
        "2: servers.e.echo: command and echo are both given; "
        "keep one: they are different kinds of server"
    ]
    assert errors_of(tmp_path, "[servers.e]\necha = 'x'\n") == [
        '2: servers.e.echa: unknown key; did you mean "echo"?'
    ]


def test_its_keys_are_in_the_schema_and_can_be_written(tmp_path: Path) -> None:
    validator: Any = jsonschema.Draft202012Validator(config_schema())
    assert validator.is_valid({"servers": {"e": {"echo": "x"}}})
    assert not validator.is_valid({"servers": {"e": {"echo": 1}}})
    assert not validator.is_valid({"servers": {"e": {"echo": "x", "command": "y"}}})
    (tmp_path / "some.toml").write_text(ECHO)
    assert 'echo = "hello ${NAME}"' in to_toml(read_raw_config(tmp_path / "some.toml"))


class Options(msgspec.Struct, forbid_unknown_fields=True):
    loud: bool = False


class OptionsSettings(EchoSettings, frozen=True, kw_only=True):
    options: Options | None = None


def test_its_keys_may_be_tables(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(BACKEND_KINDS, "echo", OptionsSettings)
    validator: Any = jsonschema.Draft202012Validator(config_schema())
    assert validator.is_valid({"servers": {"e": {"echo": "x", "options": {"loud": True}}}})
    assert not validator.is_valid({"servers": {"e": {"echo": "x", "options": {"loud": 1}}}})
    assert not validator.is_valid({"servers": {"e": {"command": "x", "options": {}}}})
    (tmp_path / "some.toml").write_text(ECHO + "options = { loud = true }\n")
    written = to_toml(read_raw_config(tmp_path / "some.toml"))
    (tmp_path / "new.toml").write_text(written)
    (server,) = load_config(tmp_path / "new.toml", ENVIRON).servers
    assert server.backend == OptionsSettings(echo="hello Anna", options=Options(loud=True))


async def test_a_reload_restarts_it_if_one_of_its_keys_changes(tmp_path: Path) -> None:
    harness = AppHarness(tmp_path, ECHO, environ=ENVIRON)
    async with harness.app.running() as gateway:
        await gateway.registry.wait_complete()
        before = echo_of(gateway)
        adjusted = await harness.reload(ECHO, "timeout = 5")
        assert adjusted.changed == ("servers.e: adjusted (timeout)",)
        assert echo_of(gateway) is before
        restarted = await harness.reload("[servers.e]\necho = 'bye'\ntimeout = 5")
        assert restarted.changed == ("servers.e: restarted (echo)",)
        await before.wait_ended()


# Calls


async def test_clients_of_both_protocols_list_and_call_its_tool(tmp_path: Path) -> None:
    async with serving(tmp_path) as gateway:
        async with session_client(gateway) as session:
            assert await session.names() == ["e__say"]
            assert text_of(await session.call("e__say")) == "hello Anna"
        stateless = await stateless_caller(gateway)
        listed = await stateless.ask("tools/list")
        assert [tool["name"] for tool in listed["tools"]] == ["e__say"]
        result = await stateless.call("e__say")
        assert (result["resultType"], text_of(result)) == ("complete", "hello Anna")
        backend = echo_of(gateway)
        assert not backend.closed.is_set()
    assert backend.closed.is_set()


async def test_its_calls_are_governed(tmp_path: Path) -> None:
    strict, limits = "[gateway]\ncheck_arguments = 'strict'\n", "[limits]\ndefault_rpm = 1\n"
    async with serving(tmp_path, strict, limits) as gateway, session_client(gateway) as client:
        stateless = await stateless_caller(gateway)
        invalid = await client.call("e__say", arguments={"a": 1, "b": 2})
        reason = "Invalid arguments for tool e__say: value has more than 1 property"
        assert (invalid["isError"], text_of(invalid)) == (True, reason)
        error = await client.expect_error("tools/call", {"name": "e__say"})
        assert error.code == -32004
        assert text_of(await stateless.call("e__say")) == "hello Anna"
        assert (await stateless.expect_error("tools/call", name="e__say")).code == 4290
    denied = "[[policy]]\ndeny = 'e__say'\n"
    async with serving(tmp_path, denied) as gateway, session_client(gateway) as client:
        stateless = await stateless_caller(gateway)
        assert await client.names() == []
        error = await client.expect_error("tools/call", {"name": "e__say"})
        assert (error.code, error.message) == (-32602, "Unknown tool: e__say")
        assert (await stateless.expect_error("tools/call", name="e__say")).code == -32602
    stopped = "[kill_switch]\nservers = ['e']\n"
    async with serving(tmp_path, stopped) as gateway, session_client(gateway) as client:
        stateless = await stateless_caller(gateway)
        error = await client.expect_error("tools/call", {"name": "e__say"})
        assert error.code == -32005
        assert (await stateless.expect_error("tools/call", name="e__say")).code == 4031


class ResourceBackend(EchoBackend):
    """A backend with one resource that cannot be subscribed to."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.capabilities = {"resources": {}, "tools": {}}

    async def list_features(self) -> BackendFeatures:
        listed = await super().list_features()
        resource = Feature(FeatureKind.RESOURCE, "x:", to_raw({"name": "x", "uri": "x:"}))
        return BackendFeatures((*listed.features, resource))


async def test_what_needs_an_ability_that_it_lacks_is_refused_or_ignored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kind_file, "EchoBackend", ResourceBackend)
    async with serving(tmp_path) as gateway, session_client(gateway, roots={}) as client:
        error = await client.expect_error("resources/subscribe", {"uri": "x:"})
        assert (error.code, error.message) == (
            METHOD_NOT_FOUND,
            "Method not found: resources/subscribe",
        )
        assert await client.ask("logging/setLevel", {"level": "info"}) == {}
        await client.notify("notifications/roots/list_changed")
        await client.notify("vendor/news")
        assert text_of(await client.call("e__say")) == "hello Anna"
