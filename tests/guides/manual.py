"""What the blocks of each page are: commands to run, files to write, output to compare.

`PAGES` has one step for each block, in order. A block that no test can run has the step `NotRun`
with the reason; a single command of a block is listed in `NOT_RUN`.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from tests.guides.reader import Block, Reader, matches, matches_json, split_commands

ROOT = Path(__file__).parents[2]

NOT_RUN = {
    "make test": "it runs this test",
    ". .venv/bin/activate": "the reader has the command on the PATH",
    "pip install trunkline-slim": "nothing is on PyPI yet; tests/test_package.py builds the wheels",
    "pip install 'trunkline[conditions]'": "the tests have the package for conditions",
    **dict.fromkeys(
        (
            "python3 -m venv ~/.venvs/trunkline",
            "~/.venvs/trunkline/bin/pip install trunkline",
            'export PATH="$HOME/.venvs/trunkline/bin:$PATH"',
            "pip wheel --no-deps --wheel-dir dist . ./packaging/trunkline",
            'export PIP_FIND_LINKS="$PWD/dist" UV_FIND_LINKS="$PWD/dist"',
            "~/.venvs/trunkline/bin/pip install --upgrade trunkline",
            "rm -r ~/.venvs/trunkline",
        ),
        "it installs packages; outside/test_clean_account.py runs it as a new user",
    ),
    **dict.fromkeys(
        (
            "pip install 'trunkline[conditions,postgresql]'",
            "uv tool install trunkline",
            "uvx trunkline --version",
            "uv tool upgrade trunkline",
            "uv tool uninstall trunkline",
            "pipx install trunkline",
            "pipx upgrade trunkline",
            "pipx uninstall trunkline",
        ),
        "it installs packages; outside/test_release.py runs uvx and pipx",
    ),
    **dict.fromkeys(
        (
            "uv tool install trunkline==0.1.0",
            "pipx install --force trunkline==0.1.0",
            "~/.venvs/trunkline/bin/pip install trunkline==0.1.0",
        ),
        "no version is released yet",
    ),
}
"""Commands that no test runs, with the reason."""

REPLACED = {"make serve": "trunkline serve --http 127.0.0.1:8080"}
"""Commands that install packages first; `tests/guides/test_guides.py` compares the Makefile."""


class Given(NamedTuple):
    """What a page takes for granted before its next block."""

    prepare: Callable[[Reader], object]


class Run(NamedTuple):
    """Commands, each of which must succeed; `tail` ends after its first line, or so many lines."""

    lines: Mapping[str, int] = MappingProxyType({})


class Shows(NamedTuple):
    """The output of a command of the page; without a name, of the last one."""

    command: str = ""


class ShowsJson(NamedTuple):
    """The JSON that a command prints, which the page describes in words."""

    command: str


class Session(NamedTuple):
    """Commands after `$`, each with its output."""


class Write(NamedTuple):
    """A file; `trunkline.toml` must be a valid configuration each time."""

    name: str = "trunkline.toml"
    append: bool = False


class NotRun(NamedTuple):
    """A block that no test runs here."""

    because: str


Step = Given | Run | Shows | ShowsJson | Session | Write | NotRun
PYTHON = NotRun("tests/test_docs.py runs it")
WEBHOOK = NotRun("tests/cli/test_webhooks.py runs these commands with a receiver")
PROXY = NotRun("outside/test_proxies.py runs it, with real proxies")
SYSTEMD = NotRun("it needs systemd, and root")
UNIT = NotRun("a part of a unit of systemd")
ENGINE = NotRun("it needs a container engine; outside/test_container.py runs the image without one")


def follow(reader: Reader, step: Step, block: Block) -> None:
    match step:
        case Run(lines):
            run_block(reader, block, lines)
        case Shows(command):
            found = [each for each in reader.printed if command in {"", each.command}]
            assert matches(block.text, found[-1].text), found[-1].text
        case ShowsJson(command):
            printed = reader.run(command).text
            found, _ = json.JSONDecoder().raw_decode(printed, printed.index("{"))
            assert matches_json(json.loads(block.text), found), printed
        case Session():
            run_session(reader, block)
        case Write(name, append):
            reader.write(name, block.text, append=append)
            if name == "trunkline.toml":
                reader.check_config()
        case NotRun() | Given():
            pass


def run_block(reader: Reader, block: Block, lines: Mapping[str, int]) -> None:
    for command in split_commands(block.text):
        plain = command.partition("  #")[0].rstrip()
        if plain in NOT_RUN:
            continue
        printed = reader.run(REPLACED.get(plain, plain), lines.get(plain, 1))
        assert printed.status == 0, f"{command}\n{printed.text}"
        assert "Traceback" not in printed.text
        if command.startswith("curl "):
            assert '"error":{"code"' not in printed.text, printed.text


def run_session(reader: Reader, block: Block) -> None:
    for part in block.text.split("$ ")[1:]:
        command, _, shown = part.partition("\n")
        printed = reader.run(command)
        assert matches(shown, printed.text), f"{command}\n{printed.text}"


def config(text: str) -> Given:
    def write(reader: Reader) -> None:
        reader.write("trunkline.toml", text)

    return Given(write)


def variable(name: str, value: str) -> Given:
    def set_it(reader: Reader) -> None:
        reader.environ[name] = value

    return Given(set_it)


def no_config(reader: Reader) -> None:
    (reader.home / "trunkline.toml").unlink()


def client_file(reader: Reader) -> None:
    servers = {"mcpServers": {"notes": {"command": "npx", "args": ["-y", "notes-server"]}}}
    reader.write(".cursor/mcp.json", json.dumps(servers))


def sample_file(reader: Reader) -> None:
    (reader.data / "a.txt").write_text("hello\n")


def certificate(reader: Reader) -> None:
    """Make the files of a certificate; the configuration is only read, so their content is not."""
    for name in ("cert.pem", "key.pem", "tls/chain.pem", "tls/key.pem"):
        reader.write(name, "")


def rule_at_line_14(reader: Reader) -> None:
    roles = '[roles.dev]\npermissions = ["tools.execute"]\n'
    before = FILES_SERVER + roles
    rule = """[[policy]]\ndeny = "fs__write_file"\nwhen = "args.path.startsWith('/etc/')"\n"""
    reader.write("trunkline.toml", before + "\n" * (13 - before.count("\n")) + rule)


def calls_of_alice_and_bob(reader: Reader) -> None:
    """Start a gateway, and make the two calls that the page shows."""
    allow = '[[policy]]\nallow = "*"\nsubjects = ["alice"]\n'
    deny = '[[policy]]\ndeny = "fs__write_file"\nwhen = "args.path == \'/x\'"\n'
    tables = [GITHUB_SERVER, FILES_SERVER, '[auth]\nmode = "api_key"\n', allow]
    before = GATEWAY_HOME + "".join(tables)
    rest = '[[policy]]\nallow = "*"\n'
    reader.write("trunkline.toml", before + "\n" * (16 - before.count("\n")) + deny + rest)
    keys = {
        name: reader.run(f"trunkline key add {name} --role x").text for name in ("alice", "bob")
    }
    reader.serve()
    arguments = {"owner": "me", "repo": "x", "title": "y"}
    reader.call(keys["alice"].split()[0], "github__create_issue", arguments)
    reader.call(keys["bob"].split()[0], "fs__write_file", {"path": "/x", "content": ""})


def as_the_gateways_user(reader: Reader) -> None:
    """Let the reader be the user of the gateway, with a server that needs no other program."""
    reader.write("trunkline.toml", '[servers.docs]\nbuiltin = "sources"\n')
    reader.replaced["sudo -u trunkline /opt/trunkline/bin/"] = ""
    reader.replaced["/etc/trunkline/trunkline.toml"] = str(reader.home / "trunkline.toml")


def used_gateway(reader: Reader) -> None:
    """Start a gateway with a key, a kill switch and the record of a call."""
    reader.write("trunkline.toml", MAIL_SERVER + '[auth]\nmode = ["api_key"]\n')
    key = reader.run("trunkline key add ci --role dev").text.split()[0]
    reader.serve()
    assert reader.run("trunkline kill tool mail__get_sources").status == 0
    reader.call(key, "mail__list_categories", {})


def serve_to_other_machines(reader: Reader) -> None:
    """Start a gateway as the container image does; without `[auth]` it is refused."""
    assert reader.run("env trunkline serve --http 0.0.0.0:8080").status == 2


def own_key(reader: Reader) -> None:
    """Use the key that `keygen` has printed in place of the one of the page."""
    printed = next(p for p in reader.printed if "keygen" in p.command)
    example = "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a"
    reader.replaced[example] = printed.text.split()[-1]


def failed_calls(reader: Reader) -> None:
    """Start a gateway with a key and rules, use up a limit, and disable a tool."""
    reader.write("trunkline.toml", FILES_SERVER + RULES)
    reader.run("trunkline key add ci --role reader")
    reader.serve()
    for _ in range(2):
        reader.run("trunkline call fs__list_directory --as ci --arg path=/data")
    reader.run("trunkline kill tool fs__read_file")


def serves(name: str) -> Given:
    """Write what was printed for the file of another gateway; all of its servers must start."""

    def check(reader: Reader) -> None:
        target = reader.home / f"{name}.toml"
        _, start, written = reader.printed[-1].text.partition("# from")
        target.write_text(reader.localise(start + written))
        # In place of Docker, which starts the server with the variable that it is given.
        docker = reader.home.parent / "bin" / "docker"
        github = "npx -y @modelcontextprotocol/server-github"
        docker.write_text(f'#!/bin/sh\ntest "$GITHUB_PERSONAL_ACCESS_TOKEN" = t && exec {github}\n')
        docker.chmod(0o755)
        reader.environ |= {"TZ": "UTC", "TRACKER_TOKEN": "t", "GITHUB_PERSONAL_ACCESS_TOKEN": "t"}
        printed = reader.run(f"trunkline check --config {target}")
        assert printed.status == 0, printed.text

    return Given(check)


SERVE = Given(Reader.serve)
END = Given(Reader.stop_gateway)
RESTART = SERVE
FILES_SERVER = """\
[servers.fs]
command = "npx"
args = ["-y", "@modelcontextprotocol/server-filesystem", "/data"]
"""
GITHUB_SERVER = """\
[servers.github]
command = "npx"
args = ["-y", "@modelcontextprotocol/server-github"]
"""
NOTES_SERVER = """\
[servers.notes]
command = "python3"
args = ["-c", "import notes_server"]
max_restarts = 0
"""
UNSET_VARIABLE = """\
[servers.tracker]
url = "https://tracker.example/mcp"
headers = { Authorization = "Bearer ${TRACKER_TOKEN}" }
"""
RULES = """
[auth]
mode = "api_key"
[roles.reader]
permissions = ["tools.execute"]
denied_tools = ["fs__move_*"]

[[policy]]
deny = "fs__write_file"
when = "args.path.startsWith('/etc')"
message = "Write below /data instead."

[limits.tools]
"fs__list_*" = 2
"""
GATEWAY_HOME = '[gateway]\nname = "home"\n'
STEADY = GATEWAY_HOME + "reload_on_change = false\n" + "\n" * 7
MAIL_SERVER = '[servers.mail]\nbuiltin = "sources"\n'

PAGES: dict[str, Sequence[Step]] = {
    "README.md": [
        Run(),
        Run(),
        END,
        Given(sample_file),
        variable("TRACKER_TOKEN", "secret-of-the-tracker"),
        Given(client_file),
        Run(),
        Write(),
        Run(),
        Run(),
        Write(append=True),
        RESTART,
        Run(),
        Run(),
        PYTHON,
    ],
    "docs/index.md": [Run()],
    "docs/start/install.md": [
        *[Run()] * 4,
        Run(),
        Run(),
        Shows(),
        *[Run()] * 3,
        END,
        Run(),
    ],
    "docs/start/two-minutes.md": [
        Run(),
        Run(),
        END,
        Given(client_file),
        Run(),
        Given(no_config),
        Run(),
        Shows(),
        Write(),
        Run(),
        Shows(),
        Run(),
        Shows(),
        Run(),
    ],
    "docs/guides/backup.md": [
        Given(used_gateway),
        Run(),
        Run(),
        Shows(),
        END,
        Run(),
        Run(),
    ],
    "docs/guides/coming-from.md": [
        Write("servers.json"),
        Run(),
        Shows(),
        Run(),
        Run(),
        Write("mcp.json"),
        Run(),
        Shows(),
        serves("mcp.json"),
        Write("mcp-servers-export.json"),
        Run(),
        Shows(),
        serves("mcp-servers-export.json"),
        NotRun("it needs a ContextForge"),
        Write("export.json"),
        Run(),
        Shows(),
        serves("export.json"),
        NotRun("it needs Docker"),
        Write("profile.json"),
        Run(),
        Shows(),
        serves("profile.json"),
    ],
    "docs/guides/container.md": [
        ENGINE,
        NotRun("the entry of one client; tests/cli/test_client_config.py has them"),
        variable("TRACKER_TOKEN", "secret-of-the-tracker"),
        Write(),
        ENGINE,
        config(MAIL_SERVER),
        Given(serve_to_other_machines),
        Shows(),
        *[ENGINE] * 4,
    ],
    "docs/guides/engine.md": [Run(), *[PYTHON] * 15],
    "docs/guides/faq.md": [],
    "docs/guides/finding.md": [
        Write(),
        Run(),
        Shows(),
        ShowsJson("trunkline call search__find_tools --arg query='create a pull request'"),
    ],
    "docs/guides/embed.md": [PYTHON, PYTHON],
    "docs/guides/gateway.md": [
        Run(),
        Write(),
        Run(),
        Shows(),
        Run(),
        Shows(),
        Run(),
        Shows(),
        Write(),
        NotRun("tests/conversations/server_crash.txt has this error"),
    ],
    "docs/guides/http-servers.md": [
        Write(),
        Run(),
        Shows(),
        variable("TRACKER_SECRET", "secret-of-the-tracker"),
        Write(),
    ],
    "docs/guides/http.md": [
        Run(),
        Write(),
        Run(),
        Shows(),
        Run(),
        Shows(),
        Run(),
        Run(),
        Write(),
        Given(certificate),
        Write(),
    ],
    "docs/guides/identity.md": [
        Write(),
        Run(),
        Shows(),
        Run(),
        Shows(),
        Given(certificate),
        Write(append=True),
        variable("TRUNKLINE_JWT_SECRET", "x" * 32),
        Write(),
        Run(),
        Shows(),
        Write(),
        NotRun("the public keys of an issuer; tests/test_identity.py has this response"),
        NotRun("the entry of one client; tests/cli/test_client_config.py has them"),
    ],
    "docs/guides/lock-down.md": [
        Run(),
        Run(),
        Write(),
        Run(),
        Shows(),
        Run(),
        Shows(),
        Write("expectations.toml"),
        Run(),
        Shows(),
        Run(),
        Shows(),
        Session(),
        Run(),
        Shows(),
        Session(),
        Session(),
        Run(),
        Shows(),
    ],
    "docs/guides/monitor.md": [
        config(FILES_SERVER),
        Write(append=True),
        NotRun("tests/app/test_metrics.py has this page"),
        NotRun("the configuration of Prometheus"),
        NotRun("expressions for Prometheus"),
        NotRun("tests/app/test_metrics.py has this page"),
        NotRun("tests/app/test_metrics.py has this page"),
    ],
    "docs/guides/webhooks.md": [
        *[WEBHOOK] * 8,
    ],
    "docs/guides/operate.md": [
        config(FILES_SERVER + MAIL_SERVER),
        RESTART,
        Run(),
        Shows(),
        Session(),
        Session(),
        Write(append=True),
    ],
    "docs/guides/proxy.md": [
        Write(),
        Run(),
        Shows(),
        Run(),
        *[PROXY] * 4,
        Run(),
        Run(),
        Write(),
        *[PROXY] * 4,
        Write(),
    ],
    "docs/guides/reload.md": [
        NotRun("tests/cli/test_gateways_reload.py has the lines of the log"),
        config(STEADY + FILES_SERVER),
        RESTART,
        config(STEADY + FILES_SERVER + '[http]\nlisten = "127.0.0.1:8081"\nmax_body = 100_000\n'),
        Session(),
        config(STEADY + FILES_SERVER.replace("command", "comand")),
        Session(),
    ],
    "docs/guides/sandbox.md": [
        Run(),
        Write(),
        NotRun("tests/cli/test_check.py has this line; not every machine has a sandbox"),
        Write(),
        Write(),
    ],
    "docs/guides/see-what-your-agents-do.md": [
        Given(calls_of_alice_and_bob),
        Run({"trunkline tail": 2}),
        Shows("trunkline tail"),
        Run(),
        Write(),
        Run(),
        Shows(),
        NotRun("an altered log; tests/cli/test_audit.py has these lines"),
        NotRun("a database"),
    ],
    "docs/guides/send-traces.md": [Write(), Write()],
    "docs/guides/sources.md": [
        Run(),
        Shows(),
        Run(),
        Shows(),
        Given(own_key),
        Run(),
        Shows(),
        Run(),
        Shows(),
        Write(),
        Run(),
        Shows(),
        Run(),
        NotRun("a part of a registry"),
    ],
    "docs/guides/systemd.md": [
        SYSTEMD,
        Write(),
        SYSTEMD,
        SYSTEMD,
        UNIT,
        UNIT,
        NotRun("it needs journald"),
        UNIT,
        Write(append=True),
        Given(as_the_gateways_user),
        SERVE,
        Run(),
        *[UNIT] * 5,
    ],
    "docs/guides/troubleshooting.md": [
        config(FILES_SERVER + NOTES_SERVER + UNSET_VARIABLE),
        SERVE,
        Session(),
        Session(),
        Session(),
        NotRun("tests/cli/test_nesting.py has this note"),
        Given(failed_calls),
        Session(),
        Session(),
        Session(),
        Session(),
        NotRun("tests/gateway/test_circuit_breaker.py has this error"),
        NotRun("it takes a minute; tests/gateway/test_call_timeouts.py has this error"),
        NotRun("tests/jsonrpc/test_framing.py has this error"),
        Session(),
        NotRun("tests/test_malformed_answers.py has this error"),
        NotRun("tests/cli/test_serve.py has these lines"),
        NotRun("tests/cli/test_serve.py has this line"),
        Session(),
        config('[http]\nlisten = "0.0.0.0:8080"\n\n[servers.fs]\ncomand = "npx"\n'),
        Session(),
        NotRun("tests/cli/test_gateways_reload.py has this line"),
    ],
    "docs/guides/upgrade.md": [
        Given(used_gateway),
        Run(),
        END,
        Run(),
        Run(),
        Shows(),
        Run(),
    ],
    "docs/guides/why-denied.md": [
        Given(rule_at_line_14),
        Run(),
        Shows(),
        SERVE,
        Run(),
        NotRun("tests/cli/test_policy_explain.py has this line"),
    ],
}
