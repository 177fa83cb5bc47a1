"""Receivers with the libraries of Standard Webhooks verify what the gateway sends."""

import json
import os
import signal
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from standardwebhooks import Webhook, WebhookVerificationError

from outside.program import HERE, NODE, Program, run, running
from trunkline.http.webhooks import WebhookTarget
from trunkline.jsonrpc import Notification
from trunkline.jsonrpc.webhooks import (
    WebhookRejected,
    WebhookVerifier,
    parse_webhook_key,
    sign_webhook,
)

pytestmark = pytest.mark.asyncio(loop_scope="session")

KEY = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
OLD_KEY = "whsec_" + KEY.removeprefix("whsec_")[::-1]
EVENT = Notification("server.down", {"server": "github", "text": "ä 'x' \n"})

RECEIVERS = {
    "python": (sys.executable, HERE / "webhook_receiver.py"),
    "node": (NODE, HERE / "webhook_receiver.mjs"),
}


@asynccontextmanager
async def receiver(language: str, *arguments: str) -> AsyncGenerator[tuple[Program, str]]:
    """Start a receiver; return it and its URL."""
    async with running(*RECEIVERS[language], KEY, *arguments) as program:
        yield program, (await program.says(r"listening at (\S+)"))[1]


class Site:
    """A gateway with one webhook, and its commands."""

    def __init__(self, folder: Path, url: str, keys: str = '"KEY"') -> None:
        self.env = {
            "KEY": KEY,
            "OLD_KEY": OLD_KEY,
            "XDG_RUNTIME_DIR": str(folder),
            "XDG_STATE_HOME": str(folder / "state"),
        }
        self.config = folder / "trunkline.toml"
        self.config.write_text(
            f'[[webhooks]]\nname = "ops"\nurl = "{url}"\nsecret_env = {keys}\n'
            'allow_private = true\nevents = ["kill", "revive"]\n'
            '[servers.me]\nbuiltin = "operator"\n'
        )

    @asynccontextmanager
    async def serving(self, end_by: signal.Signals = signal.SIGTERM) -> AsyncGenerator[Program]:
        command = [sys.executable, "-m", "trunkline", "serve", "--http", "127.0.0.1:0"]
        config = ("--config", str(self.config))
        async with running(*command, *config, env=self.env, end_by=end_by) as program:
            await program.says("MCP at")
            yield program

    async def switch(self, gateway: Program, command: str) -> None:
        """Disable or enable a tool of this gateway only."""
        await self.command(command, "tool", "x", "--pid", str(gateway.process.pid))

    async def command(self, *arguments: str) -> str:
        own = ("--config", str(self.config)) if arguments[0] == "webhooks" else ()
        command = [sys.executable, "-m", "trunkline", *arguments, *own]
        code, out, err = await run(*command, env=self.env)
        assert code == 0, err
        return out


@pytest.mark.parametrize("language", RECEIVERS)
async def test_a_receiver_verifies_what_the_gateway_sends(language: str, tmp_path: Path) -> None:
    async with receiver(language, "500") as (program, url):
        site = Site(tmp_path, url, '["KEY", "OLD_KEY"]')
        async with site.serving() as gateway:
            await site.switch(gateway, "kill")
            await site.switch(gateway, "revive")
            failed = await program.says(r"^500 (\S+) kill$")
            assert (await program.says(r"^204 (\S+) kill$"))[1] == failed[1]
            await program.says(r"^204 \S+ revive$")
        assert "delivered, status 204" in await site.command("webhooks", "test", "ops")
        await program.says("webhook.test")
        assert [line for line in program.lines if "refused" in line] == []


@pytest.mark.parametrize("language", RECEIVERS)
async def test_a_receiver_refuses_a_wrong_key(language: str) -> None:
    async with receiver(language) as (program, url):
        target = WebhookTarget(url, [parse_webhook_key(OLD_KEY)], allow=None)
        assert (await target.attempt("msg_1", EVENT.encode())).status == 401
        await target.aclose()
        await program.says("refused: No matching signature found")


@pytest.mark.parametrize("language", RECEIVERS)
@pytest.mark.parametrize("offset", [-3600, 3600])
async def test_a_receiver_refuses_an_old_or_future_message(language: str, offset: int) -> None:
    async with receiver(language) as (program, url):
        key = parse_webhook_key(KEY)
        target = WebhookTarget(url, [key], allow=None, clock=lambda: time.time() + offset)
        assert (await target.attempt("msg_1", EVENT.encode())).status == 401
        await target.aclose()
        await program.says("refused: Message timestamp too")


async def test_we_accept_what_the_library_signs_and_both_refuse_the_same() -> None:
    body, now = EVENT.encode(), time.time()
    ours, theirs = WebhookVerifier([parse_webhook_key(KEY)]), Webhook(KEY)
    headers = dict(sign_webhook("msg_1", int(now), body, [parse_webhook_key(KEY)]))
    assert theirs.verify(body, headers) == json.loads(body)
    accepted = ours.verify(headers, body, now)
    assert accepted.notification.encode() == body
    for name in headers:
        changed = headers | {name: headers[name][:-4] + "0000"}
        with pytest.raises(WebhookVerificationError):
            theirs.verify(body, changed)
        with pytest.raises(WebhookRejected):
            ours.verify(changed, body, now)


async def test_after_sigkill_the_next_gateway_delivers_what_was_stored(tmp_path: Path) -> None:
    async with receiver("python", *["500"] * 2) as (program, url):
        site = Site(tmp_path, url)
        async with site.serving(end_by=signal.SIGKILL) as gateway:
            await site.switch(gateway, "kill")
            first = await program.says(r"^500 (\S+) kill$")
            await site.switch(gateway, "revive")
            os.kill(gateway.process.pid, signal.SIGKILL)
        async with site.serving():
            assert (await program.says(r"^204 (\S+) kill$"))[1] == first[1]
