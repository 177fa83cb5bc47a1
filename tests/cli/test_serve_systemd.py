"""`trunkline serve` as a service of systemd, whose side a stand-in plays."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Generator
from http.client import HTTPConnection
from pathlib import Path

import pytest

from tests.cli.samples import BROKEN, OPERATOR, SERVER, config
from tests.fake_systemd import FakeSystemd
from tests.tasks import HANG_TIMEOUT

HTTP = '[http]\nlisten = "127.0.0.1:0"\n'

# A server that first writes its variables and open files.
SPY = """
import json, os, pathlib, runpy, sys
place, program = sys.argv[1:3]
files = []
for number in os.listdir("/proc/self/fd"):
    try:
        files.append(os.readlink("/proc/self/fd/" + number))
    except OSError:
        pass
pathlib.Path(place).write_text(json.dumps([dict(os.environ), files]))
sys.argv = [program, "echo"]
runpy.run_path(program, run_name="__main__")
"""


@pytest.fixture
def systemd(tmp_path: Path) -> Generator[FakeSystemd]:
    found = FakeSystemd(tmp_path)
    yield found
    found.close()


def get(port: int, path: str = "/healthz", host: str = "127.0.0.1") -> tuple[int, bytes]:
    connection = HTTPConnection(host, port, timeout=HANG_TIMEOUT)
    try:
        connection.request("GET", path, headers={"connection": "close"})
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def served_port(process: "subprocess.Popen[str]") -> int:
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("MCP at "):
            return int(line.split("/")[2].rpartition(":")[2])
    raise AssertionError(process.wait())


@pytest.mark.parametrize("abstract", [False, True])
def test_systemd_learns_of_readiness_and_of_the_end(abstract: bool, tmp_path: Path) -> None:
    systemd = FakeSystemd(tmp_path, abstract)
    file = config(tmp_path, HTTP, OPERATOR, BROKEN)
    with systemd.started(["--config", file]) as process:
        ready = systemd.receive()
        assert ready["READY"] == "1"
        assert ready["STATUS"] in ("0 of 2 servers ready", "1 of 2 servers ready")
        assert get(served_port(process))[0] == 200
        if ready["STATUS"] != "1 of 2 servers ready":
            (*_, last) = systemd.receive_until("STATUS", "1 of 2 servers ready")
            assert last.keys() == {"STATUS"}
        systemd.stop(process)
        assert process.returncode == 0
        (*_, stopping) = systemd.receive_until("STOPPING")
        assert stopping["STATUS"].startswith("stopping")
    systemd.close()


def test_over_stdio_the_service_is_ready_too(systemd: FakeSystemd, tmp_path: Path) -> None:
    client, server = socket.socketpair()
    file = config(tmp_path, OPERATOR)
    command = [sys.executable, "-m", "trunkline", "serve", "--config", file]
    variables = os.environ | systemd.variables(None)
    end = server.fileno()
    with subprocess.Popen(command, stdin=end, stdout=end, env=variables) as process, client:
        server.close()
        assert systemd.receive()["READY"] == "1"
        client.shutdown(socket.SHUT_WR)
        assert process.wait(HANG_TIMEOUT) == 0
    assert systemd.receive_until("STOPPING")


@pytest.mark.parametrize("valid", [True, False])
def test_a_reload_is_announced_with_its_time_and_its_end(
    valid: bool, systemd: FakeSystemd, tmp_path: Path
) -> None:
    file = config(tmp_path, "[gateway]\nreload_on_change = false\n", HTTP, OPERATOR)
    with systemd.started(["--config", file]) as process:
        systemd.receive_until("READY")
        if not valid:
            Path(file).write_text("nonsense = 1")
        before = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        process.send_signal(signal.SIGHUP)
        (*_, reloading) = systemd.receive_until("RELOADING")
        now = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        assert before <= int(reloading["MONOTONIC_USEC"]) <= now
        systemd.receive_until("READY")
        err = systemd.stop(process)
    assert ("not reloaded" in err or "nonsense" in err) != valid


def test_the_reload_command_finds_the_service_and_fails_with_an_invalid_file(
    systemd: FakeSystemd, tmp_path: Path
) -> None:
    file = config(tmp_path, "[gateway]\nreload_on_change = false\n", HTTP, OPERATOR)
    with systemd.started(["--config", file]) as process:
        systemd.receive_until("READY")
        # As in ExecReload=, with the variables of the service
        command = [sys.executable, "-m", "trunkline", "reload", "--pid", str(process.pid)]
        variables = os.environ | {"RUNTIME_DIRECTORY": str(tmp_path)}
        for content, code in ((Path(file).read_text(), 0), ("nonsense = 1", 1)):
            Path(file).write_text(content)
            with subprocess.Popen(command, env=variables) as reload:
                assert reload.wait(HANG_TIMEOUT) == code
            systemd.receive_until("RELOADING")
            systemd.receive_until("READY")
        systemd.stop(process)


def test_the_event_loop_keeps_the_watchdog_content_until_the_end(
    systemd: FakeSystemd, tmp_path: Path
) -> None:
    file = config(tmp_path, HTTP, OPERATOR)
    with systemd.started(["--config", file], watchdog=0.2) as process:
        assert systemd.receive()["READY"] == "1"
        for _ in range(3):
            systemd.receive_until("WATCHDOG")
        systemd.stop(process)


def test_if_the_watchdog_ends_the_gateway_it_shows_where_it_was(
    systemd: FakeSystemd, tmp_path: Path
) -> None:
    file = config(tmp_path, HTTP, OPERATOR)
    with systemd.started(["--config", file], watchdog=60) as process:
        systemd.receive_until("WATCHDOG")
        process.send_signal(signal.SIGABRT)
        _, err = process.communicate(timeout=HANG_TIMEOUT)
    assert process.returncode == -signal.SIGABRT
    assert "most recent call first" in err
    assert "in run_event_loop" in err


def test_inherited_sockets_are_served_and_replace_the_configured_address(
    systemd: FakeSystemd, tmp_path: Path
) -> None:
    ports = [systemd.listen(), systemd.listen()]
    waiting = socket.create_connection(("127.0.0.1", ports[0]), HANG_TIMEOUT)
    waiting.sendall(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
    listen = '[http]\nlisten = "127.0.0.1:9"\n'
    with systemd.started(["--config", config(tmp_path, listen, OPERATOR)]) as process:
        with waiting, waiting.makefile("rb") as answer:  # it connected before the gateway ran
            assert answer.readline().startswith(b"HTTP/1.1 200 ")
        systemd.receive_until("READY")
        assert [get(port)[0] for port in ports] == [200, 200]
        err = systemd.stop(process)
    addresses = [f"127.0.0.1:{port}" for port in ports]
    used = ", ".join(addresses)
    note = f"http.listen: 127.0.0.1:9 is not used; the socket from systemd is {used}"
    assert f"trunkline: {note}\n" in err
    assert all(f"MCP at http://{address}/mcp\n" in err for address in addresses)


def test_an_inherited_ipv6_socket_is_served_without_any_configured_address(
    systemd: FakeSystemd, tmp_path: Path
) -> None:
    port = systemd.listen(("::1", 0))
    with systemd.started(["--config", config(tmp_path, OPERATOR)]) as process:
        systemd.receive_until("READY")
        assert get(port, host="::1")[0] == 200
        assert "is not used" not in systemd.stop(process)


def test_a_socket_named_metrics_serves_the_metrics(systemd: FakeSystemd, tmp_path: Path) -> None:
    port, metrics_port = systemd.listen(), systemd.listen(name="metrics")
    metrics = '[metrics]\nlisten = "127.0.0.1:9"\n'
    with systemd.started(["--config", config(tmp_path, metrics, OPERATOR)]) as process:
        systemd.receive_until("READY")
        status, body = get(metrics_port, "/metrics")
        assert (status, b"trunkline_build_info" in body) == (200, True)
        assert get(port, "/metrics")[0] == 404
        assert "metrics.listen: 127.0.0.1:9 is not used" in systemd.stop(process)


@pytest.mark.parametrize(
    ("place", "tables", "arguments", "reason"),
    [
        ("0.0.0.0 http", "", (), "expected a loopback address: without [auth] every client"),
        (":: http", "", (), "expected a loopback address: without [auth] every client"),
        ("127.0.0.1 metrics", "", (), "metrics have no address of their own; set listen"),
        ("0.0.0.0 metrics", '[metrics]\nlisten = "127.0.0.1:1"', (), "set token_env"),
        ("127.0.0.1 http", "", ("--stdio",), "leave --stdio out"),
    ],
)
def test_a_socket_that_must_not_be_served_is_refused(
    place: str, tables: str, arguments: tuple[str, ...], reason: str, tmp_path: Path
) -> None:
    systemd, (host, name) = FakeSystemd(tmp_path), place.split()
    systemd.listen((host, 0), name)
    file = config(tmp_path, tables, OPERATOR)
    with systemd.started(["--config", file, *arguments]) as process:
        _, err = process.communicate(timeout=HANG_TIMEOUT)
    assert process.returncode == 1
    assert err.startswith("trunkline: cannot serve: systemd passed ")
    assert reason in err
    systemd.close()


def test_servers_get_neither_the_sockets_nor_the_variables(
    systemd: FakeSystemd, tmp_path: Path
) -> None:
    systemd.listen()
    seen = tmp_path / "seen.json"
    args = json.dumps(["-c", SPY, str(seen), str(SERVER)])
    spy = f"[servers.spy]\ncommand = {json.dumps(sys.executable)}\nargs = {args}\n"
    with systemd.started(["--config", config(tmp_path, spy)], watchdog=60) as process:
        systemd.receive_until("STATUS", "1 of 1 server ready")
        systemd.stop(process)
    variables, files = json.loads(seen.read_text())
    assert not [name for name in variables if name.startswith(("LISTEN_", "NOTIFY_", "WATCHDOG_"))]
    assert not [file for file in files if file.startswith("socket:")]


def test_a_restart_loses_no_connection_attempt(systemd: FakeSystemd, tmp_path: Path) -> None:
    port = systemd.listen()
    arguments = ["--config", config(tmp_path, OPERATOR)]
    with systemd.started(arguments) as process:
        systemd.receive_until("READY")
        assert get(port)[0] == 200
        systemd.stop(process)
    # No gateway runs now: the clients wait in the queue of the socket.
    waiting = [socket.create_connection(("127.0.0.1", port), HANG_TIMEOUT) for _ in range(3)]
    for each in waiting:
        each.sendall(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
    with systemd.started(arguments) as process:
        for each in waiting:
            with each, each.makefile("rb") as answer:
                assert answer.readline().startswith(b"HTTP/1.1 200 ")
        systemd.stop(process)
