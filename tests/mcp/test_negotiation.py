"""`initialize`, `server/discover` and the envelope, read and written."""

from typing import Any

import pytest

from trunkline.jsonrpc import UNSET, Raw, RpcError, from_raw, to_raw
from trunkline.mcp.identity import Caller, Principal
from trunkline.mcp.negotiation import (
    MAX_CACHED_ENVELOPE_BYTES,
    add_envelope,
    discover_result,
    has_envelope,
    initialize_params,
    initialize_result,
    read_discovery,
    read_envelope,
    read_initialize_params,
    read_initialize_result,
    require_envelope,
)
from trunkline.mcp.notifications import LOG_LEVELS
from trunkline.mcp.params import (
    CAPABILITIES_KEY,
    CLIENT_INFO_KEY,
    ENVELOPE_KEYS,
    LOG_LEVEL_KEY,
    VERSION_KEY,
    Params,
)
from trunkline.mcp.versions import V2025_03_26, V2025_11_25, V2026_07_28

CLIENT = {"name": "c", "version": "1", "title": "x"}


@pytest.mark.holds("S1.13", "C8", "C17")
def test_initialize_params_are_read_and_unknown_members_ignored() -> None:
    sent = initialize_params(V2025_03_26, {"roots": {}}, CLIENT) | {"extra": 1, "_meta": None}
    answers = read_initialize_params(to_raw(sent))
    assert (answers.revision, answers.capabilities) == (V2025_03_26, {"roots": {}})
    assert answers.client_info == to_raw(CLIENT)


@pytest.mark.holds("C17")
@pytest.mark.parametrize("field", ["protocolVersion", "capabilities", "clientInfo"])
@pytest.mark.parametrize("value", [None, 5, [], "absent"])
def test_a_missing_initialize_member_is_rejected_by_name(field: str, value: Any) -> None:
    sent: dict[str, Any] = initialize_params(V2025_03_26, {}, CLIENT)
    if value == "absent":
        del sent[field]
    else:
        sent[field] = value
    with pytest.raises(RpcError) as caught:
        read_initialize_params(to_raw(sent))
    assert caught.value.code == -32602
    assert caught.value.data == {"field": field}


@pytest.mark.parametrize("value", ["yes", 1, 0, [], {}])
def test_a_flag_of_a_capability_that_is_no_boolean_is_rejected_by_name(value: Any) -> None:
    odd = {"roots": {"listChanged": value}}
    with pytest.raises(RpcError, match=r"boolean as 'roots.listChanged'") as caught:
        read_initialize_params(to_raw(initialize_params(V2025_11_25, odd, CLIENT)))
    assert caught.value.code == -32602
    assert caught.value.data == {"field": "capabilities.roots.listChanged"}
    error = error_of(WHOLE | {CAPABILITIES_KEY: odd})
    assert error.code == -32602
    assert error.data == {"field": f"{CAPABILITIES_KEY}.roots.listChanged"}


def test_a_flag_that_is_null_is_absent() -> None:
    odd = initialize_params(V2025_11_25, {"roots": {"listChanged": None}}, CLIENT)
    assert read_initialize_params(to_raw(odd)).revision is V2025_11_25


def test_an_initialize_without_params_is_rejected() -> None:
    with pytest.raises(RpcError, match="protocolVersion"):
        read_initialize_params(UNSET)


def test_an_initialize_result_can_be_read_back() -> None:
    sent = initialize_result(V2025_11_25, {"tools": {}}, {"name": "s"}, "be kind")
    answers = read_initialize_result(to_raw(sent))
    assert (answers.revision, answers.capabilities) == (V2025_11_25, {"tools": {}})
    assert (answers.server_info, answers.instructions) == (Raw(b'{"name":"s"}'), "be kind")
    assert "instructions" not in initialize_result(V2025_11_25, {}, {}, None)
    assert read_initialize_result(Raw(b'{"protocolVersion":"2024-11-05"}')).instructions is None


@pytest.mark.parametrize(
    "result", [b"[]", b"{}", b'{"protocolVersion":"1999-01-01"}', b'{"protocolVersion":7}']
)
def test_a_malformed_initialize_result_is_rejected(result: bytes) -> None:
    with pytest.raises(ValueError, match=r"[Ee]xpected"):
        read_initialize_result(Raw(result))


WHOLE: dict[str, Any] = {VERSION_KEY: "2026-07-28", CAPABILITIES_KEY: {}}


def params(meta: Any) -> Params:
    return Params(to_raw({"_meta": meta}))


def error_of(meta: Any) -> RpcError:
    with pytest.raises(RpcError) as caught:
        read_envelope(params(meta), Principal("somebody"))
    return caught.value


def test_the_envelope_keys_are_those_that_session_servers_must_not_see() -> None:
    assert {VERSION_KEY, CAPABILITIES_KEY, CLIENT_INFO_KEY, LOG_LEVEL_KEY} == ENVELOPE_KEYS


def test_a_request_with_a_revision_is_stateless() -> None:
    assert has_envelope(params({VERSION_KEY: 5}))
    assert not has_envelope(params({CAPABILITIES_KEY: {}}))
    assert not has_envelope(Params(to_raw({})))


def test_the_caller_is_read_from_the_request_alone() -> None:
    caller = read_envelope(
        params(
            {
                VERSION_KEY: "2026-07-28",
                CAPABILITIES_KEY: {"sampling": {"tools": {}}},
                CLIENT_INFO_KEY: {"name": "c", "version": "1"},
                LOG_LEVEL_KEY: "warning",
                "vendor/x": 1,
            }
        ),
        Principal("somebody"),
    )
    assert (caller.principal.id, caller.revision, caller.log_level) == (
        "somebody",
        V2026_07_28,
        "warning",
    )
    assert "sampling" in caller.client_features
    assert from_raw(caller.client_info) == {"name": "c", "version": "1"}


@pytest.mark.parametrize("more", [{}, {LOG_LEVEL_KEY: None}])
def test_client_info_and_log_level_are_optional(more: dict[str, Any]) -> None:
    caller = read_envelope(params(WHOLE | more), Principal(""))
    assert (bytes(caller.client_info), caller.log_level) == (b"{}", None)


@pytest.mark.parametrize("level", LOG_LEVELS)
def test_every_log_level_is_accepted(level: str) -> None:
    assert read_envelope(params(WHOLE | {LOG_LEVEL_KEY: level}), Principal("")).log_level == level


@pytest.mark.parametrize("missing", [VERSION_KEY, CAPABILITIES_KEY])
def test_two_members_are_required(missing: str) -> None:
    meta = {key: value for key, value in WHOLE.items() if key != missing}
    with pytest.raises(RpcError) as caught:
        require_envelope(params(meta))
    assert (caught.value.code, caught.value.data) == (-32602, {"field": missing})
    assert error_of(meta) == caught.value
    require_envelope(params(WHOLE))


def test_missing_members_are_reported_before_invalid_ones() -> None:
    assert error_of({VERSION_KEY: 5}).data == {"field": CAPABILITIES_KEY}
    assert error_of({VERSION_KEY: 5, CAPABILITIES_KEY: 5}).data == {"field": VERSION_KEY}
    assert error_of({VERSION_KEY: "v999", CAPABILITIES_KEY: 5}).code == -32022


def test_an_unknown_revision_is_rejected_with_the_supported_ones() -> None:
    error = error_of(WHOLE | {VERSION_KEY: "v999"})
    assert error.data == {"supported": ["2026-07-28"], "requested": "v999"}
    assert (error.code, error.message) == (-32022, "Unsupported protocol version")


def test_a_session_revision_cannot_be_used_in_an_envelope() -> None:
    assert error_of(WHOLE | {VERSION_KEY: "2025-11-25"}).code == -32022


@pytest.mark.parametrize(
    "wrong",
    [
        {VERSION_KEY: None},
        {VERSION_KEY: 20260728},
        {VERSION_KEY: Raw(b"1e999")},
        {VERSION_KEY: ["2026-07-28"]},
        {CAPABILITIES_KEY: None},
        {CAPABILITIES_KEY: ["sampling"]},
        {CAPABILITIES_KEY: Raw(b'{"a":1e999}')},
        {CAPABILITIES_KEY: Raw(b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}")},
        {CLIENT_INFO_KEY: "me"},
        {CLIENT_INFO_KEY: None},
        {LOG_LEVEL_KEY: "loud"},
        {LOG_LEVEL_KEY: "WARNING"},
        {LOG_LEVEL_KEY: 3},
        {LOG_LEVEL_KEY: ["warning"]},
        {LOG_LEVEL_KEY: Raw(b"1e999")},
        {LOG_LEVEL_KEY: Raw(b'"\\ud800"')},
    ],
)
def test_members_of_the_wrong_type_are_rejected(wrong: dict[str, Any]) -> None:
    assert error_of(WHOLE | wrong).code == -32602


def test_an_added_envelope_can_be_read_back() -> None:
    caller = Caller(Principal("p"), V2025_11_25, {"roots": {}}, Raw(b'{"name":"c"}'), "error")
    sent = Params(to_raw({"name": "x", "_meta": {"vendor/x": 1}}))
    add_envelope(sent, caller)
    read = read_envelope(Params(sent.encode()), Principal("p"))
    assert (read.revision, read.capabilities, read.log_level) == (
        V2026_07_28,
        {"roots": {}},
        "error",
    )
    assert bytes(read.client_info) == b'{"name":"c"}'
    assert bytes(sent.meta["vendor/x"]) == b"1"


def test_without_a_log_level_none_is_requested() -> None:
    sent = Params(to_raw({}))
    add_envelope(sent, Caller(Principal("p"), V2025_11_25, {}, Raw(b"{}")))
    assert LOG_LEVEL_KEY not in sent.meta


def test_envelopes_of_any_size_are_read_for_their_own_principal() -> None:
    for size in (1, MAX_CACHED_ENVELOPE_BYTES):
        sent = WHOLE | {CLIENT_INFO_KEY: {"name": "c" * size}}
        callers = [read_envelope(params(sent), principal) for principal in map(Principal, "aba")]
        assert [caller.principal.id for caller in callers] == ["a", "b", "a"]
        assert callers[0] == callers[2]
        assert from_raw(callers[0].client_info) == {"name": "c" * size}
    assert error_of(WHOLE | {CLIENT_INFO_KEY: "c" * MAX_CACHED_ENVELOPE_BYTES}).code == -32602


def test_equal_envelopes_give_the_same_caller() -> None:
    principal = Principal("p")
    first = read_envelope(params(WHOLE), principal)
    assert read_envelope(params(WHOLE), principal) is first
    assert read_envelope(params(WHOLE), Principal("p", roles=("r",))) != first


SERVER = "io.modelcontextprotocol/serverInfo"


def test_a_discover_result_has_all_required_members() -> None:
    sent = discover_result({"tools": {}}, {"name": "g"}, None)
    assert sent == {
        "resultType": "complete",
        "supportedVersions": ["2026-07-28"],
        "capabilities": {"tools": {}},
        "ttlMs": 0,
        "cacheScope": "private",
        "_meta": {SERVER: {"name": "g"}},
    }
    assert discover_result({}, {}, "Use it.")["instructions"] == "Use it."


def test_a_discover_result_can_be_read_back() -> None:
    found = read_discovery(to_raw(discover_result({"tools": {}}, {"name": "g"}, "Use it.")))
    assert found.revisions == (V2026_07_28,)
    assert (found.capabilities, found.instructions) == ({"tools": {}}, "Use it.")
    assert from_raw(found.server_info) == {"name": "g"}


def test_only_the_versions_are_required_and_unknown_ones_are_ignored() -> None:
    found = read_discovery(Raw(b'{"supportedVersions":["2025-11-25","x"],"instructions":7}'))
    assert found.revisions == (V2025_11_25,)
    assert (found.capabilities, found.instructions) == ({}, None)
    assert bytes(found.server_info) == b"{}"


@pytest.mark.parametrize(
    "result",
    [
        [],
        {},
        {"supportedVersions": "2026-07-28"},
        {"supportedVersions": [1]},
        {"supportedVersions": [], "capabilities": None},
        {"supportedVersions": [], "capabilities": []},
        {"supportedVersions": [], "_meta": 5},
        {"supportedVersions": [], "instructions": Raw(b"1e999")},
        Raw(b'{"supportedVersions":[],"supportedVersions":[]}'),
    ],
)
def test_a_malformed_discover_result_is_rejected(result: Any) -> None:
    with pytest.raises(ValueError, match=r".+"):
        read_discovery(to_raw(result))
