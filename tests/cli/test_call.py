"""`trunkline call`, against real processes."""

import json
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.cli.samples import BROKEN, OPERATOR, child, config, run
from tests.tasks import hang_guard
from trunkline.cli.call import ToolCall, call_tool, next_step, parse_arguments, result_text
from trunkline.config import load_config
from trunkline.jsonrpc import RpcError, from_raw, to_raw


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> str:
    return config(tmp_path_factory.mktemp("call"), child("small"), OPERATOR)


def test_call_prints_the_text_of_the_result(file: str) -> None:
    result = run("call", "small__echo", '{"a": 1}', "--config", file)
    assert (result.exit_code, result.stdout) == (0, "echo got {'a': 1}\n"), result.output


def test_arguments_can_be_passed_as_separate_options(file: str) -> None:
    options = ["--arg", "a=1", "--arg", "b=x y", "--arg", 'c={"d": [true]}', "--arg", "e="]
    result = run("call", "small__echo", *options, "--config", file)
    assert result.stdout == "echo got {'a': 1, 'b': 'x y', 'c': {'d': [True]}, 'e': ''}\n"


def test_call_with_json_prints_the_raw_result(file: str) -> None:
    result = run("call", "small__picture", "--json", "--config", file)
    assert result.exit_code == 0
    assert json.loads(result.stdout)["content"][0]["data"] == "QUJD"


def test_structured_content_is_printed_if_there_is_no_text(file: str) -> None:
    result = run("call", "small__structure", "--config", file)
    assert (result.exit_code, json.loads(result.stdout)) == (0, {"degrees": 21.5})


def test_a_tool_error_exits_with_one_and_prints_its_text(file: str) -> None:
    result = run("call", "small__fail", "--config", file)
    assert (result.exit_code, result.stdout, result.stderr) == (1, "", "it is broken\n")


def test_an_error_response_exits_with_one_and_prints_its_code(file: str) -> None:
    result = run("call", "small__refuse", "--json", "--config", file)
    assert result.exit_code == 1
    assert json.loads(result.stdout)["error"] == {
        "code": -32602,
        "message": "no such colour",
        "data": {"colour": "octarine"},
    }
    assert result.stderr == "trunkline: small__refuse: no such colour (code -32602)\n"


RULE = """[[policy]]
deny = "small__echo"
when = "args.path.startsWith('/etc')"

[[policy]]
allow = "*"
"""
LOGS_HINT = (
    "`trunkline logs small` shows what it wrote to stderr; "
    "without a running gateway, use `trunkline check`"
)
SWITCH = '[kill_switch]\ntools = ["small__echo"]\n'


@pytest.mark.parametrize(
    ("tables", "next_line"),
    [
        (
            [child("small"), RULE],
            "`trunkline why small__echo --as anna --role dev "
            """--args '{"path": "/etc/x"}'` names the rule""",
        ),
        ([child("small"), SWITCH], "`trunkline status` shows who disabled it"),
    ],
)
def test_a_refused_call_prints_what_the_user_can_do(
    tmp_path: Path, tables: list[str], next_line: str
) -> None:
    identity = ("--as", "anna", "--role", "dev")
    options = (*identity, "--config", config(tmp_path, *tables))
    result = run("call", "small__echo", '{"path": "/etc/x"}', *options)
    assert result.exit_code == 1
    assert result.stderr.splitlines()[-1] == f"trunkline: {next_line}"


@pytest.mark.parametrize(
    ("data", "lines"),
    [
        (
            {"type": "rate_limited", "retryAfter": 27, "limit": "tool"},
            ("a rate limit is reached (tool); try again in 27 s",),
        ),
        (
            {"type": "upstream_timeout", "server": "small"},
            ("a longer timeout is set with servers.small.timeout",),
        ),
        (
            {"type": "upstream_unavailable", "server": "small"},
            (LOGS_HINT,),
        ),
        ({"type": "not_allowed"}, ()),
        ({"type": "upstream_unavailable"}, ()),
        ({"type": "of the server"}, ()),
        ("text", ()),
    ],
)
def test_the_next_step_follows_from_the_kind_of_the_error(
    data: Any, lines: tuple[str, ...]
) -> None:
    call = ToolCall("small__echo", to_raw({}))
    assert next_step(RpcError(-32000, "no", to_raw(data)), call) == lines
    assert next_step(RpcError(-32000, "no", data), call) == lines


def test_a_call_fails_after_its_timeout(file: str) -> None:
    result = run("call", "small__wait", "--timeout", "0.5", "--config", file)
    assert result.exit_code == 1
    assert result.stderr == "trunkline: small__wait: no answer within 0.5 s\n"


def test_an_unknown_tool_exits_with_one_and_suggests_close_names(tmp_path: Path) -> None:
    result = run("call", "echo", "--config", config(tmp_path, child("small"), BROKEN))
    assert (result.exit_code, result.stdout) == (1, "")
    assert "trunkline: unknown tool: echo\n" in result.stderr
    assert "trunkline: did you mean small__echo?\n" in result.stderr
    assert "trunkline: broken failed, its tools are not known: " in result.stderr


def test_an_unknown_tool_with_json_prints_an_error_object(file: str) -> None:
    result = run("call", "echo", "--json", "--config", file)
    assert result.exit_code == 1
    assert json.loads(result.stdout) == {"error": {"code": -32602, "message": "Unknown tool: echo"}}


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
def test_invalid_arguments_exit_with_two(arguments: list[str], why: str) -> None:
    result = run("call", "me__status", *arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert why in result.stderr


def test_numbers_keep_all_their_digits() -> None:
    text = '{"n": 123456789012345678901234567890.10}'
    assert bytes(parse_arguments(text, ())) == text.encode()
    assert from_raw(parse_arguments(None, ()), object) == {}


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
def test_every_content_type_is_printed_as_text(content: Any, text: str) -> None:
    assert result_text({"content": content}) == text


async def test_progress_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []

    @contextmanager
    def progress(text: str) -> Generator[Callable[[str], None]]:
        yield shown.append

    monkeypatch.setattr("trunkline.cli.startup.progress", progress)
    loaded = load_config(Path(config(tmp_path, child("small", "count"))), {})
    async with hang_guard():
        await call_tool(loaded, ToolCall("small__count", parse_arguments(None, ())))
    assert "starting small (0 s)" in shown
    assert shown[-3:] == [
        "calling small__count",
        "small__count: 1/2 half",
        "stopping the servers",
    ]
