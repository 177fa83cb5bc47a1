"""Rounds: a call of 2026-07-28 that is answered with questions, and made again with the answers.

    result  {"resultType": "input_required", "inputRequests", "requestState"}  <──>  Required
    params  {…, "inputResponses", "requestState"}                              <──>  Retry

Refuses to understand a state: it is somebody else's, and goes back to the byte.
"""

from collections.abc import Mapping
from typing import NamedTuple

from trunkline.jsonrpc import UNSET, Raw, RpcError, from_raw, members, to_raw
from trunkline.jsonrpc.raw import first_byte
from trunkline.mcp.meta import Params, peek
from trunkline.mcp.questions import ELICIT, Question, for_envelope, needed

MAY_ASK = frozenset(("tools/call", "prompts/get", "resources/read"))
"""The methods that may be answered with questions."""

MAX_ROUNDS = 10
"""How often a call is made again; every client gives up after that many."""

MAX_QUESTIONS = 64
"""How much may be asked at once."""

URL_REQUIRED = -32042
"""What a server of 2025-11-25 answers that wants the user to visit some address first."""

_ANSWERS, _STATE, _QUESTIONS = "inputResponses", "requestState", "inputRequests"
_COMPLETE, _NULL = Raw(b'"complete"'), Raw(b"null")
_OBJECT, _TEXT = ord("{"), ord('"')


class Required(NamedTuple):
    """What a server wants to know before it answers, and what it wants back with the answers."""

    questions: dict[str, Question]
    state: Raw | None = None
    """To be sent back to the byte; None if there is none, and then none is sent."""


class Retry(NamedTuple):
    """What a client answers, and the state that it was given."""

    answers: dict[str, Raw]
    state: str | None = None


def read_required(result: Raw) -> Required | None:
    """Read a result that asks, None if it is complete; raises Internal error if it is neither."""
    try:
        found = members(result)
        kind = peek(found.get("resultType", _COMPLETE))
        if kind == "complete":
            return None
        if kind != "input_required":
            raise ValueError("unknown 'resultType'")
        state = _present(found, _STATE)
        if state is not None and first_byte(state) != _TEXT:
            raise ValueError(f"expected a string as {_STATE!r}")
        questions = read_questions(_present(found, _QUESTIONS) or Raw(b"{}"))
        if not questions and state is None:
            raise ValueError(f"expected {_QUESTIONS!r} or {_STATE!r}")
    except ValueError as why:
        raise RpcError.internal_error(f"the server's result cannot be read: {why}") from None
    return Required(questions, state)


def write_required(questions: Mapping[str, Question], state: Raw | str | None = None) -> Raw:
    """Write a result that asks; it needs a question, or a state."""
    result: dict[str, object] = {"resultType": "input_required"}
    if questions:
        result[_QUESTIONS] = {key: _written(question) for key, question in questions.items()}
    if state is not None:
        result[_STATE] = state
    return to_raw(result)


def read_retry(params: Params) -> Retry | None:
    """Read what a client answers, None if it calls for the first time; raises Invalid params."""
    raw, state = params.get(_ANSWERS) or _NULL, peek(params.get(_STATE) or _NULL)
    if not isinstance(state, str | None):
        raise RpcError.invalid_params(f"expected a string as {_STATE!r}", {"field": _STATE})
    if bytes(raw) == b"null":
        return None if state is None else Retry({}, state)
    try:
        answers = members(raw)
        for key, answer in answers.items():
            if first_byte(answer) != _OBJECT:
                raise ValueError(f"expected an object as {key!r}")
    except ValueError as why:
        text = f"expected an object of answers as {_ANSWERS!r}: {why}"
        raise RpcError.invalid_params(text, {"field": _ANSWERS}) from None
    return Retry(answers, state)


def put_retry(params: Params, answers: Mapping[str, Raw], state: Raw | None) -> None:
    """Say in `params` what a server wanted to know, in place of what was said before."""
    strip_retry(params)
    if answers:
        params.put(_ANSWERS, answers)
    if state is not None:
        params.put(_STATE, state)


def strip_retry(params: Params) -> None:
    """Take out of `params` what only servers of the envelope era know."""
    params.drop(_ANSWERS)
    params.drop(_STATE)


def url_required(error: RpcError) -> dict[str, Question] | None:
    """Return what an error of 2025-11-25 wants the user to visit, as 2026-07-28 asks for it.

    By elicitation id, which a server may use to say that it was done. None if the error is another,
    or says nothing that can be read.
    """
    if error.code != URL_REQUIRED or error.data is UNSET:
        return None
    questions: dict[str, Question] = {}
    try:
        found = from_raw(members(to_raw(error.data))["elicitations"], list[Raw])
        for raw in found[: MAX_QUESTIONS + 1]:
            question = Question(ELICIT, raw)
            params = Params(raw)
            if "url" not in needed(question)["elicitation"]:
                return None
            params.text("url")
            questions[params.text("elicitationId")] = for_envelope(question)
    except (KeyError, ValueError, RpcError):
        return None
    whole = len(questions) == len(found) <= MAX_QUESTIONS
    return questions if questions and whole else None


def read_questions(raw: Raw) -> dict[str, Question]:
    """Read what a server wants to know; raises ValueError if that cannot be read."""
    found = members(raw)
    if len(found) > MAX_QUESTIONS:
        raise ValueError(f"expected at most {MAX_QUESTIONS} questions, got {len(found)}")
    return {key: _read_question(key, question) for key, question in found.items()}


def _read_question(key: str, raw: Raw) -> Question:
    try:
        given = Params(raw)
        question = Question(given.text("method"), given.get("params") or UNSET)
        needed(question)  # refuses what is none
    except RpcError as why:
        raise ValueError(f"{_QUESTIONS}[{key!r}]: {why.message}") from None
    return question


def _written(question: Question) -> dict[str, object]:
    if question.params is UNSET:
        return {"method": question.method}
    return {"method": question.method, "params": question.params}


def _present(found: dict[str, Raw], key: str) -> Raw | None:
    raw = found.get(key, _NULL)
    return None if bytes(raw) == b"null" else raw
