"""Results, errors, params and definitions converted between revisions."""

from hashlib import sha256
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline.jsonrpc import UNSET, Raw, RpcError, from_raw, read_members, to_raw
from trunkline.mcp.cache_hints import CacheHints
from trunkline.mcp.compat import (
    MAX_SCANNED_BYTES,
    adapt_error,
    adapt_result,
    downgrade_result,
    downgrade_tool,
    needs_downgrade,
    passthrough_revisions,
    stateless_list_result,
    to_session_params,
    to_session_result,
    to_stateless_params,
    to_stateless_result,
)
from trunkline.mcp.identity import Caller, Principal
from trunkline.mcp.methods import CLIENT_REQUESTS, undefined_method
from trunkline.mcp.params import Params
from trunkline.mcp.versions import (
    REVISIONS,
    SESSION_REVISIONS,
    V2024_11_05,
    V2025_03_26,
    V2025_06_18,
    V2025_11_25,
    V2026_07_28,
    Revision,
)

CACHEABLE_METHODS = [name for name, row in CLIENT_REQUESTS.items() if row.is_cacheable]
INPUT_METHODS = [name for name, row in CLIENT_REQUESTS.items() if row.may_request_input]
CALL = CLIENT_REQUESTS["tools/call"]
COMPLETE = CLIENT_REQUESTS["completion/complete"]
GET = CLIENT_REQUESTS["prompts/get"]
READ = CLIENT_REQUESTS["resources/read"]

FIRST, BATCHED, OLD, LATEST = SESSION_REVISIONS
ENVELOPE = V2026_07_28

TEXT = {"type": "text", "text": "hello"}
AUDIO = {"type": "audio", "data": "AAAA", "mimeType": "audio/wav", "annotations": {"priority": 1}}
LINK = {"type": "resource_link", "uri": "x:a", "name": "A", "size": 5, "_meta": {"k": 1}}
HASH = sha256(b'"AAAA"').hexdigest()
HEARD = {
    "type": "resource",
    "resource": {
        "uri": f"urn:trunkline:audio:{HASH}",
        "blob": "AAAA",
        "mimeType": "audio/wav",
    },
    "annotations": {"priority": 1},
}
LINKED = {"type": "text", "text": "A <x:a>", "_meta": {"k": 1}}


def downgrade(method: str, result: dict[str, Any], revision: Revision) -> Any:
    found = read_members(to_raw(result))
    downgrade_result(CLIENT_REQUESTS[method], found, revision)
    return from_raw(to_raw(found))


@pytest.mark.parametrize(
    ("revision", "blocks"),
    [
        (FIRST, [TEXT, HEARD, LINKED]),
        (BATCHED, [TEXT, AUDIO, LINKED]),
        (OLD, [TEXT, AUDIO, LINK]),
        (LATEST, [TEXT, AUDIO, LINK]),
    ],
)
def test_blocks_become_types_that_the_revision_has(revision: Revision, blocks: list[Any]) -> None:
    given_blocks = [TEXT, AUDIO, LINK]
    narrowed = downgrade("tools/call", {"content": given_blocks, "isError": True}, revision)
    assert narrowed == {"content": blocks, "isError": True}
    spoken = [{"role": "user", "content": block} for block in given_blocks]
    narrowed = downgrade("prompts/get", {"messages": spoken, "description": "d"}, revision)
    assert [message["content"] for message in narrowed["messages"]] == blocks
    assert all(message["role"] == "user" for message in narrowed["messages"])


def test_an_escaped_block_type_is_found() -> None:
    found = {"content": Raw(b'[{"type":"\\u0061udio","data":"AAAA"}]')}
    assert needs_downgrade(to_raw(found), FIRST)
    downgrade_result(CALL, found, FIRST)
    assert b'"blob":"AAAA"' in bytes(found["content"])


ODD = b'[7,{"type":"audio"},{"type":"resource_link"},{"type":"audio","data":5},{"type":1e999}]'


@pytest.mark.parametrize("raw", [ODD, b'"audio"', b'{"type":"audio"}', b"null"])
def test_malformed_blocks_are_unchanged(raw: bytes) -> None:
    for method, key in (("tools/call", "content"), ("prompts/get", "messages")):
        content = Raw(raw)
        found = {key: content}
        downgrade_result(CLIENT_REQUESTS[method], found, FIRST)
        assert found[key] is content
    half = Raw(b'[{"type":"resource_link","uri":"x:","name":5}]')
    found = {"content": half}
    downgrade_result(CALL, found, FIRST)
    assert found["content"] is half


def test_results_of_other_methods_are_left_alone() -> None:
    for method in ("resources/read", "completion/complete", "prompts/get"):
        found = {"content": to_raw([AUDIO]), "structuredContent": Raw(b"5")}
        before = dict(found)
        downgrade_result(CLIENT_REQUESTS[method], found, FIRST)
        assert found == before


@pytest.mark.parametrize("revision", [FIRST, BATCHED])
def test_old_clients_get_structured_content_as_text(revision: Revision) -> None:
    structured = {"a": [1, "é"]}
    sent = downgrade("tools/call", {"content": [TEXT], "structuredContent": structured}, revision)
    assert sent == {"content": [TEXT]}
    lacking: list[dict[str, Any]] = [{"content": []}, {}, {"content": 5}]
    for content in lacking:
        sent = downgrade("tools/call", {**content, "structuredContent": structured}, revision)
        assert sent == {"content": [{"type": "text", "text": '{"a":[1,"é"]}'}]}


def test_an_object_stays_structured_since_2025_06_18() -> None:
    for revision in (OLD, LATEST):
        found = {"content": Raw(b"[]"), "structuredContent": Raw(b'{"a": 1.0}')}
        downgrade_result(CALL, found, revision)
        assert bytes(found["structuredContent"]) == b'{"a": 1.0}'
        assert bytes(found["content"]) == b"[]"


@pytest.mark.parametrize("structured", [[1, {"b": "é"}], "text", 7, True, Raw(b"1e999")])
@pytest.mark.parametrize("revision", SESSION_REVISIONS)
def test_structured_content_that_is_no_object_becomes_text(
    structured: Any, revision: Revision
) -> None:
    raw = to_raw(structured)
    words = {"type": "text", "text": bytes(raw).decode()}
    image = {"type": "image", "data": "", "mimeType": "image/png"}
    for blocks in ([], [TEXT], [image]):
        sent = downgrade("tools/call", {"content": blocks, "structuredContent": raw}, revision)
        assert sent == {"content": [*blocks, words]}
    sent = downgrade("tools/call", {"content": [TEXT, words], "structuredContent": raw}, revision)
    assert sent == {"content": [TEXT, words]}


def test_equal_text_is_recognised_despite_spacing_and_escapes() -> None:
    words = {"type": "text", "text": '[ 1,\n {"b": "\\u00e9"}]'}
    sent = downgrade(
        "tools/call", {"content": [words], "structuredContent": [1, {"b": "é"}]}, LATEST
    )
    assert sent == {"content": [words]}


def test_null_needs_no_text() -> None:
    assert downgrade("tools/call", {"content": [], "structuredContent": None}, OLD) == {
        "content": []
    }


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner),
    max_leaves=5,
)


@given(
    st.lists(st.sampled_from([TEXT, AUDIO, LINK])),
    json_values,
    st.sampled_from(SESSION_REVISIONS),
)
def test_downgrading_is_idempotent(blocks: list[Any], structured: Any, revision: Revision) -> None:
    once = downgrade("tools/call", {"content": blocks, "structuredContent": structured}, revision)
    assert downgrade("tools/call", once, revision) == once
    if revision in (FIRST, BATCHED):
        assert "structuredContent" not in once
    assert len(once["content"]) in (len(blocks), len(blocks) + 1)


@pytest.mark.parametrize(
    ("result", "revision", "foreign"),
    [
        ({"content": [TEXT]}, FIRST, False),
        ({"content": [TEXT]}, BATCHED, False),
        ({"content": [AUDIO]}, FIRST, True),
        ({"content": [AUDIO]}, BATCHED, False),
        ({"content": [LINK]}, BATCHED, True),
        ({"structuredContent": {}}, BATCHED, True),
        ({"content": [{"type": "text", "text": 'an "audio"'}]}, FIRST, False),
    ],
)
def test_a_result_is_parsed_only_if_it_may_need_a_downgrade(
    result: Any, revision: Revision, *, foreign: bool
) -> None:
    assert needs_downgrade(to_raw(result), revision) == foreign


# Tools


@pytest.mark.parametrize(
    ("schema", "since"),
    [
        (b'{"type":"object", "x": 1.0}', OLD),
        (b'{"type":"array"}', ENVELOPE),
        (b'{"anyOf":[]}', ENVELOPE),
        (b'{"type":["object"]}', ENVELOPE),
        (b'{"type":"object","type":"object"}', ENVELOPE),
        (b"true", ENVELOPE),
    ],
)
def test_an_output_schema_is_listed_where_it_can_be_read(schema: bytes, since: Revision) -> None:
    readable = REVISIONS[REVISIONS.index(since) :]
    tool = Raw(b'{"name":"a","outputSchema":' + schema + b',"x":[ 1.0]}')
    for revision in REVISIONS:
        if revision in readable:
            assert downgrade_tool(tool, revision) is tool
        else:
            assert bytes(downgrade_tool(tool, revision)) == b'{"name":"a","x":[ 1.0]}'


def test_a_tool_without_an_output_schema_keeps_its_bytes() -> None:
    tool = Raw(b'{"name": "a"}')
    assert all(downgrade_tool(tool, revision) is tool for revision in REVISIONS)


SESSION, NEW = V2025_11_25, V2026_07_28
SERVER = "io.modelcontextprotocol/serverInfo"


def to_stateless(method: str, result: Any) -> Any:
    return from_raw(to_stateless_result(CLIENT_REQUESTS[method], to_raw(result), NEW))


def to_session(result: Any) -> Any:
    return from_raw(to_session_result(CALL, to_raw(result), SESSION))


def test_between_session_revisions_a_result_is_not_parsed() -> None:
    odd = Raw(b'{"a":1,"a":2 , "resultType":3}')
    assert adapt_result(CALL, odd, V2024_11_05, SESSION) is odd


def test_a_complete_stateless_result_keeps_its_bytes() -> None:
    called = Raw(b'{"content": [1.0], "resultType":"complete"}')
    assert adapt_result(CALL, called, NEW, NEW) is called
    read = Raw(b'{"contents":[], "resultType":"complete" ,"ttlMs":5,"cacheScope":"public"}')
    assert adapt_result(READ, read, NEW, NEW) is read


@pytest.mark.parametrize(
    "whole",
    [
        b'{"resultType":"complete","content":[1.0]}',
        b'{"content": [1.0],"resultType":"complete"}',
        b'{"resultType":"complete"}',
        b'{"resultType": "complete", "content": []}',
        b'{"content":[],"resultType":"zzz"}',  # the result type of an extension
    ],
)
def test_a_complete_result_of_any_size_keeps_its_bytes(
    whole: bytes,
) -> None:
    long = whole[:-1] + b',"x":"%b"}' % (b"a" * MAX_SCANNED_BYTES)
    for result in (Raw(whole), Raw(long), Raw(b'{"x":1,' + whole[1:])):
        assert adapt_result(CALL, result, NEW, NEW) is result


@pytest.mark.parametrize(
    "inside",
    [
        b'{"a":{"b":1,"resultType":"complete"}}',
        b'{"a":{"resultType":"complete","b":1}}',
        b'{"a":"\\",\\"resultType\\":\\"complete"}',
        b'{"a":"resultType"}',
    ],
)
def test_a_nested_result_type_does_not_count(inside: bytes) -> None:
    adapted = bytes(adapt_result(CALL, Raw(inside), NEW, NEW))
    assert from_raw(adapted, dict[str, Any]) == {
        "resultType": "complete",
        **from_raw(inside, dict[str, Any]),
    }


def test_a_duplicate_result_type_is_rejected() -> None:
    both = Raw(b'{"resultType":"input_required","requestState":"s","resultType":"complete"}')
    with pytest.raises(RpcError, match="resultType"):
        adapt_result(CALL, both, NEW, NEW)
    spelled = Raw(b'{"result\\u0054ype":"input_required","a":1,"resultType":"complete"}')
    with pytest.raises(RpcError, match="resultType"):
        adapt_result(CALL, spelled, NEW, NEW)


def test_a_session_result_gets_the_members_it_lacks() -> None:
    adapted = adapt_result(CALL, Raw(b'{"content":[1.0],"_meta":{"k":1}}'), SESSION, NEW)
    assert bytes(adapted) == b'{"resultType":"complete","content":[1.0],"_meta":{"k":1}}'


@pytest.mark.parametrize(
    "sent",
    [b'"input_required"', b'"task"', b'"zzz"', b"5", b"null", b'"complete"', b'"\\u0063omplete"'],
)
def test_the_result_type_of_a_session_server_is_ignored(sent: bytes) -> None:
    for key in (b"resultType", b"result\\u0054ype"):
        raw = Raw(b'{"content":[1.0],"ttlMs":9,"' + key + b'":' + sent + b"}")
        adapted = adapt_result(CALL, raw, SESSION, NEW)
        assert b'"content":[1.0]' in bytes(adapted)
        assert from_raw(adapted, dict[str, Any])["resultType"] == "complete"


@pytest.mark.parametrize("kind", ["input_required", "complete"])
@pytest.mark.parametrize("method", CACHEABLE_METHODS)
def test_the_cache_hints_of_a_session_server_are_ignored(method: str, kind: str) -> None:
    sent = to_raw({"resultType": kind, "ttlMs": 9, "cacheScope": "public", "contents": []})
    assert from_raw(adapt_result(CLIENT_REQUESTS[method], sent, SESSION, NEW)) == {
        "resultType": "complete",
        "ttlMs": 0,
        "cacheScope": "private",
        "contents": [],
    }


@pytest.mark.parametrize("method", CACHEABLE_METHODS)
def test_cacheable_results_without_hints_forbid_caching(method: str) -> None:
    assert to_stateless(method, {}) == {
        "resultType": "complete",
        "ttlMs": 0,
        "cacheScope": "private",
    }


@pytest.mark.parametrize(
    ("sent", "passed"),
    [
        ({"ttlMs": 5}, (5, "private")),
        ({"cacheScope": "public"}, (0, "public")),
        ({"ttlMs": -5, "cacheScope": "public"}, (0, "public")),
        ({"ttlMs": 5, "cacheScope": "shared"}, (5, "private")),
        ({"ttlMs": Raw(b"1e999"), "cacheScope": None}, (0, "private")),
    ],
)
def test_malformed_cache_hints_are_replaced(sent: dict[str, Any], passed: tuple[int, str]) -> None:
    result = to_stateless("resources/read", {"resultType": "complete", **sent})
    assert (result["ttlMs"], result["cacheScope"]) == passed


def test_an_incomplete_result_has_no_cache_hints() -> None:
    asks = {"resultType": "input_required", "requestState": "s"}
    assert to_stateless("resources/read", asks) == asks
    assert to_stateless("resources/read", asks | {"ttlMs": 5, "cacheScope": "public"}) == asks


FORM: Any = {"method": "elicitation/create", "params": {"message": "?", "requestedSchema": {}}}
URL: Any = {"method": "elicitation/create", "params": {"mode": "url", "url": "https://x.example"}}
SAMPLE: Any = {"method": "sampling/createMessage", "params": {"messages": []}}


@pytest.mark.parametrize(
    ("server_request", "client_features", "missing"),
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
@pytest.mark.parametrize("method", INPUT_METHODS)
def test_a_client_gets_no_request_for_an_undeclared_capability(
    method: str, server_request: Any, client_features: list[str], missing: Any
) -> None:
    result = to_raw({"resultType": "input_required", "inputRequests": {"k": server_request}})
    with pytest.raises(RpcError) as caught:
        adapt_result(CLIENT_REQUESTS[method], result, NEW, NEW, frozenset(client_features))
    assert (caught.value.code, caught.value.data) == (-32021, {"requiredCapabilities": missing})


def test_a_request_for_a_declared_capability_keeps_its_bytes() -> None:
    result = Raw(b'{"resultType": "input_required", "inputRequests": {"k":%s}}' % to_raw(SAMPLE))
    assert adapt_result(CALL, result, NEW, NEW, frozenset(["sampling"])) is result


@pytest.mark.parametrize(
    ("method", "sent", "reason"),
    [
        ("tools/call", {"resultType": "task", "taskId": "t"}, "not requested"),
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
            "requires input",
        ),
    ],
)
def test_an_unusable_result_becomes_an_error(method: str, sent: Any, reason: str) -> None:
    with pytest.raises(RpcError, match=reason) as caught:
        to_stateless(method, sent)
    assert caught.value.code == -32603


def test_a_result_of_an_extension_is_passed_through() -> None:
    result = Raw(b'{"resultType": "example.com/later", "ttlMs": 5}')
    assert adapt_result(CALL, result, NEW, NEW) is result


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"[]", "expected an object"),
        (b"7", "expected an object"),
        (b'{"resultType":1,"resultType":2}', "duplicate member 'resultType'"),
    ],
)
def test_a_result_that_cannot_be_adapted_is_a_server_error(raw: bytes, reason: str) -> None:
    for server, client in ((SESSION, NEW), (NEW, SESSION)):
        with pytest.raises(RpcError, match=reason) as caught:
            adapt_result(CALL, Raw(raw), server, client)
        assert caught.value.code == -32603


def test_session_clients_see_no_stateless_members() -> None:
    whole: Any = {"resultType": "complete", "ttlMs": 5, "cacheScope": "public", "contents": []}
    assert to_session(whole) == {"contents": []}
    assert to_session({"content": [], "_meta": {SERVER: {}, "k": 1}}) == {
        "content": [],
        "_meta": {"k": 1},
    }
    assert to_session({"resultType": "complete", "_meta": {SERVER: {}}}) == {}


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
def test_session_clients_never_see_the_result_type(whole: bytes, seen: bytes) -> None:
    assert bytes(adapt_result(CALL, Raw(whole), NEW, SESSION)) == seen
    for other in (b"result\\u0054ype", b"resultType"):
        asks = b'{"%b":"input_required","a":1,"resultType":"complete"}' % other
        with pytest.raises(RpcError, match="resultType"):
            adapt_result(CALL, Raw(asks), NEW, SESSION)


def test_what_both_eras_have_in_common_keeps_its_bytes() -> None:
    for raw in (b'{"content": [1.0], "_meta":{ "k":1}}', b'{"content": [], "_meta":5}'):
        result = Raw(raw)
        assert adapt_result(CALL, result, NEW, SESSION) is result


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("input_required", "requires input"),
        ("task", "not requested"),
        ("zzz", "unknown 'resultType'"),
        (None, "unknown 'resultType'"),
        (Raw(b"1e999"), "unknown 'resultType'"),
    ],
)
def test_an_incomplete_result_is_an_error_for_session_clients(kind: Any, reason: str) -> None:
    with pytest.raises(RpcError, match=reason) as caught:
        to_session({"resultType": kind, "requestState": "s"})
    assert caught.value.code == -32603


@pytest.mark.holds("T95")
def test_a_list_as_structured_content_becomes_text_for_session_clients() -> None:
    listed: Any = {"resultType": "complete", "content": [], "structuredContent": [1, {"a": 2}]}
    result = from_raw(adapt_result(CALL, to_raw(listed), NEW, SESSION))
    assert result == {"content": [{"type": "text", "text": '[1,{"a":2}]'}]}
    assert to_stateless("tools/call", listed) == listed


@pytest.mark.parametrize("server", [V2025_11_25, V2026_07_28])
def test_the_oldest_clients_get_audio_as_a_resource(server: Revision) -> None:
    result = to_raw({"content": [{"type": "audio", "data": "AAAA", "mimeType": "audio/wav"}]})
    adapted: Any = from_raw(adapt_result(CALL, result, server, V2024_11_05))
    assert adapted["content"][0]["resource"]["blob"] == "AAAA"
    assert adapt_result(CALL, result, server, V2025_03_26) is result


@pytest.mark.parametrize("client", SESSION_REVISIONS)
@pytest.mark.parametrize("server", REVISIONS)
def test_text_keeps_its_bytes_between_all_revisions(server: Revision, client: Revision) -> None:
    for raw in (b'{"content": [{"type":"text","text":"a \\u00e9"}]}', b'{"messages": []}'):
        result = Raw(raw)
        assert adapt_result(CALL, result, server, client) is result


def test_malformed_content_is_passed_to_older_clients() -> None:
    odd = Raw(b'{"structuredContent": {}, "a":1,"a":2}')
    with pytest.raises(RpcError, match="duplicate member 'a'"):
        adapt_result(CALL, odd, V2025_06_18, V2025_03_26)
    assert adapt_result(GET, Raw(b'{"structuredContent": 5}'), SESSION, V2025_03_26) == Raw(
        b'{"structuredContent": 5}'
    )


@pytest.mark.parametrize(
    "method", ["ping", "logging/setLevel", "resources/subscribe", "resources/unsubscribe"]
)
@pytest.mark.parametrize("server", [SESSION, NEW])
def test_empty_results_are_empty(method: str, server: Revision) -> None:
    result = Raw(b'{"resultType":"complete","_meta":{}}')
    assert bytes(adapt_result(CLIENT_REQUESTS[method], result, server, SESSION)) == b"{}"


def test_a_session_server_sees_no_stateless_members() -> None:
    raw = to_raw(
        {
            "name": "x",
            "inputResponses": {"k": {}},
            "requestState": "s",
            "context": {},
            "_meta": {"io.modelcontextprotocol/protocolVersion": NEW.date, "traceparent": "t"},
        }
    )
    params = Params(raw)
    to_session_params(CALL, params, SESSION)
    assert from_raw(params.encode()) == {
        "name": "x",
        "context": {},
        "_meta": {"traceparent": "t"},
    }
    first = from_raw(raw, dict[str, Any])
    plain = Params(to_raw({"name": "x", "arguments": {"a": 1}, "_meta": first["_meta"]}))
    to_session_params(CALL, plain, SESSION)
    assert bytes(plain.encode()) == (
        b'{"name":"x","arguments":{"a":1},"_meta":{"traceparent":"t"}}'
    )


def test_a_session_client_cannot_write_into_its_envelope() -> None:
    forged = {f"io.modelcontextprotocol/{key}": "x" for key in ("clientInfo", "logLevel")}
    sent: dict[str, Any] = {
        "inputResponses": {"k": {}},
        "requestState": "s",
        "_meta": forged | {"traceparent": "t"},
    }
    caller = Caller(Principal("p"), SESSION, {"roots": {}}, to_raw({"name": "c"}))
    for method, kept in ((CALL, False), (undefined_method("vendor/method"), True)):
        params = Params(to_raw({"name": "x"} | sent))
        to_stateless_params(method, params, caller)
        assert from_raw(params.encode()) == {
            "name": "x",
            "_meta": from_raw(caller.envelope, dict[str, Any]) | {"traceparent": "t"},
            **({key: sent[key] for key in ("inputResponses", "requestState")} if kept else {}),
        }
    plain = Params(Raw(b'{"name":"x"}'))
    to_stateless_params(CALL, plain, caller)
    assert plain.get("_meta") == caller.envelope


@pytest.mark.parametrize(
    ("server", "kept"), [(V2025_03_26, False), (V2025_06_18, True), (V2025_11_25, True)]
)
def test_completions_have_a_context_since_2025_06_18(server: Revision, *, kept: bool) -> None:
    params = Params(Raw(b'{"ref":{},"context":{"arguments":{}}}'))
    to_session_params(COMPLETE, params, server)
    assert (params.get("context") is not None) == kept


def test_within_an_era_errors_pass_through_unchanged() -> None:
    stateless_codes = [(code, NEW, NEW) for code in (-32020, -32021, -32022, -32019, -32602)]
    for code, server, client in (
        (-32002, V2024_11_05, SESSION),
        (-32055, SESSION, SESSION),
        *stateless_codes,
    ):
        error = RpcError(code, "no", {"uri": "x:"})
        assert adapt_error(error, server, client) is error


@pytest.mark.parametrize("server", [SESSION, NEW])
def test_a_missing_resource_has_another_code_since_2026_07_28(server: Revision) -> None:
    error = adapt_error(RpcError(-32002, "Not there", {"uri": "x:"}), server, NEW)
    assert error == RpcError(-32602, "Not there", {"uri": "x:"})


@pytest.mark.parametrize("data", [{"uri": "x:"}, Raw(b'{"uri":"x:"}')])
def test_a_missing_resource_had_its_own_code_before_2026_07_28(data: Any) -> None:
    error = adapt_error(RpcError(-32602, "Not there", data), NEW, SESSION)
    assert error == RpcError(-32002, "Not there", data)


@pytest.mark.parametrize("data", [UNSET, 7, Raw(b"[]"), {"field": "uri"}])
def test_invalid_params_are_not_a_missing_resource(data: Any) -> None:
    error = RpcError(-32602, "no", data)
    assert adapt_error(error, NEW, SESSION) is error


def test_a_url_elicitation_error_is_internal_before_2025_11_25() -> None:
    error = RpcError(-32042, "Visit", {"elicitations": []})
    assert adapt_error(error, SESSION, SESSION) is error
    older = adapt_error(error, SESSION, V2025_06_18)
    assert older == RpcError(-32603, "Visit", {"elicitations": []})
    assert adapt_error(error, SESSION, NEW).data == {
        "upstreamCode": -32042,
        "upstreamData": {"elicitations": []},
    }


@pytest.mark.parametrize("code", [-32099, -32055, -32020])
@pytest.mark.parametrize(("server", "client"), [(SESSION, NEW), (NEW, SESSION)])
def test_a_reserved_code_is_replaced(code: int, server: Revision, client: Revision) -> None:
    error = adapt_error(RpcError(code, "why", {"k": 1}), server, client)
    assert (error.code, error.message) == (-32603, "why")
    assert error.data == {"upstreamCode": code, "upstreamData": {"k": 1}}
    assert adapt_error(RpcError(code, "why", UNSET), server, client).data == {"upstreamCode": code}


@pytest.mark.parametrize("code", [-32099, -32055, -32042, -32023])
def test_an_unused_reserved_code_of_a_stateless_server_is_replaced(code: int) -> None:
    error = adapt_error(RpcError(code, "why", {"k": 1}), NEW, NEW)
    assert (error.code, error.message) == (-32603, "why")
    assert error.data == {"upstreamCode": code, "upstreamData": {"k": 1}}


@pytest.mark.parametrize("code", [-32100, -32019, -32601, -32602, -32603, -32002, 7])
def test_other_codes_pass_through(code: int) -> None:
    error = RpcError(code, "why", {"k": 1})
    assert adapt_error(error, NEW, SESSION) is error


def test_a_list_of_the_gateway_has_all_required_members() -> None:
    raw = stateless_list_result(
        Raw(b'{"tools":[{"name": "x"}]}'), CacheHints(5, public=True), {"name": "g"}
    )
    assert b'"tools":[{"name": "x"}]' in bytes(raw)
    assert from_raw(raw) == {
        "resultType": "complete",
        "ttlMs": 5,
        "cacheScope": "public",
        "_meta": {SERVER: {"name": "g"}},
        "tools": [{"name": "x"}],
    }


def test_a_small_result_without_unknown_members_only_loses_its_type() -> None:
    plain = Raw(b'{"resultType":"complete","content":[1.0]}')
    assert bytes(adapt_result(CALL, plain, NEW, SESSION)) == b'{"content":[1.0]}'


def test_a_missing_capability_is_named_to_clients_of_the_other_era() -> None:
    needs: dict[str, Any] = {"requiredCapabilities": {"elicitation": {}}}
    converted = adapt_error(RpcError(-32021, "no", needs), NEW, SESSION)
    assert (converted.code, from_raw(to_raw(converted.data))) == (
        -32603,
        {"upstreamCode": -32021, **needs},
    )
    for sent in (UNSET, 7):
        converted = adapt_error(RpcError(-32021, "no", sent), NEW, SESSION)
        assert from_raw(to_raw(converted.data)) == {"upstreamCode": -32021}


def test_params_without_stateless_members_are_unchanged() -> None:
    plain = Params(Raw(b'{"name": "t" , "arguments":{}}'))
    to_session_params(CALL, plain, SESSION)
    assert bytes(plain.encode()) == b'{"name": "t" , "arguments":{}}'


def test_the_revisions_that_get_results_unchanged_are_known() -> None:
    for server in REVISIONS:
        for client in passthrough_revisions(server):
            result = Raw(b'{"content":[],"structuredContent":{},"resultType":"complete"}')
            assert adapt_result(CALL, result, server, client) is result
    assert passthrough_revisions(SESSION) == {V2025_06_18, V2025_11_25}
    assert not passthrough_revisions(NEW)
