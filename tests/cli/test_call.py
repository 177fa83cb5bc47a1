"""`trunkline call`, against real processes."""

import asyncio
import json
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.cli.samples import BROKEN, OPERATOR, child, config, run
from trunkline.cli.call import as_text, call_tool, read_arguments
from trunkline.config import load
from trunkline.jsonrpc import from_raw


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> str:
    return config(tmp_path_factory.mktemp("call"), child("small"), OPERATOR)


def test_its_text_is_printed(file: str) -> None:
    done = run("call", "small__echo", '{"a": 1}', "--config", file)
    assert (done.exit_code, done.stdout) == (0, "echo got {'a': 1}\n"), done.output


def test_arguments_can_be_given_one_by_one(file: str) -> None:
    given = ["--arg", "a=1", "--arg", "b=x y", "--arg", 'c={"d": [true]}', "--arg", "e="]
    done = run("call", "small__echo", *given, "--config", file)
    assert done.stdout == "echo got {'a': 1, 'b': 'x y', 'c': {'d': [True]}, 'e': ''}\n"


def test_the_raw_result_is_for_programs(file: str) -> None:
    done = run("call", "small__picture", "--json", "--config", file)
    assert done.exit_code == 0
    assert json.loads(done.stdout)["content"][0]["data"] == "QUJD"


def test_structure_is_printed_where_there_is_no_text(file: str) -> None:
    done = run("call", "small__structure", "--config", file)
    assert (done.exit_code, json.loads(done.stdout)) == (0, {"degrees": 21.5})


def test_a_tool_that_fails_ends_with_one_and_says_why(file: str) -> None:
    done = run("call", "small__fail", "--config", file)
    assert (done.exit_code, done.stdout, done.stderr) == (1, "", "it is broken\n")


def test_a_refusal_ends_with_one_and_its_code(file: str) -> None:
    done = run("call", "small__refuse", "--json", "--config", file)
    assert done.exit_code == 1
    assert json.loads(done.stdout)["error"] == {
        "code": -32602,
        "message": "no such colour",
        "data": {"colour": "octarine"},
    }
    assert done.stderr == "trunkline: small__refuse: no such colour (code -32602)\n"


def test_a_tool_that_takes_too_long_is_given_up(file: str) -> None:
    done = run("call", "small__wait", "--timeout", "0.5", "--config", file)
    assert done.exit_code == 1
    assert done.stderr == "trunkline: small__wait: no answer within 0.5 s\n"


def test_an_unknown_tool_ends_with_one_and_the_closest_names(tmp_path: Path) -> None:
    done = run("call", "echo", "--config", config(tmp_path, child("small"), BROKEN))
    assert (done.exit_code, done.stdout) == (1, "")
    assert "trunkline: unknown tool: echo\n" in done.stderr
    assert "trunkline: did you mean small__echo?\n" in done.stderr
    assert "trunkline: broken is waiting, its tools are not known: " in done.stderr


def test_an_unknown_tool_is_an_error_for_programs_as_well(file: str) -> None:
    done = run("call", "echo", "--json", "--config", file)
    assert done.exit_code == 1
    assert json.loads(done.stdout) == {"error": {"code": -32602, "message": "Unknown tool: echo"}}


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["{"], "expected the arguments as a JSON object"),
        (["[1]"], "expected the arguments as a JSON object"),
        (["{}", "--arg", "a=1"], "as JSON or with --arg, not both"),
        (["--arg", "a"], "expected --arg KEY=VALUE, got 'a'"),
        (["--arg", "=a"], "expected --arg KEY=VALUE, got '=a'"),
        (["--arg", "a=1", "--arg", "a=2"], "--arg a=… is given twice"),
    ],
)
def test_bad_arguments_end_with_two(arguments: list[str], why: str) -> None:
    done = run("call", "me__status", *arguments)
    assert (done.exit_code, done.stdout) == (2, "")
    assert why in done.stderr


def test_numbers_keep_all_their_digits() -> None:
    text = '{"n": 123456789012345678901234567890.10}'
    assert bytes(read_arguments(text, ())) == text.encode()
    assert from_raw(read_arguments(None, ()), object) == {}


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "a\nb"),
        ([{"type": "image", "data": "QUJD"}], "[image: unknown type, 3 bytes; see --json]"),
        ([{"type": "resource", "resource": {"uri": "a:b", "text": "inside"}}], "inside"),
        ([{"type": "resource_link", "uri": "a:b"}], "a:b"),
        ([7], "7"),
        ("nonsense", ""),
    ],
)
def test_every_kind_of_content_has_a_text(content: Any, text: str) -> None:
    assert as_text({"content": content}) == text


async def test_progress_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []

    @contextmanager
    def progress(text: str) -> Generator[Callable[[str], None]]:
        yield shown.append

    monkeypatch.setattr("trunkline.cli.startup.progress", progress)
    loaded = load(Path(config(tmp_path, child("small", "count"))), {})
    async with asyncio.timeout(20):
        await call_tool(loaded, "small__count", read_arguments(None, ()), None)
    assert "starting small (0 s)" in shown
    assert shown[-3:] == [
        "calling small__count",
        "small__count: 1/2 half",
        "ending what was started",
    ]
