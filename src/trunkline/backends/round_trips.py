"""Round trips: a server of the envelope era asks with its answer, and wants to be called again.

    call ──> input_required ──> the client, asked by real requests ──> call again ──> … the result

Refuses to ask for itself, and for ever: a client that refuses ends the call, and so does a server
that never has enough.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from trunkline.jsonrpc import Raw, RpcError
from trunkline.mcp.meta import Params
from trunkline.mcp.questions import Question, answer_for_envelope
from trunkline.mcp.rounds import MAX_ROUNDS, Required, put_retry, read_required

FIRST_PAUSE, MAX_PAUSE = 0.05, 0.25
"""How long, in seconds, a server is left alone that only wants to be called again."""

_COMPLETE = b'{"resultType":"complete"'

Ask = Callable[[Question], Awaitable[Raw]]
"""Asks the client; raises RpcError if it does not answer, or cannot be asked that."""

Again = Callable[[], Awaitable[Raw]]
"""Makes the call with its params as they are by then."""


async def ask_all(ask: Ask, questions: Mapping[str, Question]) -> dict[str, Raw]:
    """Ask a client one thing after the other; raises RpcError as soon as it does not answer one."""
    answers: dict[str, Raw] = {}
    for key, question in questions.items():
        answers[key] = answer_for_envelope(question, await ask(question))
    return answers


async def go_round(required: Required, params: Params, ask: Ask, again: Again) -> Raw:
    """Return the answer to a call that was made, when its server has no more questions."""
    pause = FIRST_PAUSE
    for _ in range(MAX_ROUNDS):
        answers = await ask_all(ask, required.questions)
        if not answers:
            await asyncio.sleep(pause)
            pause = min(2 * pause, MAX_PAUSE)
        put_retry(params, answers, required.state)
        result = await again()
        found = find_required(result)
        if found is None:
            return result
        required = found
    raise RpcError.internal_error(f"the server asked more than {MAX_ROUNDS} times")


def find_required(result: Raw) -> Required | None:
    """Return what a result asks; most ask nothing, and are not read to find that out."""
    if bytes(memoryview(result)[: len(_COMPLETE)]) == _COMPLETE:
        return None
    return read_required(result) if b'"input_required"' in bytes(result) else None
