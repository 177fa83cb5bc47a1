"""What a reply holds, be it JSON or a stream of events: payloads."""

from trunkline.transports.sse import Event, SseParser

MAX_EVENT = 64 * 1024 * 1024


def events(parser: SseParser, data: bytes) -> list[tuple[str, bytes]]:
    """Return the name and the data of every event that is complete now and has data."""
    found = [event for event in parser.feed(data) if isinstance(event, Event) and event.data]
    return [(event.event or "message", event.data) for event in found]


def messages(body: bytes) -> list[bytes]:
    """Return the payloads in the body of a reply, which is JSON or events; bare pings left out."""
    if body[:1] in (b"{", b"["):
        return [body]
    found = events(SseParser(MAX_EVENT), body + b"\n\n")
    return [data for name, data in found if name == "message"]
