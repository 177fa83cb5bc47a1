"""What the body of an answer says: the result of the call that it answers, or its error.

Refuses to wait: it is given what is there.
"""

from trunkline.jsonrpc import (
    Batch,
    ConnectionLost,
    ErrorResponse,
    MalformedAnswer,
    Message,
    Raw,
    RemoteProtocolError,
    Response,
    decode,
)


def is_answer(message: Message | RemoteProtocolError, id: int) -> bool:
    """Tell whether a message is the answer to what was asked under `id`, even a broken one."""
    if isinstance(message, ErrorResponse):
        return message.id in (id, None)  # nothing else was asked there
    if isinstance(message, RemoteProtocolError):
        return message.response_id == id
    return isinstance(message, Response) and message.id == id


def result_in(body: bytes, id: int) -> Raw:
    """Return the result in a body; raises its error, or ConnectionLost where there is neither."""
    try:
        message = decode(body)
    except RemoteProtocolError as why:
        if not is_answer(why, id):
            raise ConnectionLost(f"the answer was malformed: {why}") from None
        return result_of(why, id)
    return result_of(message, id)


def result_of(message: Message | Batch | RemoteProtocolError, id: int) -> Raw:
    """Return the result that a message carries; raises its error."""
    for entry in message.entries if isinstance(message, Batch) else (message,):
        if is_answer(entry, id):
            if isinstance(entry, Response):
                return entry.result
            if isinstance(entry, ErrorResponse):
                raise entry.error
            raise MalformedAnswer.internal_error(f"the answer was malformed: {entry}")
    raise ConnectionLost("the server answered something else than what was asked")


def seconds_of(retry_after: bytes | None) -> float | None:
    """Read a Retry-After in seconds; dates and nonsense count as not said."""
    if retry_after is None or not retry_after.isdigit() or len(retry_after) > 6:
        return None
    return float(retry_after)
