"""Capabilities that the gateway declares to clients and to servers."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline.mcp.capabilities import (
    capabilities_for_revision,
    client_features,
    features_to_capabilities,
    input_capabilities,
    invalid_flag,
    merge_capabilities,
    read_client_features,
)
from trunkline.mcp.versions import (
    REVISIONS,
    V2024_11_05,
    V2025_03_26,
    V2025_06_18,
    V2025_11_25,
    V2026_07_28,
    Revision,
)

LISTED = {"listChanged": True}


def test_a_gateway_without_backends_declares_tools() -> None:
    assert merge_capabilities([], all_known=True) == {"tools": LISTED}


def test_the_gateway_declares_what_any_backend_declares() -> None:
    backends: list[dict[str, Any]] = [{"prompts": {}}, {"logging": {}}, {"completions": {}}]
    merged = merge_capabilities(backends, all_known=True)
    assert merged == {"tools": LISTED, "prompts": LISTED, "completions": {}, "logging": {}}


def test_resources_can_be_subscribed_to_if_any_backend_allows_it() -> None:
    for declared, followed in (({}, False), ({"subscribe": True}, True), (None, False), (1, False)):
        backends: list[dict[str, Any]] = [{"resources": {}}, {"resources": declared}, {}]
        merged = merge_capabilities(backends, all_known=True)
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
    assert "extensions" not in merge_capabilities(backends[3:], all_known=True)


def test_while_some_backends_are_unknown_everything_is_declared() -> None:
    assert merge_capabilities([], all_known=False) == {
        "tools": LISTED,
        "prompts": LISTED,
        "resources": {"listChanged": True, "subscribe": True},
        "completions": {},
        "logging": {},
    }


def test_servers_learn_only_the_input_capabilities() -> None:
    client: dict[str, Any] = {
        "sampling": {"tools": {}},
        "experimental": {},
        "roots": {"listChanged": True},
    }
    assert input_capabilities(client) == {"sampling": {"tools": {}}, "roots": {"listChanged": True}}


@pytest.mark.parametrize(
    ("declared", "passed_on"),
    [
        ({"roots": {"listChanged": None}}, {"roots": {}}),
        ({"roots": {"listChanged": "yes"}}, {"roots": {}}),
        ({"roots": {"listChanged": False}}, {"roots": {}}),
        ({"roots": True, "sampling": []}, {}),
        ({"sampling": {"tools": 1, "context": {}}}, {"sampling": {"context": {}}}),
        ({"elicitation": {}}, {"elicitation": {}}),
    ],
)
def test_servers_learn_no_malformed_capability(declared: Any, passed_on: Any) -> None:
    assert input_capabilities(declared) == passed_on


@pytest.mark.parametrize(
    ("declared", "flag"),
    [
        ({"roots": {"listChanged": "yes"}}, "roots.listChanged"),
        ({"roots": {"listChanged": 1}}, "roots.listChanged"),
        ({"roots": {"listChanged": None}}, None),
        ({"roots": {"listChanged": False}}, None),
        ({"roots": {}}, None),
        ({"roots": 7}, None),
        ({}, None),
    ],
)
def test_a_flag_that_is_no_boolean_is_found(declared: Any, flag: str | None) -> None:
    assert invalid_flag(declared) == flag


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
    ("revision", "declared"),
    [
        (V2024_11_05, {"roots": LISTED, "sampling": {}, "extensions": EXTENSIONS}),
        (V2025_03_26, {"roots": LISTED, "sampling": {}, "extensions": EXTENSIONS}),
        (
            V2025_06_18,
            {"roots": LISTED, "sampling": {}, "elicitation": {}, "extensions": EXTENSIONS},
        ),
        (V2025_11_25, {"roots": LISTED, **NEWEST}),
        (V2026_07_28, {"roots": {}, **NEWEST}),
    ],
)
def test_capabilities_are_declared_in_the_form_of_each_revision(
    revision: Revision, declared: dict[str, Any]
) -> None:
    assert capabilities_for_revision(CLIENT, revision) == declared


@pytest.mark.parametrize("revision", REVISIONS)
def test_nothing_is_declared_that_the_client_did_not(revision: Revision) -> None:
    assert capabilities_for_revision({}, revision) == {}
    odd: dict[str, Any] = {"roots": None, "sampling": True, "elicitation": 7, "extensions": []}
    assert capabilities_for_revision(odd, revision) == {}
    assert (
        capabilities_for_revision({"extensions": {"io.modelcontextprotocol/tasks": {}}}, revision)
        == {}
    )
    roots = capabilities_for_revision({"roots": {"listChanged": False}}, revision)
    assert roots == {"roots": {}}


def test_an_elicitation_without_a_mode_means_forms() -> None:
    assert capabilities_for_revision({"elicitation": {}}, V2026_07_28) == {
        "elicitation": {"form": {}}
    }
    assert capabilities_for_revision({"elicitation": {"url": {}}}, V2025_06_18) == {}


def test_a_client_has_only_the_features_of_its_revision() -> None:
    converted = capabilities_for_revision(
        capabilities_for_revision(CLIENT, V2024_11_05), V2026_07_28
    )
    assert converted == {"roots": {}, "sampling": {}, "extensions": EXTENSIONS}


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
        (CLIENT, " ".join(client_features())),
    ],
)
def test_client_features_name_what_may_be_requested(client: dict[str, Any], names: str) -> None:
    assert read_client_features(client) == frozenset(names.split())


@given(st.frozensets(st.sampled_from(client_features())))
def test_features_survive_the_conversion_to_capabilities(names: frozenset[str]) -> None:
    implied = names | frozenset(["sampling"] if "sampling.tools" in names else [])
    made = features_to_capabilities(names)
    assert read_client_features(made) == implied
    assert read_client_features(capabilities_for_revision(made, V2025_11_25)) == implied
    assert read_client_features(capabilities_for_revision(made, V2026_07_28)) == implied


def test_features_are_declared_with_their_details() -> None:
    names = frozenset({"roots", "elicitation", "elicitation.url"})
    assert features_to_capabilities(names) == {"roots": {}, "elicitation": {"url": {}}}
