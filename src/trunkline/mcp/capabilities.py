"""Capabilities: what a gateway may say that it can, to clients and to servers.

    what backends declare ──> merge_capabilities ──> what the gateway declares to clients
    what a client declares ──> for_revision ──> what the gateway declares to a server in its place
    what a client declares ──> fingerprint ──> all that decides what it may be asked

Refuses to promise: what is no object declares nothing, and nothing is declared that a revision has
no word for.
"""

from collections.abc import Mapping, Sequence
from typing import Any, cast

from trunkline.mcp.meta import PREFIX
from trunkline.mcp.versions import V2025_06_18, V2025_11_25, Era, era_of

QUESTIONS = ("roots", "sampling", "elicitation")
"""What a client may declare so that servers ask it something."""

ASKABLE = ("roots", "sampling", "sampling.tools", "elicitation.form", "elicitation.url")
"""The names of a fingerprint: all that makes a difference to what a client may be asked."""

TASKS = PREFIX + "tasks"

_DETAILS = {"sampling": ("context", "tools"), "elicitation": ("form", "url")}


def merge_capabilities(backends: Sequence[dict[str, Any]], settled: bool) -> dict[str, Any]:
    """Return what a server with all these backends declares.

    While some of them have not answered yet, everything is possible, and said to be: a capability
    cannot be declared later, but an empty list can be answered at any time.
    """
    merged: dict[str, Any] = {}
    for name in ("tools", "prompts", "resources", "completions", "logging"):
        # A gateway has a list of tools, be it empty: backends can be added while it runs.
        if name == "tools" or not settled or any(name in found for found in backends):
            merged[name] = {}
    for name in ("tools", "prompts", "resources"):
        if name in merged:
            merged[name]["listChanged"] = True
    if "resources" in merged:
        subscribable = any(has_flag(c.get("resources"), "subscribe") for c in backends)
        merged["resources"]["subscribe"] = subscribable or not settled
    if extensions := _merge_extensions(backends):
        merged["extensions"] = extensions
    return merged


def _merge_extensions(backends: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return all extensions that some backend has, with the settings that all who have it share."""
    merged: dict[str, dict[str, Any]] = {}
    for backend in backends:
        for name, declared in _extensions(backend).items():
            settings = _object(declared)
            known = merged.get(name, settings)
            merged[name] = {
                key: value for key, value in known.items() if settings.get(key) == value
            }
    return merged


def questions(client: dict[str, Any]) -> dict[str, Any]:
    """Return the part of a client's capabilities that lets a server ask it something."""
    return {name: client[name] for name in QUESTIONS if name in client}


def has_flag(capability: Any, flag: str) -> bool:
    """Tell whether a capability, which may be anything, says so."""
    return hasattr(capability, "get") and capability.get(flag) is True


def for_revision(client: Mapping[str, Any], version: str) -> dict[str, Any]:
    """Return a client's capabilities as a client of `version` declares them.

    With the client's own revision: what it can really be asked. With the server's: what to tell it.
    """
    declared: dict[str, Any] = {}
    for name, details in _questions_of(client).items():
        if name == "roots":
            listed = era_of(version) is Era.HANDSHAKE and has_flag(details, "listChanged")
            declared[name] = {"listChanged": True} if listed else {}
        elif version >= V2025_11_25:
            declared[name] = details
        elif name == "sampling" or (version >= V2025_06_18 and "form" in details):
            declared[name] = {}
    if extensions := _extensions(client):
        declared["extensions"] = extensions
    return declared


def fingerprint(client: Mapping[str, Any]) -> frozenset[str]:
    """Name all that a client may be asked, out of ASKABLE."""
    declared = _questions_of(client)
    found: list[str] = []
    for name in ASKABLE:
        capability, _, detail = name.partition(".")
        if capability in declared and (not detail or detail in declared[capability]):
            found.append(name)
    return frozenset(found)


def from_fingerprint(names: frozenset[str]) -> dict[str, Any]:
    """Return the fewest capabilities that have this fingerprint."""
    declared: dict[str, Any] = {}
    for name in sorted(names):
        capability, _, detail = name.partition(".")
        details = declared.setdefault(capability, {})
        if detail:
            details[detail] = {}
    return declared


def _questions_of(client: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return what may be asked, and how: of two of them there are details that MCP knows."""
    found = {name: client[name] for name in QUESTIONS if isinstance(client.get(name), dict)}
    for name, known in _DETAILS.items():
        if name in found:
            details = cast("dict[str, Any]", found[name])
            found[name] = {key: details[key] for key in known if isinstance(details.get(key), dict)}
    if found.get("elicitation") == {}:
        found["elicitation"] = {"form": {}}  # up to 2025-06-18 there was nothing else
    return found


def _extensions(declared: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is declared beyond MCP itself, but for tasks: those are nobody's business."""
    found = _object(declared.get("extensions"))
    return {name: found[name] for name in found if name != TASKS}


def _object(value: Any) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}
