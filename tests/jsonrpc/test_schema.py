"""The JSON Schema of the messages: up to date, and in agreement with the decoder."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

import trunkline.jsonrpc
from tests.json_values import JSON
from trunkline.jsonrpc import Batch, RemoteProtocolError, decode, message_schema
from trunkline.jsonrpc.schema import SCHEMA_FILE, schema_text, shipped_schema

VALIDATOR: Any = jsonschema.Draft202012Validator(message_schema())


@pytest.mark.holds("S2.25")
def test_the_shipped_schema_matches_the_types(update: bool) -> None:
    shipped = Path(trunkline.jsonrpc.__file__).with_name(SCHEMA_FILE)
    if update:
        shipped.write_text(schema_text(), encoding="utf-8")
    assert shipped.read_text(encoding="utf-8") == schema_text(), "run `make update`"
    assert shipped_schema() == message_schema()


def test_the_schema_is_a_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(message_schema())


def is_valid(value: Any) -> bool:
    return is_decoded(json.dumps(value))


def is_decoded(payload: str) -> bool:
    try:
        message = decode(payload)
    except RemoteProtocolError:
        return False
    if isinstance(message, Batch):
        return not any(isinstance(entry, RemoteProtocolError) for entry in message.entries)
    return True


# 1.0 is an integer to JSON Schema but not to the decoder, so it has a test of its own below.
LEAVES = JSON.filter(lambda value: not isinstance(value, float) or not value.is_integer())
METHODS = st.sampled_from(["m", "tools/call", "", " ", "\t\r\n", "\u2003", "é"]) | LEAVES
ERRORS = LEAVES | st.fixed_dictionaries(
    {},
    optional={"code": st.integers() | LEAVES, "message": st.text() | LEAVES, "data": LEAVES},
)
MEMBERS = st.fixed_dictionaries(
    {"jsonrpc": st.sampled_from(["2.0"] * 6 + ["1.0", None, 2])},
    optional={
        "id": st.sampled_from([1, "a", None, 0, -7, True, 1.5, [], {}]),
        "method": METHODS,
        "params": st.sampled_from([{}, [], None, {"a": 1}, [1, "x"], "bar", 1, True]),
        "result": LEAVES,
        "error": ERRORS,
        "extra": LEAVES,
    },
)


@pytest.mark.holds("S2.25")
@given(MEMBERS | LEAVES | st.lists(MEMBERS | LEAVES, max_size=3))
def test_schema_and_decoder_agree_on_what_is_valid(value: Any) -> None:
    assert VALIDATOR.is_valid(value) == is_valid(value)


@pytest.mark.holds("S2.25")
@pytest.mark.parametrize(
    "payload",
    [
        '{"jsonrpc":"2.0","id":1.0,"method":"m"}',
        '{"jsonrpc":"2.0","id":1e2,"method":"m"}',
        '{"jsonrpc":"2.0","id":-0.0,"result":1}',
        '{"jsonrpc":"2.0","id":1.0,"error":{"code":1,"message":""}}',
        '{"jsonrpc":"2.0","id":1,"error":{"code":1.0,"message":""}}',
        '[{"jsonrpc":"2.0","id":1.0,"method":"m"}]',
        '{"jsonrpc":"2.0","id":1,"id":1,"method":"m"}',
    ],
)
def test_the_decoder_is_stricter_where_the_schema_says_so(payload: str) -> None:
    assert VALIDATOR.is_valid(json.loads(payload))
    assert not is_decoded(payload)
    assert "The decoder is stricter" in shipped_schema()["description"]
