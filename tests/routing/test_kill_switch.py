"""Kill switches: what is disabled, for whom, and by which switch."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline.jsonrpc import Raw, to_raw
from trunkline.mcp.features import Feature, FeatureKind
from trunkline.mcp.identity import Principal
from trunkline.mcp.versions import V2025_11_25, V2026_07_28
from trunkline.routing.catalog import CatalogEntry, FeatureListing, merge_listings
from trunkline.routing.kill_switch import (
    MAX_SWITCH_NAME_LENGTH,
    SWITCH_ALL,
    KillSwitch,
    KillSwitchSet,
    SwitchKind,
    disabled_error,
    parse_switch,
    paused_error,
)
from trunkline.routing.naming import matches_pattern

ANNA = Principal("idp:anna", "anna")
BERT = Principal("idp:bert", "bert")


def entry(
    public: str, backend: str = "fs", native: str = "x", kind: FeatureKind = FeatureKind.TOOL
) -> CatalogEntry:
    return CatalogEntry(kind, public, backend, native, Raw(b"{}"))


READ = entry("fs__read", native="read")
WRITE = entry("fs__write", native="write")
MAIL = entry("mail__send", "mail", "send")
NOTE = entry("note://1", "fs", "note://1", FeatureKind.RESOURCE)


def tool(name: str) -> KillSwitch:
    return KillSwitch(SwitchKind.TOOL, name)


def server(name: str) -> KillSwitch:
    return KillSwitch(SwitchKind.SERVER, name)


def subject(name: str) -> KillSwitch:
    return KillSwitch(SwitchKind.SUBJECT, name)


def test_an_empty_set_disables_nothing() -> None:
    assert not KillSwitchSet()
    assert KillSwitchSet().find(ANNA, READ) is None
    assert not KillSwitchSet().disables_backend("fs")


def test_a_tool_is_disabled_by_its_name_alone() -> None:
    switches = KillSwitchSet([tool("fs__read")])
    assert switches
    assert switches.find(ANNA, READ) == tool("fs__read")
    assert switches.find(ANNA, WRITE) is None
    assert switches.find(ANNA, entry("fs__read", kind=FeatureKind.PROMPT)) is None
    assert switches.find(ANNA, entry("FS__READ")) is None


def test_a_pattern_disables_matching_tools_and_the_tool_is_named() -> None:
    switches = KillSwitchSet([tool("fs__*"), tool("*__sen?")])
    assert switches.find(ANNA, WRITE) == tool("fs__write")
    assert switches.find(ANNA, MAIL) == tool("mail__send")
    assert switches.find(ANNA, NOTE) is None
    assert switches.find(ANNA, entry("other__read", "other")) is None


def test_a_tool_is_disabled_under_any_public_name() -> None:
    delete = Feature(FeatureKind.TOOL, "delete", to_raw({"name": "delete"}))
    bare = merge_listings([FeatureListing("fs", "", (delete,))]).entries(FeatureKind.TOOL)
    both = merge_listings(
        [FeatureListing("a", "", (delete,)), FeatureListing("fs", "", (delete,))]
    ).entries(FeatureKind.TOOL)
    for switches in (KillSwitchSet([tool("fs__delete")]), KillSwitchSet([tool("fs__del*")])):
        assert [switches.find(ANNA, each) for each in bare] == [tool("delete")]
        assert [switches.find(ANNA, each) for each in both] == [None, tool("fs__delete")]


def test_a_server_is_disabled_with_all_its_features() -> None:
    switches = KillSwitchSet([server("fs")])
    assert [switches.find(ANNA, each) for each in (READ, NOTE, MAIL)] == [
        server("fs"),
        server("fs"),
        None,
    ]
    assert (switches.disables_backend("fs"), switches.disables_backend("mail")) == (True, False)


@pytest.mark.parametrize("name", ["anna", "idp:anna"])
def test_a_subject_is_disabled_by_its_name_and_by_its_id(name: str) -> None:
    switches = KillSwitchSet([subject(name)], frozenset(["fs"]))
    assert switches.find(ANNA, READ) == subject("anna")
    assert switches.find_backend(ANNA, "fs") == subject("anna")
    assert switches.find(BERT, READ) is None
    assert not switches.disables_backend("fs")


def test_all_spares_exempt_backends_unless_they_are_named() -> None:
    switches = KillSwitchSet([SWITCH_ALL], frozenset(["mail"]))
    assert switches.find(ANNA, READ) == SWITCH_ALL
    assert switches.find(ANNA, MAIL) is None
    assert (switches.disables_backend("fs"), switches.disables_backend("mail")) == (True, False)
    for switch in (server("mail"), tool("mail__send"), subject("anna")):
        assert KillSwitchSet([SWITCH_ALL, switch], frozenset(["mail"])).find(ANNA, MAIL) == switch


def test_broader_switches_are_reported() -> None:
    switches = KillSwitchSet([tool("fs__*"), tool("*"), tool("fs__read"), server("fs")])
    assert switches.broader_switches(tool("fs__read")) == (tool("*"), tool("fs__*"))
    assert switches.broader_switches(tool("fs__*")) == (tool("*"),)
    assert switches.broader_switches(server("fs")) == ()
    assert KillSwitchSet([SWITCH_ALL]).broader_switches(server("fs")) == (SWITCH_ALL,)
    assert KillSwitchSet([SWITCH_ALL]).broader_switches(SWITCH_ALL) == ()


@pytest.mark.parametrize(
    ("switch_kind", "name", "switch"),
    [
        ("tool", "fs__*", tool("fs__*")),
        ("server", "fs", server("fs")),
        ("subject", "anna@example.org", subject("anna@example.org")),
        ("all", "", SWITCH_ALL),
    ],
)
def test_a_switch_is_parsed_and_printed(switch_kind: str, name: str, switch: KillSwitch) -> None:
    assert parse_switch(switch_kind, name) == switch
    assert str(switch) == f"{switch_kind} {name}".strip()


@pytest.mark.parametrize(
    ("switch_kind", "name", "reason"),
    [
        ("role", "x", "expected one of tool, server, subject, all, got 'role'"),
        ("all", "x", "expected no name for 'all', got 'x'"),
        ("tool", "", "expected the name of a tool, of 1 to 128 characters"),
        ("tool", "x" * 129, "of 1 to 128"),
        ("subject", "x" * (MAX_SWITCH_NAME_LENGTH + 1), "of 1 to 256"),
        ("subject", "a\x1b[2J", "without control characters"),
        ("tool", "ﬁle", "letters, digits"),
    ],
)
def test_a_malformed_switch_is_rejected_with_the_reason(
    switch_kind: str, name: str, reason: str
) -> None:
    with pytest.raises(ValueError, match=reason.replace("*", r"\*")):
        parse_switch(switch_kind, name)


def test_an_error_has_the_code_of_its_era_and_says_what_is_disabled() -> None:
    for revision, code in ((V2025_11_25, -32005), (V2026_07_28, 4031), (None, -32005)):
        found = disabled_error(tool("fs__read"), revision)
        assert (found.code, found.message) == (code, "Tool is disabled: fs__read")
        assert found.data == {"type": "disabled", "what": "tool"}
        assert paused_error(revision).code == code
    assert disabled_error(server("fs")).message == "Server is disabled: fs"
    assert disabled_error(subject("anna")).message == "Subject is disabled: anna"
    assert disabled_error(SWITCH_ALL).message == "Gateway is disabled"
    assert paused_error().message == "The gateway is paused"


names = st.text("ab_*?", min_size=1, max_size=4)
public = st.text("ab_", min_size=1, max_size=4)


@given(st.lists(names), public)
def test_a_tool_is_disabled_if_and_only_if_a_pattern_matches(
    patterns: list[str], name: str
) -> None:
    offered = entry(name, "z", "z")
    found = KillSwitchSet(map(tool, patterns)).find(ANNA, offered)
    expected = any(
        matches_pattern(pattern, each) for pattern in patterns for each in (name, "z__z")
    )
    assert (found is not None) == expected


@given(st.lists(names), st.lists(names), public)
def test_more_switches_disable_no_less(some: list[str], more: list[str], name: str) -> None:
    offered = entry(name, "z", "z")
    if KillSwitchSet(map(tool, some)).find(ANNA, offered) is not None:
        assert KillSwitchSet(map(tool, some + more)).find(ANNA, offered) is not None
