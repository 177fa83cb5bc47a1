"""`trunkline tools`, against real processes."""

import json
from pathlib import Path

from tests.cli.samples import BROKEN, OPERATOR, child, config, run


def test_tools_are_listed_by_server_with_their_first_line(tmp_path: Path) -> None:
    done = run("tools", "--config", config(tmp_path, child("small", "echo"), OPERATOR))
    assert done.exit_code == 0
    lines = done.stdout.splitlines()
    assert lines[:3] == [
        "small",
        "tool         description",
        "small__echo  Says \\x1b[31mit again.",
    ]
    assert lines[3] == "me"
    assert lines[5].startswith("me__status  Say how the gateway is")


def test_one_server_can_be_asked_for(tmp_path: Path) -> None:
    file = config(tmp_path, child("small", "echo"), BROKEN, OPERATOR)
    done = run("tools", "me", "--json", "--config", file)
    assert done.exit_code == 0
    tool, logs = json.loads(done.stdout)
    assert logs["name"] == "me__logs"
    assert (tool["name"], tool["server"], tool["native"]) == ("me__status", "me", "status")


def test_a_server_that_is_not_ready_is_told_of_and_ends_with_one(tmp_path: Path) -> None:
    done = run("tools", "--config", config(tmp_path, BROKEN, OPERATOR))
    assert done.exit_code == 1
    assert "me__status" in done.stdout
    assert done.stderr.startswith("trunkline: broken is waiting: cannot start")


def test_an_unknown_server_is_refused_with_those_that_are_known(tmp_path: Path) -> None:
    done = run("tools", "nobody", "--config", config(tmp_path, OPERATOR))
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr == "trunkline: there is no server 'nobody'; there are: me\n"
