"""What servers ask, as each revision has it, and what they get for an answer."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline.jsonrpc import UNSET, Raw, RpcError, from_raw, to_raw
from trunkline.mcp.capabilities import ASKABLE, from_fingerprint
from trunkline.mcp.questions import (
    ELICIT,
    LIST_ROOTS,
    SAMPLE,
    Question,
    answer_for_envelope,
    answer_for_handshake,
    for_envelope,
    for_handshake,
    is_declared,
    missing_capability,
    needed,
    refused,
    undeclared,
)
from trunkline.mcp.versions import HANDSHAKE_VERSIONS, VERSIONS

FIRST, BATCHED, OLD, NEW = HANDSHAKE_VERSIONS
ROOTS = Question(LIST_ROOTS)
TEXT = {"type": "text", "text": "x"}


def ask(method: str, **params: Any) -> Question:
    return Question(method, to_raw(params))


FORM = ask(ELICIT, message="Who?", requestedSchema={"type": "object", "properties": {}})
URL = ask(ELICIT, mode="url", message="Go", url="https://x.example")
SAMPLING = ask(SAMPLE, messages=[{"role": "user", "content": TEXT}], maxTokens=5)
WITH_TOOLS = ask(SAMPLE, messages=[], tools=[], maxTokens=5)
ALL = [ROOTS, FORM, URL, SAMPLING, WITH_TOOLS]


def params_of(question: Question) -> Any:
    assert isinstance(question.params, Raw)
    return from_raw(question.params)


# What must have been declared


@pytest.mark.parametrize(
    ("question", "capability"),
    [
        (ROOTS, {"roots": {}}),
        (FORM, {"elicitation": {"form": {}}}),
        (ask(ELICIT, mode="form"), {"elicitation": {"form": {}}}),
        (URL, {"elicitation": {"url": {}}}),
        (SAMPLING, {"sampling": {}}),
        (WITH_TOOLS, {"sampling": {"tools": {}}}),
        (ask(SAMPLE, toolChoice={"mode": "auto"}), {"sampling": {"tools": {}}}),
    ],
)
def test_a_question_needs_its_capability_and_no_other(
    question: Question, capability: dict[str, Any]
) -> None:
    assert needed(question) == capability
    assert is_declared(question, capability)
    assert not is_declared(question, {})
    error = missing_capability(question)
    assert error.code == -32021
    assert error.data == {"requiredCapabilities": capability}


def test_an_elicitation_of_no_mode_declares_forms_only() -> None:
    assert is_declared(FORM, {"elicitation": {}})
    assert not is_declared(URL, {"elicitation": {}})
    assert not is_declared(FORM, {"elicitation": {"url": {}}})
    assert not is_declared(WITH_TOOLS, {"sampling": {}})


@given(st.sampled_from(ALL), st.frozensets(st.sampled_from(ASKABLE)))
def test_who_has_not_declared_it_is_not_asked(question: Question, names: frozenset[str]) -> None:
    capabilities = from_fingerprint(names)
    kinds = {LIST_ROOTS: "roots", SAMPLE: "sampling", ELICIT: "elicitation"}
    if is_declared(question, capabilities):
        assert kinds[question.method] in capabilities
    else:
        known = kinds[question.method] in capabilities
        assert undeclared(question, capabilities).code == (-32602 if known else -32601)


@pytest.mark.parametrize(
    ("question", "code", "reason"),
    [
        (Question("tools/call"), -32601, "tools/call"),
        (Question(ELICIT, Raw(b"[]")), -32602, "an object as params"),
        (Question(LIST_ROOTS, Raw(b"7")), -32602, "an object as params"),
        (ask(ELICIT, mode="voice"), -32602, "'form' or 'url' as 'mode'"),
        (ask(ELICIT, mode=None), -32602, "'form' or 'url' as 'mode'"),
    ],
)
def test_what_is_no_question_is_refused(question: Question, code: int, reason: str) -> None:
    with pytest.raises(RpcError, match=reason) as caught:
        needed(question)
    assert caught.value.code == code


def test_a_server_that_nobody_answers_is_told_in_its_own_words() -> None:
    assert refused(FORM) == refused(URL) == Raw(b'{"action":"cancel"}')
    codes = [error.code for q in (SAMPLING, ROOTS) if isinstance(error := refused(q), RpcError)]
    assert codes == [-1, -32603]


# Questions for clients of the envelope era


def test_an_input_request_has_nothing_that_2026_07_28_does_not_know() -> None:
    asked = Question(
        ELICIT,
        Raw(
            b'{"message":"a","_meta":{"k":1},"task":{},"elicitationId":"e","x":[ 1.0],"mode":"url"}'
        ),
    )
    assert bytes(params_bytes(for_envelope(asked))) == b'{"message":"a","x":[ 1.0],"mode":"url"}'
    assert params_of(for_envelope(FORM)) == params_of(FORM) | {"mode": "form"}


def params_bytes(question: Question) -> Raw:
    assert isinstance(question.params, Raw)
    return question.params


@pytest.mark.parametrize("question", [ROOTS, SAMPLING, URL, WITH_TOOLS])
def test_what_2026_07_28_asks_alike_stays_to_the_byte(question: Question) -> None:
    assert for_envelope(question).params is question.params


# Questions for clients of the handshake era


@pytest.mark.parametrize("version", HANDSHAKE_VERSIONS)
def test_roots_and_plain_samplings_are_asked_alike_of_all(version: str) -> None:
    for question in (ROOTS, SAMPLING):
        assert for_handshake(question, version, "e").params is question.params


def test_a_form_has_a_mode_since_2025_11_25() -> None:
    form = for_envelope(FORM)
    assert for_handshake(form, NEW, "e").params is form.params
    assert params_of(for_handshake(form, OLD, "e")) == params_of(FORM)


def test_an_address_to_visit_gets_the_id_that_it_must_have() -> None:
    asked = params_of(for_handshake(URL, NEW, "e-1"))
    assert asked == params_of(URL) | {"elicitationId": "e-1"}
    named = ask(ELICIT, mode="url", url="u", elicitationId="theirs")
    assert for_handshake(named, NEW, "e-1").params is named.params


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


def form(fields: Any) -> Question:
    schema = {"type": "object", "properties": fields, "required": ["name"]}
    return ask(ELICIT, mode="form", message="?", requestedSchema=schema)


def test_a_form_is_narrowed_to_what_2025_06_18_knows() -> None:
    assert for_handshake(form(FIELDS), NEW, "e").params == form(FIELDS).params
    asked = params_of(for_handshake(form(FIELDS), OLD, "e"))
    assert asked["requestedSchema"] == {
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


def test_a_form_that_every_revision_knows_stays_to_the_byte() -> None:
    schema = b'{"type": "object","properties":{"a":{"type": "string"}}}'
    asked = Question(ELICIT, Raw(b'{"requestedSchema":' + schema + b"}"))
    assert for_handshake(asked, OLD, "e").params is asked.params
    bare = ask(ELICIT, message="?")
    assert for_handshake(bare, OLD, "e").params is bare.params
    empty = ask(ELICIT, requestedSchema={"type": "object"})
    assert for_handshake(empty, OLD, "e").params is empty.params


MANY = {"role": "user", "content": [TEXT, TEXT]}
USED = {"role": "user", "content": {"type": "tool_use", "id": "1"}}
HEARD = {"role": "user", "content": [{"type": "audio", "data": ""}]}


@pytest.mark.parametrize(
    ("question", "version", "reason"),
    [
        (FORM, FIRST, "asks an elicitation, which clients of 2024-11-05"),
        (URL, BATCHED, "asks an elicitation, which clients of 2025-03-26"),
        (URL, OLD, "of mode 'url', which clients of 2025-06-18"),
        (form({"tags": {"type": "array"}}), OLD, r"a choice of several \('tags'\)"),
        (form({"n": {"oneOf": [{"const": 7}]}}), OLD, r"a choice of what is no text \('n'\)"),
        (form({"n": {"oneOf": [{}]}}), OLD, "what is no text"),
        (WITH_TOOLS, OLD, "a sampling with tools"),
        (ask(SAMPLE, messages=[MANY]), OLD, "several blocks"),
        (ask(SAMPLE, messages=[{"role": "user", "content": []}]), OLD, "several blocks"),
        (ask(SAMPLE, messages=[USED]), OLD, "a block of type 'tool_use'"),
        (ask(SAMPLE, messages=[HEARD]), FIRST, "a block of type 'audio'"),
    ],
)
def test_what_a_revision_cannot_be_asked_is_said(
    question: Question, version: str, reason: str
) -> None:
    with pytest.raises(RpcError, match=reason) as caught:
        for_handshake(question, version, "e")
    assert caught.value.code == -32603


@pytest.mark.parametrize(
    ("question", "reason"),
    [
        (ask(ELICIT, requestedSchema=7), "an object as 'requestedSchema'"),
        (ask(ELICIT, requestedSchema={"properties": []}), "an object as 'properties'"),
        (form({"a": 1}), "an object as 'a'"),
        (form({"a": {"oneOf": {}}}), "an array as 'a'"),
        (form({"a": {"oneOf": [1]}}), "an object as 'a'"),
        (ask(SAMPLE, messages={}), "an array as 'messages'"),
        (ask(SAMPLE, messages=[1]), "an object as 'messages'"),
        (ask(SAMPLE, messages=[{"role": "user"}]), "an object as 'content'"),
    ],
)
def test_what_cannot_be_read_is_the_servers_fault(question: Question, reason: str) -> None:
    with pytest.raises(RpcError, match=f"expected {reason} in what the server asks") as caught:
        for_handshake(question, OLD, "e")
    assert caught.value.code == -32603


def test_one_block_needs_no_array() -> None:
    whole = {"role": "user", "content": {"type": 7}}
    asked = ask(SAMPLE, messages=[{"role": "user", "content": [TEXT]}, whole, HEARD])
    assert for_handshake(asked, NEW, "e").params is asked.params
    narrowed = params_of(for_handshake(asked, OLD, "e"))
    assert narrowed["messages"] == [
        {"role": "user", "content": TEXT},
        whole,
        {"role": "user", "content": HEARD["content"][0]},
    ]
    bare = ask(SAMPLE, maxTokens=1)
    assert for_handshake(bare, OLD, "e").params is bare.params


@given(
    st.sampled_from([ROOTS, FORM, form(FIELDS), SAMPLING]),
    st.sampled_from([OLD, NEW]),
    st.text(max_size=3),
)
def test_crossing_twice_changes_nothing_any_more(
    question: Question, version: str, elicitation_id: str
) -> None:
    once = for_handshake(for_envelope(question), version, elicitation_id)
    assert for_handshake(for_envelope(once), version, elicitation_id) == once


# Answers


ACCEPTED = Raw(b'{"action":"accept", "content":{"n": 1.0}}')
SAMPLED = Raw(b'{"role":"assistant","content":{"type": "text"},"model":"m"}')
LISTED = Raw(b'{"roots":[ ]}')


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    ("question", "answer"),
    [
        (FORM, ACCEPTED),
        (URL, Raw(b'{"action":"accept"}')),
        (FORM, Raw(b'{"action":"decline","_meta":{"k":1}}')),
        (FORM, Raw(b'{"action":"cancel"}')),
        (SAMPLING, SAMPLED),
        (ROOTS, LISTED),
    ],
)
def test_an_answer_passes_to_the_byte(question: Question, answer: Raw, version: str) -> None:
    assert answer_for_handshake(question, answer, version) is answer
    assert answer_for_envelope(question, answer) is answer


def test_an_answer_says_nothing_of_results() -> None:
    said = Raw(b'{"resultType":"complete","roots":[ ],"ttlMs":0,"cacheScope":"private","x":[ 1]}')
    for answer in (answer_for_envelope(ROOTS, said), answer_for_handshake(ROOTS, said, NEW)):
        assert bytes(answer) == b'{"roots":[ ],"x":[ 1]}'


@pytest.mark.parametrize(
    ("question", "answer", "key"),
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
def test_what_is_no_answer_is_refused_by_name(question: Question, answer: Any, key: str) -> None:
    with pytest.raises(RpcError, match=f"as {key!r}") as caught:
        answer_for_handshake(question, to_raw(answer), OLD)
    assert (caught.value.code, caught.value.data) == (-32602, {"field": key})


@pytest.mark.parametrize("answer", [b"[]", b"7", b'{"roots":[],"roots":[]}'])
def test_an_answer_is_an_object(answer: bytes) -> None:
    with pytest.raises(RpcError, match="an object as the answer to roots/list") as caught:
        answer_for_handshake(ROOTS, Raw(answer), NEW)
    assert caught.value.code == -32602
    with pytest.raises(RpcError, match="an object as the client's answer") as caught:
        answer_for_envelope(ROOTS, Raw(answer))
    assert caught.value.code == -32603


def test_content_of_null_is_none() -> None:
    answer = answer_for_handshake(FORM, Raw(b'{"action":"cancel","content":null}'), NEW)
    assert bytes(answer) == b'{"action":"cancel"}'


def test_several_blocks_reach_only_servers_that_know_them() -> None:
    several: dict[str, Any] = {"role": "assistant", "model": "m", "content": [TEXT, TEXT]}
    raw = to_raw(several)
    assert answer_for_handshake(SAMPLING, raw, NEW) is raw
    one = answer_for_handshake(SAMPLING, to_raw(several | {"content": [TEXT]}), FIRST)
    assert from_raw(one) == several | {"content": TEXT}


def test_a_question_may_have_no_params() -> None:
    assert ROOTS.params is UNSET
    assert for_envelope(ROOTS) is ROOTS


def test_a_kind_of_question_that_was_not_declared_is_told_from_one_that_is_unknown() -> None:
    question = Question(ELICIT, Raw(b'{"mode":"url","url":"https://a.example","message":"m"}'))
    assert undeclared(question, {}).code == -32601
    assert undeclared(question, {"elicitation": {"form": {}}}).code == -32602
