"""What is written is what OpenTelemetry's own library reads."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from trunkline.observe.otlp import CLIENT, SERVER, Span, encode, envelope, written

TRACE = "0af7651916cd43dd8448eb211c80319c"
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=300)


def read(body: bytes) -> tuple[dict[str, Any], tuple[str, str], list[Any]]:
    """Return the resource, the scope and the spans of a request."""
    message: Any = ExportTraceServiceRequest.FromString(body)
    (resource,) = message.resource_spans
    (scope,) = resource.scope_spans
    return attributes(resource.resource), (scope.scope.name, scope.scope.version), list(scope.spans)


def attributes(of: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for pair in of.attributes:
        kind = pair.value.WhichOneof("value")
        found[pair.key] = getattr(pair.value, kind)
    return found


def span(**facts: Any) -> Span:
    usual: dict[str, Any] = {
        "name": "tools/call fs__read",
        "kind": SERVER,
        "trace": TRACE,
        "id": "b7ad6b7169203331",
        "parent": None,
        "remote": False,
        "state": "",
        "start": 1_700_000_000.5,
        "end": 1_700_000_001.0,
        "attributes": b"",
    }
    return Span(**(usual | facts))


def test_a_span_is_read_as_it_was_meant() -> None:
    made = span(
        kind=CLIENT,
        parent="00f067aa0ba902b7",
        remote=True,
        state="a=1,b=2",
        attributes=written({"text": "é" * 200, "number": 443, "less": -1}),
        failed=True,
        why="upstream_timeout",
    )
    body = envelope([encode(made), encode(span())], {"service.name": "here"}, ("trunkline", "1.2"))
    resource, scope, (found, plain) = read(body)
    assert (resource, scope) == ({"service.name": "here"}, ("trunkline", "1.2"))
    assert (found.name, found.kind) == ("tools/call fs__read", 3)
    assert (found.trace_id.hex(), found.span_id.hex()) == (TRACE, "b7ad6b7169203331")
    assert (found.parent_span_id.hex(), found.trace_state) == ("00f067aa0ba902b7", "a=1,b=2")
    assert (found.start_time_unix_nano, found.end_time_unix_nano) == (
        1_700_000_000_500_000_000,
        1_700_000_001_000_000_000,
    )
    assert attributes(found) == {"text": "é" * 200, "number": 443, "less": -1}
    assert (found.status.code, found.status.message) == (2, "upstream_timeout")
    assert found.flags == 0x301
    assert (plain.parent_span_id, plain.status.code, plain.flags) == (b"", 0, 0x101)


@given(TEXT, st.dictionaries(TEXT, TEXT | st.integers(-(2**63), 2**63 - 1)))
def test_any_name_and_any_attributes_come_through(name: str, values: dict[str, Any]) -> None:
    _, _, (found,) = read(
        envelope([encode(span(name=name, attributes=written(values)))], {}, ("a", "b"))
    )
    assert (found.name, attributes(found)) == (name, values)


def test_half_a_character_does_not_keep_the_rest_from_being_sent() -> None:
    _, _, (found,) = read(envelope([encode(span(name="\ud800", why="\ud800"))], {}, ("a", "b")))
    assert found.name == "?"
