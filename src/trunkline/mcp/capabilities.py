"""Capabilities: what a gateway may say that it can, given what its backends say that they can."""

from collections.abc import Sequence
from typing import Any

QUESTIONS = ("roots", "sampling", "elicitation")
"""What a client may declare so that servers ask it something."""


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
    return merged


def questions(client: dict[str, Any]) -> dict[str, Any]:
    """Return the part of a client's capabilities that lets a server ask it something."""
    return {name: client[name] for name in QUESTIONS if name in client}


def has_flag(capability: Any, flag: str) -> bool:
    """Tell whether a capability, which may be anything, says so."""
    return hasattr(capability, "get") and capability.get(flag) is True
