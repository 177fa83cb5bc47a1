"""Those who hold a line open are made sure of again and again."""

from typing import Any

import pytest

from tests.transports.exchanges import asked
from trunkline.mcp.principal import Principal
from trunkline.transports.exchange import HttpRequest
from trunkline.transports.http_guard import Challenge
from trunkline.transports.http_vigil import Held, Vigil

ADA = Principal("ada", roles=("dev",))


class Doubt:
    """A guard that says what the test says."""

    def __init__(self, known: Principal | None, found: Principal | Challenge) -> None:
        self.known, self.found = known, found
        self.asked = 0

    def recognise(self, request: HttpRequest) -> Principal | None:
        return self.known

    async def identify(self, request: HttpRequest) -> Principal | Challenge:
        self.asked += 1
        return self.found


class Line:
    def __init__(self, vigil: Vigil) -> None:
        self.over = False
        self.held = Held(asked(), ADA, lambda: self.over, self.end)
        vigil.hold(self.held)

    def end(self) -> None:
        self.over = True


def test_who_is_recognised_is_not_in_doubt() -> None:
    vigil = Vigil()
    line = Line(vigil)
    assert vigil.doubtful(Doubt(ADA, ADA)) == []
    assert vigil.doubtful(Doubt(None, ADA)) == [line.held]
    assert vigil.doubtful(Doubt(Principal("bob"), ADA)) == [line.held]


def test_what_is_over_is_forgotten() -> None:
    vigil = Vigil()
    lines = [Line(vigil), Line(vigil)]
    lines[0].end()
    assert vigil.doubtful(Doubt(None, ADA)) == [lines[1].held]
    assert len(vigil) == 1


@pytest.mark.parametrize(
    ("found", "over"),
    [
        (ADA, False),
        (Challenge(401, "expired"), True),
        (Challenge(403, "not any more"), True),
        (Challenge(429, "too many"), True),
        (Challenge(503, "nobody knows"), False),
        (Principal("bob", roles=("dev",)), True),
        (Principal("ada", roles=("other",)), True),
    ],
)
async def test_a_line_ends_unless_it_is_still_the_same_one(found: Any, over: bool) -> None:
    vigil = Vigil()
    line = Line(vigil)
    guard = Doubt(None, found)
    await vigil.ask(line.held, guard)
    assert (line.over, guard.asked) == (over, 1)


async def test_nobody_is_asked_twice_at_once() -> None:
    vigil = Vigil()
    line = Line(vigil)
    line.held.asking = True
    assert vigil.doubtful(Doubt(None, ADA)) == []
    line.held.asking = False

    class Broken(Doubt):
        async def identify(self, request: HttpRequest) -> Principal | Challenge:
            assert line.held.asking
            raise RuntimeError("oops")

    with pytest.raises(RuntimeError):
        await vigil.ask(line.held, Broken(None, ADA))
    assert not line.held.asking
    assert not line.over
