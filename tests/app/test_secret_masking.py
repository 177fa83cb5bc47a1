"""Configured secrets are masked wherever the gateway shows text of servers."""

import base64
import json
import os
import sys
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.tasks import hang_guard
from trunkline.app.application import App
from trunkline.app.control import server_statuses
from trunkline.app.telemetry import ConfiguredSecrets, open_log
from trunkline.audit.redaction import RedactionRules, Redactor
from trunkline.backends.command import CommandSettings
from trunkline.backends.url import OAuthSettings, UrlSettings
from trunkline.config import Config, LogSettings, ServerSettings, load_config
from trunkline.gateway.events import AuthRejected, SkippedFeatures
from trunkline.jsonrpc import Raw, to_raw
from trunkline.mcp.versions import V2025_11_25
from trunkline.printable import REDACTED, SecretMask

SECRET = 'sk/l0ng+"quoted"secret'

WEB = ServerSettings(
    name="web",
    backend=UrlSettings(
        url="http://x.example/?api_key=k3yk3y",
        headers={"Authorization": "Bearer t0ken"},
        oauth=OAuthSettings(token_url="https://y.example", client_id="g", client_secret="s3cr3t"),
    ),
)
CHILD = ServerSettings(
    name="s",
    backend=CommandSettings(
        command="x",
        args=("--api-key", "ar9ument", "postgresql://u:p4ssw0rd@db/x", "--log-level", "debug"),
        env={"KEY": "hunter2", "LONG": "hunter2-and-more", "SHORT": "abc", "NODE_ENV": "prodlike"},
    ),
)


def mask_for(*servers: ServerSettings) -> ConfiguredSecrets:
    config = Config(servers=servers)
    return ConfiguredSecrets(lambda: config)


def test_secrets_of_servers_are_masked_longest_first() -> None:
    text = "hunter2-and-more, hunter2, Bearer t0ken, t0ken, s3cr3t, k3yk3y, ar9ument, p4ssw0rd"
    masked = ", ".join(["[redacted]"] * 8)
    assert mask_for(CHILD, WEB).mask(text) == masked


def test_a_secret_in_a_host_name_is_masked_as_errors_spell_it() -> None:
    mask = SecretMask(["Tenant-4f1A9c"])
    assert mask("tenant-4f1a9c.example.com:443: connection refused").startswith(REDACTED)
    assert "with white space" in SecretMask(["With White Space"])("with white space")


def test_harmless_values_are_kept() -> None:
    text = "abc debug prodlike --log-level u db"
    assert mask_for(CHILD).mask(text) == text


def test_the_secrets_before_a_reload_are_masked_as_well() -> None:
    current = [Config(servers=(CHILD,))]
    secrets = ConfiguredSecrets(lambda: current[0])
    assert secrets.mask("hunter2 t0ken") == "[redacted] t0ken"
    current[0] = Config(servers=(WEB,))
    assert secrets.mask("hunter2 t0ken") == "[redacted] [redacted]"
    current[0] = Config()
    assert secrets.mask("hunter2 t0ken") == "hunter2 [redacted]"


def load(folder: Path, text: str, environ: Mapping[str, str] | None = None) -> Config:
    file = folder / "trunkline.toml"
    file.write_text(text)
    return load_config(file, {"TOKEN": SECRET, "HOME": "/home/ann"} | dict(environ or {}))


def test_every_resolved_reference_is_masked_and_no_repr_shows_it(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("from-a-file\n")
    config = load(
        tmp_path,
        "[servers.a]\ncommand = '${TOKEN}'\nargs = ['x${file:key}', '${HOME}', '${UNSET:-plain}']",
    )
    assert config.resolved == {SECRET, "from-a-file"}
    assert SECRET not in repr(config)
    assert "from-a-file" not in repr(config)
    shown = ConfiguredSecrets(lambda: config).mask(f"{SECRET} from-a-file /home/ann plain")
    assert shown == "[redacted] [redacted] /home/ann plain"


# An MCP server with one tool. Its errors have the secret in all spellings, and so does its stderr.
# With `closed` it refuses every client.
LEAKING = """
import base64, json, sys, urllib.parse
secret, is_closed = sys.argv[1], sys.argv[2:] == ["closed"]
leaks = [secret, urllib.parse.quote(secret, safe=""), json.dumps(secret),
         base64.b64encode(b"user:" + secret.encode()).decode()]
print("cannot log in with", *leaks, file=sys.stderr, flush=True)
for line in sys.stdin:
    asked = json.loads(line)
    method, error = asked["method"], {"code": -32000, "message": " ".join(leaks), "data": leaks}
    results = {"tools/list": {"tools": [{"name": "t", "inputSchema": {"type": "object"}}]}}
    results["initialize"] = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}},
                             "serverInfo": {"name": "l", "version": "1"}}
    if "id" in asked:
        answer = {"error": error} if is_closed or method not in results else {
            "result": results[method]}
        print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], **answer}), flush=True)
"""


@asynccontextmanager
async def leaking_app(folder: Path, *more: str) -> AsyncGenerator[App]:
    args = json.dumps(["-c", LEAKING, "${TOKEN}", *more])
    text = f"[servers.a]\ncommand = {json.dumps(sys.executable)}\nargs = {args}\nmax_restarts = 0\n"
    app = App(load(folder, f"{text}protocol = 'session'\n"))
    async with hang_guard(), app.running() as gateway:
        await gateway.registry.wait_complete()
        yield app


def assert_masked(shown: str) -> None:
    assert "[redacted]" in shown
    encoded = base64.b64encode(b"user:" + SECRET.encode()).decode()[8:-6]
    for spelling in (SECRET, quote(SECRET, safe=""), json.dumps(SECRET)[1:-1], encoded):
        assert spelling not in shown
        assert json.dumps(spelling)[1:-1] not in shown


async def test_a_server_that_fails_shows_no_secret(tmp_path: Path) -> None:
    async with leaking_app(tmp_path, "closed") as app:
        (status,) = server_statuses(app)
        (upstream,) = app.gateway.registry
        assert_masked(str(status.stderr))
        assert_masked(str(status.error))
        assert_masked(json.dumps(app.gateway.readiness(detailed=True)))
        assert_masked(upstream.unavailable_error(V2025_11_25).message)


async def test_the_error_of_a_call_shows_no_secret(tmp_path: Path) -> None:
    hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "c"}}
    async with leaking_app(tmp_path) as app:
        engine = app.gateway.open_engine()
        await engine.handle_json(rpc("initialize", 1, **hello))
        await engine.handle_json(rpc("notifications/initialized"))
        answer = await engine.handle_json(rpc("tools/call", 2, name="a__t", arguments={}))
        error = json.loads(str(answer))["error"]
        assert error["code"] == -32000
        assert_masked(error["message"])
        assert_masked(json.dumps(error["data"]))


def rpc(method: str, id: int | None = None, **params: Any) -> str:
    message = {"jsonrpc": "2.0", "method": method, "params": params}
    return json.dumps(message if id is None else message | {"id": id})


@pytest.mark.parametrize("format_name", ["json", "text"])
def test_log_lines_show_no_secret(format_name: Any) -> None:
    near, far = os.pipe()
    mask = SecretMask([SECRET])
    log = open_log(LogSettings(format=format_name), False, mask, far)
    reasons = [f"tools[0]: {SECRET}", "y" * 290 + SECRET]
    log.log(SkippedFeatures("a", tuple(reasons)))
    log.log(AuthRejected(f"192.0.2.1 {SECRET}", "no token"))
    log.close()
    os.close(far)
    with os.fdopen(near) as file:
        text = file.read()
    assert_masked(text)
    assert len(text.splitlines()) == 2
    assert SECRET[:8] not in text  # not even the beginning of one that was cut


def test_audit_records_show_no_secret() -> None:
    mask = SecretMask([SECRET, "12345678"]).mask_json
    arguments = Raw(json.dumps({"query": f"use {SECRET}"}).encode())
    for mode in ("redacted", "full"):
        redactor = Redactor(RedactionRules(mode=mode), mask)
        assert_masked(bytes(to_raw(redactor.redact_inline(arguments))).decode())
        assert_masked(bytes(redactor.redact(arguments) or b"").decode())
        assert b"1234" not in bytes(redactor.redact(Raw(b'{"pin":12345678}')) or b"")
    masked = Redactor(RedactionRules(), SecretMask(["hunter22"]).mask_json)
    assert masked.mask_text("db://hunter22/x") == "db://[redacted]/x"
