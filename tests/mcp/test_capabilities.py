"""What a gateway may say that it can."""

from typing import Any

from trunkline.mcp.capabilities import merge_capabilities, questions

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
