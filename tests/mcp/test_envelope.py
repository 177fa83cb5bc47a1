"""The envelope: what must be in it, in the order in which that is missed; and written back."""

from typing import Any

import pytest

from trunkline.jsonrpc import Raw, RpcError, from_raw, to_raw
from trunkline.mcp.caller import Caller
from trunkline.mcp.envelope import (
    CAPABILITIES,
    CLIENT,
    LOG_LEVEL,
    MAX_KNOWN,
    VERSION,
    expect_envelope,
    has_envelope,
    read_envelope,
    stamp,
)
from trunkline.mcp.logs import LEVELS
from trunkline.mcp.meta import ENVELOPE_KEYS, Params
from trunkline.mcp.principal import Principal

WHOLE: dict[str, Any] = {VERSION: "2026-07-28", CAPABILITIES: {}}


def params(meta: Any) -> Params:
    return Params(to_raw({"_meta": meta}))


def refusal(meta: Any) -> RpcError:
    with pytest.raises(RpcError) as caught:
        read_envelope(params(meta), Principal("somebody"))
    return caught.value


def test_the_keys_are_those_that_the_other_era_must_not_see() -> None:
    assert {VERSION, CAPABILITIES, CLIENT, LOG_LEVEL} == ENVELOPE_KEYS


def test_a_request_stands_alone_if_it_says_which_revision_it_speaks() -> None:
    assert has_envelope(params({VERSION: 5}))
    assert not has_envelope(params({CAPABILITIES: {}}))
    assert not has_envelope(Params(to_raw({})))


def test_who_is_asking_is_read_from_the_request_alone() -> None:
    caller = read_envelope(
        params(
            {
                VERSION: "2026-07-28",
                CAPABILITIES: {"sampling": {"tools": {}}},
                CLIENT: {"name": "c", "version": "1"},
                LOG_LEVEL: "warning",
                "vendor/x": 1,
            }
        ),
        Principal("somebody"),
    )
    assert (caller.principal.id, caller.version, caller.log_level) == (
        "somebody",
        "2026-07-28",
        "warning",
    )
    assert "sampling" in caller.askable
    assert from_raw(caller.client) == {"name": "c", "version": "1"}


@pytest.mark.parametrize("more", [{}, {LOG_LEVEL: None}])
def test_a_client_may_keep_its_name_and_its_level_to_itself(more: dict[str, Any]) -> None:
    caller = read_envelope(params(WHOLE | more), Principal(""))
    assert (bytes(caller.client), caller.log_level) == (b"{}", None)


@pytest.mark.parametrize("level", LEVELS)
def test_every_level_can_be_asked_for(level: str) -> None:
    assert read_envelope(params(WHOLE | {LOG_LEVEL: level}), Principal("")).log_level == level


@pytest.mark.parametrize("missing", [VERSION, CAPABILITIES])
def test_two_members_must_be_there(missing: str) -> None:
    meta = {key: value for key, value in WHOLE.items() if key != missing}
    with pytest.raises(RpcError) as caught:
        expect_envelope(params(meta))
    assert (caught.value.code, caught.value.data) == (-32602, {"field": missing})
    assert refusal(meta) == caught.value
    expect_envelope(params(WHOLE))


def test_what_is_missing_counts_before_what_is_wrong() -> None:
    assert refusal({VERSION: 5}).data == {"field": CAPABILITIES}
    assert refusal({VERSION: 5, CAPABILITIES: 5}).data == {"field": VERSION}
    assert refusal({VERSION: "v999", CAPABILITIES: 5}).code == -32022


def test_an_unknown_revision_is_refused_with_those_that_are_known() -> None:
    error = refusal(WHOLE | {VERSION: "v999"})
    assert error.data == {"supported": ["2026-07-28"], "requested": "v999"}
    assert (error.code, error.message) == (-32022, "Unsupported protocol version")


def test_a_revision_of_the_handshake_cannot_be_spoken_in_envelopes() -> None:
    assert refusal(WHOLE | {VERSION: "2025-11-25"}).code == -32022


@pytest.mark.parametrize(
    "wrong",
    [
        {VERSION: None},
        {VERSION: 20260728},
        {VERSION: Raw(b"1e999")},
        {VERSION: ["2026-07-28"]},
        {CAPABILITIES: None},
        {CAPABILITIES: ["sampling"]},
        {CAPABILITIES: Raw(b'{"a":1e999}')},
        {CAPABILITIES: Raw(b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}")},
        {CLIENT: "me"},
        {CLIENT: None},
        {LOG_LEVEL: "loud"},
        {LOG_LEVEL: "WARNING"},
        {LOG_LEVEL: 3},
        {LOG_LEVEL: ["warning"]},
        {LOG_LEVEL: Raw(b"1e999")},
        {LOG_LEVEL: Raw(b'"\\ud800"')},
    ],
)
def test_what_has_the_wrong_type_is_refused(wrong: dict[str, Any]) -> None:
    assert refusal(WHOLE | wrong).code == -32602


def test_what_is_stamped_is_what_is_read() -> None:
    caller = Caller(Principal("p"), "2025-11-25", {"roots": {}}, Raw(b'{"name":"c"}'), "error")
    said = Params(to_raw({"name": "x", "_meta": {"vendor/x": 1}}))
    stamp(said, caller)
    read = read_envelope(Params(said.encode()), Principal("p"))
    assert (read.version, read.capabilities, read.log_level) == (
        "2026-07-28",
        {"roots": {}},
        "error",
    )
    assert bytes(read.client) == b'{"name":"c"}'
    assert bytes(said.meta["vendor/x"]) == b"1"


def test_who_wants_no_messages_asks_for_none() -> None:
    said = Params(to_raw({}))
    stamp(said, Caller(Principal("p"), "2025-11-25", {}, Raw(b"{}")))
    assert LOG_LEVEL not in said.meta


def test_however_much_a_client_says_it_is_read_for_its_own_principal() -> None:
    for size in (1, MAX_KNOWN):
        said = WHOLE | {CLIENT: {"name": "c" * size}}
        callers = [read_envelope(params(said), principal) for principal in map(Principal, "aba")]
        assert [caller.principal.id for caller in callers] == ["a", "b", "a"]
        assert callers[0] == callers[2]
        assert from_raw(callers[0].client) == {"name": "c" * size}
    assert refusal(WHOLE | {CLIENT: "c" * MAX_KNOWN}).code == -32602


def test_who_says_the_same_again_is_the_same() -> None:
    principal = Principal("p")
    first = read_envelope(params(WHOLE), principal)
    assert read_envelope(params(WHOLE), principal) is first
    assert read_envelope(params(WHOLE), Principal("p", roles=("r",))) != first
