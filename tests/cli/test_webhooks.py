"""`trunkline webhooks` and a gateway with webhooks, whose messages a receiver verifies."""

import asyncio
import json
from base64 import b64encode
from pathlib import Path

import pytest

from tests.cli.samples import OPERATOR, config, run
from tests.cli.test_gateways_control import serving
from tests.http.test_webhooks import Inbox, receiver_for
from tests.tasks import hang_guard
from trunkline.app.application import App
from trunkline.cli.locations import STATE_DIR_NAME
from trunkline.config import load_config
from trunkline.jsonrpc.webhooks import parse_webhook_key
from trunkline.webhooks.delivery import default_file
from trunkline.webhooks.store import NewMessage, WebhookStore

KEY = "whsec_" + b64encode(b"k" * 32).decode()


def webhook(url: str = "http://127.0.0.1:1/", more: str = "") -> str:
    return f"""
[[webhooks]]
name = "ops"
url = {json.dumps(url)}
secret_env = "WEBHOOK_KEY"
{more}
"""


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEBHOOK_KEY", KEY)


@pytest.fixture
def state(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / STATE_DIR_NAME


def store_with(state: Path, *ids: str) -> WebhookStore:
    store = WebhookStore(default_file(state))
    store.open()
    store.add([NewMessage("ops", id, "kill", b'{"x":1}', 1.0) for id in ids], {"ops": 10})
    return store


def test_a_new_key_is_valid_and_differs_each_time() -> None:
    first, second = (run("webhooks", "secret").stdout.strip() for _ in range(2))
    assert len(parse_webhook_key(first)) == 32
    assert first != second


def test_the_list_shows_what_waits(state: Path, tmp_path: Path) -> None:
    file = config(tmp_path, webhook())
    assert run("webhooks", "list", "--config", file).stdout.split() == [
        *["webhook", "state", "waiting", "dead", "oldest", "problem"],
        *["ops", "on", "0", "0"],
    ]
    store = store_with(state, "msg_a", "msg_b")
    store.set_dead(1, "ops", "status 400")
    store.switch_off("ops", "it answered 410", 2.0)
    shown = run("webhooks", "list", "--config", file).stdout.splitlines()[1]
    assert shown.split()[:4] == ["ops", "off", "1", "1"]
    assert shown.endswith("it answered 410")
    (state_json,) = json.loads(run("webhooks", "list", "--json", "--config", file).stdout)
    assert (state_json["name"], state_json["waiting"], state_json["dead"]) == ("ops", 1, 1)
    dead = run("webhooks", "list", "--dead", "ops", "--config", file).stdout.splitlines()[1]
    assert dead.split()[:3] == ["msg_a", "kill", "1"]
    (message,) = json.loads(
        run("webhooks", "list", "--dead", "ops", "--json", "--config", file).stdout
    )
    assert (message["id"], message["body"], message["problem"]) == (
        "msg_a",
        '{"x":1}',
        "status 400",
    )
    retried = run("webhooks", "retry", "ops", "--config", file)
    assert retried.stdout == "ops: 1 dead message will be sent again; 2 waiting\n"
    assert [each.id for each in store.next_messages("ops", 9)] == ["msg_a", "msg_b"]
    store.close()


def test_without_webhooks_or_messages_the_commands_say_so(state: Path, tmp_path: Path) -> None:
    empty = config(tmp_path)
    assert "no webhooks; add [[webhooks]]" in run("webhooks", "list", "--config", empty).stderr
    file = config(tmp_path, webhook())
    unknown = run("webhooks", "retry", "oops", "--config", file)
    assert unknown.exit_code == 2
    assert "there is no webhook 'oops' in the configuration; there are: ops" in unknown.stderr
    assert run("webhooks", "retry", "ops", "--config", file).stdout == (
        "ops: 0 dead messages will be sent again; 0 waiting\n"
    )
    nothing = run("webhooks", "list", "--dead", "ops", "--config", file)
    assert "no dead messages" in nothing.stderr
    state.mkdir(parents=True)
    default_file(state).write_text("no database" * 100)
    broken = run("webhooks", "list", "--config", file)
    assert broken.exit_code == 1
    assert "file is not a database" in broken.stderr


def test_a_test_message_that_cannot_be_delivered_says_why(state: Path, tmp_path: Path) -> None:
    refused = run("webhooks", "test", "ops", "--config", config(tmp_path, webhook()))
    assert refused.exit_code == 1
    assert "ops: not delivered: " in refused.stderr
    assert "need allow_private = true" in refused.stderr


def test_without_its_key_a_webhook_sends_nothing_and_other_commands_work(
    state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WEBHOOK_KEY")
    file = config(tmp_path, webhook())
    refused = run("webhooks", "test", "ops", "--config", file)
    assert refused.exit_code == 2
    assert "the variable WEBHOOK_KEY is not set, so it signs no message" in refused.stderr
    assert run("webhooks", "list", "--config", file).exit_code == 0


async def test_a_test_message_arrives(state: Path, tmp_path: Path) -> None:
    inbox = Inbox()
    async with hang_guard(), receiver_for(inbox.notified, now=None) as url:
        file = config(tmp_path, webhook(url, "allow_private = true"))
        sent = await asyncio.to_thread(run, "webhooks", "test", "ops", "--config", file)
        store = store_with(state, "msg_a")
        store.switch_off("ops", "it answered 410", 2.0)
        store.close()
        again = await asyncio.to_thread(run, "webhooks", "test", "ops", "--config", file)
    assert sent.stdout == "ops: delivered, status 204\n"
    assert inbox.methods == ["webhook.test"] * 2
    assert "ops is switched off (it answered 410); run trunkline webhooks retry ops" in again.stderr


async def test_a_gateway_sends_changes_of_kill_switches(runtime: Path, tmp_path: Path) -> None:
    inbox, state = Inbox(), tmp_path / "state" / STATE_DIR_NAME
    more = 'allow_private = true\nevents = ["kill", "revive", "config.*"]'
    async with hang_guard(), receiver_for(inbox.notified, now=None) as url:
        (tmp_path / "a").mkdir()

        def use() -> None:
            with serving(tmp_path / "a", webhook(url, more), OPERATOR):
                assert run("kill", "tool", "x").exit_code == 0
                assert run("revive", "tool", "x").exit_code == 0

        await asyncio.to_thread(use)
        text = config(tmp_path, webhook(url, more), OPERATOR)
        app = App(load_config(Path(text), {"WEBHOOK_KEY": KEY}), state)
        assert app.telemetry.webhooks is not None
        app.telemetry.webhooks.start()  # what the first gateway had no time for
        while inbox.methods != ["kill", "revive"]:
            await inbox.wait_for_next()
        await app.aclose()
