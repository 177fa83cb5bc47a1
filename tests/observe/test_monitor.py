"""Metrics are for those who may read them."""

import pytest

from tests.transports.exchanges import Paper, asked
from trunkline.observe.exposition import Exposition
from trunkline.observe.monitor import Monitor, metrics_page
from trunkline.transports.http_rules import HttpRules


def exposition() -> Exposition:
    made = Exposition()
    made.gauge("up", "Up.", lambda: 1)
    return made


def test_without_a_token_everybody_reads() -> None:
    page = metrics_page(exposition(), None)(asked(method="GET", path="/metrics"))
    assert (page.status, page.body) == (200, b"# HELP up Up.\n# TYPE up gauge\nup 1\n")
    assert page.headers == ((b"content-type", b"text/plain; version=0.0.4; charset=utf-8"),)


@pytest.mark.holds("O0.13")
@pytest.mark.parametrize(
    "given", ["", "Bearer", "Bearer ", "Bearer wrong", "Bearer s3cret ", "s3cret", "\xff"]
)
def test_whoever_has_no_token_learns_how_to_ask_and_nothing_else(given: str) -> None:
    request = asked(method="GET", path="/metrics", authorization=given)
    page = metrics_page(exposition(), "s3cret")(request)
    assert page.status == 401
    assert dict(page.headers)[b"www-authenticate"].startswith(b"Bearer")
    assert b"up" not in page.body
    assert b"s3cret" not in page.body


def test_whoever_has_the_token_reads() -> None:
    request = asked(method="GET", path="/metrics", authorization="Bearer s3cret")
    assert metrics_page(exposition(), "s3cret")(request).status == 200


@pytest.mark.parametrize(
    ("method", "path", "host", "status"),
    [
        ("GET", "/metrics", "127.0.0.1:9201", 200),
        ("HEAD", "/metrics", "localhost", 200),
        ("POST", "/metrics", "localhost", 405),
        ("GET", "/else", "localhost", 404),
        ("GET", "/metrics", "evil.example", 421),
    ],
)
async def test_its_own_address_shows_its_pages_to_those_who_mean_it(
    method: str, path: str, host: str, status: int
) -> None:
    monitor = Monitor({"/metrics": metrics_page(exposition(), None)}, HttpRules())
    paper = Paper(asked(method=method, path=path, host=host))
    monitor.answer(paper)
    assert paper.status == status
