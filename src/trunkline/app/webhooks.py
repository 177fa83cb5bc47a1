"""Webhooks of one gateway, as configured."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from trunkline.audit.log import writer_label
from trunkline.config import Config
from trunkline.config.webhook_table import WebhookSettings
from trunkline.gateway.events import WebhookFinished
from trunkline.http.address import is_public_address
from trunkline.http.webhooks import WebhookTarget
from trunkline.webhooks.delivery import TargetSettings, WebhookDelivery, default_file
from trunkline.webhooks.messages import EventMessages


def build_webhooks(
    config: Config,
    state: Path,
    mask: Callable[[str], str],
    on_finished: Callable[[WebhookFinished], None],
) -> WebhookDelivery:
    """Return the delivery of the configured webhooks that have a key, not started."""
    targets = [
        TargetSettings(
            webhook.name,
            webhook.events,
            webhook.servers,
            webhook.max_queue,
            partial(open_target, webhook),
        )
        for webhook in config.webhooks
        if webhook.keys
    ]
    messages = EventMessages(writer_label(config.gateway.name), mask)
    return WebhookDelivery(default_file(state), targets, messages, on_finished)


def open_target(webhook: WebhookSettings) -> WebhookTarget:
    """Return a webhook's URL as something to send to."""
    return WebhookTarget(
        webhook.url,
        webhook.keys,
        timeout=webhook.timeout,
        allow=None if webhook.allow_private else is_public_address,
    )
