"""mcp-fuzzer attacks the gateway; a finding that mcp_fuzzer_known.toml does not explain fails."""

import json
import shlex
import tomllib
from pathlib import Path
from typing import Any

from outside.crossing import over_stdio
from outside.gateway import configure, gateway
from outside.program import HERE, OFFLINE, run

FUZZER = HERE.parent / ".venv-frameworks" / "bin" / "mcp-fuzzer"
OPTIONS = "--mode all --runs 10 --runs-per-type 5 --protocol-phase aggressive --seed 1 --timeout 10"
SERVERS = {
    "calculator": {"command": str(HERE.parent / ".venv-servers" / "bin" / "mcp-server-calculator")}
}


async def fuzz(folder: Path, protocol: str, endpoint: str) -> None:
    """Fuzz this gateway and compare the findings with those that are known."""
    places = ["--protocol", protocol, "--endpoint", endpoint, "--output-dir", str(folder / "out")]
    options = [*OPTIONS.split(), "--no-network", "--no-corpus", *places]
    code, out, err = await run(FUZZER, *options, env=OFFLINE | {"HOME": str(folder)})
    assert code == 0, err
    assert "calculator__calculate: 10 runs" in out
    assert "PingRequest: 5 runs" in out
    findings: list[dict[str, Any]] = json.loads((folder / "out/findings.json").read_text())[
        "findings"
    ]
    known = tomllib.loads((HERE / "mcp_fuzzer_known.toml").read_text())
    assert [one for one in findings if one["target"] not in known.get(one["category"], {})] == []


async def test_mcp_fuzzer_finds_nothing_new_over_http(tmp_path: Path) -> None:
    async with gateway(tmp_path, SERVERS) as site:
        await fuzz(tmp_path, "streamablehttp", site.mcp)
        assert not [line for line in site.program.lines if "incident" in line]
        assert await site.program.end() == 0


async def test_mcp_fuzzer_finds_nothing_new_over_stdio(tmp_path: Path) -> None:
    await fuzz(tmp_path, "stdio", shlex.join(over_stdio(configure(tmp_path, SERVERS))))
