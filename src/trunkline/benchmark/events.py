"""Server-sent events, as much of them as servers use: the data of each event, in order."""

from collections.abc import Iterator


class Events:
    """Takes bytes in, and gives whole events out."""

    def __init__(self) -> None:
        self._rest: list[bytes] = []

    def feed(self, data: bytes) -> Iterator[tuple[str, bytes]]:
        """Yield the name and the data of every event that is complete now."""
        self._rest.append(data)
        if b"\n" not in data:
            return
        text = b"".join(self._rest).replace(b"\r\n", b"\n")
        *events, rest = text.split(b"\n\n")
        self._rest = [rest]
        for event in events:
            name, parts = "message", list[bytes]()
            for line in event.split(b"\n"):
                field, _, value = line.partition(b":")
                if field == b"data":
                    parts.append(value.removeprefix(b" "))
                elif field == b"event":
                    name = value.strip().decode()
            if parts:
                yield name, b"\n".join(parts)


def messages(body: bytes) -> list[bytes]:
    """Return the payloads in the body of a reply, which is JSON or events; bare pings left out."""
    if body[:1] in (b"{", b"["):
        return [body]
    return [data for name, data in Events().feed(body + b"\n\n") if name == "message" and data]
