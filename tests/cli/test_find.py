"""`trunkline find`, against real processes."""

import asyncio
import json
import os
import sys
from pathlib import Path

from tests.cli.samples import BROKEN, OPERATOR, child, config, run
from trunkline.cli.state_folder import state_folder
from trunkline.operator.switch_file import SwitchFile
from trunkline.routing.switches import Switch, What


def test_the_best_match_comes_first(tmp_path: Path) -> None:
    file = config(tmp_path, child("small", "create_pull_request", "echo"), OPERATOR)
    done = run("find", "open a pull request", "--config", file)
    assert done.exit_code == 0
    heading, first, *_ = done.stdout.splitlines()
    assert heading.split() == ["score", "tool", "description"]
    assert first.split()[1] == "small__create_pull_request"


def test_programs_get_everything_and_as_much_as_they_want(tmp_path: Path) -> None:
    file = config(tmp_path, child("small", "one_echo", "two_echo"), OPERATOR)
    done = run("find", "ecko", "--limit", "1", "--json", "--config", file)
    (tool,) = json.loads(done.stdout)
    assert tool["name"] == "small__one_echo"
    assert tool["server"] == "small"
    assert set(tool) == {"name", "server", "description", "arguments", "score"}
    assert 0 < tool["score"] <= 1


def test_nothing_found_ends_with_one(tmp_path: Path) -> None:
    done = run("find", "zzzzzz", "--config", config(tmp_path, OPERATOR))
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr.startswith("trunkline: nothing matches; try other words")


def test_a_server_that_is_not_ready_is_told_of(tmp_path: Path) -> None:
    done = run("find", "status", "--config", config(tmp_path, BROKEN, OPERATOR))
    assert done.exit_code == 0
    assert "me__status" in done.stdout
    assert done.stderr.startswith("trunkline: broken is waiting: cannot start")


async def test_what_is_stopped_is_not_found(tmp_path: Path) -> None:
    file = config(tmp_path, child("small", "one_echo", "two_echo"))
    folder = state_folder(os.environ, sys.platform)
    assert folder is not None
    await SwitchFile(folder, Path(file)).keep(Switch(What.TOOL, "small__one_echo"), True)
    done = await asyncio.to_thread(run, "find", "echo", "--json", "--config", file)
    assert [tool["name"] for tool in json.loads(done.stdout)] == ["small__two_echo"]
