"""Incidents: an exception that nobody foresaw becomes an answer, and a report under the same id.

The answer tells the caller nothing but that id: no traceback, no message, no params. The report,
for those who run the program, has the exception itself.
"""

import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple, TypeAlias
from uuid import uuid4

from trunkline.jsonrpc.errors import RpcError


class Incident(NamedTuple):
    """What went wrong in which method, under the id that the caller was given."""

    id: str
    method: str
    error: BaseException


Report: TypeAlias = Callable[[Incident], None]


def print_incident(incident: Incident) -> None:
    """Report to stderr, for programs that have no log of their own."""
    sys.stderr.write(f"incident {incident.id} in method {incident.method!r}\n")
    traceback.print_exception(incident.error, file=sys.stderr)


def answer_for(error: BaseException, method: str, report: Report) -> RpcError:
    """Return the answer for an exception raised while `method` was carried out.

    An RpcError is the answer itself; anything else is reported, and answered by its id alone.
    """
    if isinstance(error, RpcError):
        return error
    incident = Incident(uuid4().hex[:12], method, error)
    with suppress(Exception):  # a broken log must not keep the caller from its answer
        report(incident)
    return RpcError.internal_error(data={"incident": incident.id})
