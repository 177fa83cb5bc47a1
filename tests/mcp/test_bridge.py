"""Answers in the other era's shape, and not a byte different in their own."""

from typing import Any

import pytest

from trunkline.jsonrpc import UNSET, Raw, RpcError, from_raw, to_raw
from trunkline.mcp.bridge import (
    SMALL,
    adapt_error,
    adapt_params,
    adapt_result,
    cached_list,
    for_envelope,
    for_handshake,
    unchanged_for,
    wrap_params,
)
from trunkline.mcp.cacheable import CACHEABLE, Freshness
from trunkline.mcp.caller import Caller
from trunkline.mcp.meta import Params
from trunkline.mcp.principal import Principal
from trunkline.mcp.rounds import MAY_ASK
from trunkline.mcp.versions import HANDSHAKE_VERSIONS, VERSIONS

OLD, NEW = "2025-11-25", "2026-07-28"
SERVER = "io.modelcontextprotocol/serverInfo"


def envelope(method: str, result: Any) -> Any:
    return from_raw(for_envelope(method, to_raw(result), NEW))


def handshake(result: Any) -> Any:
    return from_raw(for_handshake("tools/call", to_raw(result), OLD))


def test_between_handshake_revisions_a_result_is_not_even_looked_at() -> None:
    odd = Raw(b'{"a":1,"a":2 , "resultType":3}')
    assert adapt_result("tools/call", odd, "2024-11-05", OLD) is odd


def test_a_whole_result_of_the_envelope_era_stays_to_the_byte() -> None:
    called = Raw(b'{"content": [1.0], "resultType":"complete"}')
    assert adapt_result("tools/call", called, NEW, NEW) is called
    read = Raw(b'{"contents":[], "resultType":"complete" ,"ttlMs":5,"cacheScope":"public"}')
    assert adapt_result("resources/read", read, NEW, NEW) is read


@pytest.mark.parametrize(
    "whole",
    [
        b'{"resultType":"complete","content":[1.0]}',
        b'{"content": [1.0],"resultType":"complete"}',
        b'{"resultType":"complete"}',
        b'{"resultType": "complete", "content": []}',
        b'{"content":[],"resultType":"zzz"}',  # some extension's
    ],
)
def test_wherever_it_says_so_and_however_long_it_is(whole: bytes) -> None:
    long = whole[:-1] + b',"x":"%b"}' % (b"a" * SMALL)
    for result in (Raw(whole), Raw(long), Raw(b'{"x":1,' + whole[1:])):
        assert adapt_result("tools/call", result, NEW, NEW) is result


@pytest.mark.parametrize(
    "inside",
    [
        b'{"a":{"b":1,"resultType":"complete"}}',
        b'{"a":{"resultType":"complete","b":1}}',
        b'{"a":"\\",\\"resultType\\":\\"complete"}',
        b'{"a":"resultType"}',
    ],
)
def test_what_is_said_of_a_part_is_not_said_of_the_whole(inside: bytes) -> None:
    adapted = bytes(adapt_result("tools/call", Raw(inside), NEW, NEW))
    assert from_raw(adapted, dict[str, Any]) == {
        "resultType": "complete",
        **from_raw(inside, dict[str, Any]),
    }


def test_what_says_both_is_refused() -> None:
    both = Raw(b'{"resultType":"input_required","requestState":"s","resultType":"complete"}')
    with pytest.raises(RpcError, match="resultType"):
        adapt_result("tools/call", both, NEW, NEW)
    spelled = Raw(b'{"result\\u0054ype":"input_required","a":1,"resultType":"complete"}')
    with pytest.raises(RpcError, match="resultType"):
        adapt_result("tools/call", spelled, NEW, NEW)


def test_a_result_of_the_handshake_era_gets_what_it_lacks() -> None:
    adapted = adapt_result("tools/call", Raw(b'{"content":[1.0],"_meta":{"k":1}}'), OLD, NEW)
    assert bytes(adapted) == b'{"resultType":"complete","content":[1.0],"_meta":{"k":1}}'


@pytest.mark.parametrize(
    "said",
    [b'"input_required"', b'"task"', b'"zzz"', b"5", b"null", b'"complete"', b'"\\u0063omplete"'],
)
def test_what_a_handshake_server_calls_a_result_is_not_believed(said: bytes) -> None:
    for key in (b"resultType", b"result\\u0054ype"):
        raw = Raw(b'{"content":[1.0],"ttlMs":9,"' + key + b'":' + said + b"}")
        adapted = adapt_result("tools/call", raw, OLD, NEW)
        assert b'"content":[1.0]' in bytes(adapted)
        assert from_raw(adapted, dict[str, Any])["resultType"] == "complete"


@pytest.mark.parametrize("kind", ["input_required", "complete"])
@pytest.mark.parametrize("method", sorted(CACHEABLE))
def test_nor_for_how_long_it_says_that_it_may_be_kept(method: str, kind: str) -> None:
    said = to_raw({"resultType": kind, "ttlMs": 9, "cacheScope": "public", "contents": []})
    assert from_raw(adapt_result(method, said, OLD, NEW)) == {
        "resultType": "complete",
        "ttlMs": 0,
        "cacheScope": "private",
        "contents": [],
    }


@pytest.mark.parametrize("method", sorted(CACHEABLE))
def test_what_may_be_cached_says_that_it_may_not(method: str) -> None:
    assert envelope(method, {}) == {
        "resultType": "complete",
        "ttlMs": 0,
        "cacheScope": "private",
    }


@pytest.mark.parametrize(
    ("said", "passed"),
    [
        ({"ttlMs": 5}, (5, "private")),
        ({"cacheScope": "public"}, (0, "public")),
        ({"ttlMs": -5, "cacheScope": "public"}, (0, "public")),
        ({"ttlMs": 5, "cacheScope": "shared"}, (5, "private")),
        ({"ttlMs": Raw(b"1e999"), "cacheScope": None}, (0, "private")),
    ],
)
def test_what_makes_no_sense_is_not_passed_on(
    said: dict[str, Any], passed: tuple[int, str]
) -> None:
    result = envelope("resources/read", {"resultType": "complete", **said})
    assert (result["ttlMs"], result["cacheScope"]) == passed


def test_what_is_not_complete_is_not_cacheable_either() -> None:
    asks = {"resultType": "input_required", "requestState": "s"}
    assert envelope("resources/read", asks) == asks
    assert envelope("resources/read", asks | {"ttlMs": 5, "cacheScope": "public"}) == asks


FORM: Any = {"method": "elicitation/create", "params": {"message": "?", "requestedSchema": {}}}
URL: Any = {"method": "elicitation/create", "params": {"mode": "url", "url": "https://x.example"}}
SAMPLE: Any = {"method": "sampling/createMessage", "params": {"messages": []}}


@pytest.mark.parametrize(
    ("asked", "askable", "missing"),
    [
        (FORM, ["sampling"], {"elicitation": {"form": {}}}),
        (URL, ["elicitation.form"], {"elicitation": {"url": {}}}),
        ({"method": "roots/list"}, [], {"roots": {}}),
        (
            {"method": "sampling/createMessage", "params": {"tools": []}},
            ["sampling"],
            {"sampling": {"tools": {}}},
        ),
    ],
)
@pytest.mark.parametrize("method", sorted(MAY_ASK))
def test_nobody_is_asked_what_it_did_not_declare(
    method: str, asked: Any, askable: list[str], missing: Any
) -> None:
    result = to_raw({"resultType": "input_required", "inputRequests": {"k": asked}})
    with pytest.raises(RpcError) as caught:
        adapt_result(method, result, NEW, NEW, frozenset(askable))
    assert (caught.value.code, caught.value.data) == (-32021, {"requiredCapabilities": missing})


def test_what_it_declared_is_asked_to_the_byte() -> None:
    result = Raw(b'{"resultType": "input_required", "inputRequests": {"k":%s}}' % to_raw(SAMPLE))
    assert adapt_result("tools/call", result, NEW, NEW, frozenset(["sampling"])) is result


@pytest.mark.parametrize(
    ("method", "said", "reason"),
    [
        ("tools/call", {"resultType": "task", "taskId": "t"}, "answers with a task"),
        ("tools/call", {"resultType": 5}, "unknown 'resultType'"),
        ("tools/call", {"resultType": None}, "unknown 'resultType'"),
        ("tools/call", {"resultType": "input_required"}, "expected 'inputRequests'"),
        (
            "tools/call",
            {"resultType": "input_required", "inputRequests": {"k": {"method": "ping"}}},
            "ping",
        ),
        (
            "completion/complete",
            {"resultType": "input_required", "requestState": "s"},
            "wants to know more",
        ),
    ],
)
def test_what_no_client_could_make_anything_of_is_not_passed_on(
    method: str, said: Any, reason: str
) -> None:
    with pytest.raises(RpcError, match=reason) as caught:
        envelope(method, said)
    assert caught.value.code == -32603


def test_what_some_extension_answers_is_for_the_client_to_judge() -> None:
    result = Raw(b'{"resultType": "example.com/later", "ttlMs": 5}')
    assert adapt_result("tools/call", result, NEW, NEW) is result


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"[]", "not an object"),
        (b"7", "not an object"),
        (b'{"resultType":1,"resultType":2}', "duplicate member 'resultType'"),
    ],
)
def test_a_result_that_cannot_be_adapted_is_the_servers_fault(raw: bytes, reason: str) -> None:
    for server, client in ((OLD, NEW), (NEW, OLD)):
        with pytest.raises(RpcError, match=reason) as caught:
            adapt_result("tools/call", Raw(raw), server, client)
        assert caught.value.code == -32603


def test_clients_of_the_handshake_see_nothing_of_the_other_era() -> None:
    whole: Any = {"resultType": "complete", "ttlMs": 5, "cacheScope": "public", "contents": []}
    assert handshake(whole) == {"contents": []}
    assert handshake({"content": [], "_meta": {SERVER: {}, "k": 1}}) == {
        "content": [],
        "_meta": {"k": 1},
    }
    assert handshake({"resultType": "complete", "_meta": {SERVER: {}}}) == {}


@pytest.mark.parametrize(
    ("whole", "seen"),
    [
        (b'{"resultType":"complete","content":[1.0]}', b'{"content":[1.0]}'),
        (b'{"content": [1.0],"resultType":"complete"}', b'{"content": [1.0]}'),
        (b'{"content":[],"ttlMs":5,"resultType":"complete"}', b'{"content":[]}'),
        (b'{"a":{"b":1,"resultType":"complete"}}', b'{"a":{"b":1,"resultType":"complete"}}'),
        (b'{"a":"\\",\\"resultType\\":\\"complete"}',) * 2,
    ],
)
def test_wherever_a_result_says_that_it_is_whole_they_do_not_see_it(
    whole: bytes, seen: bytes
) -> None:
    assert bytes(adapt_result("tools/call", Raw(whole), NEW, OLD)) == seen
    for other in (b"result\\u0054ype", b"resultType"):
        asks = b'{"%b":"input_required","a":1,"resultType":"complete"}' % other
        with pytest.raises(RpcError, match="resultType"):
            adapt_result("tools/call", Raw(asks), NEW, OLD)


def test_what_both_eras_have_alike_stays_to_the_byte() -> None:
    for raw in (b'{"content": [1.0], "_meta":{ "k":1}}', b'{"content": [], "_meta":5}'):
        result = Raw(raw)
        assert adapt_result("tools/call", result, NEW, OLD) is result


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("input_required", "wants to know more"),
        ("task", "answers with a task"),
        ("zzz", "unknown 'resultType'"),
        (None, "unknown 'resultType'"),
        (Raw(b"1e999"), "unknown 'resultType'"),
    ],
)
def test_an_answer_that_is_none_yet_is_not_passed_off_as_one(kind: Any, reason: str) -> None:
    with pytest.raises(RpcError, match=reason) as caught:
        handshake({"resultType": kind, "requestState": "s"})
    assert caught.value.code == -32603


@pytest.mark.holds("T95")
def test_a_list_as_structured_content_becomes_text_for_the_handshake_era() -> None:
    listed: Any = {"resultType": "complete", "content": [], "structuredContent": [1, {"a": 2}]}
    result = from_raw(adapt_result("tools/call", to_raw(listed), NEW, OLD))
    assert result == {"content": [{"type": "text", "text": '[1,{"a":2}]'}]}
    assert envelope("tools/call", listed) == listed


@pytest.mark.parametrize("server", ["2025-11-25", "2026-07-28"])
def test_the_oldest_clients_hear_without_knowing_audio(server: str) -> None:
    result = to_raw({"content": [{"type": "audio", "data": "AAAA", "mimeType": "audio/wav"}]})
    adapted: Any = from_raw(adapt_result("tools/call", result, server, "2024-11-05"))
    assert adapted["content"][0]["resource"]["blob"] == "AAAA"
    assert adapt_result("tools/call", result, server, "2025-03-26") is result


@pytest.mark.parametrize("client", HANDSHAKE_VERSIONS)
@pytest.mark.parametrize("server", VERSIONS)
def test_text_stays_to_the_byte_between_all_revisions(server: str, client: str) -> None:
    for raw in (b'{"content": [{"type":"text","text":"a \\u00e9"}]}', b'{"messages": []}'):
        result = Raw(raw)
        assert adapt_result("tools/call", result, server, client) is result


def test_an_older_client_gets_no_less_of_what_cannot_be_read() -> None:
    odd = Raw(b'{"structuredContent": {}, "a":1,"a":2}')
    with pytest.raises(RpcError, match="duplicate member 'a'"):
        adapt_result("tools/call", odd, "2025-06-18", "2025-03-26")
    assert adapt_result("prompts/get", Raw(b'{"structuredContent": 5}'), OLD, "2025-03-26") == Raw(
        b'{"structuredContent": 5}'
    )


@pytest.mark.parametrize(
    "method", ["ping", "logging/setLevel", "resources/subscribe", "resources/unsubscribe"]
)
@pytest.mark.parametrize("server", [OLD, NEW])
def test_what_is_empty_is_empty(method: str, server: str) -> None:
    result = Raw(b'{"resultType":"complete","_meta":{}}')
    assert bytes(adapt_result(method, result, server, OLD)) == b"{}"


def test_a_server_of_the_handshake_sees_nothing_of_the_other_era() -> None:
    raw = to_raw(
        {
            "name": "x",
            "inputResponses": {"k": {}},
            "requestState": "s",
            "context": {},
            "_meta": {"io.modelcontextprotocol/protocolVersion": NEW, "traceparent": "t"},
        }
    )
    params = Params(raw)
    adapt_params("tools/call", params, OLD)
    assert from_raw(params.encode()) == {
        "name": "x",
        "context": {},
        "_meta": {"traceparent": "t"},
    }
    first = from_raw(raw, dict[str, Any])
    plain = Params(to_raw({"name": "x", "arguments": {"a": 1}, "_meta": first["_meta"]}))
    adapt_params("tools/call", plain, OLD)
    assert bytes(plain.encode()) == (
        b'{"name":"x","arguments":{"a":1},"_meta":{"traceparent":"t"}}'
    )


def test_a_client_of_the_handshake_has_no_word_in_its_envelope() -> None:
    forged = {f"io.modelcontextprotocol/{key}": "x" for key in ("clientInfo", "logLevel")}
    said: dict[str, Any] = {
        "inputResponses": {"k": {}},
        "requestState": "s",
        "_meta": forged | {"traceparent": "t"},
    }
    caller = Caller(Principal("p"), OLD, {"roots": {}}, to_raw({"name": "c"}))
    for method, kept in (("tools/call", False), ("vendor/method", True)):
        params = Params(to_raw({"name": "x"} | said))
        wrap_params(method, params, caller)
        assert from_raw(params.encode()) == {
            "name": "x",
            "_meta": from_raw(caller.envelope, dict[str, Any]) | {"traceparent": "t"},
            **({key: said[key] for key in ("inputResponses", "requestState")} if kept else {}),
        }
    plain = Params(Raw(b'{"name":"x"}'))
    wrap_params("tools/call", plain, caller)
    assert plain.get("_meta") == caller.envelope


@pytest.mark.parametrize(
    ("server", "kept"), [("2025-03-26", False), ("2025-06-18", True), ("2025-11-25", True)]
)
def test_completions_have_a_context_since_2025_06_18(server: str, *, kept: bool) -> None:
    params = Params(Raw(b'{"ref":{},"context":{"arguments":{}}}'))
    adapt_params("completion/complete", params, server)
    assert (params.get("context") is not None) == kept


def test_within_an_era_an_error_is_passed_on_as_it_is() -> None:
    known = [(code, NEW, NEW) for code in (-32020, -32021, -32022, -32019, -32602)]
    for code, server, client in ((-32002, "2024-11-05", OLD), (-32055, OLD, OLD), *known):
        error = RpcError(code, "no", {"uri": "x:"})
        assert adapt_error(error, server, client) is error


@pytest.mark.parametrize("server", [OLD, NEW])
def test_a_missing_resource_has_another_code_since_2026_07_28(server: str) -> None:
    error = adapt_error(RpcError(-32002, "Not there", {"uri": "x:"}), server, NEW)
    assert error == RpcError(-32602, "Not there", {"uri": "x:"})


@pytest.mark.parametrize("data", [{"uri": "x:"}, Raw(b'{"uri":"x:"}')])
def test_and_had_its_own_before(data: Any) -> None:
    error = adapt_error(RpcError(-32602, "Not there", data), NEW, OLD)
    assert error == RpcError(-32002, "Not there", data)


@pytest.mark.parametrize("data", [UNSET, 7, Raw(b"[]"), {"field": "uri"}])
def test_params_that_do_not_fit_are_no_missing_resource(data: Any) -> None:
    error = RpcError(-32602, "no", data)
    assert adapt_error(error, NEW, OLD) is error


def test_an_address_to_visit_is_news_to_clients_before_2025_11_25() -> None:
    error = RpcError(-32042, "Visit", {"elicitations": []})
    assert adapt_error(error, OLD, OLD) is error
    older = adapt_error(error, OLD, "2025-06-18")
    assert older == RpcError(-32603, "Visit", {"elicitations": []})
    assert adapt_error(error, OLD, NEW).data == {
        "upstreamCode": -32042,
        "upstreamData": {"elicitations": []},
    }


@pytest.mark.parametrize("code", [-32099, -32055, -32020])
@pytest.mark.parametrize(("server", "client"), [(OLD, NEW), (NEW, OLD)])
def test_a_reserved_code_is_not_passed_on(code: int, server: str, client: str) -> None:
    error = adapt_error(RpcError(code, "why", {"k": 1}), server, client)
    assert (error.code, error.message) == (-32603, "why")
    assert error.data == {"upstreamCode": code, "upstreamData": {"k": 1}}
    assert adapt_error(RpcError(code, "why", UNSET), server, client).data == {"upstreamCode": code}


@pytest.mark.parametrize("code", [-32099, -32055, -32042, -32023])
def test_nor_by_a_server_of_the_era_that_reserves_it(code: int) -> None:
    error = adapt_error(RpcError(code, "why", {"k": 1}), NEW, NEW)
    assert (error.code, error.message) == (-32603, "why")
    assert error.data == {"upstreamCode": code, "upstreamData": {"k": 1}}


@pytest.mark.parametrize("code", [-32100, -32019, -32601, -32602, -32603, -32002, 7])
def test_any_other_code_is(code: int) -> None:
    error = RpcError(code, "why", {"k": 1})
    assert adapt_error(error, NEW, OLD) is error


def test_a_list_of_ours_says_all_that_it_must() -> None:
    raw = cached_list(Raw(b'{"tools":[{"name": "x"}]}'), Freshness(5, public=True), {"name": "g"})
    assert b'"tools":[{"name": "x"}]' in bytes(raw)
    assert from_raw(raw) == {
        "resultType": "complete",
        "ttlMs": 5,
        "cacheScope": "public",
        "_meta": {SERVER: {"name": "g"}},
        "tools": [{"name": "x"}],
    }


def test_a_small_result_without_anything_foreign_only_loses_its_type() -> None:
    plain = Raw(b'{"resultType":"complete","content":[1.0]}')
    assert bytes(adapt_result("tools/call", plain, NEW, OLD)) == b'{"content":[1.0]}'


def test_a_refusal_for_want_of_a_capability_says_which_to_clients_of_the_other_era() -> None:
    needs: dict[str, Any] = {"requiredCapabilities": {"elicitation": {}}}
    told = adapt_error(RpcError(-32021, "no", needs), NEW, OLD)
    assert (told.code, from_raw(to_raw(told.data))) == (-32603, {"upstreamCode": -32021, **needs})
    for said in (UNSET, 7):
        told = adapt_error(RpcError(-32021, "no", said), NEW, OLD)
        assert from_raw(to_raw(told.data)) == {"upstreamCode": -32021}


def test_params_without_anything_foreign_stay_as_they_are() -> None:
    plain = Params(Raw(b'{"name": "t" , "arguments":{}}'))
    adapt_params("tools/call", plain, OLD)
    assert bytes(plain.encode()) == b'{"name": "t" , "arguments":{}}'


def test_who_sees_results_as_they_come_is_known_beforehand() -> None:
    for server in VERSIONS:
        for client in unchanged_for(server):
            result = Raw(b'{"content":[],"structuredContent":{},"resultType":"complete"}')
            assert adapt_result("tools/call", result, server, client) is result
    assert unchanged_for(OLD) == {"2025-06-18", "2025-11-25"}
    assert not unchanged_for(NEW)
