"""What older revisions have no shape for, said in one that they have."""

from hashlib import sha256
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline.jsonrpc import Raw, from_raw, members, to_raw
from trunkline.mcp.shapes import is_foreign, narrow_result, narrow_tool, with_input_schema
from trunkline.mcp.versions import HANDSHAKE_VERSIONS, VERSIONS

FIRST, BATCHED, OLD, LATEST = HANDSHAKE_VERSIONS
ENVELOPE = "2026-07-28"

TEXT = {"type": "text", "text": "hello"}
AUDIO = {"type": "audio", "data": "AAAA", "mimeType": "audio/wav", "annotations": {"priority": 1}}
LINK = {"type": "resource_link", "uri": "x:a", "name": "A", "size": 5, "_meta": {"k": 1}}
HASH = sha256(b'"AAAA"').hexdigest()
HEARD = {
    "type": "resource",
    "resource": {
        "uri": f"urn:trunkline:audio:{HASH}",
        "blob": "AAAA",
        "mimeType": "audio/wav",
    },
    "annotations": {"priority": 1},
}
LINKED = {"type": "text", "text": "A <x:a>", "_meta": {"k": 1}}


def narrow(method: str, result: dict[str, Any], version: str) -> Any:
    found = members(to_raw(result))
    narrow_result(method, found, version)
    return from_raw(to_raw(found))


@pytest.mark.parametrize(
    ("version", "blocks"),
    [
        (FIRST, [TEXT, HEARD, LINKED]),
        (BATCHED, [TEXT, AUDIO, LINKED]),
        (OLD, [TEXT, AUDIO, LINK]),
        (LATEST, [TEXT, AUDIO, LINK]),
    ],
)
def test_blocks_become_what_a_revision_knows(version: str, blocks: list[Any]) -> None:
    given_blocks = [TEXT, AUDIO, LINK]
    narrowed = narrow("tools/call", {"content": given_blocks, "isError": True}, version)
    assert narrowed == {"content": blocks, "isError": True}
    spoken = [{"role": "user", "content": block} for block in given_blocks]
    narrowed = narrow("prompts/get", {"messages": spoken, "description": "d"}, version)
    assert [message["content"] for message in narrowed["messages"]] == blocks
    assert all(message["role"] == "user" for message in narrowed["messages"])


def test_a_block_is_found_however_it_is_spelled() -> None:
    found = {"content": Raw(b'[{"type":"\\u0061udio","data":"AAAA"}]')}
    assert is_foreign(to_raw(found), FIRST)
    narrow_result("tools/call", found, FIRST)
    assert b'"blob":"AAAA"' in bytes(found["content"])


ODD = b'[7,{"type":"audio"},{"type":"resource_link"},{"type":"audio","data":5},{"type":1e999}]'


@pytest.mark.parametrize("raw", [ODD, b'"audio"', b'{"type":"audio"}', b"null"])
def test_what_is_no_block_stays_as_it_is(raw: bytes) -> None:
    for method, key in (("tools/call", "content"), ("prompts/get", "messages")):
        content = Raw(raw)
        found = {key: content}
        narrow_result(method, found, FIRST)
        assert found[key] is content
    half = Raw(b'[{"type":"resource_link","uri":"x:","name":5}]')
    found = {"content": half}
    narrow_result("tools/call", found, FIRST)
    assert found["content"] is half


def test_results_of_other_methods_are_left_alone() -> None:
    for method in ("resources/read", "completion/complete", "prompts/get"):
        found = {"content": to_raw([AUDIO]), "structuredContent": Raw(b"5")}
        before = dict(found)
        narrow_result(method, found, FIRST)
        assert found == before


@pytest.mark.parametrize("version", [FIRST, BATCHED])
def test_old_clients_have_no_structured_content_and_lose_nothing(version: str) -> None:
    structured = {"a": [1, "é"]}
    said = narrow("tools/call", {"content": [TEXT], "structuredContent": structured}, version)
    assert said == {"content": [TEXT]}
    lacking: list[dict[str, Any]] = [{"content": []}, {}, {"content": 5}]
    for content in lacking:
        said = narrow("tools/call", {**content, "structuredContent": structured}, version)
        assert said == {"content": [{"type": "text", "text": '{"a":[1,"é"]}'}]}


def test_an_object_stays_structured_since_2025_06_18() -> None:
    for version in (OLD, LATEST):
        found = {"content": Raw(b"[]"), "structuredContent": Raw(b'{"a": 1.0}')}
        narrow_result("tools/call", found, version)
        assert bytes(found["structuredContent"]) == b'{"a": 1.0}'
        assert bytes(found["content"]) == b"[]"


@pytest.mark.parametrize("structured", [[1, {"b": "é"}], "text", 7, True, Raw(b"1e999")])
@pytest.mark.parametrize("version", HANDSHAKE_VERSIONS)
def test_what_is_no_object_is_said_in_words(structured: Any, version: str) -> None:
    raw = to_raw(structured)
    words = {"type": "text", "text": bytes(raw).decode()}
    image = {"type": "image", "data": "", "mimeType": "image/png"}
    for blocks in ([], [TEXT], [image]):
        said = narrow("tools/call", {"content": blocks, "structuredContent": raw}, version)
        assert said == {"content": [*blocks, words]}
    said = narrow("tools/call", {"content": [TEXT, words], "structuredContent": raw}, version)
    assert said == {"content": [TEXT, words]}


def test_words_are_the_same_however_they_are_spaced_and_escaped() -> None:
    words = {"type": "text", "text": '[ 1,\n {"b": "\\u00e9"}]'}
    said = narrow("tools/call", {"content": [words], "structuredContent": [1, {"b": "é"}]}, LATEST)
    assert said == {"content": [words]}


def test_nothing_needs_no_words() -> None:
    assert narrow("tools/call", {"content": [], "structuredContent": None}, OLD) == {"content": []}


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner),
    max_leaves=5,
)


@given(
    st.lists(st.sampled_from([TEXT, AUDIO, LINK])),
    json_values,
    st.sampled_from(HANDSHAKE_VERSIONS),
)
def test_what_was_narrowed_once_is_narrow(blocks: list[Any], structured: Any, version: str) -> None:
    once = narrow("tools/call", {"content": blocks, "structuredContent": structured}, version)
    assert narrow("tools/call", once, version) == once
    if version < OLD:
        assert "structuredContent" not in once
    assert len(once["content"]) in (len(blocks), len(blocks) + 1)


@pytest.mark.parametrize(
    ("result", "version", "foreign"),
    [
        ({"content": [TEXT]}, FIRST, False),
        ({"content": [TEXT]}, BATCHED, False),
        ({"content": [AUDIO]}, FIRST, True),
        ({"content": [AUDIO]}, BATCHED, False),
        ({"content": [LINK]}, BATCHED, True),
        ({"structuredContent": {}}, BATCHED, True),
        ({"content": [{"type": "text", "text": 'an "audio"'}]}, FIRST, False),
    ],
)
def test_a_result_is_read_only_if_it_may_be_foreign(
    result: Any, version: str, *, foreign: bool
) -> None:
    assert is_foreign(to_raw(result), version) == foreign


# Tools


@pytest.mark.parametrize(
    ("schema", "since"),
    [
        (b'{"type":"object", "x": 1.0}', OLD),
        (b'{"type":"array"}', ENVELOPE),
        (b'{"anyOf":[]}', ENVELOPE),
        (b'{"type":["object"]}', ENVELOPE),
        (b'{"type":"object","type":"object"}', ENVELOPE),
        (b"true", ENVELOPE),
    ],
)
def test_a_schema_of_results_is_listed_for_those_who_can_read_it(schema: bytes, since: str) -> None:
    tool = Raw(b'{"name":"a","outputSchema":' + schema + b',"x":[ 1.0]}')
    for version in VERSIONS:
        if version >= since:
            assert narrow_tool(tool, version) is tool
        else:
            assert bytes(narrow_tool(tool, version)) == b'{"name":"a","x":[ 1.0]}'


def test_a_tool_without_one_stays_to_the_byte() -> None:
    tool = Raw(b'{"name": "a"}')
    assert all(narrow_tool(tool, version) is tool for version in VERSIONS)


@pytest.mark.parametrize(
    ("schema", "sound"),
    [
        (b"{}", b'{"type":"object"}'),
        (b'{"properties":{"a": {}}}', b'{"properties":{"a": {}},"type":"object"}'),
        (b'{"type":"string","x":1}', b'{"type":"object","x":1}'),
        (b'{"type":["object","null"]}', b'{"type":"object"}'),
        (b"true", b'{"type":"object"}'),
        (b"null", b'{"type":"object"}'),
        (b'{"type": "object"}', b'{"type": "object"}'),
        (b'{"a":1,"a":2}', b'{"a":1,"a":2}'),
    ],
)
def test_every_tool_takes_an_object(schema: bytes, sound: bytes) -> None:
    tool = Raw(b'{"name":"a","inputSchema":' + schema + b',"x":[ 1.0]}')
    done = with_input_schema(tool)
    assert bytes(done) == b'{"name":"a","inputSchema":' + sound + b',"x":[ 1.0]}'
    assert with_input_schema(done) is done
    assert bytes(with_input_schema(Raw(b'{"name":"a"}'))) == (
        b'{"name":"a","inputSchema":{"type":"object"}}'
    )
