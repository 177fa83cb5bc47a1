"""What another configuration would change: everything that differs, and no server more."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from trunkline.config import AuthSettings, Config, GatewaySettings, HttpSettings, ServerSettings
from trunkline.config.difference import UNSTARTED, Difference, difference, keep, live_servers

FS = ServerSettings(name="fs", command="fs", env={"TOKEN": "canary-secret"})
WEB = ServerSettings(name="web", url="https://web.example/mcp")

OTHER: dict[str, Any] = {
    "title": "Files",
    "command": "other",
    "args": ("-x",),
    "env": {"TOKEN": "another-canary"},
    "env_file": "/x/.env",
    "cwd": "/x",
    "headers": {"a": "b"},
    "prefix": "",
    "era": "envelope",
    "timeout": 1.0,
    "start_timeout": 1.0,
    "max_in_flight": 1,
    "max_conversations": 1,
    "max_restarts": 1,
}
"""Another value for every key that a child may have."""

servers = st.lists(
    st.builds(
        ServerSettings,
        name=st.sampled_from("abcd"),
        command=st.sampled_from(["x", "y"]),
        timeout=st.sampled_from([1.0, 2.0]),
        max_conversations=st.sampled_from([0, 1, 2]),
        prefix=st.sampled_from([None, "p"]),
        disabled=st.booleans(),
    ),
    unique_by=lambda server: server.name,
    max_size=4,
)
configs = st.builds(
    Config,
    servers=servers.map(tuple),
    gateway=st.builds(GatewaySettings, name=st.sampled_from(["g", "h"]), watch=st.booleans()),
    http=st.builds(HttpSettings, max_body=st.sampled_from([1024, 2048])),
)


@given(configs)
def test_nothing_differs_from_itself(config: Config) -> None:
    assert not difference(config, config)
    assert difference(config, config) == Difference()


@given(configs, configs)
def test_something_differs_exactly_if_what_runs_would_be_another(old: Config, new: Config) -> None:
    found = difference(old, new)

    def runs(config: Config) -> Any:
        return list(live_servers(config).values()), config.gateway, config.http

    assert bool(found) is (runs(old) != runs(new))


@given(configs, configs)
def test_every_server_has_one_fate_and_together_they_lead_to_the_new_one(
    old: Config, new: Config
) -> None:
    found = difference(old, new)
    before, after = live_servers(old), live_servers(new)
    fates = [found.added, found.removed, found.restarted, found.adjusted]
    named = [name for fate in fates for name in fate]
    assert len(named) == len(set(named))
    kept = [name for name in before if name not in found.removed]
    assert {*kept, *found.added} == set(after)
    for name in kept:
        same = name not in found.restarted and name not in found.adjusted
        assert same is (before[name] == after[name])
    assert found.reordered is (kept != [name for name in after if name in kept])


@pytest.mark.parametrize("key", OTHER)
def test_a_server_is_restarted_for_what_it_was_started_with_and_for_nothing_else(key: str) -> None:
    found = difference(Config(servers=(FS,)), Config(servers=(replace(FS, **{key: OTHER[key]}),)))
    fate = {"fs": (key,)}
    assert found == (Difference(adjusted=fate) if key in UNSTARTED else Difference(restarted=fate))


def test_every_key_of_a_server_that_is_not_known_better_is_one_it_was_started_with() -> None:
    assert set(ServerSettings.__struct_fields__) >= UNSTARTED


@pytest.mark.parametrize(("server", "restarts"), [(FS, True), (WEB, False)])
def test_a_child_that_may_have_no_conversation_beside_its_first_is_another(
    server: ServerSettings, restarts: bool
) -> None:
    alone = replace(server, max_conversations=0)
    for old, new in ((server, alone), (alone, server)):
        found = difference(Config(servers=(old,)), Config(servers=(new,)))
        assert bool(found.restarted) is restarts


def test_lines_name_what_differs_and_show_no_value() -> None:
    old = Config(servers=(FS, WEB, ServerSettings(name="gone", command="x")))
    new = Config(
        gateway=GatewaySettings(name="other", instructions="canary-text"),
        http=HttpSettings(max_body=2048),
        servers=(
            replace(WEB, timeout=1.0, prefix="w"),
            replace(FS, env={"TOKEN": "another-canary"}),
            ServerSettings(name="more", command="x"),
        ),
    )
    found = difference(old, new)
    assert found.lines() == (
        "servers.more: added",
        "servers.gone: removed",
        "servers.fs: started anew (env)",
        "servers.web: adjusted (prefix, timeout)",
        "servers: in another order",
        "gateway.name",
        "gateway.instructions",
        "http.max_body",
    )
    assert "canary" not in str(found)


@given(configs, configs)
def test_what_is_kept_is_all_that_does_not_differ_any_more(old: Config, new: Config) -> None:
    found = difference(old, new)
    assert difference(old, keep(old, new, found.keys)).keys == ()
    assert keep(old, new, ()) == new
    one = found.keys[:1]
    assert difference(keep(old, new, one), new).keys == one


def test_a_table_that_is_new_is_kept_out_as_a_whole() -> None:
    old, new = Config(), Config(auth=AuthSettings(max_failures=1))
    assert difference(old, new).keys == ("auth",)
    assert keep(old, new, ("auth",)) == old


def test_a_server_that_is_disabled_is_not_there() -> None:
    found = difference(Config(servers=(FS,)), Config(servers=(replace(FS, disabled=True),)))
    assert found == Difference(removed=("fs",))


def test_a_table_is_touched_by_itself_and_by_its_keys() -> None:
    found = Difference(keys=("gateway.name", "policy"))
    assert found.touches("gateway")
    assert found.touches("gateway.name")
    assert found.touches("x", "policy")
    assert not found.touches("gateway.surface", "gate", "polic")
    assert not found.touches()
