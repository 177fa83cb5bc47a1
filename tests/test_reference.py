"""The reference: every command, option, error kind, metric, event and field has its entry.

Each comparison goes both ways: an entry for something that does not exist fails as well.
"""

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest

import trunkline
from tests.calls import ended_call
from tests.reference import (
    REFERENCE,
    TABLES,
    command_parts,
    commands,
    config_keys,
    config_parts,
    with_generated_parts,
)
from trunkline.audit.records import CallRecord
from trunkline.backends.builtin import BUILTIN_KEY_OWNERS
from trunkline.config.load import load_config
from trunkline.config.model import config_schema
from trunkline.config.server_table import key_owners
from trunkline.gateway import events
from trunkline.gateway.backend import NESTED_GATEWAY_ERROR
from trunkline.gateway.settings import UpstreamState
from trunkline.jsonrpc import INVALID_REQUEST, Incident
from trunkline.mcp.errors import ErrorKind, gateway_error
from trunkline.mcp.versions import V2025_11_25, V2026_07_28
from trunkline.telemetry.log_lines import event_line


def entries(page: str, level: int = 3) -> list[str]:
    """Return the headings of a level that consist of one name in backquotes."""
    text = (REFERENCE / page).read_text(encoding="utf-8")
    return re.findall(rf"^{'#' * level} `([^`]+)`$", text, re.MULTILINE)


def test_the_page_of_the_commands_is_what_help_says(update: bool) -> None:
    path = REFERENCE / "cli.md"
    page = path.read_text(encoding="utf-8")
    current = with_generated_parts(page, command_parts())
    if update:
        path.write_text(current, encoding="utf-8")
    assert page == current or update, "run `make update`"


def test_every_command_has_one_entry_and_no_other_has_one() -> None:
    documented = sorted(entries("cli.md", 2) + entries("cli.md", 3))
    assert documented == sorted(f"trunkline {name}" for name, _ in commands())


def test_the_hand_written_text_names_only_options_that_exist() -> None:
    text = (REFERENCE / "cli.md").read_text(encoding="utf-8")
    known = {name for _, command in commands() for each in command.params for name in each.opts}
    known |= {"--help", "--version"}
    # The commands of servers are examples.
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    assert sorted(set(re.findall(r"`(--?[a-z][a-z-]*)", prose)) - known) == []


def test_the_terminal_shows_every_bracket_of_a_help_text() -> None:
    texts = [
        text or ""
        for _, command in commands()
        for text in (command.help, *(each.help for each in getattr(command, "params", ())))
    ]
    assert len(texts) > 100
    assert [text for text in texts if re.search(r"(?<!\\)\[", text)] == []


def section(page: str, heading: str) -> str:
    """Return the text below a heading, up to the next heading of the same level or above."""
    text = (REFERENCE / page).read_text(encoding="utf-8")
    _, found, after = text.partition(f"\n{heading}\n")
    assert found, heading
    level = heading.index(" ")
    return re.split(rf"^#{{1,{level}}} ", after, maxsplit=1, flags=re.MULTILINE)[0]


def rows(text: str) -> Iterator[list[str]]:
    """Yield the cells of each row of the tables in a text, without their heads."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    heads = {number - 1 for number, line in enumerate(lines) if re.fullmatch(r"[|: -]+", line)}
    for number, line in enumerate(lines):
        if number not in heads and number - 1 not in heads:
            yield [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


def names(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def first_names(text: str) -> list[str]:
    """Return the names in the first column of the tables in a text."""
    return [name for cells in rows(text) for name in names(cells[0])]


# The configuration


def test_the_page_of_the_configuration_is_what_the_schema_says(update: bool) -> None:
    path = REFERENCE / "config.md"
    page = path.read_text(encoding="utf-8")
    current = with_generated_parts(page, config_parts())
    if update:
        path.write_text(current, encoding="utf-8")
    assert page == current or update, "run `make update`"


def test_every_key_has_one_entry_and_no_other_has_one() -> None:
    assert sorted(entries("config.md")) == sorted(config_keys())
    # The values of [limits.tools] and the like; a table on the page has their keys.
    limits = {"limit", "own limit"}
    definitions = config_schema()["$defs"]
    assert {*TABLES.values(), *limits} == {*definitions}
    shown = first_names(section("config.md", "## Limits").partition("\n### ")[0])
    assert sorted(shown) == sorted(definitions["limit"]["properties"])
    assert {*definitions["own limit"]["properties"]} < {*shown}


@pytest.mark.parametrize("key", config_keys())
def test_the_entry_of_a_key_has_a_description_and_an_example_that_loads(
    key: str, tmp_path: Path
) -> None:
    description = config_keys()[key]["description"]
    assert description.endswith(".")
    assert "unless set" not in description  # write `Default: …` at the end
    blocks = re.findall(
        "^```toml\n(.*?)^```$", section("config.md", f"### `{key}`"), re.MULTILINE | re.DOTALL
    )
    assert len(blocks) == 1
    table, _, name = key.rpartition(".")
    found: Any = tomllib.loads(blocks[0])
    for part in table.split("."):
        found = next(iter(found.values())) if part == "NAME" else found[part]
    assert name in (found[0] if table in {"policy", "webhooks"} else found)
    for file in ("tls/chain.pem", "tls/key.pem", "jwks.json", ".env"):
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_text("")
    file = tmp_path / "trunkline.toml"
    file.write_text(completed(table, blocks[0]))
    variables = re.findall(r'\$\{(\w+)\}|"([A-Z_]+_KEY)"|_env = "(\w+)"', file.read_text())
    config = load_config(file, dict.fromkeys(map("".join, variables), "x" * 40))
    assert config.notes == ()
    assert [server.unresolved for server in config.servers if server.unresolved] == []


def completed(table: str, text: str) -> str:
    """Return the text of an example with the keys that it needs besides its own."""
    server = '[servers.fs]\ncommand = "server"\n'
    jwt = 'issuer = "https://id.example"\naudience = "mcp"\n'
    jwt += (
        ""
        if re.search("secret_env|jwks_url|jwks_file", text)
        else 'jwks_url = "https://id.example"\n'
    )
    match table:
        case "servers.NAME":
            given = tomllib.loads(text)["servers"]["fs"]
            builtin = next((BUILTIN_KEY_OWNERS[k] for k in given if k in BUILTIN_KEY_OWNERS), None)
            kind = next((key_owners()[k][0] for k in given if k in key_owners()), "command")
            values = {"command": "server", "url": "https://a.example", "builtin": builtin}
            return text if kind in given else f'{text}{kind} = "{values[kind]}"\n'
        case "servers.NAME.sandbox":
            return f"{text}{server}"
        case "servers.NAME.oauth":
            oauth = 'token_url = "https://a.example"\nclient_id = "x"\nclient_secret_env = "X"\n'
            others = "client_secret_env" if "client_secret" in text else ""
            kept = [line for line in oauth.splitlines() if line.split()[0] not in (text + others)]
            return "\n".join(
                (text + "\n".join(kept), '[servers.tracker]\nurl = "https://a.example"')
            )
        case "auth.jwt":
            kept = [line for line in jwt.splitlines() if f"{line.split()[0]} = " not in text]
            return text + "\n".join(kept)
        case "auth":
            return f"{text}[auth.jwt]\n{jwt}"
        case "policy" | "kill_switch" | "limits":
            others = [
                f'[servers.{name}]\nurl = "https://a.example"\n' for name in ("mail", "tracker")
            ]
            return "".join((text, server, *others))
        case _:
            return text


# Errors


def test_every_kind_of_error_has_one_entry_and_no_other_has_one() -> None:
    kinds = [*map(str, ErrorKind), NESTED_GATEWAY_ERROR]
    assert sorted(entries("errors.md")) == sorted(kinds)


def test_troubleshooting_has_a_cause_and_a_remedy_for_every_kind_of_error() -> None:
    page = "../guides/troubleshooting.md"
    found = list(rows(section(page, "## The kinds of errors")))
    assert sorted(names(cells[0])[0] for cells in found) == sorted(entries("errors.md"))
    assert [cells for cells in found if not all(cells)] == []


def test_the_table_of_errors_has_the_code_of_each_kind_for_each_protocol() -> None:
    codes = {
        kind.value: tuple(
            gateway_error(kind, "", revision).code for revision in (V2025_11_25, V2026_07_28)
        )
        for kind in ErrorKind
    }
    codes[NESTED_GATEWAY_ERROR] = (INVALID_REQUEST, INVALID_REQUEST)
    text = section("errors.md", "## The gateway's own").partition("\n### ")[0]
    table = {names(cells[0])[0]: (int(cells[1]), int(cells[2])) for cells in rows(text)}
    assert table == codes


def test_the_manual_explains_every_state_of_a_server_that_refuses_a_call() -> None:
    documented = first_names(section("errors.md", "### `upstream_unavailable`"))
    # A call starts a server that was stopped while it was idle, and waits.
    refusing = [state for state in UpstreamState if state is not UpstreamState.IDLE_STOPPED]
    assert sorted(documented) == sorted(refusing)


# Events

_SAMPLES: tuple[events.GatewayEvent, ...] = (
    ended_call(
        kind="not_allowed",
        status="denied",
        code=-32003,
        rule="policy[0]",
        trace="00-",
        address="192.0.2.7",
    ),
    events.BackendStateChanged("fs", "waiting", "exited", 1.0, ("line",)),
    events.KillSwitchChanged("tool", "fs__read", True, "anna"),
    events.ConfigReloaded(None, ("limits",)),
    events.ConfigReloaded("problem"),
    events.AuthRejected("192.0.2.7", "expired"),
    events.AuditSizeExceeded(1, 100.0, 7.0),
    events.AuditStateChanged("problem"),
    events.CatalogChanged(("tools",)),
    events.WebhookFinished("ops", "kill", "msg_1", "delivered", 1, None),
    events.WebhookFinished("ops", "kill", "msg_1", "off", 1, "problem"),
    events.LimitReached("anna", "http.max_sessions_per_principal"),
    events.UncheckedTool("fs__read", "fs", "reason"),
    events.SkippedFeatures("fs", ("reason",)),
    events.StrayOutput("fs", "text", 1),
    events.SessionEvicted("fs", 16),
    events.SessionSharing("fs", "reason"),
    Incident("id", "tools/call", ValueError()),
)


def test_every_event_has_one_entry_and_no_other_has_one() -> None:
    classes = {kind.__name__ for kind in get_args(events.SystemEvent)} | {"CallSummary"}
    assert sorted(entries("events.md")) == sorted(classes)
    assert {type(sample).__name__ for sample in _SAMPLES} == classes


def test_the_entry_of_an_event_has_its_kind_level_and_fields_in_the_log() -> None:
    fields: dict[str, set[str]] = {}
    for sample in _SAMPLES:
        name, line = type(sample).__name__, event_line(sample)
        fields.setdefault(name, set()).update(line.fields)
        text = section("events.md", f"### `{name}`")
        kind = re.sub(
            "^(call|backend|webhook)_.*", lambda found: f"{found[1]}_{_PARTS[found[1]]}", line.kind
        )
        assert f"`{kind}`" in text
        assert f"`{line.level}`" in text
    documented = {name: set(first_names(section("events.md", f"### `{name}`"))) for name in fields}
    assert documented == fields


_PARTS = {"call": "STATUS", "backend": "STATE", "webhook": "OUTCOME"}


def test_every_other_kind_of_log_line_has_its_row() -> None:
    kinds: set[str] = set()
    for call in calls_of("LogLine", "telemetry", "app"):
        kinds.update(texts(call.args[1]))
    text = (REFERENCE / "events.md").read_text(encoding="utf-8")
    own, _, other = text.partition("\n## Other lines\n")
    rows_of_lines = set(first_names(other.partition("\nMessages of a package")[0]))
    kinds_of_events = {event_line(sample).kind for sample in _SAMPLES}
    assert rows_of_lines == kinds - kinds_of_events
    assert [kind for kind in kinds - rows_of_lines if f"`{kind}`" not in own] == []


# The audit log


def test_every_field_of_a_recorded_call_has_its_row_and_no_other_has_one() -> None:
    text = section("audit.md", "## Fields of a call").partition("\nText of clients is cut")[0]
    assert sorted(first_names(text)) == sorted({"kind", *CallRecord.__struct_encode_fields__})


def test_every_status_of_a_call_has_its_row_and_no_other_has_one() -> None:
    assert first_names(section("audit.md", "### Statuses")) == list(events.STATUSES)


def test_every_other_record_has_its_row_with_its_fields_and_no_other_has_one() -> None:
    kinds: dict[str, set[str]] = {}
    for call in (*calls_of("encode_note", "audit"), *calls_of("note", "audit")):
        for kind in texts(call.args[1]):
            fields = kinds.setdefault(kind, set())
            fields.update(keyword.arg for keyword in call.keywords if keyword.arg is not None)
    del kinds["call"]  # a record of a call that cannot be encoded completely
    found = list(rows(section("audit.md", "## Other records")))
    assert sorted(names(cells[0])[0] for cells in found) == sorted(kinds)
    # Other words in quotes are values, or fields that are not written as keywords.
    known = {word for path in sources("audit") for word in words(path)}
    for cells in found:
        documented = set(names(cells[2]))
        assert kinds[names(cells[0])[0]] - documented == set(), cells[0]
        assert documented - known == set(), cells[0]


# Source code


def sources(*packages: str) -> Iterator[Path]:
    for package in packages:
        yield from sorted((Path(trunkline.__file__).parent / package).glob("*.py"))


def calls_of(function: str, *packages: str) -> Iterator[ast.Call]:
    """Yield the calls of a function or method with this name."""
    for path in sources(*packages):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call):
                called: Any = node.func
                if getattr(called, "attr", getattr(called, "id", None)) == function:
                    yield node


def texts(node: ast.AST) -> Iterator[str]:
    """Yield the literal texts that an expression may be; parts of an f-string are none."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.IfExp):
        yield from texts(node.body)
        yield from texts(node.orelse)


def words(path: Path) -> Iterator[str]:
    """Yield the literal texts, and the names of keyword arguments, in a file."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.keyword) and node.arg is not None:
            yield node.arg
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
