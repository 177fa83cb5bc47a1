"""How many bytecodes a small call takes, by function: `python -m bench.steps`.

A whole gateway runs in this process, with a real server behind it and real connections in front.
The count does not depend on the load or speed of the machine. Time follows it closely: a call
passes many functions, and every bytecode costs about the same.
"""

import argparse
import asyncio
import os
import secrets
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import msgspec

import trunkline
from bench.gateway.calls import Address
from bench.gateway.contest import free_port
from bench.gateway.contestants import SERVER, ServerTransport
from bench.gateway.load import Plan, measure
from bench.gateway.process import start
from bench.gateway.session import open_session
from bench.layers import Variant, collect, mint, variants
from trunkline.app.application import App
from trunkline.config import load_config
from trunkline.mcp.versions import Era
from trunkline.runtime import create_event_loop, tune_memory

HOME = f"{Path(trunkline.__file__).parent}{os.sep}"
PLAN = Plan(seconds=0.5, warm_up=0.2)
SIZE = 200
SHOWN = 120


class Steps:
    """Counts the bytecodes of Trunkline's functions, without those of the load."""

    def __init__(self) -> None:
        self.taken: Counter[CodeType] = Counter()
        self.entered: Counter[CodeType] = Counter()
        self.counts = False

    def trace(self, frame: FrameType, event: str, _: object) -> Any:
        code = frame.f_code
        if not self.counts:
            return None
        if event == "call":
            name = code.co_filename
            if not name.startswith(HOME):
                return None
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
            self.entered[code] += 1
        elif event == "opcode":
            self.taken[code] += 1
        return self.trace

    def show(self, calls: int) -> None:
        steps, functions = self.taken.total() / calls, self.entered.total() / calls
        print(f"{steps:,.0f} bytecodes a call, in {functions:.0f} functions\n")
        for code, count in self.taken.most_common(SHOWN):
            name = f"{code.co_filename.removeprefix(HOME)} {code.co_qualname}"
            print(f"{count / calls:6.1f} {self.entered[code] / calls:5.2f}  {name}")


@asynccontextmanager
async def server(behind: ServerTransport, era: Era, folder: Path) -> AsyncGenerator[str]:
    """Start the fast server; return its configuration."""
    command = [sys.executable, SERVER, "--era", era.value]
    known = f'protocol = "{era.value}"\n'
    if behind is ServerTransport.STDIO:
        yield f"command = '{command[0]}'\nargs = {[*command[1:], '--stdio']}\n{known}"
        return
    place = f"127.0.0.1:{(port := free_port())}"
    program = await start([*command, "--http", place], folder / "log", {}, None)
    try:
        await listening(Address(port, era=era))
        yield f'url = "http://{place}/mcp"\n{known}'
    finally:
        await program.stop()


async def listening(address: Address) -> None:
    """Wait until the port accepts connections."""
    async with asyncio.timeout(10):
        while True:
            try:
                (await open_session(address)).close()
            except OSError:
                await asyncio.sleep(0.01)
            else:
                return


async def run(options: argparse.Namespace, more: Variant) -> None:
    secret = {"BENCH_SECRET": secrets.token_hex(32)}
    with tempfile.TemporaryDirectory() as name:
        folder, steps, at_once = Path(name), Steps(), options.at_once
        threading.settrace(steps.trace)  # the thread of the audit log counts too
        async with server(
            ServerTransport(options.behind), Era(options.server_era), folder
        ) as reached:
            config = folder / "trunkline.toml"
            text = f'[servers.fast]\n{reached}prefix = ""\n{more.tables}\n'
            config.write_text(f'[gateway]\nstate_dir = ""\n{more.gateway}{text}')
            headers: tuple[tuple[str, str], ...] = ()
            if "[auth]" in more.tables:
                headers = (("authorization", f"Bearer {await mint(config, secret)}"),)
            settings = load_config(config, os.environ | secret)
            app = App(settings)
            http = msgspec.structs.replace(settings.http, listen="127.0.0.1:0")
            async with app.listening(http) as listener:
                await app.gateway.registry.wait_complete()
                port, era = listener.addresses[0][1], Era(options.era)
                session = await open_session(Address(port, era=era, headers=headers))
                await measure(session, at_once, SIZE, PLAN)
                sys.settrace(steps.trace)
                steps.counts = True
                figures = await measure(session, at_once, SIZE, PLAN)
                steps.counts = False
                sys.settrace(None)
                session.close()
            await app.aclose()
        steps.show(figures.in_all)


async def run_as(options: argparse.Namespace) -> None:
    """Run the benchmark with a collector for all traces."""
    more = Variant("", "", options.config, 0.0)
    async with await asyncio.start_server(collect, "127.0.0.1", 0) as collector:
        if options.layers:
            found = variants(collector.sockets[0].getsockname()[1])
            more = next(each for each in found if each.name == options.layers)
        await run(options, more)


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(prog="python -m bench.steps", description=__doc__)
    parser.add_argument(
        "--behind", choices=[each.value for each in ServerTransport], default="stdio"
    )
    parser.add_argument("--at-once", type=int, default=16)
    eras = [each.value for each in Era]
    parser.add_argument("--era", choices=eras, default="session", help="the client's")
    parser.add_argument("--server-era", choices=eras, default="session")
    parser.add_argument("--config", default="", help="TOML that is added to the configuration")
    names = [each.name for each in variants(0)]
    parser.add_argument("--layers", choices=names, help="as bench.layers runs it")
    options = parser.parse_args()
    tune_memory()
    with asyncio.Runner(loop_factory=create_event_loop) as runner:
        runner.run(run_as(options))


if __name__ == "__main__":
    main()
