"""`trunkline webhooks`: shows webhooks and their messages, tries one, sends dead messages again.

It reads the file of the gateway's messages; a running gateway notices changes within a second.
"""

import asyncio
import os
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from secrets import token_bytes
from typing import Any

from trunkline.app.audit import state_folder
from trunkline.app.webhooks import open_target
from trunkline.audit.log import writer_label
from trunkline.cli.locations import choose_config, user_state_dir
from trunkline.cli.output import (
    EXIT_FAILURE,
    EXIT_USAGE,
    count_text,
    fail,
    print_json,
    print_lines,
    print_message,
    print_table,
)
from trunkline.config import Config
from trunkline.config.webhook_table import WebhookSettings
from trunkline.http.webhooks import WebhookAttempt, new_webhook_id
from trunkline.jsonrpc.webhooks import DeliveryOutcome, format_webhook_key
from trunkline.webhooks.delivery import default_file
from trunkline.webhooks.messages import EventMessages
from trunkline.webhooks.store import StoredMessage, TargetState, WebhookStore, WebhookStoreError

_KEY_BYTES = 32


def run_secret() -> None:
    """Print a new signing key."""
    print_lines(format_webhook_key(token_bytes(_KEY_BYTES)))


def run_list(config_file: Path | None, dead: str | None, as_json: bool) -> None:
    """Print the webhooks and what waits for them, or the dead messages of one."""
    config = choose_config(config_file)
    if dead is not None:
        _find(config, dead)
        with _open_store(config) as store:
            messages = [] if store is None else store.dead_messages(dead)
        _print_messages(messages, as_json)
        return
    names = [webhook.name for webhook in config.webhooks]
    with _open_store(config) as store:
        states = (
            [TargetState(name, 0, 0, None, None, None) for name in names]
            if store is None
            else store.read_states(names)
        )
    _print_states(states, as_json)


def run_test(name: str, config_file: Path | None) -> None:
    """Send a test message to a webhook, now and from this process, and print what came of it."""
    config = choose_config(config_file)
    webhook = _find(config, name)
    if not webhook.keys:
        fail(EXIT_USAGE, *config.notes)
    attempt = asyncio.run(_send_test(config, webhook))
    if attempt.outcome is not DeliveryOutcome.DELIVERED:
        hint = _hint(webhook, attempt)
        fail(EXIT_FAILURE, f"{name}: not delivered: {attempt.problem}", *hint)
    print_lines(f"{name}: delivered, status {attempt.status}")
    with _open_store(config) as store:
        state = None if store is None else store.read_states([name])[0]
    if state is not None and state.off_reason is not None:
        print_message(
            f"{name} is switched off ({state.off_reason}); run trunkline webhooks retry {name}"
        )


def run_retry(name: str, config_file: Path | None) -> None:
    """Switch a webhook on, and have its dead messages sent again."""
    config = choose_config(config_file)
    _find(config, name)
    with _open_store(config) as store:
        count = 0 if store is None else store.retry_dead(name)
        waiting = 0 if store is None else store.read_states([name])[0].waiting
    print_lines(
        f"{name}: {count_text(count, 'dead message')} will be sent again; {waiting} waiting"
    )
    if waiting:
        print_message("a running gateway sends them within a second")


def _find(config: Config, name: str) -> WebhookSettings:
    found = {webhook.name: webhook for webhook in config.webhooks}
    if name not in found:
        names = ", ".join(found) or "none"
        fail(EXIT_USAGE, f"there is no webhook {name!r} in the configuration; there are: {names}")
    return found[name]


@contextmanager
def _open_store(config: Config) -> Generator[WebhookStore | None]:
    """Open the file of messages; None if no gateway has stored any yet."""
    state = state_folder(config, user_state_dir(os.environ, sys.platform))
    if state is None or not default_file(state).exists():
        yield None
        return
    store = WebhookStore(default_file(state))
    try:
        store.open(create=False)
        yield store
    except WebhookStoreError as error:
        fail(EXIT_FAILURE, str(error))
    finally:
        store.close()


async def _send_test(config: Config, webhook: WebhookSettings) -> WebhookAttempt:
    messages = EventMessages(writer_label(config.gateway.name))
    target = open_target(webhook)
    try:
        return await target.attempt(new_webhook_id(), messages.test_message(time.time()).body)
    finally:
        await target.aclose()


def _hint(webhook: WebhookSettings, attempt: WebhookAttempt) -> list[str]:
    if attempt.status is None and not webhook.allow_private:
        return ["addresses of private networks and of this machine need allow_private = true"]
    return []


def _print_states(states: list[TargetState], as_json: bool) -> None:
    if as_json:
        print_json([state._asdict() for state in states])
        return
    if not states:
        print_message("no webhooks; add [[webhooks]] to the configuration")
        return
    rows = [
        [
            state.name,
            "on" if state.off_reason is None else "off",
            str(state.waiting),
            str(state.dead),
            _age(state.oldest_at),
            state.off_reason or state.problem or "",
        ]
        for state in states
    ]
    print_table(["webhook", "state", "waiting", "dead", "oldest", "problem"], rows)


def _age(at: float | None) -> str:
    return "" if at is None else f"{max(0.0, time.time() - at):.0f} s"


def _print_messages(messages: list[StoredMessage], as_json: bool) -> None:
    if as_json:
        print_json([_message_json(message) for message in messages])
        return
    if not messages:
        print_message("no dead messages")
        return
    rows = [
        [message.id, message.event, str(message.attempts), _age(message.at), message.problem or ""]
        for message in messages
    ]
    print_table(["id", "event", "attempts", "age", "problem"], rows)


def _message_json(message: StoredMessage) -> dict[str, Any]:
    return {
        "id": message.id,
        "event": message.event,
        "at": message.at,
        "attempts": message.attempts,
        "problem": message.problem,
        "body": message.body.decode(),
    }
