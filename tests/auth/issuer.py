"""A token issuer for tests: its keys, valid and invalid tokens, and a real JWKS server."""

import asyncio
import base64
import json
import warnings
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import cache
from typing import Any

from joserfc import jws
from joserfc.errors import SecurityWarning
from joserfc.jwk import ECKey, Key, OctKey, OKPKey, RSAKey

ISSUER = "https://id.example"
AUDIENCE = "trunkline"
SECRET = b"a secret of at least 32 bytes, for tests"
NOW = 1_800_000_000.0

ALGORITHMS = ("RS256", "ES256", "EdDSA", "Ed25519")
"""The algorithms with a public key."""


class Clock:
    """A clock that a test sets."""

    def __init__(self, now: float = NOW) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


@cache
def key_of(alg: str, kid: str = "") -> Key:
    """Return the private key that the issuer calls `kid`."""
    if alg == "RS256":
        return RSAKey.generate_key(2048)
    if alg == "ES256":
        return ECKey.generate_key("P-256")
    if alg == "HS256":
        return OctKey.import_key(SECRET)
    return OKPKey.generate_key("Ed25519")


def claims(**changes: Any) -> dict[str, Any]:
    """Return the claims of a valid token with `changes`; None removes a claim."""
    good: dict[str, Any] = {
        "iss": ISSUER,
        "aud": AUDIENCE,
        "sub": "ada",
        "exp": int(NOW) + 3600,
        "iat": int(NOW),
        "role": "dev",
    }
    return {key: value for key, value in (good | changes).items() if value is not None}


def token(alg: str = "HS256", kid: str | None = None, **changes: Any) -> str:
    """Return a token with a valid signature."""
    header = {"alg": alg} | ({"kid": kid} if kid is not None else {})
    return signed(header, key_of(alg, kid or ""), claims(**changes))


def signed(header: dict[str, Any], key: Key, payload: dict[str, Any]) -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SecurityWarning)
        registry = jws.JWSRegistry(algorithms=[header["alg"]], strict_check_header=False)
        return jws.serialize_compact(header, json.dumps(payload), key, registry=registry)


def unsigned(header: dict[str, Any], payload: Any, signature: bytes = b"") -> str:
    """Return a token with arbitrary bytes as its signature."""
    parts = (json.dumps(header).encode(), json.dumps(payload).encode(), signature)
    return ".".join(base64.urlsafe_b64encode(part).decode().rstrip("=") for part in parts)


def public(alg: str, kid: str | None, **more: Any) -> dict[str, Any]:
    """Return the public half of a key as a JWKS entry."""
    found: dict[str, Any] = dict(key_of(alg, kid or "").as_dict(private=False))
    return found | ({"kid": kid} if kid is not None else {}) | more


def key_set(*keys: dict[str, Any]) -> bytes:
    return json.dumps({"keys": keys}).encode()


class KeyServer:
    """A real HTTP server with a JWKS, another body, or an error."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}/jwks.json"
        self.body = key_set()
        self.status = "200 OK"
        self.extra = ""
        self.asked = 0
        self.open = asyncio.Event()
        self.open.set()
        self.writers: list[asyncio.StreamWriter] = []

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.append(writer)
        await reader.readuntil(b"\r\n\r\n")
        self.asked += 1
        await self.open.wait()
        head = f"HTTP/1.1 {self.status}\r\ncontent-length: {len(self.body)}\r\n{self.extra}\r\n"
        writer.write(head.encode() + self.body)
        writer.close()


@asynccontextmanager
async def key_server(*keys: dict[str, Any]) -> AsyncGenerator[KeyServer]:
    made: KeyServer | None = None

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert made is not None
        await made.answer(reader, writer)

    listening = await asyncio.start_server(answer, "127.0.0.1", 0)
    made = KeyServer(listening.sockets[0].getsockname()[1])
    made.body = key_set(*keys)
    try:
        yield made
    finally:
        made.open.set()
        listening.close()
        for writer in made.writers:
            writer.close()
        await listening.wait_closed()
