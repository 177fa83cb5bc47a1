"""What is run: which suite, at which revision, and what stands between it and the server.

    direct   suite ──HTTP──> server
    stdio    suite ──HTTP──> gateway ──stdio──> server
    http     suite ──HTTP──> gateway ──HTTP───> server

The suite is a client of its own revision's era. Behind the gateway the server is spoken to in the
same era or in the other one, which makes four pairs; directly there is nothing that could cross.
"""

from collections.abc import Collection, Iterator
from itertools import product
from pathlib import Path
from typing import Literal, NamedTuple

Way = Literal["direct", "stdio", "http"]
Era = Literal["handshake", "envelope"]

WAYS: tuple[Way, ...] = ("direct", "stdio", "http")
ERAS: tuple[Era, ...] = ("handshake", "envelope")
MODULES = Path(__file__).parent / "node_modules"
NEXT = "conformance-next"
STABLE = "conformance-stable"

_HANDSHAKE = ("2025-06-18", "2025-11-25")
_ENVELOPE = "2026-07-28"


class Pair(NamedTuple):
    """The era of the client, and the one in which the server is spoken to."""

    client: Era
    server: Era

    @property
    def title(self) -> str:
        """How it is called on the command line, and its baseline."""
        return f"{self.client}-{self.server}"


PAIRS = tuple(Pair(client, server) for client in ERAS for server in ERAS)


class Subject(NamedTuple):
    """One suite at one revision."""

    suite: str
    revision: str

    @property
    def title(self) -> str:
        """How a person calls it."""
        return self.revision if self.suite == NEXT else f"{self.revision} (0.1.16)"

    @property
    def era(self) -> Era:
        """Which MCP this is, as the gateway's configuration calls it."""
        return "envelope" if self.revision == _ENVELOPE else "handshake"

    @property
    def requirements(self) -> Path:
        """Where the suite says which of its scenarios count; not every revision has that."""
        return MODULES / self.suite / "requirements" / f"{self.revision}.yaml"

    def arguments(self) -> list[str]:
        """Return what makes the suite run it."""
        if self.requirements.exists():
            return ["--requirements", self.revision]
        return ["--suite", "all", "--spec-version", self.revision]

    def counts(self, scenario: str) -> bool:
        """Say whether a scenario is scored; all are, where nothing else is said."""
        return not self.requirements.exists() or scenario in scored(self.requirements)


class Run(NamedTuple):
    """A subject, the way to the server, and the era in which the server is spoken to."""

    subject: Subject
    way: Way
    server: Era

    @property
    def pair(self) -> Pair:
        """Which eras meet in it."""
        return Pair(self.subject.era, self.server)

    @property
    def title(self) -> str:
        """How it is called in tables and in the baselines."""
        crossing = f" to {self.server}" if self.server != self.subject.era else ""
        return f"{self.subject.title} {self.way}{crossing}"


SUBJECTS = (
    *(Subject(NEXT, revision) for revision in (*_HANDSHAKE, _ENVELOPE)),
    *(Subject(STABLE, revision) for revision in _HANDSHAKE),
)


def runs(ways: Collection[Way], pairs: Collection[Pair]) -> Iterator[Run]:
    """Yield what is to be run."""
    for subject, server, way in product(SUBJECTS, ERAS, WAYS):
        run = Run(subject, way, server)
        possible = way != "direct" or server == subject.era
        if possible and way in ways and run.pair in pairs:
            yield run


def scored(path: Path) -> set[str]:
    """Read the list under `server:` in a requirement file; it is plain enough for that."""
    names: set[str] = set()
    inside = False
    for line in path.read_text(encoding="utf-8").splitlines():
        if line[:1] not in {" ", "#", ""}:
            inside = line == "server:"
        elif inside and line.startswith("  - "):
            names.add(line.removeprefix("  - "))
    return names
