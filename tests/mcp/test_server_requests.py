"""Server requests and their responses, converted between revisions."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline.jsonrpc import UNSET, Raw, RpcError, from_raw, to_raw
from trunkline.mcp.capabilities import client_features, features_to_capabilities
from trunkline.mcp.methods import SERVER_REQUESTS, Method, RoutingMode
from trunkline.mcp.server_requests import (
    ELICIT,
    LIST_ROOTS,
    SAMPLE,
    ServerRequest,
    is_declared,
    missing_capability_error,
    required_capability,
    to_input_request,
    to_input_response,
    to_session_request,
    to_session_response,
    unanswered_response,
    undeclared_capability_error,
)
from trunkline.mcp.versions import REVISIONS, SESSION_REVISIONS, Revision

FIRST, BATCHED, OLD, NEW = SESSION_REVISIONS
ROOTS = ServerRequest(LIST_ROOTS)
TEXT = {"type": "text", "text": "x"}


def make_request(method: str, **params: Any) -> ServerRequest:
    return ServerRequest(method, to_raw(params))


FORM = make_request(ELICIT, message="Who?", requestedSchema={"type": "object", "properties": {}})
URL = make_request(ELICIT, mode="url", message="Go", url="https://x.example")
SAMPLING = make_request(SAMPLE, messages=[{"role": "user", "content": TEXT}], maxTokens=5)
WITH_TOOLS = make_request(SAMPLE, messages=[], tools=[], maxTokens=5)
ALL = [ROOTS, FORM, URL, SAMPLING, WITH_TOOLS]


def params_of(server_request: ServerRequest) -> Any:
    assert isinstance(server_request.params, Raw)
    return from_raw(server_request.params)


# Required capabilities


@pytest.mark.parametrize(
    ("server_request", "capability"),
    [
        (ROOTS, {"roots": {}}),
        (FORM, {"elicitation": {"form": {}}}),
        (make_request(ELICIT, mode="form"), {"elicitation": {"form": {}}}),
        (URL, {"elicitation": {"url": {}}}),
        (SAMPLING, {"sampling": {}}),
        (WITH_TOOLS, {"sampling": {"tools": {}}}),
        (make_request(SAMPLE, toolChoice={"mode": "auto"}), {"sampling": {"tools": {}}}),
    ],
)
def test_a_request_needs_only_its_capability(
    server_request: ServerRequest, capability: dict[str, Any]
) -> None:
    assert required_capability(server_request) == capability
    assert is_declared(server_request, capability)
    assert not is_declared(server_request, {})
    error = missing_capability_error(server_request)
    assert error.code == -32021
    assert error.data == {"requiredCapabilities": capability}


def test_an_empty_elicitation_capability_means_forms_only() -> None:
    assert is_declared(FORM, {"elicitation": {}})
    assert not is_declared(URL, {"elicitation": {}})
    assert not is_declared(FORM, {"elicitation": {"url": {}}})
    assert not is_declared(WITH_TOOLS, {"sampling": {}})


@given(st.sampled_from(ALL), st.frozensets(st.sampled_from(client_features())))
def test_clients_without_the_capability_are_not_asked(
    server_request: ServerRequest, names: frozenset[str]
) -> None:
    capabilities = features_to_capabilities(names)
    kinds = {LIST_ROOTS: "roots", SAMPLE: "sampling", ELICIT: "elicitation"}
    if is_declared(server_request, capabilities):
        assert kinds[server_request.method] in capabilities
    else:
        declared = kinds[server_request.method] in capabilities
        assert undeclared_capability_error(server_request, capabilities).code == (
            -32602 if declared else -32601
        )


@pytest.mark.parametrize(
    ("server_request", "code", "reason"),
    [
        (ServerRequest("tools/call"), -32601, "tools/call"),
        (ServerRequest(ELICIT, Raw(b"[]")), -32602, "an object as params"),
        (ServerRequest(LIST_ROOTS, Raw(b"7")), -32602, "an object as params"),
        (make_request(ELICIT, mode="voice"), -32602, "'form' or 'url' as 'mode'"),
        (make_request(ELICIT, mode=None), -32602, "'form' or 'url' as 'mode'"),
    ],
)
def test_an_unknown_server_request_is_rejected(
    server_request: ServerRequest, code: int, reason: str
) -> None:
    with pytest.raises(RpcError, match=reason) as caught:
        required_capability(server_request)
    assert caught.value.code == code


def test_a_server_without_a_response_gets_one_in_its_own_form() -> None:
    assert unanswered_response(FORM) == unanswered_response(URL) == Raw(b'{"action":"cancel"}')
    codes = [
        error.code
        for q in (SAMPLING, ROOTS)
        if isinstance(error := unanswered_response(q), RpcError)
    ]
    assert codes == [-1, -32603]


# Requests to stateless clients


def test_an_input_request_has_only_members_of_2026_07_28() -> None:
    converted = ServerRequest(
        ELICIT,
        Raw(
            b'{"message":"a","_meta":{"k":1},"task":{},"elicitationId":"e","x":[ 1.0],"mode":"url"}'
        ),
    )
    assert (
        bytes(params_bytes(to_input_request(converted)))
        == b'{"message":"a","x":[ 1.0],"mode":"url"}'
    )
    assert params_of(to_input_request(FORM)) == params_of(FORM) | {"mode": "form"}


def params_bytes(server_request: ServerRequest) -> Raw:
    assert isinstance(server_request.params, Raw)
    return server_request.params


@pytest.mark.parametrize("server_request", [ROOTS, SAMPLING, URL, WITH_TOOLS])
def test_requests_that_2026_07_28_shares_keep_their_bytes(server_request: ServerRequest) -> None:
    assert to_input_request(server_request).params is server_request.params


# Requests to session clients


@pytest.mark.parametrize("revision", SESSION_REVISIONS)
def test_roots_and_plain_sampling_are_equal_in_all_revisions(revision: Revision) -> None:
    for server_request in (ROOTS, SAMPLING):
        assert to_session_request(server_request, revision, "e").params is server_request.params


def test_a_form_has_a_mode_since_2025_11_25() -> None:
    form = to_input_request(FORM)
    assert to_session_request(form, NEW, "e").params is form.params
    assert params_of(to_session_request(form, OLD, "e")) == params_of(FORM)


def test_a_url_elicitation_gets_its_required_id() -> None:
    converted = params_of(to_session_request(URL, NEW, "e-1"))
    assert converted == params_of(URL) | {"elicitationId": "e-1"}
    named = make_request(ELICIT, mode="url", url="u", elicitationId="theirs")
    assert to_session_request(named, NEW, "e-1").params is named.params


FIELDS = {
    "name": {"type": "string", "default": "Ann", "minLength": 1},
    "sure": {"type": "boolean", "default": True},
    "age": {"type": "integer", "default": 7},
    "size": {
        "type": "string",
        "title": "Size",
        "oneOf": [{"const": "s", "title": "Small"}, {"const": "l"}],
        "default": "s",
    },
    "plain": {"type": "string", "enum": ["a"], "enumNames": ["A"]},
}


def form(fields: Any) -> ServerRequest:
    schema = {"type": "object", "properties": fields, "required": ["name"]}
    return make_request(ELICIT, mode="form", message="?", requestedSchema=schema)


def test_a_form_is_downgraded_to_2025_06_18() -> None:
    assert to_session_request(form(FIELDS), NEW, "e").params == form(FIELDS).params
    converted = params_of(to_session_request(form(FIELDS), OLD, "e"))
    assert converted["requestedSchema"] == {
        "type": "object",
        "properties": {
            "name": {"type": "string", "minLength": 1},
            "sure": {"type": "boolean", "default": True},
            "age": {"type": "integer"},
            "size": {
                "type": "string",
                "title": "Size",
                "enum": ["s", "l"],
                "enumNames": ["Small", "l"],
            },
            "plain": {"type": "string", "enum": ["a"], "enumNames": ["A"]},
        },
        "required": ["name"],
    }


def test_a_form_of_all_revisions_keeps_its_bytes() -> None:
    schema = b'{"type": "object","properties":{"a":{"type": "string"}}}'
    converted = ServerRequest(ELICIT, Raw(b'{"requestedSchema":' + schema + b"}"))
    assert to_session_request(converted, OLD, "e").params is converted.params
    bare = make_request(ELICIT, message="?")
    assert to_session_request(bare, OLD, "e").params is bare.params
    empty = make_request(ELICIT, requestedSchema={"type": "object"})
    assert to_session_request(empty, OLD, "e").params is empty.params


MANY = {"role": "user", "content": [TEXT, TEXT]}
USED = {"role": "user", "content": {"type": "tool_use", "id": "1"}}
HEARD = {"role": "user", "content": [{"type": "audio", "data": ""}]}


@pytest.mark.parametrize(
    ("server_request", "revision", "reason"),
    [
        (FORM, FIRST, "requests an elicitation, which clients of 2024-11-05"),
        (URL, BATCHED, "requests an elicitation, which clients of 2025-03-26"),
        (URL, OLD, "of mode 'url', which clients of 2025-06-18"),
        (form({"tags": {"type": "array"}}), OLD, r"a multiple choice \('tags'\)"),
        (form({"n": {"oneOf": [{"const": 7}]}}), OLD, r"a choice of non-text values \('n'\)"),
        (form({"n": {"oneOf": [{}]}}), OLD, "non-text values"),
        (WITH_TOOLS, OLD, "a sampling with tools"),
        (make_request(SAMPLE, messages=[MANY]), OLD, "several blocks"),
        (make_request(SAMPLE, messages=[{"role": "user", "content": []}]), OLD, "several blocks"),
        (make_request(SAMPLE, messages=[USED]), OLD, "a block of type 'tool_use'"),
        (make_request(SAMPLE, messages=[HEARD]), FIRST, "a block of type 'audio'"),
    ],
)
def test_inexpressible_requests_are_reported(
    server_request: ServerRequest, revision: Revision, reason: str
) -> None:
    with pytest.raises(RpcError, match=reason) as caught:
        to_session_request(server_request, revision, "e")
    assert caught.value.code == -32603


@pytest.mark.parametrize(
    ("server_request", "reason"),
    [
        (make_request(ELICIT, requestedSchema=7), "an object as 'requestedSchema'"),
        (make_request(ELICIT, requestedSchema={"properties": []}), "an object as 'properties'"),
        (form({"a": 1}), "an object as 'a'"),
        (form({"a": {"oneOf": {}}}), "an array as 'a'"),
        (form({"a": {"oneOf": [1]}}), "an object as 'a'"),
        (make_request(SAMPLE, messages={}), "an array as 'messages'"),
        (make_request(SAMPLE, messages=[1]), "an object as 'messages'"),
        (make_request(SAMPLE, messages=[{"role": "user"}]), "an object as 'content'"),
    ],
)
def test_malformed_requests_are_server_errors(server_request: ServerRequest, reason: str) -> None:
    with pytest.raises(RpcError, match=f"expected {reason} in the server's request") as caught:
        to_session_request(server_request, OLD, "e")
    assert caught.value.code == -32603


def test_a_single_block_is_taken_out_of_its_array() -> None:
    whole = {"role": "user", "content": {"type": 7}}
    converted = make_request(SAMPLE, messages=[{"role": "user", "content": [TEXT]}, whole, HEARD])
    assert to_session_request(converted, NEW, "e").params is converted.params
    downgraded = params_of(to_session_request(converted, OLD, "e"))
    assert downgraded["messages"] == [
        {"role": "user", "content": TEXT},
        whole,
        {"role": "user", "content": HEARD["content"][0]},
    ]
    bare = make_request(SAMPLE, maxTokens=1)
    assert to_session_request(bare, OLD, "e").params is bare.params


@given(
    st.sampled_from([ROOTS, FORM, form(FIELDS), SAMPLING]),
    st.sampled_from([OLD, NEW]),
    st.text(max_size=3),
)
def test_converting_twice_changes_nothing_more(
    server_request: ServerRequest, revision: Revision, elicitation_id: str
) -> None:
    once = to_session_request(to_input_request(server_request), revision, elicitation_id)
    assert to_session_request(to_input_request(once), revision, elicitation_id) == once


# Responses


ACCEPTED = Raw(b'{"action":"accept", "content":{"n": 1.0}}')
SAMPLED = Raw(b'{"role":"assistant","content":{"type": "text"},"model":"m"}')
LISTED = Raw(b'{"roots":[ ]}')


@pytest.mark.parametrize("revision", REVISIONS)
@pytest.mark.parametrize(
    ("server_request", "response"),
    [
        (FORM, ACCEPTED),
        (URL, Raw(b'{"action":"accept"}')),
        (FORM, Raw(b'{"action":"decline","_meta":{"k":1}}')),
        (FORM, Raw(b'{"action":"cancel"}')),
        (SAMPLING, SAMPLED),
        (ROOTS, LISTED),
    ],
)
def test_a_valid_response_keeps_its_bytes(
    server_request: ServerRequest, response: Raw, revision: Revision
) -> None:
    assert to_session_response(server_request, response, revision) is response
    assert to_input_response(server_request, response) is response


def test_a_response_has_no_result_members() -> None:
    error_text = Raw(
        b'{"resultType":"complete","roots":[ ],"ttlMs":0,"cacheScope":"private","x":[ 1]}'
    )
    for response in (
        to_input_response(ROOTS, error_text),
        to_session_response(ROOTS, error_text, NEW),
    ):
        assert bytes(response) == b'{"roots":[ ],"x":[ 1]}'


@pytest.mark.parametrize(
    ("server_request", "response", "key"),
    [
        (FORM, {}, "action"),
        (FORM, {"action": "yes"}, "action"),
        (FORM, {"action": None}, "action"),
        (FORM, {"action": ["accept"]}, "action"),
        (FORM, {"action": "accept", "content": []}, "content"),
        (ROOTS, {}, "roots"),
        (ROOTS, {"roots": {}}, "roots"),
        (SAMPLING, {}, "role"),
        (SAMPLING, {"role": "assistant", "content": TEXT}, "model"),
        (SAMPLING, {"role": "assistant", "model": "m"}, "content"),
        (SAMPLING, {"role": "assistant", "model": "m", "content": "x"}, "content"),
        (SAMPLING, {"role": "assistant", "model": "m", "content": [TEXT, TEXT]}, "content"),
    ],
)
def test_a_malformed_response_is_rejected_by_member(
    server_request: ServerRequest, response: Any, key: str
) -> None:
    with pytest.raises(RpcError, match=f"as {key!r}") as caught:
        to_session_response(server_request, to_raw(response), OLD)
    assert (caught.value.code, caught.value.data) == (-32602, {"field": key})


@pytest.mark.parametrize("response", [b"[]", b"7", b'{"roots":[],"roots":[]}'])
def test_a_response_must_be_an_object(response: bytes) -> None:
    with pytest.raises(RpcError, match="an object as the answer to roots/list") as caught:
        to_session_response(ROOTS, Raw(response), NEW)
    assert caught.value.code == -32602
    with pytest.raises(RpcError, match="an object as the client's answer") as caught:
        to_input_response(ROOTS, Raw(response))
    assert caught.value.code == -32603


def test_null_content_is_absent() -> None:
    response = to_session_response(FORM, Raw(b'{"action":"cancel","content":null}'), NEW)
    assert bytes(response) == b'{"action":"cancel"}'


def test_several_blocks_reach_only_servers_that_support_them() -> None:
    several: dict[str, Any] = {"role": "assistant", "model": "m", "content": [TEXT, TEXT]}
    raw = to_raw(several)
    assert to_session_response(SAMPLING, raw, NEW) is raw
    one = to_session_response(SAMPLING, to_raw(several | {"content": [TEXT]}), FIRST)
    assert from_raw(one) == several | {"content": TEXT}


def test_a_request_may_have_no_params() -> None:
    assert ROOTS.params is UNSET
    assert to_input_request(ROOTS) is ROOTS


def test_an_undeclared_detail_differs_from_an_unknown_method() -> None:
    server_request = ServerRequest(
        ELICIT, Raw(b'{"mode":"url","url":"https://a.example","message":"m"}')
    )
    assert undeclared_capability_error(server_request, {}).code == -32601
    assert undeclared_capability_error(server_request, {"elicitation": {"form": {}}}).code == -32602


# Requests without a translation


def test_a_request_of_which_only_the_row_is_known_keeps_its_form(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    row = Method("polls/ask", RoutingMode.TO_CALLER, frozenset(REVISIONS), "polls")
    monkeypatch.setitem(SERVER_REQUESTS, row.name, row)
    poll = make_request(row.name, of=[1, 2], elicitationId="theirs")
    assert required_capability(poll) == {"polls": {}}
    assert is_declared(poll, {"polls": {"more": True}})
    assert undeclared_capability_error(poll, {"pollsters": {}}).code == -32601
    assert params_of(to_input_request(poll)) == params_of(poll)
    for revision in REVISIONS:
        assert to_session_request(poll, revision, "id") is poll
        assert bytes(to_session_response(poll, Raw(b'{"chosen":2}'), revision)) == b'{"chosen":2}'
    assert getattr(unanswered_response(poll), "code", None) == -32603


def test_a_request_that_needs_no_capability_may_be_sent_to_every_client(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    row = Method("polls/ask", RoutingMode.TO_CALLER, frozenset(REVISIONS))
    monkeypatch.setitem(SERVER_REQUESTS, row.name, row)
    assert is_declared(make_request(row.name), {})
