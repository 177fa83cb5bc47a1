"""What a gateway may say that it can."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline.mcp.capabilities import (
    ASKABLE,
    fingerprint,
    for_revision,
    from_fingerprint,
    merge_capabilities,
    questions,
)
from trunkline.mcp.versions import VERSIONS

LISTED = {"listChanged": True}


def test_a_gateway_without_backends_has_a_list_of_tools() -> None:
    assert merge_capabilities([], settled=True) == {"tools": LISTED}


def test_what_one_backend_can_the_gateway_can() -> None:
    backends: list[dict[str, Any]] = [{"prompts": {}}, {"logging": {}}, {"completions": {}}]
    merged = merge_capabilities(backends, settled=True)
    assert merged == {"tools": LISTED, "prompts": LISTED, "completions": {}, "logging": {}}


def test_resources_can_be_followed_if_any_backend_says_so() -> None:
    for declared, followed in (({}, False), ({"subscribe": True}, True), (None, False), (1, False)):
        backends: list[dict[str, Any]] = [{"resources": {}}, {"resources": declared}, {}]
        merged = merge_capabilities(backends, settled=True)
        assert merged["resources"] == {"listChanged": True, "subscribe": followed}


def test_extensions_of_backends_are_declared_as_far_as_they_agree() -> None:
    ui, tasks = "io.modelcontextprotocol/ui", "io.modelcontextprotocol/tasks"
    backends: list[dict[str, Any]] = [
        {"extensions": {ui: {"mimeTypes": ["a"], "own": 1}, tasks: {}}},
        {"extensions": {ui: {"mimeTypes": ["a"], "own": 2, "more": 0}, "x.example/y": {"a": 1}}},
        {"extensions": {"x.example/z": None}},
        {"extensions": 1},
        {},
    ]
    for settled in (True, False):
        assert merge_capabilities(backends, settled)["extensions"] == {
            ui: {"mimeTypes": ["a"]},
            "x.example/y": {"a": 1},
            "x.example/z": {},
        }
    assert "extensions" not in merge_capabilities(backends[3:], settled=True)


def test_while_some_are_not_known_everything_is_possible() -> None:
    assert merge_capabilities([], settled=False) == {
        "tools": LISTED,
        "prompts": LISTED,
        "resources": {"listChanged": True, "subscribe": True},
        "completions": {},
        "logging": {},
    }


def test_servers_hear_what_they_may_ask_and_nothing_else() -> None:
    client: dict[str, Any] = {
        "sampling": {"tools": {}},
        "experimental": {},
        "roots": {"listChanged": True},
    }
    assert questions(client) == {"sampling": {"tools": {}}, "roots": {"listChanged": True}}


CLIENT: dict[str, Any] = {
    "roots": {"listChanged": True, "odd": 1},
    "sampling": {"tools": {}, "context": {"x": 1}, "odd": {}},
    "elicitation": {"form": {"applyDefaults": True}, "url": {}},
    "extensions": {"io.modelcontextprotocol/tasks": {}, "io.modelcontextprotocol/ui": {"m": 1}},
    "experimental": {"x": {}},
    "tasks": {},
}
EXTENSIONS = {"io.modelcontextprotocol/ui": {"m": 1}}
NEWEST = {
    "sampling": {"context": {"x": 1}, "tools": {}},
    "elicitation": {"form": {"applyDefaults": True}, "url": {}},
    "extensions": EXTENSIONS,
}


@pytest.mark.parametrize(
    ("version", "declared"),
    [
        ("2024-11-05", {"roots": LISTED, "sampling": {}, "extensions": EXTENSIONS}),
        ("2025-03-26", {"roots": LISTED, "sampling": {}, "extensions": EXTENSIONS}),
        (
            "2025-06-18",
            {"roots": LISTED, "sampling": {}, "elicitation": {}, "extensions": EXTENSIONS},
        ),
        ("2025-11-25", {"roots": LISTED, **NEWEST}),
        ("2026-07-28", {"roots": {}, **NEWEST}),
    ],
)
def test_each_revision_has_its_own_words_for_what_a_client_can(
    version: str, declared: dict[str, Any]
) -> None:
    assert for_revision(CLIENT, version) == declared


@pytest.mark.parametrize("version", VERSIONS)
def test_nothing_is_declared_that_the_client_did_not(version: str) -> None:
    assert for_revision({}, version) == {}
    odd: dict[str, Any] = {"roots": None, "sampling": True, "elicitation": 7, "extensions": []}
    assert for_revision(odd, version) == {}
    assert for_revision({"extensions": {"io.modelcontextprotocol/tasks": {}}}, version) == {}
    roots = for_revision({"roots": {"listChanged": False}}, version)
    assert roots == {"roots": {}}


def test_an_elicitation_of_no_mode_is_one_of_forms() -> None:
    assert for_revision({"elicitation": {}}, "2026-07-28") == {"elicitation": {"form": {}}}
    assert for_revision({"elicitation": {"url": {}}}, "2025-06-18") == {}


def test_a_client_can_what_its_own_revision_knows_whatever_it_declares() -> None:
    told = for_revision(for_revision(CLIENT, "2024-11-05"), "2026-07-28")
    assert told == {"roots": {}, "sampling": {}, "extensions": EXTENSIONS}


@pytest.mark.parametrize(
    ("client", "names"),
    [
        ({}, ""),
        ({"experimental": {}, "tasks": {}}, ""),
        ({"roots": {"tools": {}}}, "roots"),
        ({"roots": None, "sampling": [], "elicitation": "form"}, ""),
        ({"sampling": {}}, "sampling"),
        ({"sampling": {"tools": {}, "context": {}}}, "sampling sampling.tools"),
        ({"sampling": {"tools": False}}, "sampling"),
        ({"elicitation": {}}, "elicitation.form"),
        ({"elicitation": {"url": {}}}, "elicitation.url"),
        ({"elicitation": {"form": {}, "url": {}}}, "elicitation.form elicitation.url"),
        (CLIENT, " ".join(ASKABLE)),
    ],
)
def test_a_fingerprint_names_what_may_be_asked(client: dict[str, Any], names: str) -> None:
    assert fingerprint(client) == frozenset(names.split())


@given(st.frozensets(st.sampled_from(ASKABLE)))
def test_a_fingerprint_is_that_of_what_is_made_from_it(names: frozenset[str]) -> None:
    implied = names | frozenset(["sampling"] if "sampling.tools" in names else [])
    made = from_fingerprint(names)
    assert fingerprint(made) == implied
    assert fingerprint(for_revision(made, "2025-11-25")) == implied
    assert fingerprint(for_revision(made, "2026-07-28")) == implied


def test_a_fingerprint_is_declared_with_its_details() -> None:
    names = frozenset({"roots", "elicitation", "elicitation.url"})
    assert from_fingerprint(names) == {"roots": {}, "elicitation": {"url": {}}}
