"""What is offered only to those who can be asked something: it is listed when they come."""

import asyncio
from typing import Any

from tests.gateway.letters import CAPABILITIES, poster, put_away
from tests.gateway.servers import Hold, Server, serving, text_of, tool, user
from trunkline.gateway.guests import Guests
from trunkline.jsonrpc import Raw
from trunkline.mcp.offer import Kind, Offer

FORM, SAMPLING = frozenset(("elicitation.form",)), frozenset(("sampling",))


def offers(*names: str) -> tuple[Offer, ...]:
    return tuple(Offer(Kind.TOOL, name, Raw(b"{}")) for name in names)


def test_what_is_offered_to_some_comes_after_what_is_offered_to_everybody_and_once() -> None:
    guests = Guests()
    assert guests.add_to(offers("a")) == offers("a")
    guests.learn(FORM, offers("b", "a"))
    guests.learn(SAMPLING, offers("a", "c", "b"))
    assert guests.add_to(offers("a", "z")) == offers("a", "z", "b", "c")
    guests.learn(FORM, offers("a"))
    assert guests.add_to(offers("a", "z")) == offers("a", "z", "c", "b")


def picky() -> Server:
    """Return a server that offers one tool more to those who can be asked."""
    server = Server(tools=[tool("plain")])
    server.methods["initialize"] = lambda params: {
        "protocolVersion": "2025-11-25",
        "capabilities": {"tools": {}},
        "serverInfo": {"more": bool(server.lists.update(tools=_tools(params["capabilities"])))},
    }
    return server


def _tools(can: dict[str, Any]) -> list[dict[str, Any]]:
    return [tool("plain"), *(tool(f"needs-{name}") for name in can)]


async def test_what_is_offered_to_those_who_can_be_asked_is_there_when_the_first_comes() -> None:
    server = picky()
    async with serving(s=server) as made:
        client = await poster(made)

        async def names(can: dict[str, Any]) -> list[str]:
            listed = await client.ask("tools/list", _meta={CAPABILITIES: can})
            return [each["name"] for each in listed["tools"]]

        form: dict[str, Any] = {"elicitation": {"form": {}}}
        assert await names({}) == ["s__plain"]
        assert server.starts == 1
        assert await names(form) == ["s__plain", "s__needs-elicitation"]
        assert made.ready
        assert server.starts == 2
        everything = ["s__plain", "s__needs-elicitation", "s__needs-sampling"]
        assert await names({"sampling": {}}) == everything
        assert await names({}) == await names(form) == everything
        assert server.starts == 3
        answer = await client.call("s__needs-elicitation", _meta={CAPABILITIES: form})
        assert text_of(answer) == "needs-elicitation ran"
        assert server.starts == 3  # in the conversation that was opened to look


async def test_those_who_come_while_it_starts_are_waited_for_as_well() -> None:
    server = picky()
    async with serving(s=server) as made:
        made.client_capabilities = {"vendor": {}}  # as if nobody knew who will come
        async with user(made, sampling={}) as somebody:
            assert await somebody.names() == ["s__plain", "s__needs-vendor", "s__needs-sampling"]


async def test_one_that_was_told_already_is_not_looked_at_again() -> None:
    server = picky()
    async with serving(s=server) as made, user(made, sampling={}) as somebody:
        assert await somebody.names() == ["s__plain", "s__needs-sampling"]
        assert server.starts == 1


async def test_one_that_cannot_be_listed_again_is_used_all_the_same() -> None:
    server = picky()
    async with serving(s=server) as made:
        client = await poster(made)
        server.methods["tools/list"] = lambda _: {"tools": 7}
        can: dict[str, Any] = {CAPABILITIES: {"sampling": {}}}
        assert [t["name"] for t in (await client.ask("tools/list", _meta=can))["tools"]] == [
            "s__plain"
        ]
        assert text_of(await client.call("s__plain", _meta=can)) == "plain ran"
        assert server.starts == 2


async def test_a_call_goes_on_while_it_is_seen_what_is_offered_to_others() -> None:
    server, hold = picky(), Hold()

    async def ask(params: Any) -> Any:
        answer = await server.ask("elicitation/create", {"message": "?"})
        return {"content": [{"type": "text", "text": answer["action"]}]}

    server.methods["tools/call"] = ask
    form: dict[str, Any] = {CAPABILITIES: {"elicitation": {"form": {}}}}
    async with serving(s=server) as made:
        client = await poster(made)
        asked = await client.call("s__plain", _meta=form)
        (key,) = asked["inputRequests"]
        server.methods["initialize"] = hold
        sampling: dict[str, Any] = {CAPABILITIES: {"sampling": {}}}
        listing = asyncio.create_task(client.ask("tools/list", _meta=sampling))
        while server.count("initialize") < 3:
            await asyncio.sleep(0)
        answers = {key: {"action": "decline"}}
        state = asked["requestState"]
        said = await client.call("s__plain", _meta=form, inputResponses=answers, requestState=state)
        assert text_of(said) == "decline"
        assert not listing.done()
        await put_away(listing)


async def test_one_that_ends_while_it_is_looked_at_is_closed() -> None:
    server, hold = picky(), Hold()
    async with serving(s=server) as made:
        client = await poster(made)
        server.methods["tools/list"] = hold
        can: dict[str, Any] = {CAPABILITIES: {"sampling": {}}}
        listing = asyncio.create_task(client.ask("tools/list", _meta=can))
        while server.count("tools/list") < 2:
            await asyncio.sleep(0)
        await server.die()
        assert [each["name"] for each in (await listing)["tools"]] == ["s__plain"]
        assert text_of(await client.call("s__plain")) == "plain ran"
