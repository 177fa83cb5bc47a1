"""Whoever asked one thing in an envelope: what it is told, and when nobody is there."""

import pytest

from tests.gateway.letters import Paper
from trunkline.gateway.correspondent import Correspondent
from trunkline.jsonrpc import Due, Raw, RpcError, to_raw
from trunkline.mcp.caller import Caller
from trunkline.mcp.principal import Principal

PROGRESS, MESSAGE = "notifications/progress", "notifications/message"


def caller(level: str | None = None) -> Caller:
    return Caller(Principal("p"), "2026-07-28", {}, Raw(b"{}"), level)


async def test_it_is_told_what_it_asked_to_hear() -> None:
    for level, heard in ((None, [PROGRESS]), ("info", [PROGRESS, MESSAGE])):
        paper = Paper()
        client = Correspondent(caller(level), paper)
        await client.tell(PROGRESS, {"progressToken": 1, "progress": 1})
        await client.tell(MESSAGE, to_raw({"level": "warning", "data": 1}))
        await client.tell(MESSAGE, to_raw({"level": "debug", "data": 1}))
        await client.tell("notifications/tools/list_changed", None)
        assert [method for method, _ in paper.everything()] == heard


async def test_who_comes_back_is_told_under_its_new_token_or_not_at_all() -> None:
    first, second, third = Paper(), Paper(), Paper()
    client = Correspondent(caller(), first)
    news = {"progressToken": "a", "progress": 1}
    await client.tell(PROGRESS, news)
    client.come_back(caller(), second, "b")
    await client.tell(PROGRESS, news)
    client.come_back(caller(), third, None)
    await client.tell(PROGRESS, news)
    told = [[found["progressToken"] for _, found in p.everything()] for p in (first, second, third)]
    assert told == [["a"], ["b"], []]


async def test_one_without_an_exchange_cannot_be_asked() -> None:
    client = Correspondent(caller(), Paper())
    assert (client.party, client.answering) == (client, False)
    with pytest.raises(RpcError) as refused:
        await client.ask("roots/list", None)
    assert refused.value.code == -32601


async def test_what_fails_since_it_cannot_be_asked_says_what_is_missing() -> None:
    failure, nothing = RpcError(-5, "no"), to_raw({})
    for method, params, code in (
        ("roots/list", nothing, -32021),
        ("roots/list", None, -5),
        ("vendor/question", nothing, -5),
    ):
        client, call = Correspondent(caller(), paper := Paper()), Due()
        with pytest.raises(RpcError):
            await client.ask(method, params)
        call.then(client.conclude)
        call.fail(failure)
        assert isinstance(call.error, RpcError)
        assert call.error.code == code
        await client.tell(PROGRESS, {"progressToken": 1, "progress": 1})
        assert paper.everything() == []
