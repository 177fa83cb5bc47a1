"""What systemd passes to a service, and what the service tells systemd."""

import asyncio
import os
import socket
import tempfile
from collections.abc import Generator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.tasks import HANG_TIMEOUT
from trunkline.systemd import (
    MAX_PENDING,
    Notifier,
    ServiceEnvironment,
    take_service_environment,
)

PID = 4711


def take(**variables: str) -> ServiceEnvironment:
    return take_service_environment(variables, PID)


def test_without_systemd_nothing_is_found() -> None:
    assert take() == ServiceEnvironment()


def test_the_variables_leave_the_environment() -> None:
    variables = {
        "NOTIFY_SOCKET": "/run/systemd/notify",
        "WATCHDOG_USEC": "30000000",
        "WATCHDOG_PID": str(PID),
        "LISTEN_PID": str(PID),
        "LISTEN_FDS": "0",
        "LISTEN_FDNAMES": "",
        "PATH": "/bin",
    }
    found = take_service_environment(variables, PID)
    assert found == ServiceEnvironment((), "/run/systemd/notify", 30.0)
    assert variables == {"PATH": "/bin"}


def test_an_abstract_socket_begins_with_a_nul_byte() -> None:
    assert take(NOTIFY_SOCKET="@/some/name").notify_address == "\0/some/name"


def test_variables_for_another_process_are_ignored() -> None:
    assert take(WATCHDOG_USEC="1000000", WATCHDOG_PID="1").watchdog_interval is None
    assert take(WATCHDOG_USEC="1000000").watchdog_interval == 1.0
    assert take(LISTEN_FDS="1", LISTEN_PID="1").sockets == ()
    assert take(LISTEN_FDS="1").sockets == ()


@pytest.mark.parametrize(
    ("variables", "reason"),
    [
        ({"NOTIFY_SOCKET": "vsock:2:1234"}, "expected a path or @NAME"),
        ({"WATCHDOG_USEC": "soon"}, "WATCHDOG_USEC is not a number"),
        ({"LISTEN_PID": str(PID), "LISTEN_FDS": "-1"}, "LISTEN_FDS is not a number"),
        ({"LISTEN_PID": str(PID), "LISTEN_FDS": "65"}, "at most 64 are accepted"),
    ],
)
def test_malformed_variables_are_refused(variables: dict[str, str], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        take(**variables)


def adopt(descriptor: int, names: str = "web") -> ServiceEnvironment:
    variables = {"LISTEN_PID": str(PID), "LISTEN_FDS": "1", "LISTEN_FDNAMES": names}
    return take_service_environment(variables, PID, descriptor)


@pytest.mark.parametrize(
    ("host", "address"), [("127.0.0.1", "127.0.0.1:"), ("::1", "[::1]:"), ("::", "[::]:")]
)
def test_a_listening_socket_is_adopted_with_its_name_and_address(host: str, address: str) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, 0), family=family) as listening:
        port = listening.getsockname()[1]
        descriptor = os.dup(listening.fileno())
        os.set_inheritable(descriptor, True)
        (found,) = adopt(descriptor).sockets
        assert (found.name, found.address) == ("web", f"{address}{port}")
        assert not os.get_inheritable(descriptor)
        found.socket.close()


def test_a_socket_without_a_name_is_unknown() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        (found,) = adopt(os.dup(listening.fileno()), "").sockets
        assert found.name == "unknown"
        found.socket.close()


def unusable_sockets() -> Generator[tuple[str, int]]:
    unix = socket.socket(socket.AF_UNIX)
    with unix, tempfile.TemporaryDirectory() as folder:
        unix.bind(f"{folder}/s")
        unix.listen()
        yield "no TCP address", unix.fileno()
    with socket.socket(type=socket.SOCK_DGRAM) as datagrams:
        yield "no stream socket", datagrams.fileno()
    with socket.socket() as idle:
        yield "does not listen", idle.fileno()
    near, far = os.pipe()
    yield "is no socket", near
    os.close(near)
    os.close(far)


def test_other_descriptors_are_refused_with_their_names() -> None:
    for reason, descriptor in unusable_sockets():
        shown = rf"the socket 'web' \(descriptor [0-9]+\), .*{reason}"
        with pytest.raises(ValueError, match=shown):
            adopt(os.dup(descriptor))
    with pytest.raises(ValueError, match="is no socket: Bad file descriptor"):
        adopt(1_000_000)


class Receiver:
    """A socket for notifications."""

    def __init__(self, folder: Path) -> None:
        self.address = str(folder / "notify")
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(self.address)
        self.socket.setblocking(False)

    def fill(self) -> None:
        """Leave no room for more messages."""
        sent = -1
        while sent != 0:  # until a new socket, with a buffer of its own, finds none
            sent = 0
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
                other.setblocking(False)
                with suppress(BlockingIOError):
                    while True:
                        other.sendto(b"other", self.address)
                        sent += 1

    async def receive(self) -> str:
        """Wait for the next message."""
        async with asyncio.timeout(HANG_TIMEOUT):
            return (await asyncio.get_running_loop().sock_recv(self.socket, 65536)).decode()

    def read(self) -> list[str]:
        found: list[str] = []
        while True:
            try:
                found.append(self.socket.recv(65536).decode())
            except BlockingIOError:
                return found


@pytest.fixture
def receiver(tmp_path: Path) -> Generator[Receiver]:
    found = Receiver(tmp_path)
    yield found
    found.socket.close()


async def test_without_an_address_nothing_is_sent() -> None:
    notifier = Notifier(None, 1.0)
    assert not notifier.is_active
    notifier.notify_ready("ready")
    with notifier.reloading():
        notifier.notify_status("reloading")
    notifier.notify_stopping("stopping")
    notifier.close()


async def test_messages_are_in_order_and_a_status_is_sent_once(receiver: Receiver) -> None:
    notifier = Notifier(receiver.address)
    notifier.notify_status("too early")
    notifier.notify_ready("1 of 2\nservers ready")
    notifier.notify_status("1 of 2 servers ready")
    notifier.notify_status("READY=1 " * 100)
    notifier.notify_stopping("stopping")
    notifier.notify_status("too late")
    notifier.close()
    ready, status, stopping = receiver.read()
    assert ready == "READY=1\nSTATUS=1 of 2 servers ready"
    assert status.startswith("STATUS=READY=1 READY=1")
    assert len(status) < 250
    assert stopping == "STOPPING=1\nSTATUS=stopping"
    notifier.notify_ready("closed")
    assert receiver.read() == []


async def test_a_reload_before_or_after_serving_does_not_make_the_service_ready(
    receiver: Receiver,
) -> None:
    notifier = Notifier(receiver.address)
    with notifier.reloading():
        assert receiver.read() == []
    notifier.notify_ready("ready")
    with pytest.raises(OSError, match="failed"), notifier.reloading():
        raise OSError("failed")
    ready, reloading, again = receiver.read()
    assert ready == again == "READY=1\nSTATUS=ready"
    assert reloading.startswith("RELOADING=1\nMONOTONIC_USEC=")
    with notifier.reloading():
        notifier.notify_stopping("stopping")
    assert receiver.read()[-1].startswith("STOPPING=1")
    notifier.close()


async def test_messages_that_find_no_room_are_sent_later_in_order(receiver: Receiver) -> None:
    receiver.fill()
    notifier = Notifier(receiver.address)
    notifier.notify_ready("0")  # waits, and does not block
    for number in range(2 * MAX_PENDING):
        notifier.notify_status(str(number + 1))
    found: list[str] = []
    while len(found) < MAX_PENDING:
        text = await receiver.receive()
        found += [text] if text != "other" else []
    assert found == ["READY=1\nSTATUS=0", *(f"STATUS={n}" for n in range(1, MAX_PENDING))]
    notifier.close()


async def test_a_missing_socket_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    notifier = Notifier(str(tmp_path / "none"))
    notifier.notify_ready("ready")
    notifier.notify_status("more")
    notifier.close()
    assert caplog.messages == ["trunkline: systemd cannot be notified: No such file or directory"]


async def test_the_watchdog_is_fed_from_the_loop_until_the_notifier_is_closed(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    enabled: list[bool] = []
    monkeypatch.setattr("trunkline.systemd.faulthandler.enable", lambda: enabled.append(True))
    notifier = Notifier(receiver.address, 0.02)
    notifier.notify_status("not ready yet")
    notifier.notify_ready("ready")
    assert enabled == [True]
    found = [await receiver.receive() for _ in range(4)]
    assert found == ["READY=1\nSTATUS=ready", *["WATCHDOG=1"] * 3]
    notifier.notify_stopping("stopping")
    while not (await receiver.receive()).startswith("STOPPING=1"):
        continue
    assert await receiver.receive() == "WATCHDOG=1"
    notifier.close()
