r"""Remains: which call a message answers that cannot be read as a whole.

    b'{"jsonrpc":"2.0","id":7,"result":{…'  ──┐
    b'{"result":{…', b'…},"jsonrpc":"2.0","id":7}' ──┴──> 7

Refuses to guess what a message says, and to take anything else for an answer: only how answers
begin and end, as everybody writes them, is looked at. With that the call that waits for it can fail
at once; without it, it would wait until its time is over.
"""

import re

from msgspec import UNSET, UnsetType

ENOUGH = 256
"""How many bytes of the beginning, and of the end, are enough."""

_VERSION = rb'"jsonrpc"\s*:\s*"2\.0"\s*,\s*'
_OUTCOME = rb'"(?:result|error)"\s*:'
_ID = rb'"id"\s*:\s*(\d{1,18})\s*'
_ID_FIRST = re.compile(
    rb"\s*\{\s*(?:" + _VERSION + rb")?" + _ID + rb",\s*(?:" + _VERSION + rb")?" + _OUTCOME
)
_OUTCOME_FIRST = re.compile(rb"\s*\{\s*(?:" + _VERSION + rb")?" + _OUTCOME)
_ID_LAST = re.compile(rb"[,\s]" + _ID + rb"\}\s*\Z")


def answered_id(beginning: bytes, end: bytes) -> int | UnsetType:
    """Return the id of the call that a message answers, to go by its beginning and its end.

    UNSET if it is no answer, or if that cannot be known.
    """
    if found := _ID_FIRST.match(beginning):
        return int(found[1])
    if _OUTCOME_FIRST.match(beginning) and (found := _ID_LAST.search(end)):
        # Whatever stands before the last brace of all is a member of the message itself.
        return int(found[1])
    return UNSET
