"""An answer as whoever asked sees it; how it gets there is tested with the wire."""

from tests.transports.test_http_wire import Bench, body

HEAD = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n"


def test_whoever_watches_is_told_once_when_the_head_is_there() -> None:
    bench, told = Bench(), list[int]()
    response = bench.ask()
    response.watch(lambda: told.append(response.status))
    bench.wire.data_received(HEAD % 4 + b"ab")
    assert told == [200]
    bench.wire.data_received(b"cd")
    assert (told, body(response)) == ([200], b"abcd")


def test_whoever_watches_is_told_too_when_there_will_be_none() -> None:
    bench, told = Bench(), list[str]()
    response = bench.ask()
    response.watch(lambda: told.append(str(response.failed())))
    bench.wire.connection_lost(None)
    assert told == ["h:1: the connection was closed before the answer"]
    assert response.status == 0


def test_whoever_does_not_want_to_know_any_more_is_not_told() -> None:
    bench, told = Bench(), list[int]()
    response = bench.ask()
    response.watch(lambda: told.append(response.status))
    bench.wire.data_received(b"HTTP/1.1 ")
    response.watch(None)
    bench.wire.data_received(b"200 OK\r\ncontent-length: 0\r\n\r\n")
    assert (told, response.status) == ([], 200)
