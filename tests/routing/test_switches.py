"""Stops: what is stopped, for whom, and by what."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline.jsonrpc import Raw, to_raw
from trunkline.mcp.offer import Kind, Offer
from trunkline.mcp.principal import Principal
from trunkline.routing import switches
from trunkline.routing.catalog import Entry, Listing, merge
from trunkline.routing.pattern import fits
from trunkline.routing.switches import (
    EVERYTHING,
    MAX_NAME,
    Stops,
    Switch,
    What,
    paused,
    read_switch,
    refusal,
)

ANNA = Principal("idp:anna", "anna")
BERT = Principal("idp:bert", "bert")


def entry(public: str, backend: str = "fs", native: str = "x", kind: Kind = Kind.TOOL) -> Entry:
    return Entry(kind, public, backend, native, Raw(b"{}"))


READ = entry("fs__read", native="read")
WRITE = entry("fs__write", native="write")
MAIL = entry("mail__send", "mail", "send")
NOTE = entry("note://1", "fs", "note://1", Kind.RESOURCE)


def tool(name: str) -> Switch:
    return Switch(What.TOOL, name)


def server(name: str) -> Switch:
    return Switch(What.SERVER, name)


def subject(name: str) -> Switch:
    return Switch(What.SUBJECT, name)


def test_nothing_is_stopped_by_nothing() -> None:
    assert not Stops()
    assert Stops().find(ANNA, READ) is None
    assert not Stops().silences("fs")


def test_a_tool_is_stopped_by_its_name_and_nothing_else_is() -> None:
    stops = Stops([tool("fs__read")])
    assert stops
    assert stops.find(ANNA, READ) == tool("fs__read")
    assert stops.find(ANNA, WRITE) is None
    assert stops.find(ANNA, entry("fs__read", kind=Kind.PROMPT)) is None
    assert stops.find(ANNA, entry("FS__READ")) is None


def test_a_pattern_stops_what_fits_and_names_the_tool() -> None:
    stops = Stops([tool("fs__*"), tool("*__sen?")])
    assert stops.find(ANNA, WRITE) == tool("fs__write")
    assert stops.find(ANNA, MAIL) == tool("mail__send")
    assert stops.find(ANNA, NOTE) is None
    assert stops.find(ANNA, entry("other__read", "other")) is None


def test_a_tool_is_stopped_under_whatever_name_it_is_offered() -> None:
    delete = Offer(Kind.TOOL, "delete", to_raw({"name": "delete"}))
    bare = merge([Listing("fs", "", (delete,))]).entries(Kind.TOOL)
    both = merge([Listing("a", "", (delete,)), Listing("fs", "", (delete,))]).entries(Kind.TOOL)
    for stops in (Stops([tool("fs__delete")]), Stops([tool("fs__del*")])):
        assert [stops.find(ANNA, each) for each in bare] == [tool("delete")]
        assert [stops.find(ANNA, each) for each in both] == [None, tool("fs__delete")]


def test_what_was_looked_at_is_remembered_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(switches, "MAX_KNOWN", 2)
    stops = Stops([tool("a1")])
    for _ in range(2):
        for number in (0, 0, 1, 1, 2, 2, 3):
            found = stops.find(ANNA, entry(f"a{number}"))
            assert found == (tool("a1") if number == 1 else None)


def test_a_server_is_stopped_with_all_that_it_has() -> None:
    stops = Stops([server("fs")])
    assert [stops.find(ANNA, each) for each in (READ, NOTE, MAIL)] == [
        server("fs"),
        server("fs"),
        None,
    ]
    assert (stops.silences("fs"), stops.silences("mail")) == (True, False)


@pytest.mark.parametrize("name", ["anna", "idp:anna"])
def test_a_subject_is_stopped_by_its_name_and_by_its_id(name: str) -> None:
    stops = Stops([subject(name)], frozenset(["fs"]))
    assert stops.find(ANNA, READ) == subject("anna")
    assert stops.find_backend(ANNA, "fs") == subject("anna")
    assert stops.find(BERT, READ) is None
    assert not stops.silences("fs")


def test_all_leaves_the_exempt_unless_they_are_named() -> None:
    stops = Stops([EVERYTHING], frozenset(["mail"]))
    assert stops.find(ANNA, READ) == EVERYTHING
    assert stops.find(ANNA, MAIL) is None
    assert (stops.silences("fs"), stops.silences("mail")) == (True, False)
    for switch in (server("mail"), tool("mail__send"), subject("anna")):
        assert Stops([EVERYTHING, switch], frozenset(["mail"])).find(ANNA, MAIL) == switch


def test_what_stops_more_is_named() -> None:
    stops = Stops([tool("fs__*"), tool("*"), tool("fs__read"), server("fs")])
    assert stops.wider(tool("fs__read")) == (tool("*"), tool("fs__*"))
    assert stops.wider(tool("fs__*")) == (tool("*"),)
    assert stops.wider(server("fs")) == ()
    assert Stops([EVERYTHING]).wider(server("fs")) == (EVERYTHING,)
    assert Stops([EVERYTHING]).wider(EVERYTHING) == ()


@pytest.mark.parametrize(
    ("what", "name", "switch"),
    [
        ("tool", "fs__*", tool("fs__*")),
        ("server", "fs", server("fs")),
        ("subject", "anna@example.org", subject("anna@example.org")),
        ("all", "", EVERYTHING),
    ],
)
def test_what_is_meant_is_read_and_written(what: str, name: str, switch: Switch) -> None:
    assert read_switch(what, name) == switch
    assert str(switch) == f"{what} {name}".strip()


@pytest.mark.parametrize(
    ("what", "name", "why"),
    [
        ("role", "x", "expected one of tool, server, subject, all, got 'role'"),
        ("all", "x", "expected no name for 'all', got 'x'"),
        ("tool", "", "expected the name of a tool, of 1 to 128 characters"),
        ("tool", "x" * 129, "of 1 to 128"),
        ("subject", "x" * (MAX_NAME + 1), "of 1 to 256"),
        ("subject", "a\x1b[2J", "without control characters"),
        ("tool", "ﬁle", "letters, digits"),
    ],
)
def test_what_makes_no_sense_is_said_to(what: str, name: str, why: str) -> None:
    with pytest.raises(ValueError, match=why.replace("*", r"\*")):
        read_switch(what, name)


def test_a_refusal_has_the_code_of_its_era_and_says_what_is_disabled() -> None:
    for version, code in (("2025-11-25", -32005), ("2026-07-28", 4031), (None, -32005)):
        found = refusal(tool("fs__read"), version)
        assert (found.code, found.message) == (code, "Tool is disabled: fs__read")
        assert found.data == {"type": "disabled", "what": "tool"}
        assert paused(version).code == code
    assert refusal(server("fs")).message == "Server is disabled: fs"
    assert refusal(subject("anna")).message == "Subject is disabled: anna"
    assert refusal(EVERYTHING).message == "Gateway is disabled"
    assert paused().message == "The gateway is paused"


names = st.text("ab_*?", min_size=1, max_size=4)
public = st.text("ab_", min_size=1, max_size=4)


@given(st.lists(names), public)
def test_a_tool_is_stopped_if_and_only_if_a_pattern_fits(patterns: list[str], name: str) -> None:
    offered = entry(name, "z", "z")
    found = Stops(map(tool, patterns)).find(ANNA, offered)
    expected = any(fits(pattern, each) for pattern in patterns for each in (name, "z__z"))
    assert (found is not None) == expected


@given(st.lists(names), st.lists(names), public)
def test_more_switches_stop_no_less(some: list[str], more: list[str], name: str) -> None:
    offered = entry(name, "z", "z")
    if Stops(map(tool, some)).find(ANNA, offered) is not None:
        assert Stops(map(tool, some + more)).find(ANNA, offered) is not None
