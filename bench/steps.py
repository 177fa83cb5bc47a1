"""How many bytecodes a small call takes, function by function: `python -m bench.steps`.

A whole gateway in this process, with a real server behind it and real connections before it. What
is counted does not depend on how busy the machine is, and hardly on how fast it is. Time follows it
closely: the way of a call is long, and every step of it costs about the same.
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
from bench.layers import Variant, collect, mint, variants
from trunkline.app import App
from trunkline.benchmark.calls import Address
from trunkline.benchmark.contest import free_port
from trunkline.benchmark.contestants import SERVER, Behind
from trunkline.benchmark.load import Plan, measure
from trunkline.benchmark.process import start
from trunkline.benchmark.session import open_session
from trunkline.config import load
from trunkline.loop import keep_memory, new_loop
from trunkline.mcp.versions import Era

HOME = f"{Path(trunkline.__file__).parent}{os.sep}"
LOAD = f"{HOME}benchmark{os.sep}"
PLAN = Plan(seconds=0.5, warm_up=0.2)
SIZE = 200
SHOWN = 120


class Steps:
    """Counts the bytecodes of Trunkline's own functions, but not those of the load."""

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
            if not name.startswith(HOME) or name.startswith(LOAD):
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
async def server(behind: Behind, era: Era, folder: Path) -> AsyncGenerator[str]:
    """Have the fast server ready to be reached; return what the configuration says of it."""
    command = [sys.executable, "-m", SERVER, "--era", era.value]
    known = f'era = "{era.value}"\n'
    if behind is Behind.STDIO:
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
    """Wait until somebody listens there."""
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
        threading.settrace(steps.trace)  # whoever writes the journal takes steps, too
        async with server(Behind(options.behind), Era(options.server_era), folder) as reached:
            config = folder / "trunkline.toml"
            text = f'[servers.fast]\n{reached}prefix = ""\n{more.tables}\n'
            config.write_text(f'[gateway]\nstate = ""\n{more.gateway}{text}')
            headers: tuple[tuple[str, str], ...] = ()
            if "[auth]" in more.tables:
                headers = (("authorization", f"Bearer {await mint(config, secret)}"),)
            settings = load(config, os.environ | secret)
            app = App(settings)
            http = msgspec.structs.replace(settings.http, listen="127.0.0.1:0")
            async with app.listening(http) as listener:
                await app.gateway.registry.wait_settled()
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
    """Run as the command line says, with a collector that takes all traces."""
    more = Variant("", "", options.config, 0.0)
    async with await asyncio.start_server(collect, "127.0.0.1", 0) as collector:
        if options.layers:
            found = variants(collector.sockets[0].getsockname()[1])
            more = next(each for each in found if each.name == options.layers)
        await run(options, more)


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(prog="python -m bench.steps", description=__doc__)
    parser.add_argument("--behind", choices=[each.value for each in Behind], default="stdio")
    parser.add_argument("--at-once", type=int, default=16)
    eras = [each.value for each in Era]
    parser.add_argument("--era", choices=eras, default="handshake", help="the client's")
    parser.add_argument("--server-era", choices=eras, default="handshake")
    parser.add_argument("--config", default="", help="TOML that is added to the configuration")
    names = [each.name for each in variants(0)]
    parser.add_argument("--layers", choices=names, help="as bench.layers runs it")
    options = parser.parse_args()
    keep_memory()
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(run_as(options))


if __name__ == "__main__":
    main()
