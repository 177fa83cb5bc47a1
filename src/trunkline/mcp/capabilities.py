"""Capabilities: what the gateway declares to clients and to servers.

    backends' capabilities ──> merge_capabilities ──> declared to clients
    client's capabilities ──> capabilities_for_revision ──> declared to a server on its behalf
    client's capabilities ──> read_client_features ──> what servers may request of it

A capability that is no object declares nothing. A revision gets no capability that it lacks.
"""

from collections.abc import Mapping, Sequence
from typing import Any, cast

from trunkline.mcp.methods import CLIENT_REQUESTS, MERGED, SERVER_REQUESTS, Method
from trunkline.mcp.params import META_PREFIX, as_object
from trunkline.mcp.versions import Revision

TASKS_EXTENSION = META_PREFIX + "tasks"

# The details of a client's capability that servers get; other capabilities are passed on whole.
_DETAILS = {"sampling": ("context", "tools"), "elicitation": ("form", "url")}


def merge_capabilities(backends: Sequence[dict[str, Any]], all_known: bool) -> dict[str, Any]:
    """Return the capabilities that the gateway declares for all its backends.

    Until all backends have answered, every capability is declared. A capability cannot be added
    later, but an empty list can be returned at any time.
    """
    merged: dict[str, Any] = {}
    for name in _capabilities_of(CLIENT_REQUESTS):
        # Tools are always declared: backends can be added while the gateway runs.
        if name == "tools" or not all_known or any(name in found for found in backends):
            merged[name] = {}
    for row in CLIENT_REQUESTS.values():
        if row.mode is MERGED and row.capability in merged:
            merged[row.capability]["listChanged"] = True
    if "resources" in merged:
        subscribable = any(has_flag(c.get("resources"), "subscribe") for c in backends)
        merged["resources"]["subscribe"] = subscribable or not all_known
    if extensions := _merge_extensions(backends):
        merged["extensions"] = extensions
    return merged


def _merge_extensions(backends: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return all extensions of the backends, with the settings on which the backends agree."""
    merged: dict[str, dict[str, Any]] = {}
    for backend in backends:
        for name, declared in server_extensions(backend).items():
            settings = as_object(declared)
            known = merged.get(name, settings)
            merged[name] = {
                key: value for key, value in known.items() if settings.get(key) == value
            }
    return merged


def input_capabilities(capabilities: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of a client's capabilities that lets a server send requests.

    Malformed parts are left out: a server would refuse the gateway, and so all clients, for them.
    """
    declared = _read_input_capabilities(capabilities)
    if "roots" in declared:
        declared["roots"] = _read_roots(declared["roots"])
    return {name: {} if capabilities[name] == {} else declared[name] for name in declared}


def invalid_flag(capabilities: Mapping[str, Any]) -> str | None:
    """Return which flag of a client's capabilities is no boolean, or None. Null means absent."""
    flag = as_object(capabilities.get("roots")).get("listChanged")
    return None if flag is None or isinstance(flag, bool) else "roots.listChanged"


def _read_roots(details: Mapping[str, Any]) -> dict[str, Any]:
    return {"listChanged": True} if has_flag(details, "listChanged") else {}


def _capabilities_of(rows: Mapping[str, Method]) -> list[str]:
    return list(dict.fromkeys(row.capability for row in rows.values() if row.capability))


def has_flag(capability: Any, flag: str) -> bool:
    """Return whether a capability, of any type, has a flag set."""
    return hasattr(capability, "get") and capability.get(flag) is True


def capabilities_for_revision(
    capabilities: Mapping[str, Any], revision: Revision
) -> dict[str, Any]:
    """Return a client's capabilities as a client of `revision` declares them.

    With the client's own revision, the result is what servers can request of it. With the server's
    revision, it is what to declare to the server.
    """
    declared: dict[str, Any] = {}
    for name, details in _read_input_capabilities(capabilities).items():
        rows = (row for row in SERVER_REQUESTS.values() if row.capability == name)
        if not any(revision in row.revisions for row in rows):
            continue
        if name == "roots":
            declared[name] = {} if revision.is_stateless else _read_roots(details)
        elif revision.has_capability_details or name not in _DETAILS:
            declared[name] = details
        elif name == "sampling" or "form" in details:
            declared[name] = {}
    if extensions := server_extensions(capabilities):
        declared["extensions"] = extensions
    return declared


def read_client_features(capabilities: Mapping[str, Any]) -> frozenset[str]:
    """Return the client features of server requests that a client's capabilities cover."""
    declared = _read_input_capabilities(capabilities)
    found: list[str] = []
    for name in client_features():
        capability, _, detail = name.partition(".")
        if capability in declared and (not detail or detail in declared[capability]):
            found.append(name)
    return frozenset(found)


def client_features() -> list[str]:
    """Return every part of a client's capabilities that decides what a server may request."""
    return [name for row in SERVER_REQUESTS.values() for name in row.client_features]


def features_to_capabilities(features: frozenset[str]) -> dict[str, Any]:
    """Return the smallest capabilities that have these features."""
    declared: dict[str, Any] = {}
    for name in sorted(features):
        capability, _, detail = name.partition(".")
        details = declared.setdefault(capability, {})
        if detail:
            details[detail] = {}
    return declared


def _read_input_capabilities(capabilities: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    found = {
        name: capabilities[name]
        for name in _capabilities_of(SERVER_REQUESTS)
        if isinstance(capabilities.get(name), dict)
    }
    for name, known in _DETAILS.items():
        if name in found:
            details = cast("dict[str, Any]", found[name])
            found[name] = {key: details[key] for key in known if isinstance(details.get(key), dict)}
    if found.get("elicitation") == {}:
        found["elicitation"] = {"form": {}}  # up to 2025-06-18 there was no other mode
    return found


def server_extensions(declared: Mapping[str, Any]) -> dict[str, Any]:
    """Return the declared extensions without tasks: the gateway does not forward task support."""
    found = as_object(declared.get("extensions"))
    return {name: found[name] for name in found if name != TASKS_EXTENSION}
