"""Recent: what has happened last, a line each, for an operator who asks.

    Events ──> Recent, so many lines ──last──> "2026-07-28T12:00:00Z anna called fs__read: success"

Refuses to keep what was asked or answered: of a call it keeps who, what and how it ended. It is no
journal: what is older is forgotten, and so is everything when the gateway ends.
"""

import time
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime

from trunkline.gateway.events import CallEnded, Event
from trunkline.gateway.telling import Ended, brief, words
from trunkline.visible import visible

MOST = 1000
"""How many lines are kept."""

LONGEST = 300
"""How long a line may be, in characters; what clients and servers say may be of any length."""

_NAME = 100
"""How much is kept of the name of a caller or a tool: there is room left for how it ended."""


class Recent:
    """The last of what has happened."""

    def __init__(
        self,
        hide: Callable[[str], str] = str,
        today: Callable[[], float] = time.time,
        most: int = MOST,
    ) -> None:
        """Begin with nothing; `hide` takes secrets out of what is said."""
        self._hide = hide
        self._today = today
        self._kept: deque[tuple[float, Ended | str]] = deque(maxlen=most)

    def __len__(self) -> int:
        return len(self._kept)

    def note(self, event: Event) -> None:
        """Take note of what has happened; calls are put into words when somebody asks."""
        if isinstance(event, CallEnded):
            self._kept.append((event.at, brief(event, _NAME)))
        else:
            # Hidden before it is cut, so that no half of a secret is left.
            self._kept.append((self._today(), self._hide(words(event))[: LONGEST + 1]))

    def last(self, lines: int) -> list[str]:
        """Return the last lines, oldest first."""
        kept = list(self._kept)
        return [self._line(at, event) for at, event in kept[max(0, len(kept) - lines) :]]

    def _line(self, at: float, event: Ended | str) -> str:
        when = datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        said = event if isinstance(event, str) else self._hide(words(event))
        return f"{when} {visible(said, LONGEST)}"
