"""The settings of a server: its kind and the defaults."""

from typing import Any, get_type_hints

import pytest

from trunkline.backends.builtin import BuiltinSettings
from trunkline.backends.command import CommandSettings
from trunkline.backends.kind import BackendSettings
from trunkline.backends.url import UrlSettings
from trunkline.config.server_table import (
    BACKEND_KINDS,
    ServerEntry,
    ServerSettings,
    server_settings,
)

FS = CommandSettings(command="npx")


def test_a_server_has_defaults_for_all_optional_keys() -> None:
    server = ServerSettings(name="fs", backend=FS)
    assert (FS.args, FS.env, FS.cwd, FS.protocol) == ((), {}, None, "auto")
    assert (server.prefix, server.disabled) == (None, False)
    assert (server.timeout, server.start_timeout) == (60.0, 60.0)
    assert (server.max_in_flight, server.max_restarts) == (64, None)


@pytest.mark.parametrize(
    ("table", "backend"),
    [
        ({"command": "npx"}, FS),
        ({"timeout": 1, "url": "https://a.example"}, UrlSettings(url="https://a.example")),
        ({"builtin": "sources", "prefix": ""}, BuiltinSettings(builtin="sources")),
    ],
)
def test_the_kind_of_a_server_follows_from_its_keys(
    table: dict[str, Any], backend: BackendSettings
) -> None:
    assert server_settings(ServerEntry("a", table, ("servers", "a")), table).backend == backend


@pytest.mark.parametrize("key", BACKEND_KINDS)
def test_the_first_key_of_a_kind_selects_it_and_is_its_only_required_one(key: str) -> None:
    kind = BACKEND_KINDS[key]
    assert kind.__struct_fields__[0] == key
    assert len(kind.__struct_defaults__) == len(kind.__struct_fields__) - 1
    assert set(kind.PATH_KEYS) <= set(kind.__struct_fields__)


def test_a_key_of_several_kinds_has_one_type() -> None:
    types: dict[str, object] = {}
    for kind in BACKEND_KINDS.values():
        hints = get_type_hints(kind, include_extras=True)
        for key in kind.__struct_fields__:
            assert types.setdefault(key, hints[key]) == hints[key]


def test_the_prefix_of_a_server_defaults_to_its_name() -> None:
    assert ServerSettings(name="a", backend=FS).effective_prefix == "a"
    assert ServerSettings(name="a", backend=FS, prefix="b").effective_prefix == "b"
    assert ServerSettings(name="a", backend=FS, prefix="").effective_prefix == ""


def test_servers_do_not_share_dictionaries() -> None:
    one, other = CommandSettings(command="x"), CommandSettings(command="x")
    one.env["A"] = "1"
    assert other.env == {}
