"""Telling what has happened: everybody who listens, and nobody is kept waiting by another."""

from typing import Any

from trunkline.gateway.events import Event, Events, Switched
from trunkline.jsonrpc import Incident

NEWS = Switched("tool", "a__b", off=True, by="ann")


def test_everybody_who_listens_is_told_until_they_do_not_want_to_any_more() -> None:
    events, one, two = Events(), list[Event](), list[Event]()
    assert not events
    end_one = events.listen(one.append)
    events.listen(two.append)
    assert events
    events.tell(NEWS)
    end_one()
    end_one()
    events.tell(NEWS)
    assert (one, two) == ([NEWS], [NEWS, NEWS])


def test_one_who_fails_is_reported_and_keeps_the_others_from_nothing() -> None:
    reports, told = list[Incident](), list[Event]()
    events = Events(reports.append)

    def fail(event: Any) -> None:
        raise OSError("disk full")

    events.listen(fail)
    events.listen(told.append)
    events.tell(NEWS)
    assert told == [NEWS]
    assert [(report.method, str(report.error)) for report in reports] == [("Switched", "disk full")]
