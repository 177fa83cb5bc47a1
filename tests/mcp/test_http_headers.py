"""Headers repeat the body exactly: encoding is safe, and contradictions are rejected."""

import base64
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline.jsonrpc import Raw, RpcError, to_raw
from trunkline.mcp.errors import HEADER_MISMATCH, MISSING_CAPABILITY, UNSUPPORTED_VERSION
from trunkline.mcp.features import Feature, FeatureKind
from trunkline.mcp.http_headers import (
    MAX_HEADER_NOTES,
    MAX_HEADER_PARAM_DEPTH,
    HeaderCheck,
    HeaderParam,
    HeaderParams,
    argument_headers,
    check_argument_headers,
    check_request_headers,
    decode_header_value,
    encode_header_value,
    header_notes,
    header_params,
    reject_repeated_headers,
    request_headers,
)
from trunkline.mcp.methods import CLIENT_REQUESTS, Method, RoutingMode
from trunkline.mcp.params import MAX_CACHED_META_BYTES, META_PREFIX, Params
from trunkline.mcp.versions import REVISIONS, V2026_07_28

REVISION = V2026_07_28
KEY = "io.modelcontextprotocol/protocolVersion"
NONE: frozenset[bytes] = frozenset()


def params(**given: Any) -> Params:
    return Params(to_raw({"_meta": {KEY: REVISION.date}, **given}))


def headers(method: str = "tools/call", name: str | None = "add") -> dict[bytes, bytes]:
    found = {b"mcp-protocol-version": REVISION.date.encode(), b"mcp-method": method.encode()}
    return found if name is None else found | {b"mcp-name": name.encode()}


def tool(schema: object) -> Raw:
    return to_raw({"name": "t", "inputSchema": schema})


def marked(kind: object = "string", name: object = "Region") -> dict[str, object]:
    return {"type": kind, "x-mcp-header": name}


def properties(**given: object) -> dict[str, object]:
    return {"type": "object", "properties": given}


REGION = header_params(tool(properties(region=marked())))
COUNT = header_params(tool(properties(count=marked("integer", "Count"))))


def test_the_codes_are_those_of_the_revision() -> None:
    assert (HEADER_MISMATCH, MISSING_CAPABILITY, UNSUPPORTED_VERSION) == (-32020, -32021, -32022)


# Values


@pytest.mark.parametrize(
    ("text", "value"),
    [
        # The examples of the specification.
        ("us-west1", "us-west1"),
        ("Hello, 世界", "=?base64?SGVsbG8sIOS4lueVjA==?="),
        (" padded ", "=?base64?IHBhZGRlZCA=?="),
        ("line1\nline2", "=?base64?bGluZTEKbGluZTI=?="),
        ("=?base64?literal?=", "=?base64?PT9iYXNlNjQ/bGl0ZXJhbD89?="),
        # Other cases.
        ("", ""),
        ("a b~", "a b~"),
        ("a\tb", "=?base64?YQli?="),
        ("a\x7f", "=?base64?YX8=?="),
        ("x\r\nEvil: 1", "=?base64?eA0KRXZpbDogMQ==?="),
        ("=?base64?=", "=?base64?PT9iYXNlNjQ/PQ==?="),
        ("=?BASE64?YWRk?=", "=?BASE64?YWRk?="),
        ("=?base64?open", "=?base64?open"),
    ],
)
def test_a_header_value_is_plain_if_possible(text: str, value: str) -> None:
    assert encode_header_value(text) == value
    assert decode_header_value(value) == text
    assert decode_header_value(b"  " + value.encode() + b"\t") == text


CLOSE_TO_CODED = st.text("=?base64 \t\n\x00é")


@given(st.text() | CLOSE_TO_CODED | st.text().map("=?base64?{}?=".format))
def test_any_text_survives_encoding_and_cannot_break_out_of_the_header(text: str) -> None:
    value = encode_header_value(text)
    assert decode_header_value(value) == text
    assert value.isascii()
    assert value.isprintable()
    assert value == value.strip()


@given(st.binary())
def test_any_header_value_has_one_spelling_or_is_rejected(raw: bytes) -> None:
    try:
        text = decode_header_value(b"=?base64?" + raw + b"?=")
    except ValueError:
        return
    assert base64.b64encode(text.encode()) == raw


@pytest.mark.parametrize(
    "value", ["=?BASE64?YWRk?=", "=?Base64?YWRk?=", "=?base64?YWRk", "=?base64?=", "a\tb"]
)
def test_text_without_the_exact_markers_is_literal(value: str) -> None:
    assert decode_header_value(value) == value
    assert decode_header_value("=?base64?YWRk?=") == "add"
    assert decode_header_value("=?base64??=") == ""


# No padding, too much, padding inside, spare bits, the URL alphabet, other characters, no UTF-8.
BROKEN = [*"YWR YWRk= YQ==YQ== YR== _-8= !!!! /w==".split(), "YW Rk", "YW\tRk"]


@pytest.mark.parametrize("coded", BROKEN)
def test_base64_must_be_canonical(coded: str) -> None:
    with pytest.raises(ValueError, match="expected canonical base64 of UTF-8"):
        decode_header_value(f"=?base64?{coded}?=")


@pytest.mark.parametrize("value", [b"caf\xe9", "café", "a\x00b", "a\nb", b"a\x7f"])
def test_invalid_header_characters_are_rejected(value: str | bytes) -> None:
    with pytest.raises(ValueError, match="expected printable ASCII"):
        decode_header_value(value)


# The standard headers


TASKS = dict.fromkeys(("tasks/get", "tasks/update", "tasks/cancel"), "taskId")
NAMED = TASKS | {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}


@pytest.mark.parametrize(("method", "key"), NAMED.items())
def test_written_headers_pass_the_check(method: str, key: str) -> None:
    call_params = params(**{key: "naïve"})
    found = request_headers(REVISION, method, call_params)
    assert found == [
        (b"mcp-protocol-version", b"2026-07-28"),
        (b"mcp-method", method.encode()),
        (b"mcp-name", b"=?base64?bmHDr3Zl?="),
    ]
    check_request_headers(dict(found), NONE, method, call_params)
    with pytest.raises(RpcError, match="expected 'naïve' as Mcp-Name, got none"):
        check_request_headers(dict(found[:2]), NONE, method, call_params)


def test_an_added_method_repeats_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    row = Method("tools/preview", RoutingMode.BY_NAME, frozenset(REVISIONS))
    monkeypatch.setitem(CLIENT_REQUESTS, row.name, row)
    assert dict(request_headers(REVISION, row.name, params(name="add")))[b"mcp-name"] == b"add"


@pytest.mark.parametrize("method", ["tools/list", "server/discover", "subscriptions/listen"])
def test_other_methods_have_no_name(method: str) -> None:
    call_params = params(name="add", uri="x:", taskId="1")
    assert dict(request_headers(REVISION, method, call_params)) == headers(method, None)
    check_request_headers(headers(method, None), NONE, method, call_params)
    check_request_headers(headers(method, "whatever"), NONE, method, call_params)


def test_a_method_cannot_break_out_of_its_header() -> None:
    assert request_headers(REVISION, "x\r\nEvil: 1", params())[1][1].startswith(b"=?base64?")


@pytest.mark.parametrize("name", ["add", "  add\t ", "=?base64?YWRk?="])
def test_white_space_around_a_value_and_its_encoding_do_not_matter(name: str) -> None:
    check_request_headers(headers(name=name), NONE, "tools/call", params(name="add"))


@pytest.mark.parametrize(
    ("header", "value", "reason"),
    [
        (b"mcp-protocol-version", None, "'2026-07-28' as MCP-Protocol-Version, got none"),
        (b"mcp-protocol-version", b"v999", "'2026-07-28' as MCP-Protocol-Version, got 'v999'"),
        (b"mcp-method", None, "'tools/call' as Mcp-Method, got none"),
        (b"mcp-method", b"", "'tools/call' as Mcp-Method, got ''"),
        (b"mcp-method", b"TOOLS/CALL", "'tools/call' as Mcp-Method, got 'TOOLS/CALL'"),
        (b"mcp-method", b"=?base64?dG9vbHMvY2FsbA==?=", "'tools/call' as Mcp-Method, got '=?b"),
        (b"mcp-name", None, "'add' as Mcp-Name, got none"),
        (b"mcp-name", b"Add", "'add' as Mcp-Name, got 'Add'"),
        (b"mcp-name", b"=?base64?c3Vi?=", "'add' as Mcp-Name, got 'sub'"),
        (b"mcp-name", b"=?base64?YWR?=", "'add' as Mcp-Name, got '=?base64?YWR?='"),
        (b"mcp-name", b"=?BASE64?YWRk?=", "'add' as Mcp-Name, got '=?BASE64?YWRk?='"),
        (b"mcp-name", b"\xff\n", r"'add' as Mcp-Name, got 'ÿ\n'"),
        (b"mcp-name", b"x" * 9999, f"'add' as Mcp-Name, got '{'x' * 79}…'"),
    ],
)
def test_a_header_that_contradicts_the_body_is_rejected(
    header: bytes, value: bytes | None, reason: str
) -> None:
    changed = headers() | {header: value}
    sent = {name: value for name, value in changed.items() if value is not None}
    with pytest.raises(RpcError) as caught:
        check_request_headers(sent, NONE, "tools/call", params(name="add"))
    assert caught.value.code == HEADER_MISMATCH
    assert caught.value.message.startswith(f"Header mismatch: expected {reason}")


def test_a_text_beyond_ascii_never_equals_raw_bytes() -> None:
    with pytest.raises(RpcError, match="Mcp-Method"):
        check_request_headers(headers() | {b"mcp-method": b"\xe9"}, NONE, "é", params())


@pytest.mark.parametrize("title", ["MCP-Protocol-Version", "Mcp-Method", "Mcp-Name"])
def test_a_repeated_header_is_rejected_whatever_its_value(title: str) -> None:
    others = frozenset({b"cookie", b"mcp-param-region"})
    reject_repeated_headers(others)
    repeated = others | {title.lower().encode()}
    with pytest.raises(RpcError) as caught:
        reject_repeated_headers(repeated)
    assert caught.value.code == HEADER_MISMATCH
    assert caught.value.message == f"Header mismatch: expected one {title}, got several"
    with pytest.raises(RpcError, match=f"expected one {title}, got several"):
        check_request_headers(headers(), repeated, "tools/call", params(name="add"))


@pytest.mark.parametrize("name", [b"5", b"1e999", b"null", b"{}"])
def test_a_body_without_a_string_to_repeat_is_not_compared(name: bytes) -> None:
    call_params = Params(Raw(b'{"_meta":{"%b":%b},"name":%b}' % (KEY.encode(), name, name)))
    check_request_headers({b"mcp-method": b"tools/call"}, NONE, "tools/call", call_params)
    check_request_headers(headers(), NONE, "tools/call", call_params)
    check_request_headers({b"mcp-method": b"tools/call"}, NONE, "tools/call", Params(Raw(b"{}")))
    assert len(request_headers(REVISION, "tools/call", call_params)) == 2


# Header params of a tool


@pytest.mark.parametrize(
    "definition",
    [
        tool(properties(region={"type": "string"})),
        to_raw({"name": "x-mcp-header"}),
        to_raw({"name": "t", "outputSchema": marked()}),
        tool(None),
        tool(True),
        tool({"type": "object", "properties": [marked()], "$defs": [marked()]}),
        tool({"type": "object", "default": marked(), "enum": [marked()], "x-unknown": marked()}),
        Raw(rb'{"name":"\u0061","inputSchema":{"type":"object","maximum":1e999}}'),
        Raw(rb'{"name":"\u0061"}'),
        Raw(b'{"name":"t","inputSchema":{"properties":{"x-mcp-header":{"type":"string"}}}}'),
    ],
)
def test_most_tools_have_no_header_params(definition: Raw) -> None:
    assert header_params(definition) == ()


DEEP = properties(limit=marked("integer", "Limit"), p=properties(q=marked(name="x!-1")))
OPTIONS = header_params(tool(properties(region=marked(), dry=marked("boolean", "Dry"), o=DEEP)))


def test_header_params_are_found_at_any_depth_of_properties() -> None:
    assert [tuple(param) for param in OPTIONS] == [
        (b"mcp-param-region", ("region",), "string"),
        (b"mcp-param-dry", ("dry",), "boolean"),
        (b"mcp-param-limit", ("o", "limit"), "integer"),
        (b"mcp-param-x!-1", ("o", "p", "q"), "string"),
    ]


@pytest.mark.parametrize("place", range(len("x-mcp-header")))
def test_the_header_keyword_is_found_however_it_is_escaped(place: int) -> None:
    mark = "x-mcp-header"
    spelled = f"{mark[:place]}\\u{ord(mark[place]):04X}{mark[place + 1 :]}"
    plain = bytes(tool(properties(region=marked())))
    assert header_params(Raw(plain.replace(mark.encode(), spelled.encode()))) == REGION


def test_numbers_that_cannot_be_represented_do_not_matter() -> None:
    text = b'{"inputSchema":{"maximum":1e999,"minimum":-%b,"properties":{"region":%b}}}'
    definition = Raw(text % (b"1" * 5000, json.dumps(marked()).encode()))
    assert header_params(definition) == REGION


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        (properties(a=marked("number")), "one of integer, string, boolean as 'type' at 'a'"),
        (properties(a=marked("object")), "as 'type' at 'a'"),
        (properties(a=marked(["string", "null"])), "as 'type' at 'a'"),
        (properties(a={"x-mcp-header": "A"}), "as 'type' at 'a'"),
        (properties(a=marked(name="")), "a token of RFC 9110 as 'x-mcp-header' at 'a'"),
        (properties(a=marked(name="a b")), "a token"),
        (properties(a=marked(name="a\n")), "a token"),
        (properties(a=marked(name="é")), "a token"),
        (properties(a=properties(b=marked(name=5))), "as 'x-mcp-header' at 'a.b'"),
        (properties(a=marked(name=None)), "a token"),
        (properties(a=marked(), b=properties(c=marked(name="rEGION"))), "at 'a' and 'b.c'"),
        (properties(**{"n" * 999: marked("number")}), f"at '{'n' * 79}…'"),
        (marked(), "only under"),
    ],
)
def test_a_tool_with_an_invalid_header_param_is_rejected(schema: object, reason: str) -> None:
    with pytest.raises(ValueError, match=r"^expected ") as caught:
        header_params(tool(schema))
    assert reason in str(caught.value)


def test_a_note_names_each_tool_with_an_invalid_header_param_up_to_a_limit() -> None:
    good, bad = tool(properties(a=marked())), tool(properties(a=marked("array")))
    features = [
        Feature(FeatureKind.TOOL, "good", good),
        Feature(FeatureKind.PROMPT, "prompt", bad),
        *(Feature(FeatureKind.TOOL, f"bad{n}", bad) for n in range(MAX_HEADER_NOTES + 1)),
    ]
    notes = header_notes(features)
    assert len(notes) == MAX_HEADER_NOTES
    assert notes[0].startswith("tools: 'bad0' for stateless clients: expected ")


@pytest.mark.parametrize(
    "keyword",
    "items prefixItems additionalItems unevaluatedItems contains additionalProperties "
    "unevaluatedProperties propertyNames contentSchema allOf anyOf oneOf not if then else".split(),
)
def test_a_header_param_under_another_keyword_is_rejected(keyword: str) -> None:
    for value in (marked(), [True, marked()], properties(b=marked())):
        for schema in ({keyword: value}, properties(a={keyword: value})):
            with pytest.raises(ValueError, match="only under up to 32 'properties'"):
                header_params(tool(schema))


@pytest.mark.parametrize(
    "keyword", ["$defs", "definitions", "dependencies", "dependentSchemas", "patternProperties"]
)
def test_a_header_param_in_a_definition_is_rejected(keyword: str) -> None:
    with pytest.raises(ValueError, match="only under"):
        header_params(tool({keyword: {"a": ["b"], "c": marked()}}))
    assert header_params(tool({keyword: {"x-mcp-header": True}})) == ()


def nested(depth: int) -> dict[str, object]:
    schema: dict[str, object] = marked()
    for _ in range(depth):
        schema = properties(a=schema)
    return schema


def test_a_header_param_may_be_as_deep_as_the_limit() -> None:
    assert (
        header_params(tool(nested(MAX_HEADER_PARAM_DEPTH)))[0].path
        == ("a",) * MAX_HEADER_PARAM_DEPTH
    )
    with pytest.raises(ValueError, match="only under"):
        header_params(tool(nested(MAX_HEADER_PARAM_DEPTH + 1)))


def test_a_schema_that_is_nested_too_deeply_is_rejected() -> None:
    deep = b'{"not":' * 100_000 + b"{}" + b"}" * 100_000
    with pytest.raises(ValueError, match="nested too deeply"):
        header_params(Raw(b'{"x-mcp-header":1,"inputSchema":' + deep + b"}"))


def test_a_schema_that_can_be_skipped_but_not_parsed_is_rejected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def give_up(*_: object, **__: object) -> object:
        raise RecursionError

    monkeypatch.setattr(json, "loads", give_up)
    with pytest.raises(ValueError, match="nested too deeply"):
        header_params(tool(nested(1)))


# Argument headers of a call


@pytest.mark.parametrize(
    ("mirrored", "arguments", "expected"),
    [
        (REGION, b'{"region":"eu"}', b"eu"),
        (REGION, b'{"region":"\\u00e9"}', b"=?base64?w6k=?="),
        (REGION, b'{"region":""}', b""),
        (REGION, b'{"region":null}', None),
        (REGION, b"{}", None),
        (REGION, b"[]", None),
        (REGION, None, None),
        (COUNT, b'{"count":42}', b"42"),
        (COUNT, b'{"count":-7}', b"-7"),
        (COUNT, b'{"count":42.0}', b"42"),
        (COUNT, b'{"count":-0.00}', b"0"),
        (COUNT, b'{"count":123456789012345678901234567890}', b"123456789012345678901234567890"),
        (COUNT, b'{"count":' + b"9" * 5000 + b"}", b"9" * 5000),
        # The tool itself checks the type: other scalars are repeated unchanged.
        (COUNT, b'{"count":1.5}', b"1.5"),
        (COUNT, b'{"count":1e400}', b"1e400"),
        (COUNT, b'{"count":"42.0"}', b"42.0"),
        (COUNT, b'{"count":true}', b"true"),
        (REGION, b'{"region":42.0}', b"42.0"),
        (REGION, b'{"region":["eu"]}', None),
        (REGION, b'{"region":{"a":1}}', None),
    ],
)
def test_an_argument_is_repeated_according_to_its_type(
    mirrored: HeaderParams, arguments: bytes | None, expected: bytes | None
) -> None:
    raw = None if arguments is None else Raw(arguments)
    found = argument_headers(mirrored, raw)
    assert found == ([] if expected is None else [(mirrored[0].header, expected)])
    check_argument_headers(mirrored, raw, dict(found), NONE)


def test_arguments_are_found_where_the_schema_says() -> None:
    arguments = Raw(b'{"region":"eu","dry":false,"o":{"limit":3,"p":{"q":"x"}},"limit":4,"q":"y"}')
    found = argument_headers(OPTIONS, arguments)
    assert found == [
        (b"mcp-param-region", b"eu"),
        (b"mcp-param-dry", b"false"),
        (b"mcp-param-limit", b"3"),
        (b"mcp-param-x!-1", b"x"),
    ]
    others = frozenset({b"mcp-param-other"})
    check_argument_headers(OPTIONS, arguments, dict(found) | {b"mcp-param-other": b"\xff"}, others)
    assert argument_headers(OPTIONS, Raw(b'{"o":[{"limit":3}]}')) == []
    assert argument_headers((), arguments) == []


@pytest.mark.parametrize("value", [b"42", b"42.0", b" 42.000 ", b"042", b"=?base64?NDI=?="])
def test_integers_compare_as_numbers(value: bytes) -> None:
    for argument in (b"42", b"42.0"):
        arguments = Raw(b'{"count":' + argument + b"}")
        check_argument_headers(COUNT, arguments, {b"mcp-param-count": value}, NONE)


@pytest.mark.parametrize(
    ("mirrored", "arguments", "value"),
    [
        (COUNT, b'{"count":42}', b"43"),
        (COUNT, b'{"count":42}', b"-42.0"),
        (COUNT, b'{"count":42}', b"4.2e1"),
        (COUNT, b'{"count":42}', b"+42"),
        (COUNT, b'{"count":42}', b"42."),
        (COUNT, b'{"count":42}', b""),
        (COUNT, b'{"count":9007199254740993}', b"9007199254740992"),
        (COUNT, b'{"count":"42"}', b"42.0"),
        (COUNT, b'{"count":true}', b"True"),
        (REGION, b'{"region":"42"}', b"42.0"),
        (REGION, b'{"region":"eu"}', b"EU"),
        (REGION, b'{"region":"eu"}', b"=?base64?RVU=?="),
    ],
)
def test_a_header_that_contradicts_an_argument_is_rejected_without_the_value(
    mirrored: HeaderParams, arguments: bytes, value: bytes
) -> None:
    header, path, _ = mirrored[0]
    with pytest.raises(RpcError) as caught:
        check_argument_headers(mirrored, Raw(arguments), {header: value}, NONE)
    assert caught.value.code == HEADER_MISMATCH
    assert caught.value.message == (
        f"Header mismatch: expected the argument {path[0]!r} as {header.decode()}, "
        "got another value"
    )


@pytest.mark.parametrize(
    ("arguments", "value", "reason"),
    [
        (b'{"region":"eu"}', None, "mcp-param-region with the argument 'region', got none"),
        (b'{"region":null}', b"eu", "no mcp-param-region without the argument 'region', got one"),
        (b"{}", b"", "no mcp-param-region without"),
        (None, b"null", "no mcp-param-region without"),
        (b'{"region":[]}', b"[]", "no mcp-param-region without"),
        (b'{"region":"eu"}', b"=?base64?ZXU?=", "text or base64 as mcp-param-region, got neither"),
        (b'{"region":"\\u00e9"}', b"\xe9", "text or base64 as"),
    ],
)
def test_a_header_and_its_argument_need_each_other(
    arguments: bytes | None, value: bytes | None, reason: str
) -> None:
    raw = None if arguments is None else Raw(arguments)
    with pytest.raises(RpcError) as caught:
        check_argument_headers(
            REGION, raw, {} if value is None else {REGION[0].header: value}, NONE
        )
    assert caught.value.code == HEADER_MISMATCH
    assert caught.value.message.startswith(f"Header mismatch: expected {reason}")


def test_a_repeated_argument_header_is_rejected() -> None:
    sent, repeated = {REGION[0].header: b"eu"}, frozenset({REGION[0].header})
    with pytest.raises(RpcError, match="expected one mcp-param-region, got several") as caught:
        check_argument_headers(REGION, Raw(b'{"region":"eu"}'), sent, repeated)
    assert caught.value.code == HEADER_MISMATCH


@pytest.mark.parametrize(
    "arguments", [b'{"region":"eu","region":"us"}', b'{"region":"eu","o":{"p":1,"\\u0070":2}}']
)
def test_ambiguous_arguments_are_rejected(arguments: bytes) -> None:
    sent = {b"mcp-param-region": b"eu"}
    with pytest.raises(RpcError, match=r"duplicate member '.*' in 'arguments'") as caught:
        check_argument_headers(OPTIONS, Raw(arguments), sent, NONE)
    assert caught.value.code == -32602
    with pytest.raises(RpcError, match="duplicate member"):
        argument_headers(OPTIONS, Raw(arguments))


WORDS = st.text(st.characters(codec="utf-8", exclude_categories=["Nd"]))
SCALARS = st.none() | st.booleans() | st.integers() | WORDS


@given(SCALARS, SCALARS)
def test_only_the_exact_argument_headers_are_accepted(sent: Any, meant: Any) -> None:
    arguments = to_raw({"count": meant})
    sent = dict(argument_headers(COUNT, to_raw({"count": sent})))
    if sent == dict(argument_headers(COUNT, arguments)):
        check_argument_headers(COUNT, arguments, sent, NONE)
    else:
        with pytest.raises(RpcError, match="Header mismatch"):
            check_argument_headers(COUNT, arguments, sent, NONE)


HEADER_PARAMS = (HeaderParam(b"mcp-param-region", ("region",), "string"),)
ARGUMENTS = Raw(b'{"region":"eu"}')


def test_equal_headers_pass() -> None:
    HeaderCheck({b"mcp-param-region": b"eu"}, frozenset()).check_arguments(HEADER_PARAMS, ARGUMENTS)


def test_a_tool_without_header_params_needs_no_headers() -> None:
    HeaderCheck({b"mcp-param-region": b"us"}, frozenset()).check_arguments((), ARGUMENTS)


@pytest.mark.parametrize(
    "header_check",
    [
        HeaderCheck({}, frozenset()),
        HeaderCheck({b"mcp-param-region": b"us"}, frozenset()),
        HeaderCheck({b"mcp-param-region": b"eu"}, frozenset((b"mcp-param-region",))),
    ],
)
def test_contradicting_headers_are_rejected(header_check: HeaderCheck) -> None:
    with pytest.raises(RpcError) as caught:
        header_check.check_arguments(HEADER_PARAMS, ARGUMENTS)
    assert caught.value.code == -32020


def call_params(name: object = "add", version: object = "2026-07-28") -> Params:
    meta: dict[str, object] = {f"{META_PREFIX}protocolVersion": version}
    meta |= {f"{META_PREFIX}clientCapabilities": {}}
    return Params(to_raw({"name": name, "_meta": meta}))


def test_only_an_equal_body_skips_the_comparison() -> None:
    headers = {b"mcp-protocol-version": b"2026-07-28", b"mcp-method": b"tools/call"}
    header_check = HeaderCheck(headers | {b"mcp-name": b"add"}, frozenset())
    for _ in range(2):
        header_check.check_body("tools/call", call_params())
        for method, params in (
            ("tools/call", call_params("other")),
            ("tools/call", call_params(version="2025-11-25")),
            ("prompts/get", call_params()),
            ("tools/list", call_params()),
        ):
            with pytest.raises(RpcError) as caught:
                header_check.check_body(method, params)
            assert caught.value.code == -32020


def test_long_values_are_not_kept_and_are_compared_again() -> None:
    headers = {b"mcp-protocol-version": b"2026-07-28", b"mcp-method": b"tools/call"}
    header_check = HeaderCheck(headers | {b"mcp-name": b"a" * 300}, frozenset())
    for _ in range(2):
        header_check.check_body("tools/call", call_params("a" * 300))
        assert header_check.last_match is not None
        assert header_check.last_match[2] is None
        # The reader of the name rejects it.
        header_check.check_body("tools/call", call_params(["no", "name"]))
        header_check.check_body("tools/call", call_params(["no name"] * 100))
        for name in ("b", "b" * 300):
            with pytest.raises(RpcError, match="as Mcp-Name"):
                header_check.check_body("tools/call", call_params(name))


def test_a_large_meta_is_not_kept() -> None:
    headers = {b"mcp-protocol-version": b"2026-07-28", b"mcp-method": b"tools/call"}
    header_check = HeaderCheck(headers | {b"mcp-name": b"add"}, frozenset())
    params = call_params()
    params.put_meta("large", "x" * MAX_CACHED_META_BYTES)
    header_check.check_body("tools/call", params)
    assert header_check.last_match == ("tools/call", None, "add")
