"""Monitor: the pages for those who watch over the gateway, at the main address or at their own.

    GET /metrics ──> bearer, if one is needed ──> Page      GET /healthz, /readyz ──> Page

Refuses to know what is shown.

Rules upheld here:
1. A token is compared in the same time whatever is wrong with it, and never said again.
2. Whoever is refused learns nothing but how to ask.
"""

import hmac
from collections.abc import Callable

from trunkline.observe.exposition import CONTENT_TYPE, Exposition
from trunkline.transports.exchange import PLAIN, Exchange, HttpRequest
from trunkline.transports.http_guard import Page, Pages
from trunkline.transports.http_rules import HttpRules

_TYPE = ((b"content-type", CONTENT_TYPE),)
_CHALLENGE = ((b"www-authenticate", b'Bearer realm="metrics"'), PLAIN)
_ALLOW = (b"allow", b"GET, HEAD")


def metrics_page(exposition: Exposition, token: str | None) -> Callable[[HttpRequest], Page]:
    """Return the page of all metrics, for everybody or for those who have the token."""
    expected = None if token is None else b"Bearer " + token.encode()

    def page(request: HttpRequest) -> Page:
        given = request.headers.get(b"authorization", b"")
        if expected is not None and not hmac.compare_digest(given, expected):
            return Page(401, _CHALLENGE, b"expected Authorization: Bearer, with the token\n")
        return Page(200, _TYPE, exposition.text().encode())

    return page


class Monitor:
    """Answers at an address of its own; an Answerer."""

    def __init__(self, pages: Pages, rules: HttpRules) -> None:
        """Show `pages`, to those whom the rules let in."""
        self._pages = pages
        self._rules = rules

    def answer(self, exchange: Exchange) -> None:
        """Answer an exchange, at once."""
        request = exchange.request
        headers = request.headers
        refusal = self._rules.refusal_of(headers.get(b"host"), headers.get(b"origin"))
        page = self._pages.get(request.path)
        if refusal is not None:
            exchange.respond(refusal[0], (PLAIN,), refusal[1].encode() + b"\n")
        elif page is None:
            exchange.respond(404, (PLAIN,), b"nothing is here\n")
        elif request.method not in ("GET", "HEAD"):
            exchange.respond(405, (PLAIN, _ALLOW), b"expected GET\n")
        else:
            found = page(request)
            exchange.respond(found.status, found.headers, found.body)
