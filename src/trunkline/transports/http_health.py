"""Health, for whoever keeps programs running: whether we are there, and whether we can be used.

    /healthz, /health ──> 200, always      /readyz, /ready ──> 200, or 503 with the reasons

Refuses to know what readiness takes: whoever knows returns it as JSON, with a `status`.
"""

from collections.abc import Callable
from typing import Any

import msgspec

from trunkline.transports.exchange import HttpRequest
from trunkline.transports.http_answers import JSON
from trunkline.transports.http_guard import Page

ALIVE = frozenset(("/healthz", "/health"))
PATHS = ALIVE | {"/readyz", "/ready"}

_OK = Page(200, (JSON,), b'{"status":"ok"}')
_DRAINING = {"status": "not_ready", "reasons": ["the gateway is shutting down"]}


class Health:
    """The pages about health."""

    def __init__(self, readiness: Callable[[], dict[str, Any]]) -> None:
        self.draining = False
        """Whether no more should be asked."""
        self._readiness = readiness

    def page(self, request: HttpRequest) -> Page:
        """Return the page at one of PATHS."""
        if request.path in ALIVE:
            return _OK
        found = _DRAINING if self.draining else self._readiness()
        status = 200 if found["status"] == "ready" else 503
        return Page(status, (JSON,), msgspec.json.encode(found))
