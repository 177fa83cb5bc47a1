"""Inquiry: finding out which era a server belongs to, as what to do next after what was heard.

    next ──> DISCOVER, INITIALIZE ──> ask it ──> WAIT ──> discovered, refused, silent, ended ──┐
      ▲                                                                                        │
      └────────────────────────────────────────────────────────────────────────────────────────┘
    an answer to `server/discover` with a version that we know, or a welcome, ends it

Refuses to ask: how questions are carried, and what a server is, is for others to know.

Rules upheld here:
1. `server/discover` comes first, unless the server is known to shake hands.
2. A probe that is silent is not withdrawn: its answer counts for as long as nobody was welcomed.
3. What follows from silence is no conclusion.
4. It ends: no server is asked the same more than twice, nor started again more than once.
"""

from enum import StrEnum

from trunkline.mcp.probe import Verdict
from trunkline.mcp.versions import Era

PATIENCE = 1.0
"""How long, in seconds, a child may be silent before it is asked to shake hands as well.

One that is up answers within milliseconds, so that this is what users of a silent one wait for. One
that is still starting loses nothing: it finds both questions, and answers the first one first.
"""

LONG_PATIENCE = 10.0
"""How long, in seconds, a child may be silent that is known to belong to the envelope era, or that
has refused to shake hands: it is still starting, or nothing else is left to ask."""


class Step(StrEnum):
    """What to do next."""

    DISCOVER = "server/discover"
    INITIALIZE = "initialize"
    WAIT = "wait"
    """for what was asked, but no longer than `patience`"""
    START_AGAIN = "start again"
    FAIL = "fail"


class Inquiry:
    """What was asked and heard of one server so far, and what follows from it."""

    def __init__(self, remembered: Era | None = None) -> None:
        """Begin; `remembered` is what the server was before."""
        self._remembered = remembered
        self._probes = 0
        self._probing = False
        self._probed: Verdict | None = None
        self._certain = False
        self._greeting = False
        self._refused: Verdict | None = None
        self._silent = False
        self._ended = False
        self._ends_when_probed = False

    @property
    def conclusive(self) -> bool:
        """Tell whether it is certain that the server, if it shakes hands, can do nothing else."""
        return self._ends_when_probed or self._certain

    @property
    def patience(self) -> float | None:
        """How many seconds to wait before it counts as silence, None for as long as it takes."""
        if self._greeting:
            return None
        known = self._remembered is Era.ENVELOPE or self._refused is not None
        return LONG_PATIENCE if known else PATIENCE

    @property
    def blame(self) -> Step:
        """Which of the two questions was answered with why it failed."""
        return Step.INITIALIZE if self._probed in (None, Verdict.HANDSHAKE) else Step.DISCOVER

    # What was heard

    def discovered(self, verdict: Verdict, certain: bool = True) -> None:
        """Take note of an answer to `server/discover` that names no version that we know.

        Without `certain` there was none, and there will be none.
        """
        self._probing, self._probed, self._certain = False, verdict, certain

    def refused(self, verdict: Verdict) -> None:
        """Take note that the server does not shake hands."""
        self._greeting, self._refused = False, verdict
        if verdict is Verdict.ENVELOPE and self._probes < 2:
            self._probed = None  # it was misjudged

    def silent(self) -> None:
        """Take note that nothing was heard for as long as patience lasts."""
        self._silent = True

    def ended(self) -> None:
        """Take note that the server has ended."""
        self._ended = True

    # What to do

    def next(self) -> Step:
        """Return what to do next, and take it for done."""
        step = self._choose()
        if step is Step.DISCOVER:
            self._probes += 1
            self._probing, self._silent = True, False
        elif step is Step.INITIALIZE:
            self._greeting, self._silent = True, False
        elif step is Step.START_AGAIN:
            self._ends_when_probed, self._ended = True, False
            self._probing = self._greeting = False
            self._probed = self._refused = None
        return step

    def _choose(self) -> Step:
        if self._ended:
            again = self._probes and not self._ends_when_probed
            return Step.START_AGAIN if again else Step.FAIL
        if self._probed not in (None, Verdict.HANDSHAKE) or self._refused is Verdict.UNKNOWN:
            return Step.FAIL
        if self._greeting:
            return Step.WAIT
        if self._refused is not None:
            return self._choose_when_refused()
        if self._probing:
            return Step.INITIALIZE if self._silent else Step.WAIT
        shakes_hands = self._remembered is Era.HANDSHAKE or self._ends_when_probed
        return Step.INITIALIZE if self._probed or shakes_hands else Step.DISCOVER

    def _choose_when_refused(self) -> Step:
        if self._probing:
            return Step.FAIL if self._silent else Step.WAIT
        return Step.FAIL if self._probed or self._ends_when_probed else Step.DISCOVER
