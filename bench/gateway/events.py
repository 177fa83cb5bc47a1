"""The payloads in a reply, which is JSON or a stream of events."""

from trunkline.http.sse import SseEvent, SseParser

MAX_EVENT = 64 * 1024 * 1024


def events(parser: SseParser, data: bytes) -> list[tuple[str, bytes]]:
    """Return the name and the data of every event that is complete now and has data."""
    found = [event for event in parser.feed(data) if isinstance(event, SseEvent) and event.data]
    return [(event.event or "message", event.data) for event in found]


def messages(body: bytes) -> list[bytes]:
    """Return the payloads in the body of a reply, without pings."""
    if body[:1] in (b"{", b"["):
        return [body]
    found = events(SseParser(MAX_EVENT), body + b"\n\n")
    return [data for name, data in found if name == "message"]
