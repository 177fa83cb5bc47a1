"""Editing the servers of a `trunkline.toml` in its text."""

import datetime
import tomllib

import pytest

from trunkline.config.edit_toml import EditError, add_server, remove_server, set_disabled

FILE = """\
# the gateway of the team
[gateway]
name = "home"  # shown to clients

# files
[servers.fs]
command = "npx"
# a comment inside

# issues
[servers.tracker]
url = "https://tracker.example/mcp"

[servers.tracker.headers]
X = "1"

# who may connect
[http]
listen = "127.0.0.1:8080"
"""


def test_a_server_is_added_below_the_others() -> None:
    table = {"command": "x", "args": ["a b"], "env": {"K": "é"}}
    added = '[servers.new]\ncommand = "x"\nargs = ["a b"]\n\n[servers.new.env]\nK = "é"\n\n'
    before, after = FILE.split("# who may")
    assert add_server(FILE, "new", table) == f"{before}{added}# who may{after}"


def test_a_server_is_added_to_an_empty_file() -> None:
    expected = '[servers.a]\nurl = "https://a.example"\n'
    assert add_server("", "a", {"url": "https://a.example"}) == expected


@pytest.mark.parametrize(
    "text",
    [
        "[servers]\n",
        '[servers]\nfs = { command = "x" }\n',
        '[servers.fs]\ncommand = "x"  # no newline at the end',
        'servers.fs.command = "x"\nlog.level = "info"\n',
        '[[policy]]\nallow = "*"\n',
        "# only a comment",
        '[servers.fs]\ncommand = """\n[servers.no]\n"""\n',
    ],
)
def test_adding_changes_nothing_else_in_any_notation(text: str) -> None:
    tree = tomllib.loads(text)
    tree["servers"] = {**tree.get("servers", {}), "new": {"command": "y"}}
    edited = add_server(text, "new", {"command": "y"})
    assert tomllib.loads(edited) == tree
    assert all(line in edited.splitlines() for line in text.splitlines())


def test_a_name_is_added_once_only() -> None:
    with pytest.raises(EditError, match="there is a server 'fs' already"):
        add_server(FILE, "fs", {"command": "y"})


def test_a_removed_server_takes_its_own_comments_only() -> None:
    without_fs = FILE.replace('# files\n[servers.fs]\ncommand = "npx"\n# a comment inside\n\n', "")
    assert remove_server(FILE, "fs") == without_fs
    start, end = FILE.index("# issues"), FILE.index("# who may")
    assert remove_server(FILE, "tracker") == FILE[:start] + FILE[end:]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('[servers.a]\ncommand = "x"', ""),
        ('# top\n[servers.a]\ncommand = "x"\n', "# top\n"),
        ('[servers]\na = { command = "x" }\nb = { command = "y" }\n', None),
        ('servers.a.command = "x"\nservers.b.command = "y"\n', 'servers.b.command = "y"\n'),
        (
            '[servers.a]\ncommand = "x"\n[http]\n[servers.a.env]\nA = "1"\n[log]\n',
            "[http]\n[log]\n",
        ),
        ('[servers.a]\ncommand = "x"\n# b\n[servers.b]\nurl = "u"\n', None),
    ],
)
def test_a_server_is_removed_in_any_notation(text: str, expected: str | None) -> None:
    tree = tomllib.loads(text)
    del tree["servers"]["a"]
    edited = remove_server(text, "a")
    assert tomllib.loads(edited).get("servers", {}) == tree["servers"]
    assert expected is None or edited == expected
    assert ("# b" in text) is ("# b" in edited)


def test_a_server_is_disabled_and_enabled_in_its_table() -> None:
    disabled = FILE.replace('command = "npx"\n', 'command = "npx"\ndisabled = true\n')
    assert set_disabled(FILE, "fs", disabled=True) == disabled
    enabled = disabled.replace("= true", "= false")
    assert set_disabled(disabled, "fs", disabled=False) == enabled
    assert set_disabled(FILE, "fs", disabled=False) == FILE
    with_headers = 'tracker.example/mcp"\n'
    expected = FILE.replace(with_headers, f"{with_headers}disabled = true\n")
    assert set_disabled(FILE, "tracker", disabled=True) == expected


def test_the_comment_of_the_switch_stays() -> None:
    text = '[servers.a]\ndisabled=false   # until Friday\ncommand = "x"'
    edited = set_disabled(text, "a", disabled=True)
    assert edited == '[servers.a]\ndisabled = true   # until Friday\ncommand = "x"'


def test_an_inline_table_is_disabled() -> None:
    text = '[servers]\na = { command = "x" }  # a\n'
    expected = '[servers]\na = { command = "x", disabled = true }  # a\n'
    assert set_disabled(text, "a", disabled=True) == expected


def test_line_ends_stay() -> None:
    text = FILE.replace("\n", "\r\n")
    assert set_disabled(text, "fs", disabled=True).count("\n") == text.count("\r\n") + 1
    assert "\r\r" not in add_server(text, "b", {"command": "x"})


@pytest.mark.parametrize(
    "text",
    ['servers = { a = { command = "x" }, b = { command = "y" } }\n', 'servers.a.command = "x"\n'],
)
def test_what_cannot_be_changed_safely_is_refused(text: str) -> None:
    with pytest.raises(EditError, match="edit the file by hand"):
        set_disabled(text, "a", disabled=True)


def test_an_unknown_server_is_refused_with_the_known_ones() -> None:
    for text, known in ((FILE, "fs, tracker"), ("", "none")):
        with pytest.raises(EditError, match=f"no server 'x'; servers in the file: {known}"):
            remove_server(text, "x")
        with pytest.raises(EditError, match="no server 'x'"):
            set_disabled(text, "x", disabled=True)


def test_a_broken_file_is_refused() -> None:
    with pytest.raises(tomllib.TOMLDecodeError):
        add_server("[servers", "a", {})
    with pytest.raises(EditError):
        add_server("servers = 1", "a", {})


def test_servers_of_a_client_are_below_another_key() -> None:
    text = "# mine\n[mcp_servers.a]\ncommand = 'a'\n\n[tui]\nx = 1\n"
    added = add_server(text, "b", {"url": "u", "tools": {"t": {"ask": True}}}, "mcp_servers")
    new = '[mcp_servers.b]\nurl = "u"\n\n[mcp_servers.b.tools]\nt = { ask = true }\n\n'
    assert added == text.replace("[tui]", f"{new}[tui]")
    assert remove_server(added, "b", "mcp_servers") == text
    with pytest.raises(EditError, match="there is no server 'x'; servers in the file: a"):
        remove_server(text, "x", "mcp_servers")
    with pytest.raises(EditError, match="edit the file by hand"):
        add_server(text, "b", {"at": datetime.date(2026, 1, 1)}, "mcp_servers")
