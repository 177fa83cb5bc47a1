"""Health is one thing, and readiness another."""

import json
from typing import Any

from tests.transports.exchanges import asked
from trunkline.transports.http_health import PATHS, Health


def test_we_are_healthy_for_as_long_as_we_can_say_so() -> None:
    health = Health(lambda: {"status": "not_ready"})
    health.draining = True
    for path in ("/healthz", "/health"):
        page = health.page(asked(method="GET", path=path))
        assert (page.status, page.body) == (200, b'{"status":"ok"}')
        assert path in PATHS


def test_readiness_is_as_it_was_said_and_ends_before_all_else() -> None:
    said: dict[str, Any] = {"status": "ready", "degraded": []}
    health = Health(lambda: said)
    for path in ("/readyz", "/ready"):
        page = health.page(asked(method="GET", path=path))
        assert (page.status, json.loads(page.body)) == (200, said)
        assert path in PATHS
    said["status"] = "not_ready"
    assert health.page(asked(method="GET", path="/readyz")).status == 503
    said["status"] = "ready"
    health.draining = True
    page = health.page(asked(method="GET", path="/ready"))
    assert page.status == 503
    assert json.loads(page.body)["reasons"] == ["the gateway is shutting down"]
