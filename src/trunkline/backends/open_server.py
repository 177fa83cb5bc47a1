"""Opening servers: which era they belong to is found out, remembered, and found out again.

    url ──> server/discover ──> in an envelope ──> EnvelopeRemote
                            ──> by a handshake ──> Remote, over Streamable HTTP or HTTP+SSE

Refuses to remember what was no verdict: a server that is down, or does not let us in, has not said
which era it belongs to.
"""

from typing import Literal, NamedTuple, TypeAlias

from trunkline.backends.envelope import EnvelopeRemote
from trunkline.backends.link import ChannelLink
from trunkline.backends.remote import Remote
from trunkline.gateway.upstream import Backend, Listener
from trunkline.jsonrpc import MAX_PAYLOAD, Channel, ConnectionLost, IdRemapper, RpcError
from trunkline.mcp.probe import Verdict, judge_error, judge_status
from trunkline.routing.call import withdrawal
from trunkline.transports.exchange import Headers
from trunkline.transports.http_client import ClientLimits, HttpClient
from trunkline.transports.http_legacy_client import LegacyChannel
from trunkline.transports.http_refused import HttpRefused
from trunkline.transports.streamable import Streamable

Wanted: TypeAlias = Literal["auto", "handshake", "envelope"]

PROBE_PATIENCE = 10.0
"""How long, in seconds, a server may be silent about its era; some are for ever."""

_LIMITS = ClientLimits(max_body=MAX_PAYLOAD)

_NO_STREAMABLE = frozenset((400, 404, 405))
"""What a server that knows only HTTP+SSE answers to a POST."""


class Introduction(NamedTuple):
    """What we say of ourselves to a server, and who hears what it says."""

    name: str
    """What the remapper knows the server by."""
    remapper: IdRemapper
    listener: Listener
    capabilities: object
    client: object


async def open_channel(channel: Channel, wanted: Wanted, said: Introduction) -> Backend:
    """Open the server at the other end of a channel."""
    if wanted == "envelope":
        remote = EnvelopeRemote(said.listener, said.client, by_http=False)
        await remote.open(ChannelLink(channel, said.name, said.remapper, remote))
        return remote
    remote = Remote(said.listener)
    link = ChannelLink(channel, said.name, said.remapper, remote)
    await remote.open(link, said.capabilities, said.client)
    return remote


class HttpTarget:
    """A server behind a URL, opened as often as it takes."""

    def __init__(self, url: str, headers: Headers, wanted: Wanted) -> None:
        self._url = url
        self._headers = headers
        self._wanted: Wanted = wanted
        self._remembered: Wanted = wanted

    async def open(self, said: Introduction) -> Backend:
        """Open it; raises RpcError, ValueError or ConnectionLost."""
        try:
            backend = await self._open(said)
        except BaseException:  # a cancellation as well: one that hangs may not be what it was
            self._remembered = self._wanted
            raise
        if isinstance(backend, EnvelopeRemote):
            self._remembered = "envelope"
        elif isinstance(backend, Remote):
            self._remembered = "handshake"
        return backend

    async def _open(self, said: Introduction) -> Backend:
        if self._remembered == "handshake":
            return await self._open_handshake(said)
        try:
            return await self._open_envelope(said)
        except (RpcError, HttpRefused, ValueError, TimeoutError) as why:
            if self._remembered == "envelope" or _judge(why) is not Verdict.HANDSHAKE:
                raise
        return await self._open_handshake(said)

    async def _open_envelope(self, said: Introduction) -> Backend:
        remote = EnvelopeRemote(said.listener, said.client, by_http=True)
        link = Streamable(self._client(), said.name, said.remapper, None)
        await remote.open(link, PROBE_PATIENCE if self._wanted == "auto" else None)
        return remote

    async def _open_handshake(self, said: Introduction) -> Backend:
        remote = Remote(said.listener)
        link = Streamable(self._client(), said.name, said.remapper, withdrawal)
        try:
            await remote.open(link, said.capabilities, said.client)
        except HttpRefused as why:
            if why.status not in _NO_STREAMABLE:
                raise
            return await self._open_legacy(said, why)
        return remote

    async def _open_legacy(self, said: Introduction, refused: HttpRefused) -> Backend:
        """Try the transport of 2024-11-05; if there is none, it is the first answer that counts."""
        channel = LegacyChannel(self._client(), self._url)
        try:
            await channel.open()
        except BaseException as why:
            await channel.aclose()
            if isinstance(why, ConnectionLost):
                raise refused from why
            raise
        remote = Remote(said.listener)
        link = ChannelLink(channel, said.name, said.remapper, remote)
        await remote.open(link, said.capabilities, said.client)
        return remote

    def _client(self) -> HttpClient:
        return HttpClient(self._url, self._headers, _LIMITS)


def _judge(why: Exception) -> Verdict:
    if isinstance(why, HttpRefused):
        answered = why.status < 300  # as if nothing had been asked
        return Verdict.UNKNOWN if answered else judge_status(why.status, why.error)
    if isinstance(why, RpcError):
        return judge_error(why)
    return Verdict.HANDSHAKE  # an answer that makes no sense, or no version that we know
