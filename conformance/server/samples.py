"""The smallest contents of each kind: a red pixel, a tenth of a second of silence."""

import base64
import struct
import zlib
from typing import Any

from mcp.server.context import ServerRequestContext

Context = ServerRequestContext[Any, Any]
JsonObject = dict[str, Any]


def complete(body: JsonObject) -> JsonObject:
    """Return a result; the SDK omits its type in the session protocol."""
    return {"resultType": "complete", **body}


def text(content: str) -> JsonObject:
    """Return a text block."""
    return {"type": "text", "text": content}


def resource(uri: str, content: str, mime: str = "text/plain") -> JsonObject:
    """Return an embedded resource."""
    return {"type": "resource", "resource": {"uri": uri, "mimeType": mime, "text": content}}


def image() -> JsonObject:
    """Return an image block."""
    return {"type": "image", "data": PNG, "mimeType": "image/png"}


def audio() -> JsonObject:
    """Return an audio block."""
    return {"type": "audio", "data": WAV, "mimeType": "audio/wav"}


def _png() -> bytes:
    def chunk(kind: bytes, body: bytes) -> bytes:
        crc = zlib.crc32(kind + body)
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", crc)

    header = struct.pack(">IIBBBBB", 1, 1, 8, 2, 0, 0, 0)  # 1 × 1, eight bits each of R, G and B
    pixel = zlib.compress(b"\x00\xff\x00\x00")  # no filter, then red
    parts = chunk(b"IHDR", header) + chunk(b"IDAT", pixel) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + parts


def _wav() -> bytes:
    silence = bytes(800)  # 8 kHz, one channel, 8 bits
    form = struct.pack("<HHIIHH", 1, 1, 8000, 8000, 1, 8)
    body = b"WAVEfmt " + struct.pack("<I", len(form)) + form
    body += b"data" + struct.pack("<I", len(silence)) + silence
    return b"RIFF" + struct.pack("<I", len(body)) + body


PNG = base64.b64encode(_png()).decode()
WAV = base64.b64encode(_wav()).decode()
