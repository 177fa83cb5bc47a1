"""Runs a framework's MCP client against gateways that it starts: python CLIENT.py RUNS.

RUNS is a JSON list. Each run says how to reach a gateway and how often; every client gets
`use(target, declare)`, which lists the tools once, calls one of them once, and ends the session.
Prints a JSON list of `[names, text]`, one pair for each session.
"""

import asyncio
import json
import subprocess
import sys
import warnings
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

warnings.simplefilter("ignore")


class Target(NamedTuple):
    """A gateway: a URL or a command, the tool to call and its arguments, and a root to declare."""

    url: str
    command: list[str]
    tool: str
    arguments: dict[str, Any]
    root: str


Use = Callable[[Target, bool], Awaitable[tuple[list[str], Any]]]


@contextmanager
def serving(command: list[str]) -> Iterator[str]:
    """Start a gateway over HTTP; yield its URL as soon as it listens, before its servers run."""
    arguments = [*command, "--http", "127.0.0.1:0"]
    with subprocess.Popen(
        arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as gateway:
        assert gateway.stdout is not None
        try:
            lines = iter(gateway.stdout.readline, "")
            yield next(line.split()[-1] for line in lines if line.startswith("MCP at "))
        finally:
            gateway.terminate()


async def _all(use: Use) -> list[Any]:
    found = []
    for run in json.loads(sys.argv[1]):
        common = run["tool"], run["arguments"], run["root"]
        if run["transport"] == "http":
            with serving(run["command"]) as url:
                target = Target(url, [], *common)
                found += [await use(target, run["declare"]) for _ in range(2)]
        else:
            target = Target("", [*run["command"], "--stdio"], *common)
            found += [await use(target, run["declare"]) for _ in range(2)]
    return found


def main(use: Use) -> None:
    async def limited() -> list[Any]:
        async with asyncio.timeout(150):
            return await _all(use)

    print("\n" + json.dumps([[sorted(names), str(text)] for names, text in asyncio.run(limited())]))
