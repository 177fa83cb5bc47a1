"""Tasks of both eras, read into one value; and all word of them taken out."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline.jsonrpc import UNSET, Raw, RpcError, from_raw, members, to_raw
from trunkline.mcp.capabilities import TASKS
from trunkline.mcp.envelope import CAPABILITIES
from trunkline.mcp.meta import PREFIX, Params
from trunkline.mcp.questions import LIST_ROOTS, Question
from trunkline.mcp.tasks import (
    INTERVAL,
    MAX_ID,
    MAX_INTERVAL,
    MIN_INTERVAL,
    Task,
    has_content,
    has_extension,
    lost,
    needs_extension,
    outcome,
    plain_question,
    plain_result,
    put_extension,
    read_created,
    read_state,
    related_task,
    runs_tasks,
    take_execution,
)
from trunkline.mcp.versions import HANDSHAKE_VERSIONS, Era

RELATED = PREFIX + "related-task"
HANDSHAKE, ENVELOPE = Era.HANDSHAKE, Era.ENVELOPE
WORKING = Task("t", "working", INTERVAL)

texts = st.text(st.characters(exclude_categories=("Cs",)), max_size=8)
anything: Any = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)


def refusal(doing: Any, *args: Any) -> RpcError:
    with pytest.raises(RpcError) as caught:
        doing(*args)
    return caught.value


def a_task(**said: Any) -> dict[str, Any]:
    return {"taskId": "t", "status": "working", **said}


def created(era: Era, **said: Any) -> Raw:
    if era is HANDSHAKE:
        return to_raw({"task": a_task(**said)})
    return to_raw({"resultType": "task", **a_task(**said)})


# Who insists


@pytest.mark.parametrize(
    ("execution", "needed"),
    [
        ({"taskSupport": "required"}, True),
        ({"taskSupport": "optional"}, False),
        ({"taskSupport": "forbidden"}, False),
        ({}, False),
        (None, False),
        ("required", False),
        ([1], False),
    ],
)
def test_a_tool_insists_on_a_task_only_if_it_says_required(execution: Any, needed: bool) -> None:
    definition = to_raw({"name": "t", "execution": execution, "x": 1})
    kept, needs_task = take_execution(definition)
    assert (from_raw(kept), needs_task) == ({"name": "t", "x": 1}, needed)


def test_a_tool_that_says_nothing_of_tasks_stays_to_the_byte() -> None:
    definition = Raw(b'{ "name": "t", "n": 1.0 }')
    assert take_execution(definition) == (definition, False)


def test_a_handshake_server_runs_tasks_if_it_declares_that_for_calls_of_tools() -> None:
    able: dict[str, Any] = {"tasks": {"requests": {"tools": {"call": {}}}}}
    assert [v for v in HANDSHAKE_VERSIONS if runs_tasks(v, able)] == ["2025-11-25"]
    other: list[Any] = [{}, {"tasks": {}}, {"tasks": {"requests": {"tools": {}}}}, {"tasks": [1]}]
    for declared in other:
        assert not runs_tasks("2025-11-25", declared)


def test_an_envelope_server_runs_tasks_if_it_declares_the_extension() -> None:
    assert runs_tasks("2026-07-28", {"extensions": {TASKS: {}}})
    assert not runs_tasks("2026-07-28", {"tasks": {"requests": {"tools": {"call": {}}}}})
    assert not has_extension({"extensions": 7})


def missing(required: Any, code: int = -32021) -> RpcError:
    return RpcError(code, "no", to_raw({"requiredCapabilities": required}))


def test_a_refusal_for_want_of_the_extension_alone_can_be_helped() -> None:
    assert needs_extension(missing({"extensions": {TASKS: {}}}))
    assert not needs_extension(missing({"extensions": {TASKS: {}}}, -32602))
    assert not needs_extension(missing({"extensions": {TASKS: {}, "x/y": {}}}))
    assert not needs_extension(missing({"extensions": {TASKS: {}}, "sampling": {}}))
    assert not needs_extension(missing({"sampling": {}}))
    assert not needs_extension(missing([TASKS]))
    assert not needs_extension(RpcError(-32021, "no"))
    assert not needs_extension(RpcError(-32021, "no", to_raw("data")))
    assert not needs_extension(TimeoutError())
    assert not needs_extension(None)


@given(st.dictionaries(texts, anything) | anything, st.booleans())
def test_the_extension_is_said_and_unsaid_and_all_else_stays(said: Any, declared: bool) -> None:
    params = Params(to_raw({"name": "n", "_meta": {CAPABILITIES: said, "x": 1}}))
    put_extension(params, declared)
    found: Any = from_raw(params.meta[CAPABILITIES])
    assert has_extension(found) is declared
    if isinstance(said, dict):
        assert found | {"extensions": 0} == said | {"extensions": 0}
    assert params.meta["x"] == Raw(b"1")


def test_other_extensions_are_kept_and_none_are_made_up() -> None:
    meta = {CAPABILITIES: {"sampling": {}, "extensions": {TASKS: {"x": 1}, "a/b": {"n": 1}}}}
    params = Params(to_raw({"_meta": meta}))
    put_extension(params, declared=False)
    assert from_raw(params.meta[CAPABILITIES]) == {"sampling": {}, "extensions": {"a/b": {"n": 1}}}
    bare = Params(to_raw({}))
    put_extension(bare, declared=False)
    assert from_raw(bare.meta[CAPABILITIES]) == {}


# Reading


@pytest.mark.parametrize("era", [HANDSHAKE, ENVELOPE])
def test_both_forms_are_one_task(era: Era) -> None:
    said = {"pollInterval": 2500, "pollIntervalMs": 2500, "statusMessage": "on it"}
    assert read_created(created(era, **said), era) == Task("t", "working", 2.5, "on it")


@pytest.mark.parametrize(
    ("era", "result"),
    [
        (HANDSHAKE, {"content": []}),
        (HANDSHAKE, {"content": [], "task": a_task()}),
        (HANDSHAKE, {"structuredContent": {}, "task": a_task()}),
        (HANDSHAKE, {"task": "t"}),
        (HANDSHAKE, {"resultType": "task", **a_task()}),
        (ENVELOPE, {"content": [], "resultType": "complete"}),
        (ENVELOPE, {"resultType": "input_required", "taskId": "t"}),
        (ENVELOPE, {"task": a_task()}),
    ],
)
def test_an_ordinary_result_is_no_task(era: Era, result: Any) -> None:
    assert read_created(to_raw(result), era) is None


@pytest.mark.parametrize("era", [HANDSHAKE, ENVELOPE])
@pytest.mark.parametrize(
    "said",
    [
        {"taskId": None},
        {"taskId": 7},
        {"taskId": ""},
        {"taskId": "x" * (MAX_ID + 1)},
        {"status": "submitted"},
        {"status": ["working"]},
        {"status": None},
    ],
)
def test_a_task_without_a_name_or_a_known_status_cannot_be_read(era: Era, said: Any) -> None:
    error = refusal(read_created, created(era, **said), era)
    assert error.code == -32603
    assert "cannot be read: expected" in error.message


@pytest.mark.parametrize("raw", [b"[]", b'{"status":"working","status":"failed"}', b'{"status":1}'])
def test_a_state_that_cannot_be_read_is_the_servers_error(raw: bytes) -> None:
    assert refusal(read_state, WORKING, Raw(raw), ENVELOPE).code == -32603


def test_a_result_that_is_no_object_is_the_servers_error() -> None:
    assert refusal(read_created, Raw(b"[]"), HANDSHAKE).code == -32603


def test_a_state_keeps_the_name_under_which_the_task_was_created() -> None:
    found = read_state(WORKING, to_raw({"taskId": "other", "status": "failed"}), HANDSHAKE)
    assert (found.id, found.status, found.over, WORKING.over) == ("t", "failed", True, False)


def test_what_an_envelope_server_inlines_is_read() -> None:
    done = read_state(WORKING, Raw(b'{"status":"completed","result":{"content": [ ]}}'), ENVELOPE)
    assert done.result is not None
    assert bytes(done.result) == b'{"content": [ ]}'
    failed = {"status": "failed", "error": {"code": 7, "message": "boom", "data": [1]}}
    error = read_state(WORKING, to_raw(failed), ENVELOPE).error
    assert error == RpcError(7, "boom", to_raw([1]))
    asked = {"status": "input_required", "inputRequests": {"k": {"method": LIST_ROOTS}}}
    assert read_state(WORKING, to_raw(asked), ENVELOPE).questions == {"k": Question(LIST_ROOTS)}
    late = asked | {"status": "working"}
    assert read_state(WORKING, to_raw(late), ENVELOPE).questions == {}
    bad = {"status": "input_required", "inputRequests": {"k": {"method": "tools/call"}}}
    assert "inputRequests['k']" in refusal(read_state, WORKING, to_raw(bad), ENVELOPE).message


@pytest.mark.parametrize("said", [{}, {"code": True, "message": 1}, {"code": "x"}])
def test_an_error_that_says_nothing_is_an_internal_one(said: Any) -> None:
    state = read_state(WORKING, to_raw({"status": "failed", "error": said}), ENVELOPE)
    assert state.error == RpcError(-32603, "")


@given(anything)
def test_a_server_is_asked_neither_too_often_nor_too_seldom(said: Any) -> None:
    for era in Era:
        state = read_state(
            WORKING,
            to_raw({"status": "working", "pollInterval": said, "pollIntervalMs": said}),
            era,
        )
        assert MIN_INTERVAL <= state.interval <= MAX_INTERVAL


@pytest.mark.parametrize(
    ("said", "seconds"),
    [
        (b"2000", 2.0),
        (b"250.5", 0.2505),
        (b"0", MIN_INTERVAL),
        (b"1e300", MAX_INTERVAL),
        (b"-5", INTERVAL),
        (b"null", INTERVAL),
        (b"true", INTERVAL),
        (b'"1000"', INTERVAL),
        (b"1e999", INTERVAL),
    ],
)
def test_an_interval_that_makes_no_sense_was_not_said(said: bytes, seconds: float) -> None:
    raw = Raw(b'{"status":"working","pollIntervalMs":' + said + b"}")
    assert read_state(WORKING, raw, ENVELOPE).interval == seconds


# What came of it


def test_a_task_that_is_over_has_its_result_or_says_why_not() -> None:
    result, error = Raw(b"{}"), RpcError(7, "boom")
    assert outcome(WORKING._replace(status="completed", result=result)) is result
    assert refusal(outcome, WORKING._replace(status="failed", error=error)) is error
    for status, message, said in (
        ("completed", None, "no result"),
        ("failed", None, "the task failed"),
        ("failed", "no disk", "the task failed: no disk"),
        ("cancelled", "too long", "the server cancelled the task: too long"),
    ):
        task = WORKING._replace(status=status, message=message)
        assert said in refusal(outcome, task).message
    assert lost(RpcError(-32602, "who?")).message.endswith("the server has lost the task: who?")


def test_a_result_has_content_or_is_an_empty_page() -> None:
    assert has_content(Raw(b'{"content":[]}'))
    assert has_content(Raw(b'{"structuredContent":1}'))
    assert not has_content(Raw(b'{"_meta":{}}'))
    assert not has_content(Raw(b"[]"))


@pytest.mark.parametrize(
    ("meta", "kept"),
    [
        ({RELATED: {"taskId": "t"}}, None),
        ({RELATED: {"taskId": "t"}, "x": 1}, {"x": 1}),
        ({"x": "related-task"}, {"x": "related-task"}),
    ],
)
def test_a_result_does_not_tell_of_its_task(meta: Any, kept: Any) -> None:
    found: Any = from_raw(plain_result(to_raw({"content": [], "_meta": meta})))
    assert found == ({"content": []} if kept is None else {"content": [], "_meta": kept})


def test_what_says_nothing_of_a_task_stays_to_the_byte() -> None:
    for raw in (
        b'{"content": [ ], "_meta": {}}',
        b'["related-task"]',
        b'{"_meta":["related-task"]}',
    ):
        assert bytes(plain_result(Raw(raw))) == raw


def test_a_question_is_asked_without_a_word_of_tasks() -> None:
    asked = to_raw(
        {"message": "?", "task": {"ttl": 1}, "_meta": {RELATED: {"taskId": "t"}, "x": 1}}
    )
    plain = plain_question(asked)
    assert isinstance(plain, Raw)
    assert {key: from_raw(raw) for key, raw in members(plain).items()} == {
        "message": "?",
        "_meta": {"x": 1},
    }
    assert plain_question(UNSET) is UNSET
    same = Raw(b'{"message": "?"}')
    assert plain_question(same) is same


@pytest.mark.parametrize(
    ("params", "id"),
    [
        ({"_meta": {RELATED: {"taskId": "t"}}}, "t"),
        ({"_meta": {RELATED: {"taskId": 1}}}, None),
        ({"_meta": {RELATED: "t"}}, None),
        ({"_meta": {"x": "related-task"}}, None),
        ({"_meta": ["related-task"]}, None),
        ({"message": "?"}, None),
    ],
)
def test_a_question_says_of_which_task_it_is(params: Any, id: str | None) -> None:
    assert related_task(to_raw(params)) == id
    assert related_task(UNSET) is None


def test_other_extensions_stay_when_ours_is_taken_out() -> None:
    said = {"_meta": {CAPABILITIES: {"extensions": {TASKS: {}, "x/y": {"a": 1}}}}}
    params = Params(to_raw(said))
    put_extension(params, declared=False)
    assert from_raw(params.meta[CAPABILITIES], dict[str, Any]) == {"extensions": {"x/y": {"a": 1}}}
    put_extension(params, declared=True)
    found = from_raw(params.meta[CAPABILITIES], dict[str, Any])
    assert found == {"extensions": {"x/y": {"a": 1}, TASKS: {}}}
