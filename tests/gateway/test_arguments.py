"""Arguments that a tool does not take: explained as each revision wants it, and sent to nobody."""

from typing import Any

import pytest

from tests.gateway.letters import Poster
from tests.gateway.servers import Server, User, gateway, running, text_of, tool
from trunkline.gateway import arguments as module
from trunkline.gateway.arguments import Arguments, schema_of, unchecked
from trunkline.gateway.events import CallEnded, Unchecked
from trunkline.gateway.gateway import Gateway
from trunkline.gateway.governance import Governance
from trunkline.gateway.passage import Passage
from trunkline.jsonrpc import Raw, Request, RpcError, from_raw, to_raw
from trunkline.mcp.caller import Caller
from trunkline.mcp.meta import Params
from trunkline.mcp.offer import Kind
from trunkline.mcp.principal import LOCAL
from trunkline.routing.catalog import Entry

PATH = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
WRONG = 'Invalid arguments for tool fs__read: "path" is a required property'


def files() -> Server:
    return Server(tools=[tool("read", inputSchema=PATH), tool("any")], prompts=[{"name": "ask"}])


def checked(server: Server, **more: Any) -> tuple[Gateway, list[Unchecked]]:
    made = gateway(fs=server)
    told: list[Unchecked] = []
    made.layers.governor = Governance(arguments=Arguments(told.append, **more))
    return made, told


def entry(schema: Any, name: str = "fs__read") -> Entry:
    definition = to_raw({"name": name, "inputSchema": schema})
    return Entry(Kind.TOOL, name, "fs", "read", definition)


def check(arguments: Arguments, found: Entry, given: bytes | None, version: str) -> Any:
    caller = Caller(LOCAL, version, {}, Raw(b"{}"))
    params = Params(to_raw({"name": found.public}))
    if given is not None:
        params.put("arguments", Raw(given))
    request = Request(1, "tools/call", params.encode())
    passage = Passage(caller, request, arguments=params.get("arguments"))
    judge = arguments.check_of(found)
    answer = None if judge is None else judge(passage, found)
    assert passage.status == (None if answer is None else "invalid_arguments")
    return None if answer is None else from_raw(answer)


@pytest.mark.holds("C21")
@pytest.mark.parametrize("version", ["2024-11-05", "2025-03-26", "2025-06-18"])
async def test_before_2025_11_25_it_is_an_error(version: str) -> None:
    server = files()
    made, _ = checked(server)
    async with running(made, server), User(made) as user:
        await user.hello(version)
        error = await user.refusal("tools/call", {"name": "fs__read"})
        assert (error.code, error.message) == (-32602, WRONG)
        assert server.count("tools/call") == 0


@pytest.mark.holds("C21")
async def test_from_2025_11_25_on_it_is_a_result_that_the_model_reads() -> None:
    server = files()
    made, _ = checked(server)
    async with running(made, server), User(made) as user:
        await user.hello()
        answer = await user.call("fs__read", arguments={})
        assert answer == {"content": [{"type": "text", "text": WRONG}], "isError": True}
        assert server.count("tools/call") == 0
        assert text_of(await user.call("fs__read", arguments={"path": "/"})) == "read ran"


@pytest.mark.holds("C21")
async def test_in_2026_07_28_the_result_says_what_kind_it_is() -> None:
    server = files()
    made, _ = checked(server)
    async with running(made, server):
        made.registry.start()
        await made.registry.wait_settled()
        answer = await Poster(made).call("fs__read")
        assert answer["resultType"] == "complete"
        assert answer["isError"] is True
        assert server.count("tools/call") == 0


async def test_what_is_wrong_is_told_as_such_and_uses_nobodys_time() -> None:
    server = files()
    made, _ = checked(server)
    told: list[Any] = []
    made.layers.events.listen(told.append)
    async with running(made, server):
        made.registry.start()
        await made.registry.wait_settled()
        await Poster(made).call("fs__read")
    (ended,) = [event for event in told if isinstance(event, CallEnded)]
    assert (ended.status, ended.upstream) == ("invalid_arguments", 0.0)


async def test_prompts_and_tools_without_rules_pass() -> None:
    server = files()
    made, told = checked(server)
    async with running(made, server), User(made) as user:
        await user.hello()
        await user.call("fs__any", arguments={"anything": 1})
        await user.ask("prompts/get", {"name": "fs__ask"})
    assert told == []


async def test_methods_that_mcp_does_not_know_still_pass_to_the_only_server() -> None:
    server = files()
    server.methods["acme/do"] = lambda params: {"did": params}
    made, _ = checked(server)
    async with running(made, server), User(made) as user:
        await user.hello()
        await made.registry.wait_settled()
        assert await user.ask("acme/do", {"x": 1}) == {"did": {"x": 1}}


def test_what_is_built_in_checks_its_own() -> None:
    arguments = Arguments(lambda _: None, builtin=["fs"])
    assert check(arguments, entry(PATH), None, "2025-11-25") is None


def test_a_schema_is_compiled_once_for_all_who_have_it(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[bytes] = []
    compile_schema = module.compile_schema

    def counting(schema: Raw) -> Any:
        compiled.append(bytes(schema))
        return compile_schema(schema)

    monkeypatch.setattr(module, "compile_schema", counting)
    arguments = Arguments(lambda _: None)
    for _ in range(3):  # as often as the catalogue is made anew
        for name in ("fs__read", "fs__stat"):
            assert check(arguments, entry(PATH, name), b"{}", "2025-11-25") is not None
    assert len(compiled) == 1


def test_a_tool_that_is_offered_anew_is_checked_against_what_it_says_now() -> None:
    arguments = Arguments(lambda _: None)
    assert check(arguments, entry(PATH), None, "2025-11-25") is not None
    assert check(arguments, entry({"type": "object"}), None, "2025-11-25") is None
    with pytest.raises(RpcError, match="no arguments are allowed"):
        check(arguments, entry({"additionalProperties": False}), b'{"a":1}', "2025-06-18")


def test_no_more_is_kept_than_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_KNOWN", 3)
    arguments = Arguments(lambda _: None)
    for number in range(20):
        schema = {**PATH, "title": str(number)}
        check(arguments, entry(schema, f"fs__{number}"), b'{"path":"x"}', "2025-11-25")
        assert len(arguments) <= 6


def test_what_cannot_be_checked_passes_and_is_told_once() -> None:
    told: list[Unchecked] = []
    arguments = Arguments(told.append)
    bad = entry({"type": "strin"})
    for _ in range(3):
        assert check(arguments, bad, None, "2025-11-25") is None
    (event,) = told
    assert (event.name, event.backend) == ("fs__read", "fs")
    assert "its schema is none" in event.why


def test_arguments_that_cost_too_much_pass_and_are_told_of_once() -> None:
    told: list[Unchecked] = []
    arguments = Arguments(told.append)
    names = entry({"patternProperties": {"^a+$": {"type": "string"}}})
    long = b'{"aa":1,"text":"%s"}' % (b"x" * 10_000)
    for _ in range(3):
        assert check(arguments, names, long, "2025-11-25") is None
    assert [event.why for event in told] == ["its arguments are too long for regular expressions"]
    assert check(arguments, names, b'{"aa":1}', "2025-11-25") is not None


def test_what_is_not_checked_can_be_asked_beforehand() -> None:
    found = unchecked([entry(PATH), entry({"$ref": "https://there.example"}, "fs__b")])
    assert list(found) == ["fs__b"]
    assert "nothing is fetched" in found["fs__b"]


def test_a_tool_without_a_schema_takes_everything() -> None:
    bare = Entry(Kind.TOOL, "t", "fs", "t", Raw(b'{"name":"t"}'))
    assert bytes(schema_of(bare)) == b"{}"
