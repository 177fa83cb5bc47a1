"""Files that other MCP gateways export, translated to entries of `mcpServers`.

| written by | recognised by | servers |
|---|---|---|
| ContextForge: `mcpgateway export` | `entities` is an object | `entities.gateways` |
| Docker: `docker mcp profile export ID FILE.json` | `servers` is a list | `servers` |

`EXPORT_FORMATS` is this table. Gateways that write `mcpServers` need no entry: `client_files` reads
their files as it reads those of clients.

Invariants:
1. Whatever is left out is noted, unless it only describes the server.
2. No text of the file becomes an option of `docker run`, only the value of one.
"""

import json
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, cast

from trunkline.config.references import variable_name
from trunkline.documents.errors import ErrorCollector, KeyPath
from trunkline.documents.parser import Table, as_table, get_table


class ExportedServer(NamedTuple):
    """One server of an export: its name there, its path in the file, and its entry."""

    name: str
    place: KeyPath
    table: Table


class ExportFormat(NamedTuple):
    """How the file of one gateway is recognised and read."""

    matches: Callable[[Table], bool]
    read: Callable[[Table, ErrorCollector], list[ExportedServer]]


def read_gateway_export(top: Table, report: ErrorCollector) -> list[ExportedServer] | None:
    """Return the servers of another gateway's export, None if the file is none."""
    for export in EXPORT_FORMATS:
        if export.matches(top):
            return export.read(top, report)
    return None


def _read_list(
    value: object, place: KeyPath, report: ErrorCollector
) -> Iterator[tuple[Table, KeyPath]]:
    """Yield the tables of a list with their places, and report other values."""
    if value is None:
        return
    if not isinstance(value, list):
        report.add_error(place, "expected a list", "export the file again")
        return
    for index, item in enumerate(cast("list[Any]", value)):
        table = as_table(item)
        if table is None:
            report.add_error((*place, index), "expected an object", "export the file again")
        else:
            yield table, (*place, index)


def _text(table: Table, key: str) -> str:
    """Return the text at `key`, or an empty one."""
    value = table.get(key)
    return value if isinstance(value, str) else ""


_FORGE_ENTITIES = {
    "tools": "tools of REST and gRPC APIs need an MCP server",
    "servers": "limit who sees which tools with [roles] or [[policy]]",
    "prompts": "prompts come from MCP servers only",
    "resources": "resources come from MCP servers only",
    "roots": "roots come from clients",
}


def _read_context_forge(top: Table, report: ErrorCollector) -> list[ExportedServer]:
    entities = get_table(top, "entities")
    for key, fix in _FORGE_ENTITIES.items():
        if (found := entities.get(key)) and isinstance(found, list):
            count = len(cast("list[Any]", found))
            report.add_note(("entities", key), f"{count} ignored", fix)
    servers: list[ExportedServer] = []
    for gateway, place in _read_list(entities.get("gateways"), ("entities", "gateways"), report):
        name = _text(gateway, "name")
        table: Table = {"url": gateway.get("url", "")}
        if gateway.get("is_active") is False:
            table["disabled"] = True
        if auth := gateway.get("auth_type"):
            _translate_forge_auth(name, auth, table, place, report)
        if gateway.get("passthrough_headers"):
            fix = "headers of clients are never sent to servers"
            report.add_note((*place, "passthrough_headers"), "ignored", fix)
        servers.append(ExportedServer(name, place, table))
    return servers


def _translate_forge_auth(
    name: str, auth: object, table: Table, place: KeyPath, report: ErrorCollector
) -> None:
    """Put a reference where the export has an encrypted token."""
    if auth == "bearer":
        variable = variable_name(f"{name}_token")
        table["headers"] = {"Authorization": f"Bearer ${{{variable}}}"}
        reason, fix = "encrypted, not read", f"set the variable {variable}"
    elif auth == "oauth":
        reason, fix = "not read", "write [servers.NAME.oauth] in trunkline.toml"
    else:
        reason, fix = "encrypted, not read", "write headers in trunkline.toml"
    report.add_note((*place, "auth_value"), reason, fix)


# The options with which Docker's gateway starts a server, and its defaults for CPUs and memory.
_DOCKER_RUN = (
    *("run", "--rm", "-i", "--init", "--security-opt", "no-new-privileges"),
    *("--cpus", "1", "--memory", "2g"),
)
# `{{server.key}}`, without the functions that may follow a `|`
_SETTING = re.compile(r"\{\{([^{}|]*)\}\}")
# What of a profile's server is not in its snapshot.
_PROFILE_KEYS = {
    "tools": "all tools are listed; limit them with [[policy]]",
    "policy": "write [[policy]] in trunkline.toml",
}


def _read_docker_profile(top: Table, report: ErrorCollector) -> list[ExportedServer]:
    servers: list[ExportedServer] = []
    for server, place in _read_list(top["servers"], ("servers",), report):
        found = _DockerServer(server, place, report).translate()
        if found is not None:
            servers.append(found)
    return servers


class _DockerServer:
    """Translates one server of a Docker profile."""

    def __init__(self, server: Table, place: KeyPath, report: ErrorCollector) -> None:
        self._server, self._place, self._report = server, place, report
        # Docker copies it from its catalogue; without it, the profile has an address only.
        self._spec = get_table(get_table(server, "snapshot"), "server")
        self._env: dict[str, str] = {}

    def translate(self) -> ExportedServer | None:
        """Return the server, or None if a tool of the gateway starts the container itself."""
        remote = get_table(self._spec, "remote")
        url = remote.get("url") or self._spec.get("sseEndpoint") or self._server.get("endpoint")
        image = _text(self._spec, "image") or _text(self._server, "image")
        if self._spec.get("type") == "poci" or not (url or image):
            fix = "add its command or url to trunkline.toml"
            self._note("type", "left out: no image of a server, and no url", fix)
            return None
        for key, fix in _PROFILE_KEYS.items():
            # An empty list of tools allows none; only an absent one allows all.
            if self._server.get(key) is not None:
                self._note(key, "ignored", fix)
        if self._spec.get("oauth"):
            self._note("oauth", "ignored", "set a token, or write [servers.NAME.oauth]")
        for secret in self._tables("secrets"):
            if name := _text(secret, "env"):
                self._env[name] = f"${{{name}}}"
        table = self._remote_table(url, remote) if url else self._image_table(image)
        if title := _text(self._spec, "title"):
            table["title"] = title
        name = _text(self._spec, "name") or _name_of_image(image)
        return ExportedServer(name, self._place, table)

    def _remote_table(self, url: object, remote: Table) -> Table:
        headers = {
            name: self._with_references(value) if isinstance(value, str) else value
            for name, value in get_table(remote, "headers").items()
        }
        return {"url": url} | ({"headers": headers} if headers else {})

    def _image_table(self, image: str) -> Table:
        if image.startswith("-"):
            self._report.add_error((*self._place, "image"), "it is an option of docker", "name one")
        options: list[str] = []
        if self._spec.get("disableNetwork") is True:
            options += ["--network", "none"]
        elif self._spec.get("allowHosts"):
            fix = "start it in a network of Docker that limits it"
            self._note("allowHosts", "ignored: it may connect to all hosts", fix)
        secrets = dict(self._env)
        for variable in self._tables("env"):
            name, value = _text(variable, "name"), self._fill("env", variable.get("value"))
            if name and value:
                self._env[name] = self._with_references(value)
        for value in self._texts("volumes"):
            options += ["-v", _as_docker_mounts(value)]
        for value in self._texts("extraHosts"):
            options += ["--add-host", value]
        if user := self._fill("user", self._spec.get("user")):
            options += ["-u", user]
        for name in self._env:
            options += ["-e", name]
        command = self._texts("command")
        if any(f"${name}" in text for name in secrets for text in command):
            fix = "let the server read its environment"
            self._note("command", "a variable in it is not filled in", fix)
        table: Table = {"command": "docker", "args": [*_DOCKER_RUN, *options, image, *command]}
        return table | ({"env": self._env} if self._env else {})

    def _tables(self, key: str) -> list[Table]:
        found = self._spec.get(key)
        values = cast("list[Any]", found) if isinstance(found, list) else []
        return [table for value in values if (table := as_table(value)) is not None]

    def _texts(self, key: str) -> list[str]:
        """Return the texts of a list, filled in; empty ones are left out, as Docker does."""
        found = self._spec.get(key)
        values = cast("list[Any]", found) if isinstance(found, list) else []
        return [text for value in values if (text := self._fill(key, value))]

    def _fill(self, key: str, value: object) -> str:
        """Return a text with `{{server.key}}` filled in, "" if that is not possible."""
        if not isinstance(value, str):
            return ""
        filled = _SETTING.sub(lambda found: self._setting(found[1]), value)
        if "{{" in filled:
            # Without the text: a note shows no values.
            fix = "write it in trunkline.toml"
            self._note(key, "a value left out: it has a function in {{…}}", fix)
            return ""
        return filled

    def _setting(self, path: str) -> str:
        """Return a setting of the profile; the first part of its path is the server's name."""
        value: Any = self._server.get("config")
        for key in path.split(".")[1:]:
            value = (as_table(value) or {}).get(key.strip())
        if value is None or isinstance(value, dict | list):
            return ""
        return value if isinstance(value, str) else json.dumps(value)

    def _with_references(self, text: str) -> str:
        """Write `$NAME` as `${NAME}`, for the secrets of this server."""
        for name in self._env:
            text = re.sub(rf"\${re.escape(name)}\b", lambda _, name=name: f"${{{name}}}", text)
        return text

    def _note(self, key: str, reason: str, fix: str) -> None:
        path = ("snapshot", "server", key) if key in self._spec else (key,)
        self._report.add_note((*self._place, *path), reason, fix)


def _as_docker_mounts(volume: str) -> str:
    """Return a volume with the mode that Docker's gateway gives it: read-only for host paths."""
    is_host_path = volume.startswith(("/", "~", "."))
    return f"{volume}:ro" if is_host_path and volume.count(":") == 1 else volume


def _name_of_image(image: str) -> str:
    """Return the last part of the name of an image, without its tag and digest."""
    return image.partition("@")[0].rpartition("/")[2].partition(":")[0]


def _is_context_forge(top: Table) -> bool:
    return as_table(top.get("entities")) is not None


def _is_docker_profile(top: Table) -> bool:
    return isinstance(top.get("servers"), list)


EXPORT_FORMATS = (
    ExportFormat(_is_context_forge, _read_context_forge),
    ExportFormat(_is_docker_profile, _read_docker_profile),
)
