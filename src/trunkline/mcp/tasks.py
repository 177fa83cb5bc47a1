"""Tasks: a call that is answered with a promise, and later with its result; in either era's form.

    2025-11-25  {"task": {"taskId", "status", "pollInterval"}}  ──┐
                                                                  ├──> Task ──> outcome
    2026-07-28  {"resultType": "task", "taskId", "status", …}   ──┘

Refuses to offer any: what clients see is an ordinary call, and no word of tasks.

Rules upheld here:
1. A server is asked as often as it wants, within what makes sense.
2. What cannot be read is the server's error, and says what was expected.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple, cast

from trunkline.jsonrpc import INTERNAL_ERROR, UNSET, Raw, RpcError, members, to_raw
from trunkline.jsonrpc.raw import UnsetType, first_byte
from trunkline.mcp.capabilities import TASKS
from trunkline.mcp.envelope import CAPABILITIES
from trunkline.mcp.headers import MISSING_CAPABILITY
from trunkline.mcp.meta import PREFIX, Params, peek
from trunkline.mcp.questions import Question
from trunkline.mcp.rounds import read_questions
from trunkline.mcp.versions import V2025_11_25, Era, era_of

MIN_INTERVAL, INTERVAL, MAX_INTERVAL = 0.1, 1.0, 30.0
"""How long, in seconds, a task is left alone between two looks at it: at least, if its server does
not say, and at most."""

MAX_ID = 4096
"""The longest name of a task that is taken, in characters."""

WISH = Raw(b'{"ttl":3600000}')
"""What is said of a task that is wished for. Without `ttl` some servers would keep its result for
ever; an hour is longer than calls may take."""

_RELATED = frozenset((PREFIX + "related-task",))
_MENTION = b"related-task"
_STATUSES = frozenset(("working", "input_required", "completed", "failed", "cancelled"))
_ENDS = frozenset(("completed", "failed", "cancelled"))
_CONTENT = frozenset(("content", "structuredContent"))
_UNITS = {Era.HANDSHAKE: "pollInterval", Era.ENVELOPE: "pollIntervalMs"}
_NULL, _NOTHING, _TASK = Raw(b"null"), Raw(b"{}"), "task"
_OBJECT = ord("{")


class Task(NamedTuple):
    """What is known of a task at one moment."""

    id: str
    status: str
    interval: float
    """For how long, in seconds, to leave it alone."""
    message: str | None = None
    """What the server says of the status."""
    result: Raw | None = None
    error: RpcError | None = None
    questions: Mapping[str, Question] = {}

    @property
    def over(self) -> bool:
        """Tell whether it has ended, in whichever way."""
        return self.status in _ENDS


# Who insists on tasks


def take_execution(definition: Raw) -> tuple[Raw, bool]:
    """Return the definition of a tool without a word of tasks, and whether it insists on one."""
    found = members(definition)
    if "execution" not in found:
        return definition, False
    said = _as_object(peek(found.pop("execution"))).get("taskSupport")
    return to_raw(found), said == "required"


def runs_tasks(version: str, capabilities: Mapping[str, Any]) -> bool:
    """Tell whether a server declared that its tools can be called as tasks."""
    if era_of(version) is Era.ENVELOPE:
        return has_extension(capabilities)
    if version < V2025_11_25:
        return False
    requests = _as_object(_as_object(capabilities.get("tasks")).get("requests"))
    return "call" in _as_object(requests.get("tools"))


def has_extension(capabilities: Mapping[str, Any]) -> bool:
    """Tell whether a client or a server of the envelope era declared that it knows tasks."""
    return TASKS in _as_object(capabilities.get("extensions"))


def needs_extension(error: BaseException | None) -> bool:
    """Tell whether a call was refused for want of the extension, and of nothing else."""
    if not isinstance(error, RpcError) or error.code != MISSING_CAPABILITY or error.data is UNSET:
        return False
    required = _as_object(_as_object(peek(to_raw(error.data))).get("requiredCapabilities"))
    extensions = _as_object(required.get("extensions"))
    return list(required) == ["extensions"] and list(extensions) == [TASKS]


def put_extension(params: Params, declared: bool) -> None:
    """Say in an envelope that we can follow a task, or that we cannot."""
    capabilities = _try_members(params.meta.get(CAPABILITIES, _NOTHING))
    extensions = _try_members(capabilities.pop("extensions", _NOTHING))
    extensions.pop(TASKS, None)
    if declared:
        extensions[TASKS] = _NOTHING
    if extensions:
        capabilities["extensions"] = to_raw(extensions)
    params.put_meta(CAPABILITIES, capabilities)


# Reading


def read_created(result: Raw, era: Era) -> Task | None:
    """Read the answer to a call, None if it is no promise; raises Internal error if unreadable."""
    try:
        found = members(result)
        if era is Era.ENVELOPE:
            return _read(found, era) if peek(found.get("resultType", _NULL)) == _TASK else None
        if found.keys() & _CONTENT or first_byte(found.get(_TASK, _NULL)) != _OBJECT:
            return None
        return _read(members(found[_TASK]), era)
    except ValueError as why:
        raise _unreadable(why) from None


def read_state(task: Task, result: Raw, era: Era) -> Task:
    """Read the answer to `tasks/get`; raises Internal error if it cannot be read."""
    try:
        return _read(members(result) | {"taskId": to_raw(task.id)}, era)
    except ValueError as why:
        raise _unreadable(why) from None


def _read(found: dict[str, Raw], era: Era) -> Task:
    id, status = (peek(found.get(key, _NULL)) for key in ("taskId", "status"))
    if not isinstance(id, str) or not 0 < len(id) <= MAX_ID:
        raise ValueError(f"expected a string of up to {MAX_ID} characters as 'taskId'")
    if not isinstance(status, str) or status not in _STATUSES:
        raise ValueError(f"expected one of {', '.join(sorted(_STATUSES))} as 'status'")
    message = peek(found.get("statusMessage", _NULL))
    task = Task(id, status, _interval(found, era), message if isinstance(message, str) else None)
    if era is Era.HANDSHAKE:
        return task
    error, questions = found.get("error"), {}
    if status == "input_required" and "inputRequests" in found:
        questions = read_questions(found["inputRequests"])
    return task._replace(
        result=found.get("result"),
        error=None if error is None else _read_error(error),
        questions=questions,
    )


def _interval(found: dict[str, Raw], era: Era) -> float:
    said = peek(found.get(_UNITS[era], _NULL))
    if not isinstance(said, int | float) or isinstance(said, bool) or not said >= 0:
        return INTERVAL  # not said, or nothing that makes sense
    return min(max(min(said, 1e6) / 1000, MIN_INTERVAL), MAX_INTERVAL)


def _read_error(raw: Raw) -> RpcError:
    found = members(raw)
    code, message = (peek(found.get(key, _NULL)) for key in ("code", "message"))
    if not isinstance(code, int) or isinstance(code, bool):
        code = INTERNAL_ERROR
    return RpcError(code, message if isinstance(message, str) else "", found.get("data", UNSET))


# What came of it


def outcome(task: Task) -> Raw:
    """Return the result of a task that is over; raises RpcError if there is none."""
    if task.status == "completed" and task.result is not None:
        return task.result
    if task.status == "failed" and task.error is not None:
        raise task.error
    detail = "" if task.message is None else f": {task.message}"
    if task.status == "completed":
        raise RpcError.internal_error("the server completed the task, and has no result of it")
    what = "the task failed" if task.status == "failed" else "the server cancelled the task"
    raise RpcError.internal_error(what + detail)


def lost(why: RpcError) -> RpcError:
    """Return what a client gets whose call's task the server does not know any more."""
    return RpcError.internal_error(f"the server has lost the task: {why.message}")


def has_content(result: Raw) -> bool:
    """Tell whether this is a tool's result, and no empty page that some give for want of one."""
    return bool(_try_members(result).keys() & _CONTENT)


def plain_result(result: Raw) -> Raw:
    """Return a result without a word of the task that it comes from."""
    if _MENTION not in bytes(result):
        return result
    found = _try_members(result)
    meta = _try_members(found.get("_meta", _NOTHING))
    if not meta.keys() & _RELATED:
        return result
    kept = {key: value for key, value in meta.items() if key not in _RELATED}
    del found["_meta"]
    return to_raw(found | {"_meta": kept} if kept else found)


def plain_question(params: Raw | UnsetType) -> Raw | UnsetType:
    """Return what a server asks without a word of tasks; raises Invalid params."""
    if params is UNSET or b"task" not in bytes(params):
        return params
    edited = Params(params)
    edited.drop(_TASK)
    edited.drop_meta(_RELATED)
    return edited.encode()


def related_task(params: object) -> str | None:
    """Return in the course of which task something was said, None if that is not said."""
    if type(params) is not Raw or _MENTION not in bytes(params):
        return None
    try:
        (related,) = (Params(params).meta.get(key, _NULL) for key in _RELATED)
    except RpcError:
        return None
    id = _as_object(peek(related)).get("taskId")
    return id if isinstance(id, str) else None


def _as_object(value: object) -> Mapping[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _try_members(raw: Raw) -> dict[str, Raw]:
    try:
        return members(raw)
    except ValueError:
        return {}


def _unreadable(why: ValueError) -> RpcError:
    return RpcError.internal_error(f"the server's task cannot be read: {why}")
