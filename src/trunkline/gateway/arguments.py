"""Arguments: whether a call says what the tool's schema wants, before anybody carries it out.

    entry ──> its inputSchema, compiled once ──> arguments as they are forwarded ──> on, or why not

What does not fit is explained as the caller's revision has it: in a result, which models read, from
2025-11-25 on, as Invalid params before. A missing `arguments` is an empty object.

Refuses to stand in the way: a schema that is bad, or that would cost too much, checks nothing, and
whoever listens is told so once.
"""

from collections.abc import Callable, Iterable
from typing import NamedTuple

from trunkline.gateway.events import Unchecked
from trunkline.gateway.passage import Passage
from trunkline.gateway.route import Check
from trunkline.jsonrpc import INVALID_PARAMS, Raw, RpcError, members, to_raw
from trunkline.mcp.bridge import adapt_result
from trunkline.mcp.offer import TOOL
from trunkline.mcp.versions import V2025_11_25
from trunkline.routing.catalog import Entry
from trunkline.routing.schema_cost import Uncheckable
from trunkline.routing.validation import Validator, compile_schema

MAX_KNOWN = 4096
"""How many tools, and schemas, are kept; when there are more, all are forgotten."""

_SCHEMA = "inputSchema"


class _Known(NamedTuple):
    """What is known of a tool: what checks its calls, if anything does."""

    definition: Raw
    check: Check | None


class _Checked:
    """Checks the arguments of a tool, as far as that can be done; where it cannot, that is told."""

    __slots__ = ("_complaints", "_fits", "_tell", "_told")

    def __init__(self, validator: Validator, tell: Callable[[Unchecked], None]) -> None:
        self._fits = validator.fits
        self._complaints = validator.complaints
        self._tell = tell
        self._told = False

    def check(self, passage: Passage, entry: Entry) -> Raw | None:
        """Refuse what a tool does not take, as the caller's revision has it.

        Returns the result that says so, or raises Invalid params.
        """
        arguments = passage.arguments
        if arguments is not None and self._fits(arguments):
            return None
        try:
            wrong = self._complaints(arguments)
        except Uncheckable as why:
            if not self._told:
                self._told = True
                self._tell(Unchecked(entry.public, entry.backend, str(why)))
            return None
        return _refusal(passage, entry, wrong) if wrong else None


class Arguments:
    """Says which arguments a tool takes."""

    def __init__(self, tell: Callable[[Unchecked], None], builtin: Iterable[str] = ()) -> None:
        """Begin; those who are `builtin` check what they are given by themselves."""
        self._tell = tell
        self._builtin = frozenset(builtin)
        self._tools: dict[str, _Known] = {}
        self._validators: dict[bytes, Validator | None] = {}
        """By schema: tools that are listed again, or alike, are compiled once."""

    def __len__(self) -> int:
        return len(self._tools) + len(self._validators)

    def check_of(self, entry: Entry) -> Check | None:
        """Return what is asked of each call of an offer; None if nothing can be wrong with it."""
        if entry.kind is not TOOL:
            return None
        known = self._tools.get(entry.public)
        if known is None or known.definition is not entry.definition:
            known = self._learn(entry)
        return known.check

    def _learn(self, entry: Entry) -> _Known:
        if len(self._tools) >= MAX_KNOWN:
            self._tools.clear()
        check = None if entry.backend in self._builtin else self._check(entry)
        known = self._tools[entry.public] = _Known(entry.definition, check)
        return known

    def _check(self, entry: Entry) -> Check | None:
        try:
            validator = self._compile(entry)
        except Uncheckable as why:
            self._tell(Unchecked(entry.public, entry.backend, str(why)))
            return None
        return None if validator is None else _Checked(validator, self._tell).check

    def _compile(self, entry: Entry) -> Validator | None:
        schema = schema_of(entry)
        key = bytes(schema)
        if key not in self._validators:
            if len(self._validators) >= MAX_KNOWN:
                self._validators.clear()
            self._validators[key] = compile_schema(schema)
        return self._validators[key]


def schema_of(entry: Entry) -> Raw:
    """Return the schema of a tool's arguments; everything fits where there is none."""
    return members(entry.definition).get(_SCHEMA, Raw(b"{}"))


def unchecked(entries: Iterable[Entry]) -> dict[str, str]:
    """Return which of these tools are not checked, and why not."""
    found: dict[str, str] = {}
    for entry in entries:
        try:
            compile_schema(schema_of(entry))
        except Uncheckable as why:
            found[entry.public] = str(why)
    return found


def _refusal(passage: Passage, entry: Entry, wrong: tuple[str, ...]) -> Raw:
    passage.status = "invalid_arguments"
    message = f"Invalid arguments for tool {entry.public}: {'; '.join(wrong)}"
    version = passage.caller.version
    if version < V2025_11_25:
        raise RpcError(INVALID_PARAMS, message)
    result = to_raw({"content": [{"type": "text", "text": message}], "isError": True})
    return adapt_result("tools/call", result, V2025_11_25, version)
