"""Opening servers: which era they belong to is found out, remembered, and found out again.

    url ──> server/discover ──> in an envelope ──> EnvelopeRemote
                            ──> by a handshake ──> Remote, over Streamable HTTP or HTTP+SSE

Refuses to take for a verdict what is none: a server that is down, or does not let us in, has not
said which era it belongs to. Those that a command starts are opened by `open_child`.
"""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, TypeAlias

from trunkline.backends.envelope import EnvelopeRemote
from trunkline.backends.link import ChannelLink
from trunkline.backends.remote import Remote
from trunkline.backends.verdicts import Memory
from trunkline.gateway.backend import Backend, Listener
from trunkline.jsonrpc import MAX_PAYLOAD, Channel, ConnectionLost, IdRemapper, RpcError
from trunkline.jsonrpc.incident import Report, print_incident
from trunkline.mcp.inquiry import Inquiry, Step
from trunkline.mcp.probe import Verdict, judge_error, judge_refusal, judge_status
from trunkline.mcp.versions import Era
from trunkline.routing.call import withdrawal
from trunkline.transports.exchange import Headers
from trunkline.transports.http_client import ClientLimits, Credentials, HttpClient
from trunkline.transports.http_legacy_client import Elsewhere, LegacyChannel
from trunkline.transports.http_refused import HttpRefused
from trunkline.transports.streamable import Streamable

Wanted: TypeAlias = Literal["auto", "handshake", "envelope"]

PROBE_PATIENCE = 10.0
"""How long, in seconds, a server may be silent about its era; some are for ever."""

_LIMITS = ClientLimits(max_body=MAX_PAYLOAD, max_connections=16_384)
"""Calls are bounded elsewhere; here the answer to a question must find a way past those parked."""

_NO_STREAMABLE = frozenset((400, 404, 405))
"""What a server that knows only HTTP+SSE answers to a POST."""


class Introduction(NamedTuple):
    """What we say of ourselves to a server, and who hears what it says."""

    name: str
    """What the remapper knows the server by."""
    remapper: IdRemapper
    listener: Listener
    capabilities: dict[str, Any]
    client: object
    report: Report = print_incident
    """Hears what nobody foresaw."""


async def open_channel(channel: Channel, era: Era, said: Introduction) -> Backend:
    """Open the server at the other end of a channel, whose era is known."""
    if era is Era.ENVELOPE:
        remote = EnvelopeRemote(said.listener, said.client, by_http=False)
        await remote.open(ChannelLink(channel, said.name, said.remapper, remote, said.report))
        return remote
    remote = Remote(said.listener)
    link = ChannelLink(channel, said.name, said.remapper, remote, said.report)
    await remote.open(link, said.capabilities, said.client)
    return remote


class HttpTarget:
    """A server behind a URL, opened as often as it takes."""

    def __init__(
        self,
        url: str,
        headers: Headers,
        wanted: Wanted,
        memory: Memory | None = None,
        credentials: Credentials | None = None,
    ) -> None:
        self._url = url
        self._credentials = credentials
        self._headers = headers
        self._wanted: Wanted = wanted
        self._memory = memory or Memory()

    async def open(self, said: Introduction) -> Backend:
        """Open it; raises RpcError, ValueError or ConnectionLost."""
        if self._wanted == "handshake":
            return await self._open_handshake(said)
        if self._wanted == "envelope":
            return await self._open_envelope(said, None)
        try:
            return await self._find_out(said)
        except BaseException:  # a cancellation as well: one that hangs may not be what it was
            self._memory.doubt()
            raise

    async def _find_out(self, said: Introduction) -> Backend:
        inquiry = Inquiry(await self._memory.recall())
        failures: dict[Step, Exception] = {}
        while (step := inquiry.next()) is not Step.FAIL:
            try:
                if step is Step.DISCOVER:
                    modern = await self._open_envelope(said, PROBE_PATIENCE)
                    self._memory.learn(Era.ENVELOPE, modern.server, conclusive=True)
                    return modern
                remote = await self._open_handshake(said)
                self._memory.learn(Era.HANDSHAKE, remote.server, inquiry.conclusive)
                return remote
            except (RpcError, HttpRefused, ValueError, TimeoutError) as why:
                failures[step] = why
                if step is Step.DISCOVER:
                    inquiry.discovered(_judge(why, judge_error), not isinstance(why, TimeoutError))
                else:
                    inquiry.refused(_judge(why, judge_refusal))
        raise failures[inquiry.blame]

    async def _open_envelope(self, said: Introduction, patience: float | None) -> EnvelopeRemote:
        remote = EnvelopeRemote(said.listener, said.client, by_http=True)
        link = Streamable(self._client(), said.name, said.remapper, None, said.report)
        await remote.open(link, patience)
        return remote

    async def _open_handshake(self, said: Introduction) -> Remote:
        remote = Remote(said.listener)
        link = Streamable(self._client(), said.name, said.remapper, withdrawal, said.report)
        try:
            await remote.open(link, said.capabilities, said.client)
        except HttpRefused as why:
            if why.status not in _NO_STREAMABLE:
                raise
            return await self._open_legacy(said, why)
        return remote

    async def _open_legacy(self, said: Introduction, refused: HttpRefused) -> Remote:
        """Try the transport of 2024-11-05; if there is none, it is the first answer that counts.

        One that wants POSTs elsewhere has it, and is told apart: its operator can help that.
        """
        channel = LegacyChannel(self._client(), self._url)
        try:
            await channel.open()
        except BaseException as why:
            await channel.aclose()
            if isinstance(why, ConnectionLost) and not isinstance(why, Elsewhere):
                raise refused from why
            raise
        remote = Remote(said.listener)
        link = ChannelLink(channel, said.name, said.remapper, remote, said.report)
        await remote.open(link, said.capabilities, said.client)
        return remote

    def _client(self) -> HttpClient:
        return HttpClient(self._url, self._headers, _LIMITS, credentials=self._credentials)


def _judge(why: Exception, judge: Callable[[RpcError], Verdict]) -> Verdict:
    error = why.error if isinstance(why, HttpRefused) else why
    # What is no error is an answer that makes no sense, or no version that we know.
    verdict = judge(error) if isinstance(error, RpcError) else Verdict.HANDSHAKE
    return judge_status(why.status, verdict) if isinstance(why, HttpRefused) else verdict
