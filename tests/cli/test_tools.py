"""`trunkline tools`, against real processes."""

import json
from pathlib import Path

from tests.cli.samples import BROKEN, OPERATOR, child, config, run


def test_tools_are_listed_by_server_with_the_first_line_of_their_description(
    tmp_path: Path,
) -> None:
    result = run("tools", "--config", config(tmp_path, child("small", "echo"), OPERATOR))
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[:3] == [
        "small",
        "tool         description",
        "small__echo  Says \\x1b[31mit again.",
    ]
    assert lines[3] == "me"
    assert lines[5].startswith("me__status  Return the state of the gateway")


def test_tools_of_one_server_can_be_listed(tmp_path: Path) -> None:
    file = config(tmp_path, child("small", "echo"), BROKEN, OPERATOR)
    result = run("tools", "me", "--json", "--config", file)
    assert result.exit_code == 0
    tool, logs = json.loads(result.stdout)
    assert logs["name"] == "me__logs"
    assert (tool["name"], tool["server"], tool["native"]) == ("me__status", "me", "status")


def test_a_server_that_is_not_ready_is_reported_and_exits_with_one(tmp_path: Path) -> None:
    result = run("tools", "--config", config(tmp_path, BROKEN, OPERATOR))
    assert result.exit_code == 1
    assert "me__status" in result.stdout
    assert result.stderr.startswith("trunkline: broken failed: cannot start")


def test_an_unknown_server_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    result = run("tools", "nobody", "--config", config(tmp_path, OPERATOR))
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == "trunkline: there is no server 'nobody'; there are: me\n"
