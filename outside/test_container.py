"""The container image: the steps of the Containerfile, and what runs in it, as in a container."""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from outside.container import FOLDER, ROOT, Container, build, read_stages, settings
from outside.program import HERE, RUN_SECONDS
from trunkline.config.load import load_config

LISTENS = "health at http://127.0.0.1:8080"
COMMAND = ("serve", "--http", "0.0.0.0:8080")

POST = """
import http.client, json, sys
client = {"name": "c", "version": "1"}
hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": client}
body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello})
headers = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
if sys.argv[1:]:
    headers["Authorization"] = "Bearer " + sys.argv[1]
connection = http.client.HTTPConnection("127.0.0.1", 8080, timeout=60)
connection.request("POST", "/mcp", body, headers)
print(connection.getresponse().status)
"""

WRITE = """
import json, os, pathlib
def writes(folder):
    try:
        pathlib.Path(folder, "probe").write_text("x")
    except OSError:
        return False
    return True
folders = ("/", "/etc/trunkline", "/opt/trunkline", "/usr", "/tmp", "/var/lib/trunkline")
print(json.dumps([folder for folder in folders if writes(folder)]))
"""

PROCESSES = """
import json, pathlib
def read(path):
    name, _, fields = path.read_text().partition("(")[2].rpartition(") ")
    return [int(path.parent.name), name, fields.split()[0], int(fields.split()[1])]
print(json.dumps([read(path) for path in pathlib.Path("/proc").glob("[0-9]*/stat")]))
"""

SERVER = """
import json, subprocess, sys
# Two orphans in sessions of their own: one ends at once, one stays.
script = "setsid true & setsid sleep 1000 &"
subprocess.run(["sh", "-c", script], env={"PATH": "/usr/bin:/bin"}, stdin=-3, stdout=-3, stderr=-3)
for line in sys.stdin:
    message = json.loads(line)
    server = {"name": "s", "version": "1"}
    hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "serverInfo": server}
    if "id" in message:
        result = hello if message["method"] == "initialize" else {}
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return what the image has in /opt/trunkline."""
    return build(tmp_path_factory.mktemp("image"))


def wait_until(is_done: Callable[[], bool]) -> None:
    """Ask until it is so; each question starts a program in the container."""
    deadline = time.monotonic() + RUN_SECONDS
    while not is_done():
        assert time.monotonic() < deadline, "it did not happen"


def test_the_gateway_of_the_image_is_safe_and_usable(installed: Path, tmp_path: Path) -> None:
    with Container(installed, tmp_path / "state") as container:
        container.says(LISTENS)
        status = settings(container.execute("cat", "/proc/1/status").stdout)
        assert (status["Name"], status["Uid"].split()[0]) == ("trunkline:main", "10001")
        assert int(status["CapEff"], 16) == 0
        assert container.evaluate(WRITE) == ["/tmp", "/var/lib/trunkline"]
        checked = container.execute(*read_stages()["slim"].words("HEALTHCHECK"))
        assert checked.returncode == 0, checked.stdout
        assert container.evaluate(POST) == 401
        added = container.execute("trunkline", "key", "add", "me", "--role", "user").stdout
        key = re.findall(r"tlk_\S+", added)[0]
        wait_until(lambda: bool(container.evaluate(POST, key) == 200))
        assert container.stop()[0] == 0


def test_a_configuration_without_auth_is_refused(installed: Path, tmp_path: Path) -> None:
    config = tmp_path / "trunkline.toml"
    config.write_text('[servers.sources]\nbuiltin = "sources"\n')
    with Container(installed, tmp_path / "state", config) as container:
        output, _ = container.process.communicate(timeout=RUN_SECONDS)
    assert container.process.returncode == 2
    assert '[auth] and mode = "api_key"' in output


def test_orphans_of_servers_are_reaped_and_ended(installed: Path, tmp_path: Path) -> None:
    server, config = tmp_path / "server.py", tmp_path / "trunkline.toml"
    server.write_text(SERVER)
    config.write_text(
        '[auth]\nmode = "api_key"\n[audit]\nurl = ""\n[servers.s]\ncommand = "python3"\n'
        f"args = [{json.dumps(str(server))}]\n"
    )
    with Container(installed, tmp_path / "state", config, shown=[server]) as container:
        container.says('"event":"backend_ready"')

        def only_the_orphan_that_stays() -> bool:
            found = container.evaluate(PROCESSES)
            orphans = [each for each in found if each[3] == 1 and each[1] in {"true", "sleep"}]
            states = {state for _, _, state, _ in found}
            return [name for _, name, *_ in orphans] == ["sleep"] and "Z" not in states

        wait_until(only_the_orphan_that_stays)
        assert container.stop()[0] == 0


def test_a_command_in_a_container_ends_at_sigterm(installed: Path, tmp_path: Path) -> None:
    # It waits for a token on stdin.
    command = ("token", "inspect")
    with Container(installed, tmp_path / "state", command=command) as container:
        name = ("cat", "/proc/1/comm")
        wait_until(lambda: container.execute(*name).stdout == "trunkline:main\n")
        code, output = container.stop()
    assert code == 128 + 15, output


def test_hadolint_finds_no_fault_in_the_containerfile() -> None:
    hadolint = Path(sys.executable).with_name("hadolint")
    done = subprocess.run(
        [hadolint, "--no-color", FOLDER / "Containerfile"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=RUN_SECONDS,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "")


def test_the_context_of_the_build_has_what_the_image_copies() -> None:
    listed = {
        line.removeprefix("!")
        for line in (ROOT / ".dockerignore").read_text().splitlines()
        if line.startswith("!")
    }
    copies = [
        source
        for stage in read_stages().values()
        for kind, text in stage.steps
        if kind == "COPY" and "--from=" not in text
        for source in text.removeprefix("--chmod=0644 ").split()[:-1]
    ]
    assert len(copies) == 8
    for source in copies:
        assert (ROOT / source).exists()
        assert any(Path(source).match(pattern) for pattern in listed), source


def load_yaml(name: str) -> Any:
    return yaml.safe_load((FOLDER / name).read_text())


def test_the_files_of_compose_fit_together() -> None:
    compose = load_yaml("compose.yaml")
    services = compose["services"]
    # The reader of the guide creates it.
    assert compose["secrets"] == {"metrics_token": {"file": "./metrics_token"}}
    for service in services.values():
        for volume in service["volumes"]:
            source = volume.split(":")[0]
            here = source.startswith(".")
            assert (FOLDER / source).exists() if here else source in compose["volumes"], volume
        published = service.get("ports", [])
        assert all(port.startswith("127.0.0.1:") for port in published)
    gateway = services["trunkline"]
    image = read_stages()["slim"]
    assert gateway["healthcheck"]["test"] == ["CMD", *image.words("HEALTHCHECK")]
    assert gateway["build"]["target"] in read_stages()
    (provider,) = load_yaml("grafana/provisioning/dashboards/trunkline.yaml")["providers"]
    assert (
        f"../../contrib/grafana:{provider['options']['path']}:ro" in services["grafana"]["volumes"]
    )
    (source,) = load_yaml("grafana/provisioning/datasources/prometheus.yaml")["datasources"]
    assert source["url"] == "http://prometheus:9090"


def test_the_gateway_of_compose_has_a_valid_configuration() -> None:
    services = load_yaml("compose.yaml")["services"]
    environ = dict.fromkeys(services["trunkline"]["environment"], "secret")
    config = load_config(FOLDER / "compose.toml", environ)
    assert config.requires_auth
    assert config.audit.url == "postgresql://trunkline:secret@postgres/audit"
    assert config.metrics.token == "secret"
    (target,) = load_yaml("prometheus.yml")["scrape_configs"][0]["static_configs"][0]["targets"]
    name, _, port = target.partition(":")
    assert name in services
    assert str(config.metrics.listen) == f"0.0.0.0:{port}"


def test_prometheus_accepts_its_configuration_and_the_alerts(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("secret")
    config = (FOLDER / "prometheus.yml").read_text()
    assert "/run/secrets/metrics_token" in config
    (tmp_path / "prometheus.yml").write_text(
        config.replace("/run/secrets/metrics_token", str(token))
    )
    (tmp_path / "alerts.yml").write_text((FOLDER / "alerts.yml").read_text())
    path = f"{os.environ['PATH']}:{HERE / 'prometheus' / 'usr' / 'bin'}"
    done = subprocess.run(
        ["promtool", "check", "config", tmp_path / "prometheus.yml"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=RUN_SECONDS,
        check=False,
        env={**os.environ, "PATH": path},
    )
    assert done.returncode == 0, done.stdout
    rules = (FOLDER / "alerts.yml").read_text()
    page = (ROOT / "docs" / "reference" / "metrics.md").read_text()
    names = {re.sub(r"_bucket$", "", name) for name in re.findall(r"trunkline_\w+", rules)}
    assert {name for name in names if f"### `{name}`" not in page} == set()
