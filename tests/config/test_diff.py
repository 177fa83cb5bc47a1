"""Comparing two configurations: which servers and keys differ."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from trunkline.backends.command import CommandSettings
from trunkline.backends.url import UrlSettings
from trunkline.config import AuthSettings, Config, GatewaySettings, HttpSettings, ServerSettings
from trunkline.config.diff import (
    LIVE_KEYS,
    ConfigDiff,
    compare_configs,
    enabled_servers,
    with_old_values,
)
from trunkline.config.server_table import ServerTable, server_keys

FS = ServerSettings(
    name="fs", backend=CommandSettings(command="fs", env={"TOKEN": "canary-secret"})
)
WEB = ServerSettings(name="web", backend=UrlSettings(url="https://web.example/mcp"))

OTHER: dict[str, Any] = {
    "title": "Files",
    "check_arguments": "strict",
    "normalise_schemas": True,
    "command": "other",
    "args": ("-x",),
    "env": {"TOKEN": "another-canary"},
    "env_file": "/x/.env",
    "cwd": "/x",
    "prefix": "",
    "protocol": "stateless",
    "timeout": 1.0,
    "start_timeout": 1.0,
    "max_in_flight": 1,
    "max_in_flight_per_principal": 1,
    "max_sessions": 1,
    "max_restarts": 1,
}
"""A different value for every key of a server with a command."""

servers = st.lists(
    st.builds(
        ServerSettings,
        name=st.sampled_from("abcd"),
        backend=st.sampled_from(
            [CommandSettings(command="x"), CommandSettings(command="y"), WEB.backend]
        ),
        timeout=st.sampled_from([1.0, 2.0]),
        max_sessions=st.sampled_from([0, 1, 2]),
        prefix=st.sampled_from([None, "p"]),
        disabled=st.booleans(),
    ),
    unique_by=lambda server: server.name,
    max_size=4,
)
configs = st.builds(
    Config,
    servers=servers.map(tuple),
    gateway=st.builds(
        GatewaySettings, name=st.sampled_from(["g", "h"]), reload_on_change=st.booleans()
    ),
    http=st.builds(HttpSettings, max_body=st.sampled_from([1024, 2048])),
)


def changed(server: ServerSettings, key: str, value: object) -> ServerSettings:
    """Return a server with another value for one of its keys."""
    if key in ServerTable.__struct_fields__:
        return replace(server, **{key: value})
    return replace(server, backend=replace(server.backend, **{key: value}))


@given(configs)
def test_a_configuration_does_not_differ_from_itself(config: Config) -> None:
    assert not compare_configs(config, config)
    assert compare_configs(config, config) == ConfigDiff()


@given(configs, configs)
def test_the_diff_is_empty_only_if_the_running_parts_are_equal(old: Config, new: Config) -> None:
    diff = compare_configs(old, new)

    def running_parts(config: Config) -> Any:
        return list(enabled_servers(config).values()), config.gateway, config.http

    assert bool(diff) is (running_parts(old) != running_parts(new))


@given(configs, configs)
def test_every_server_has_one_change_and_all_changes_give_the_new_configuration(
    old: Config, new: Config
) -> None:
    diff = compare_configs(old, new)
    before, after = enabled_servers(old), enabled_servers(new)
    changes = [diff.added, diff.removed, diff.restarted, diff.adjusted]
    names = [name for change in changes for name in change]
    assert len(names) == len(set(names))
    kept = [name for name in before if name not in diff.removed]
    assert {*kept, *diff.added} == set(after)
    for name in kept:
        same = name not in diff.restarted and name not in diff.adjusted
        assert same is (before[name] == after[name])
    assert diff.reordered is (kept != [name for name in after if name in kept])


@pytest.mark.parametrize("key", OTHER)
def test_a_server_is_restarted_only_for_keys_that_are_not_live(key: str) -> None:
    diff = compare_configs(Config(servers=(FS,)), Config(servers=(changed(FS, key, OTHER[key]),)))
    change = {"fs": (key,)}
    assert diff == (
        ConfigDiff(adjusted=change) if key in LIVE_KEYS else ConfigDiff(restarted=change)
    )


def test_live_keys_are_keys_of_a_server() -> None:
    assert set(server_keys()) >= LIVE_KEYS


def test_a_server_of_another_kind_is_restarted_with_all_its_keys() -> None:
    web = UrlSettings(url="https://web.example/mcp", protocol="session")
    old, new = Config(servers=(FS,)), Config(servers=(replace(FS, backend=web),))
    keys = ("command", "env", "url", "protocol")
    assert compare_configs(old, new) == ConfigDiff(restarted={"fs": keys})


@pytest.mark.parametrize(("server", "restarts"), [(FS, True), (WEB, False)])
def test_a_child_is_restarted_if_max_sessions_changes_to_or_from_zero(
    server: ServerSettings, restarts: bool
) -> None:
    single_session = replace(server, max_sessions=0)
    for old, new in ((server, single_session), (single_session, server)):
        diff = compare_configs(Config(servers=(old,)), Config(servers=(new,)))
        assert bool(diff.restarted) is restarts


def test_diff_lines_name_the_keys_but_show_no_values() -> None:
    old = Config(
        servers=(FS, WEB, ServerSettings(name="gone", backend=CommandSettings(command="x")))
    )
    new = Config(
        gateway=GatewaySettings(name="other", instructions="canary-text"),
        http=HttpSettings(max_body=2048),
        servers=(
            replace(WEB, timeout=1.0, prefix="w"),
            changed(FS, "env", {"TOKEN": "another-canary"}),
            ServerSettings(name="more", backend=CommandSettings(command="x")),
        ),
    )
    diff = compare_configs(old, new)
    assert diff.lines() == (
        "servers.more: added",
        "servers.gone: removed",
        "servers.fs: restarted (env)",
        "servers.web: adjusted (prefix, timeout)",
        "servers: reordered",
        "gateway.name",
        "gateway.instructions",
        "http.max_body",
    )
    assert "canary" not in str(diff)


@given(configs, configs)
def test_keys_with_old_values_no_longer_differ(old: Config, new: Config) -> None:
    diff = compare_configs(old, new)
    assert compare_configs(old, with_old_values(old, new, diff.keys)).keys == ()
    assert with_old_values(old, new, ()) == new
    first_key = diff.keys[:1]
    assert compare_configs(with_old_values(old, new, first_key), new).keys == first_key


def test_a_new_table_is_removed_as_a_whole_to_restore_the_old_value() -> None:
    old, new = Config(), Config(auth=AuthSettings(max_failures=1))
    assert compare_configs(old, new).keys == ("auth",)
    assert with_old_values(old, new, ("auth",)) == old


def test_a_disabled_server_counts_as_removed() -> None:
    diff = compare_configs(Config(servers=(FS,)), Config(servers=(replace(FS, disabled=True),)))
    assert diff == ConfigDiff(removed=("fs",))


def test_a_diff_affects_a_table_and_the_tables_of_its_keys() -> None:
    diff = ConfigDiff(keys=("gateway.name", "policy"))
    assert diff.affects("gateway")
    assert diff.affects("gateway.name")
    assert diff.affects("x", "policy")
    assert not diff.affects("gateway.surface", "gate", "polic")
    assert not diff.affects()
