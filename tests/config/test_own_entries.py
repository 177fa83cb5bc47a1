"""Entries that start this gateway again, with the same configuration."""

import json
from pathlib import Path
from typing import Any

import pytest

from trunkline.config.load import load_config
from trunkline.config.own_entries import serve_arguments, starts_config


@pytest.mark.parametrize(
    "entry",
    [
        {"command": "trunkline", "args": ["serve", "--stdio", "--config", "{file}"]},
        {"command": "/opt/bin/trunkline", "args": ["serve", "--config={file}"]},
        {"command": "uvx", "args": ["trunkline", "serve", "--config", "{file}"]},
        {"command": "sh", "args": ["-c", "exec trunkline serve --stdio --config {file}"]},
        {"command": "python", "args": ["-m", "trunkline", "serve", "--config", "{file}"]},
        {"command": "trunkline", "args": ["serve", "--config", "client.json"]},
        {"command": "trunkline", "args": ["serve"], "env": {"TRUNKLINE_CONFIG": "{file}"}},
    ],
)
def test_an_entry_that_starts_this_gateway_is_skipped_with_a_note(
    entry: dict[str, Any], tmp_path: Path
) -> None:
    file = tmp_path / "client.json"
    text = json.dumps({"mcpServers": {"me": entry, "other": {"command": "x"}}})
    file.write_text(text.replace("{file}", str(file)))
    config = load_config(file, {})
    assert [server.disabled for server in config.servers] == [True, False]
    (note,) = config.notes
    assert note.startswith(f"{file}:1: mcpServers.me: skipped: it starts this gateway again")


def test_a_link_to_the_configuration_is_the_same_configuration(tmp_path: Path) -> None:
    file, link = tmp_path / "a.toml", tmp_path / "b.toml"
    file.write_text(f'[servers.me]\ncommand = "trunkline"\nargs = ["serve", "--config", "{link}"]')
    link.symlink_to(file)
    assert load_config(file, {}).servers[0].disabled


def test_serve_without_a_configuration_reads_the_file_in_its_folder(tmp_path: Path) -> None:
    file = tmp_path / "trunkline.toml"
    file.write_text('[servers.me]\ncommand = "trunkline"\nargs = ["serve"]')
    assert load_config(file, {}).servers[0].disabled
    file.write_text('[servers.me]\ncommand = "trunkline"\nargs = ["serve"]\ncwd = "sub"')
    assert not load_config(file, {}).servers[0].disabled


@pytest.mark.parametrize(
    "table",
    [
        {"command": "trunkline", "args": ["serve", "--config", "other.toml"]},
        {"command": "trunkline", "args": ["serve", "--config"], "cwd": "sub"},
        {"command": "trunkline", "args": ["check", "--config", "trunkline.toml"]},
        {"command": "trunklines", "args": ["serve", "--config", "trunkline.toml"]},
        {"command": "sh", "args": ["-c", "echo 'no end of trunkline serve"]},
        {"command": "x", "args": 3},
        {"url": "https://a.example"},
        {"command": "trunkline", "args": ["serve", "--config", "\0"]},
    ],
)
def test_other_entries_are_kept(table: dict[str, Any], tmp_path: Path) -> None:
    assert not starts_config(table, tmp_path / "trunkline.toml")


def test_the_arguments_after_serve_are_found_in_a_shell_command() -> None:
    table = {"command": "sh", "args": ["-c", "A=1 trunkline serve --config 'a b'"]}
    assert serve_arguments(table) == ["--config", "a b"]
