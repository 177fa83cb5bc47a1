"""The cost of policy, limits, audit log and traces: one gateway with more and more switched on.

    python -m bench.layers [--generations G] [--rounds N] [--seconds S] [--no-store]

Every variant is a separate `trunkline serve --http` in front of its own fast stdio server, all on
one core, with the load on the other. The speed of a machine varies, so every variant is measured
many times, briefly, between two measurements of the plain one. The result is the median of its
share of the plain rate right before and after. Identical processes differ in speed too, by memory
layout: `twin` shows by how much, and all processes are restarted a few times.
"""

import argparse
import asyncio
import json
import os
import secrets
import socket
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from bench.gateway.calls import Address
from bench.gateway.contestants import SERVER
from bench.gateway.load import Plan, measure
from bench.gateway.machine import about, load_average
from bench.gateway.process import Program, cores, start
from bench.gateway.session import Session, open_session
from trunkline.runtime import create_event_loop, tune_memory

RESULTS = Path(__file__).parent / "results" / "layers.json"
AT_ONCE = 16
SIZE = 200

_GOVERNED = """
[auth]
mode = ["jwt"]
[auth.jwt]
issuer = "https://id.example"
audience = "trunkline"
secret_env = "BENCH_SECRET"
[roles.dev]
permissions = ["tools.execute"]
denied_tools = ["fs__delete_*"]
[[policy]]
deny = "fs__write_*"
roles = ["dev"]
[[policy]]
allow = "*"
servers = ["fast"]
[limits]
default_rpm = 100000000
[kill_switch]
tools = ["fs__delete_*"]
"""
_PLAIN = 'check_arguments = "off"\n'
_NO_AUDIT = '[audit]\nurl = ""\n'
_AUDIT = '[audit]\nurl = "sqlite:///audit.db"\n'
_METRICS = '[metrics]\npath = "/metrics"\n'


class Variant(NamedTuple):
    """One configuration of the gateway, and the share of the plain rate that it must keep."""

    name: str
    gateway: str
    tables: str
    wanted: float


def variants(collector: int) -> list[Variant]:
    """Return all variants, the plain one first."""
    traces = f'[traces]\nendpoint = "http://127.0.0.1:{collector}/v1/traces"\nsample = 0.1\n'
    return [
        Variant("plain", _PLAIN, _NO_AUDIT, 0.0),
        Variant("twin", _PLAIN, _NO_AUDIT, 0.0),
        Variant("all layers", "", _GOVERNED + _NO_AUDIT, 0.85),
        Variant("audit log and metrics", _PLAIN, _AUDIT + _METRICS, 0.9),
        Variant("traces, one in ten", _PLAIN, _NO_AUDIT + traces, 0.85),
        Variant("everything", "", _GOVERNED + _AUDIT + _METRICS + traces, 0.0),
    ]


class Running(NamedTuple):
    """A running variant."""

    variant: Variant
    program: Program
    session: Session


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


async def mint(config: Path, environment: Mapping[str, str]) -> str:
    """Return a token issued by the command line."""
    command = [sys.executable, "-m", "trunkline", "token", "mint", "--sub", "bench"]
    process = await asyncio.create_subprocess_exec(
        *command,
        *("--role", "dev", "--config", str(config)),
        env={**os.environ, **environment},
        stdout=asyncio.subprocess.PIPE,
    )
    output, _ = await process.communicate()
    return output.decode().strip()


async def begin(variant: Variant, folder: Path, core: int | None) -> Running:
    """Start a variant and open a session."""
    home = folder / variant.name.replace(" ", "-").replace(",", "")
    home.mkdir()
    port, config = free_port(), home / "trunkline.toml"
    server = json.dumps([SERVER, "--stdio"])
    config.write_text(
        f'[gateway]\nstate_dir = "state"\n{variant.gateway}{variant.tables}[servers.fast]\n'
        f"command = {json.dumps(sys.executable)}\nargs = {server}\n"
        'prefix = ""\nprotocol = "session"\n',
        encoding="utf-8",
    )
    environment = {"BENCH_SECRET": secrets.token_hex(32)}
    command = [sys.executable, "-m", "trunkline", "serve", "--http", f"127.0.0.1:{port}"]
    program = await start([*command, "--config", str(config)], home / "log", environment, core)
    headers: tuple[tuple[str, str], ...] = ()
    if "[auth]" in variant.tables:
        headers = (("authorization", f"Bearer {await mint(config, environment)}"),)
    for _ in range(200):
        try:
            session = await open_session(Address(port, headers=headers))
        except OSError:
            await asyncio.sleep(0.05)
        else:
            return Running(variant, program, session)
    raise SystemExit(f"{variant.name} did not start: {program.last_output()}")


async def collect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Act as a trace collector that accepts everything."""
    while line := await reader.readline():
        length = 0
        while line.strip():
            name, _, value = line.partition(b":")
            length = int(value) if name.lower() == b"content-length" else length
            line = await reader.readline()
        await reader.readexactly(length)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
    writer.close()


async def run(generations: int, rounds: int, seconds: float) -> dict[str, Any]:
    pair = cores()  # before pinning: a pinned process sees only its own core
    if pair is not None:
        os.sched_setaffinity(0, {pair[1]})
    core = None if pair is None else pair[0]
    collector = await asyncio.start_server(collect, "127.0.0.1", 0)
    tried = variants(collector.sockets[0].getsockname()[1])
    found: dict[str, list[Share]] = {}
    for _ in range(generations):
        await one_generation(tried, core, rounds, Plan(seconds=seconds), found)
    collector.close()
    return {
        variant.name: {
            "rate": round(median(one.rate for one in found[variant.name])),
            "cpu_us": round(1e6 * median(one.cpu for one in found[variant.name]), 1),
            "of_plain": round(median(one.of_plain for one in found[variant.name]), 3),
            "of_plain_by_cpu": round(median(one.of_plain_by_cpu for one in found[variant.name]), 3),
            "wanted": variant.wanted,
        }
        for variant in tried
    }


async def one_generation(
    tried: list[Variant],
    core: int | None,
    rounds: int,
    plan: Plan,
    found: "dict[str, list[Share]]",
) -> None:
    """Restart every variant on one core and measure for some rounds."""
    with tempfile.TemporaryDirectory() as folder:
        running: list[Running] = []
        try:
            for variant in tried:
                one = await begin(variant, Path(folder), core)
                running.append(one)
            for _ in range(rounds):
                for name, share in (await one_round(running, plan)).items():
                    found.setdefault(name, []).append(share)
        finally:
            for each in running:
                each.session.close()
                await each.program.stop()


class Share(NamedTuple):
    """One result of a variant: calls per second, CPU seconds per call, both relative to plain."""

    rate: float
    cpu: float
    of_plain: float
    of_plain_by_cpu: float


async def one_round(running: list[Running], plan: Plan) -> dict[str, Share]:
    """Measure every variant once, with the plain one before and after each."""
    plain, *others = running
    before = await once(plain, plan)
    found = {plain.variant.name: Share(*before, 1.0, 1.0)}
    for each in others:
        rate, cpu = await once(each, plan)
        after = await once(plain, plan)
        usual, usual_cpu = ((a + b) / 2 for a, b in zip(before, after, strict=True))
        found[each.variant.name] = Share(rate, cpu, rate / usual, usual_cpu / cpu)
        before = after
    return found


async def once(each: Running, plan: Plan) -> tuple[float, float]:
    """Return the calls per second and the CPU seconds per call."""
    before = each.program.cpu_seconds()
    figures = await measure(each.session, AT_ONCE, SIZE, plan)
    return figures.rate, (each.program.cpu_seconds() - before) / figures.in_all


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.layers", description=__doc__)
    parser.add_argument("--generations", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.4)
    parser.add_argument("--no-store", action="store_true")
    options = parser.parse_args()
    machine = about() | {"load average before": f"{load_average():.2f}"}
    tune_memory()
    with asyncio.Runner(loop_factory=create_event_loop) as runner:
        found = runner.run(run(options.generations, options.rounds, options.seconds))
    print("| | calls/s | CPU µs a call | of plain | by CPU | wanted |\n|---|--:|--:|--:|--:|--:|")
    for name, each in found.items():
        print(
            f"| {name} | {each['rate']:,} | {each['cpu_us']} | {each['of_plain']:.2f} "
            f"| {each['of_plain_by_cpu']:.2f} | {each['wanted'] or '–'} |"
        )
    if not options.no_store:
        settings = vars(options) | {"at once": AT_ONCE}
        stored = {"about": machine, "settings": settings, "variants": found}
        RESULTS.write_text(json.dumps(stored, indent=2, ensure_ascii=False) + "\n")
        print(f"\nStored in {RESULTS}.")


if __name__ == "__main__":
    main()
