"""Reading what other gateways export; the examples have the form of their own exports."""

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.config.backend_settings import command_of, url_of
from tests.json_values import JSON
from trunkline.config import load_config
from trunkline.config.client_files import parse_client_servers
from trunkline.config.load import read_raw_config
from trunkline.config.server_table import ServerEntry
from trunkline.config.write_toml import to_toml
from trunkline.documents.errors import ConfigErrors
from trunkline.documents.parser import parse_json

FORGE: dict[str, Any] = {
    "version": "2025-11-25",
    "exported_by": "admin",
    "encryption_method": "AES-256-GCM",
    "entities": {
        "tools": [{"name": "weather", "integration_type": "REST", "url": "https://w.example"}],
        "gateways": [
            {
                "name": "production east",
                "url": "https://east.example/mcp",
                "description": "d",
                "transport": "STREAMABLEHTTP",
                "is_active": True,
                "passthrough_headers": [],
                "auth_type": "bearer",
                "auth_value": "v2:cipher",
            },
            {"name": "old", "url": "https://old.example/sse", "is_active": False},
        ],
        "servers": [{"name": "ai", "tool_ids": ["weather"]}],
        "prompts": [],
    },
    "metadata": {},
}
GITHUB: dict[str, Any] = {
    "name": "github-official",
    "type": "server",
    "title": "GitHub Official",
    "image": "ghcr.io/github/github-mcp-server@sha256:a1d4",
    "secrets": [{"name": "github.token", "env": "GITHUB_TOKEN"}],
    "remote": {},
}


def read(tree: Any) -> tuple[list[ServerEntry], list[str]]:
    parsed = parse_json(json.dumps(tree), "f")
    servers = parse_client_servers(parsed.tree, parsed.errors)
    parsed.errors.raise_if_any()
    return servers.entries, [note.removeprefix("f:1: ") for note in parsed.errors.notes()]


def read_docker(**server: Any) -> tuple[dict[str, Any], list[str]]:
    """Return the table and the notes of one server of a profile."""
    (entry,), notes = read({"version": 1, "id": "p", "name": "P", "servers": [server]})
    return entry.table, [note.removeprefix("servers[0].") for note in notes]


def read_image(config: Any = None, **spec: Any) -> tuple[list[str], dict[str, str], list[str]]:
    """Return arguments after those that are always given, variables, and notes."""
    snapshot = {"server": {"name": "s", "type": "server", "image": "mcp/s", **spec}}
    table, notes = read_docker(type="image", image="mcp/s", config=config, snapshot=snapshot)
    assert table["command"] == "docker"
    fixed = ["run", "--rm", "-i", "--init", "--security-opt", "no-new-privileges"]
    fixed += ["--cpus", "1", "--memory", "2g"]
    assert table["args"][: len(fixed)] == fixed
    return table["args"][len(fixed) :], table.get("env", {}), notes


def test_the_mcp_servers_of_contextforge_are_translated_and_the_rest_is_noted() -> None:
    entries, notes = read(FORGE)
    assert [(entry.name, entry.table) for entry in entries] == [
        (
            "production_east",
            {
                "url": "https://east.example/mcp",
                "headers": {"Authorization": "Bearer ${PRODUCTION_EAST_TOKEN}"},
                "title": "production east",
            },
        ),
        ("old", {"url": "https://old.example/sse", "disabled": True}),
    ]
    assert notes == [
        "entities.tools: 1 ignored; tools of REST and gRPC APIs need an MCP server",
        "entities.servers: 1 ignored; limit who sees which tools with [roles] or [[policy]]",
        "entities.gateways[0].auth_value: encrypted, not read;"
        " set the variable PRODUCTION_EAST_TOKEN",
    ]


@pytest.mark.parametrize(
    ("gateway", "note"),
    [
        ({"auth_type": "basic"}, "auth_value: encrypted, not read; write headers in"),
        ({"auth_type": "oauth"}, "auth_value: not read; write [servers.NAME.oauth] in"),
        ({"passthrough_headers": ["X"]}, "passthrough_headers: ignored; headers of clients are"),
    ],
)
def test_other_credentials_of_contextforge_are_noted(gateway: dict[str, Any], note: str) -> None:
    gateway |= {"name": "a", "url": "https://a.example"}
    (entry,), (found,) = read({"entities": {"gateways": [gateway]}})
    assert entry.table == {"url": "https://a.example"}
    assert found.startswith(f"entities.gateways[0].{note}")


def test_servers_of_equal_names_get_different_ones() -> None:
    gateways = [{"name": "a", "url": "u"}, {"name": "a", "url": "v"}, {"url": "w"}]
    entries, _ = read({"entities": {"gateways": gateways}})
    assert [(entry.name, entry.table.get("title")) for entry in entries] == [
        ("a", None),
        ("a_2", "a"),
        ("server", None),
    ]


def test_an_image_of_a_docker_profile_is_run_with_its_secrets_from_the_environment() -> None:
    table, notes = read_docker(type="image", image="x", snapshot={"server": GITHUB})
    assert table["title"] == "GitHub Official"
    assert table["env"] == {"GITHUB_TOKEN": "${GITHUB_TOKEN}"}
    assert table["args"][-3:] == ["-e", "GITHUB_TOKEN", GITHUB["image"]]
    assert notes == []


@pytest.mark.parametrize(
    ("image", "name"),
    [
        ("mcp/github:latest", "github"),
        ("ghcr.io/github/github-mcp-server@sha256:a1d4", "github-mcp-server"),
        ("localhost:5000/time", "time"),
    ],
)
def test_an_image_without_a_snapshot_is_named_after_the_image(image: str, name: str) -> None:
    (entry,), _ = read({"servers": [{"type": "image", "image": image}]})
    assert (entry.name, entry.table["args"][-1]) == (name, image)


def test_settings_are_filled_in_as_docker_does() -> None:
    args, env, notes = read_image(
        {"host": "db", "port": 5432, "tls": True, "deep": {"key": "k"}},
        env=[
            {"name": "URL", "value": "db://{{s.host}}:{{ s.port }}/{{s.deep.key}}?tls={{s.tls}}"},
            {"name": "UNSET", "value": "{{s.missing}}"},
            {"name": "LIST", "value": "{{s.deep}}"},
        ],
        command=["--transport=stdio", "--host={{s.host}}", ""],
        user="{{s.port}}",
        extraHosts=["db:10.0.0.1"],
        disableNetwork=True,
    )
    assert args == [
        *("--network", "none", "--add-host", "db:10.0.0.1", "-u", "5432", "-e", "URL"),
        *("mcp/s", "--transport=stdio", "--host=db"),
    ]
    assert env == {"URL": "db://db:5432/k?tls=true"}
    assert notes == []


def test_variables_of_docker_become_references() -> None:
    value = '{"Authorization": "Bearer $TOKEN", "V": "$TOKENS"}'
    secrets = [{"name": "s.t", "env": "TOKEN"}, {"name": "s.u"}]
    args, env, notes = read_image(
        secrets=secrets, env=[{"name": "HEADERS", "value": value}], command=["--key=$TOKEN"]
    )
    assert env == {"TOKEN": "${TOKEN}", "HEADERS": value.replace('$TOKEN"', '${TOKEN}"')}
    assert args == ["-e", "TOKEN", "-e", "HEADERS", "mcp/s", "--key=$TOKEN"]
    assert notes == [
        "snapshot.server.command: a variable in it is not filled in;"
        " let the server read its environment"
    ]


def test_host_paths_are_mounted_read_only_as_docker_does() -> None:
    volumes = ["/data:/data", "/data:/data:rw", "named:/data", "{{s.paths|volume|into}}"]
    args, _, notes = read_image({"paths": ["/hidden"]}, volumes=volumes)
    assert args == ["-v", "/data:/data:ro", "-v", "/data:/data:rw", "-v", "named:/data", "mcp/s"]
    assert notes == [
        "snapshot.server.volumes: a value left out: it has a function in {{…}};"
        " write it in trunkline.toml"
    ]


def test_what_docker_limits_is_noted() -> None:
    table, notes = read_docker(
        type="image", image="a", tools=[], snapshot={"server": {**GITHUB, "allowHosts": ["b:443"]}}
    )
    assert "--network" not in table["args"]
    assert notes == [
        "tools: ignored; all tools are listed; limit them with [[policy]]",
        "snapshot.server.allowHosts: ignored: it may connect to all hosts;"
        " start it in a network of Docker that limits it",
    ]


def test_a_remote_server_of_docker_is_translated() -> None:
    spec = {
        "name": "stripe",
        "type": "remote",
        "remote": {"url": "https://a.example/sse", "headers": {"X-Key": "k $KEY"}},
        "secrets": [{"name": "stripe.key", "env": "KEY"}],
        "oauth": {"providers": [{"provider": "stripe"}]},
    }
    table, notes = read_docker(
        type="remote", endpoint="https://b.example", snapshot={"server": spec}
    )
    assert table == {"url": "https://a.example/sse", "headers": {"X-Key": "k ${KEY}"}}
    assert notes == ["snapshot.server.oauth: ignored; set a token, or write [servers.NAME.oauth]"]
    table, _ = read_docker(type="remote", endpoint="https://b.example")
    assert table["url"] == "https://b.example"


@pytest.mark.parametrize(
    "server",
    [
        {"type": "registry", "source": "https://registry.example/v0/servers/1"},
        {"type": "image", "image": "x", "snapshot": {"server": {"type": "poci", "name": "p"}}},
    ],
)
def test_a_server_without_an_address_is_left_out_with_a_note(server: dict[str, Any]) -> None:
    entries, (note,) = read({"servers": [server]})
    assert entries == []
    assert "type: left out: no image of a server, and no url; add its command or url" in note


@pytest.mark.parametrize(
    ("tree", "error"),
    [
        ({"entities": {"gateways": {}}}, "f:1: entities.gateways: expected a list;"),
        ({"entities": {"gateways": [1]}}, "f:1: entities.gateways[0]: expected an object;"),
        ({"servers": ["a"]}, "f:1: servers[0]: expected an object;"),
        ({"servers": [{"image": "--privileged"}]}, "f:1: servers[0].image: it is an option of"),
    ],
)
def test_an_export_of_another_form_is_an_error(tree: Any, error: str) -> None:
    with pytest.raises(ConfigErrors) as raised:
        read(tree)
    (found,) = str(raised.value).splitlines()
    assert found.startswith(error)


@given(JSON, st.sampled_from(["entities", "gateways", "servers", "snapshot"]))
def test_any_export_gives_servers_or_errors(value: Any, place: str) -> None:
    trees = {
        "entities": {"entities": value},
        "gateways": {"entities": {"gateways": [value]}},
        "servers": {"servers": [value]},
        "snapshot": {"servers": [{"image": "a", "config": value, "snapshot": {"server": value}}]},
    }
    with contextlib.suppress(ConfigErrors):
        read(trees[place])


def test_a_translated_export_is_a_valid_configuration(tmp_path: Path) -> None:
    files = {"forge.json": FORGE, "docker.json": {"servers": [{"snapshot": {"server": GITHUB}}]}}
    for name, tree in files.items():
        (tmp_path / name).write_text(json.dumps(tree))
    target = tmp_path / "trunkline.toml"
    target.write_text(to_toml(*(read_raw_config(tmp_path / name) for name in files)))
    environ = {"PRODUCTION_EAST_TOKEN": "t", "GITHUB_TOKEN": "g"}
    east, old, github = load_config(target, environ).servers
    assert url_of(east).headers == {"Authorization": "Bearer t"}
    assert (old.disabled, github.title) == (True, "GitHub Official")
    assert command_of(github).env == {"GITHUB_TOKEN": "g"}
