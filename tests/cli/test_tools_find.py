"""`trunkline find`, against real processes."""

import asyncio
import json
import os
import sys
from pathlib import Path

from tests.cli.samples import BROKEN, OPERATOR, child, config, run
from trunkline.admin.service import SwitchFile
from trunkline.cli.locations import user_state_dir
from trunkline.routing.kill_switch import KillSwitch, SwitchKind


def test_find_prints_the_best_match_first(tmp_path: Path) -> None:
    file = config(tmp_path, child("small", "create_pull_request", "echo"), OPERATOR)
    result = run("find", "open a pull request", "--config", file)
    assert result.exit_code == 0
    heading, first, *_ = result.stdout.splitlines()
    assert heading.split() == ["score", "tool", "description"]
    assert first.split()[1] == "small__create_pull_request"


def test_find_with_json_prints_all_fields_up_to_the_limit(tmp_path: Path) -> None:
    file = config(tmp_path, child("small", "one_echo", "two_echo"), OPERATOR)
    result = run("find", "ecko", "--limit", "1", "--json", "--config", file)
    (tool,) = json.loads(result.stdout)
    assert tool["name"] == "small__one_echo"
    assert tool["server"] == "small"
    assert set(tool) == {"name", "server", "description", "arguments", "score"}
    assert 0 < tool["score"] <= 1


def test_find_without_a_match_exits_with_one(tmp_path: Path) -> None:
    result = run("find", "zzzzzz", "--config", config(tmp_path, OPERATOR))
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("trunkline: no tool matches; try other words")


def test_find_reports_a_server_that_is_not_ready(tmp_path: Path) -> None:
    result = run("find", "status", "--config", config(tmp_path, BROKEN, OPERATOR))
    assert result.exit_code == 0
    assert "me__status" in result.stdout
    assert result.stderr.startswith("trunkline: broken failed: cannot start")


async def test_find_leaves_out_stopped_tools(tmp_path: Path) -> None:
    file = config(tmp_path, child("small", "one_echo", "two_echo"))
    folder = user_state_dir(os.environ, sys.platform)
    assert folder is not None
    await SwitchFile(folder, Path(file)).save(KillSwitch(SwitchKind.TOOL, "small__one_echo"), True)
    result = await asyncio.to_thread(run, "find", "echo", "--json", "--config", file)
    assert [tool["name"] for tool in json.loads(result.stdout)] == ["small__two_echo"]
