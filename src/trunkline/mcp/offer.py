"""Offers: the tools, prompts, resources and resource templates that a server lists.

Refuses to understand them: a definition stays the bytes it was, but for the one member by which it
is called, for what would make clients refuse the whole list, and for all word of tasks, which
nobody is offered. One bad definition costs that one, never the list.
"""

from enum import StrEnum
from typing import NamedTuple

from trunkline.jsonrpc import Raw, from_raw, members, to_raw
from trunkline.mcp.definitions import make_readable
from trunkline.mcp.shapes import with_input_schema
from trunkline.mcp.tasks import take_execution

MAX_KEY = 4096
"""The longest name or URI that is taken, in characters."""


class Kind(StrEnum):
    """The four kinds of offers; the value is the member of a list's result that holds them."""

    TOOL = "tools"
    PROMPT = "prompts"
    RESOURCE = "resources"
    TEMPLATE = "resourceTemplates"

    @property
    def method(self) -> str:
        """The method that lists them."""
        return "resources/templates/list" if self is Kind.TEMPLATE else f"{self.value}/list"

    @property
    def key(self) -> str:
        """The member by which one is called."""
        return {Kind.RESOURCE: "uri", Kind.TEMPLATE: "uriTemplate"}.get(self, "name")

    @property
    def capability(self) -> str:
        """What a server that has any of them declares."""
        return "resources" if self is Kind.TEMPLATE else self.value


TOOL = Kind.TOOL
"""By a name of its own, for every call asks: up to 3.11 a member is slow to find in its class."""


class Offer(NamedTuple):
    """One tool, prompt, resource or template, under the name its own server knows."""

    kind: Kind
    key: str
    definition: Raw
    needs_task: bool = False
    """Whether its server carries it out as a task, or not at all."""

    def under(self, key: str) -> Raw:
        """Return the definition under another name; all else stays as it is."""
        if key == self.key:
            return self.definition
        found = members(self.definition)
        found[self.kind.key] = to_raw(key)
        return to_raw(found)


class Page(NamedTuple):
    """One page of a list: what it offers, what was left out of it, and where it goes on."""

    offers: tuple[Offer, ...]
    refused: tuple[str, ...]
    next_cursor: str | None


def read_page(kind: Kind, result: Raw) -> Page:
    """Read the result of a list; raises ValueError where it is none."""
    found = members(result)
    if kind.value not in found:
        raise ValueError(f"expected {kind.value!r} in the answer to {kind.method}")
    offers: list[Offer] = []
    refused: list[str] = []
    for place, definition in enumerate(from_raw(found[kind.value], list[Raw])):
        try:
            offer, left_out = _read_offer(kind, definition)
        except ValueError as why:
            refused.append(f"{kind.value}[{place}]: {why}")
        else:
            offers.append(offer)
            refused += [f"{kind.value}[{place}].{path}: not as MCP has it" for path in left_out]
    cursor = from_raw(found.get("nextCursor", Raw(b"null")), object)
    if cursor is not None and not isinstance(cursor, str):
        raise ValueError(f"expected a string as 'nextCursor' in the answer to {kind.method}")
    return Page(tuple(offers), tuple(refused), cursor)


def _read_offer(kind: Kind, definition: Raw) -> tuple[Offer, tuple[str, ...]]:
    key = from_raw(members(definition).get(kind.key, Raw(b"null")), object)
    if not isinstance(key, str) or not key:
        raise ValueError(f"expected a string as {kind.key!r}, and not an empty one")
    if len(key) > MAX_KEY:
        raise ValueError(f"expected a {kind.key!r} of at most {MAX_KEY} characters")
    definition, left_out = make_readable(kind.value, kind.key, definition)
    needs_task = False
    if kind is Kind.TOOL:
        definition, needs_task = take_execution(with_input_schema(definition))
    # A copy: a small definition must not keep the whole page alive.
    return Offer(kind, key, definition.copy(), needs_task), left_out
