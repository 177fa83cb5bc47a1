"""The runs: a suite, a revision, and the route between the suite and the server.

    direct   suite ──HTTP──> server
    stdio    suite ──HTTP──> gateway ──stdio──> server
    http     suite ──HTTP──> gateway ──HTTP───> server

The suite is a client of its revision's protocol. Behind the gateway the server speaks the same
protocol or the other one, which makes four pairs; a direct run has one protocol.
"""

from collections.abc import Collection, Iterator
from itertools import product
from pathlib import Path
from typing import Literal, NamedTuple

Route = Literal["direct", "stdio", "http"]
Era = Literal["session", "stateless"]

ROUTES: tuple[Route, ...] = ("direct", "stdio", "http")
ERAS: tuple[Era, ...] = ("session", "stateless")
MODULES = Path(__file__).parent / "node_modules"
NEXT = "conformance-next"
STABLE = "conformance-stable"

_SESSION_REVISIONS = ("2025-06-18", "2025-11-25")
_STATELESS = "2026-07-28"


class Pair(NamedTuple):
    """The protocol of the client, and that of the server."""

    client: Era
    server: Era

    @property
    def title(self) -> str:
        """Its name on the command line, and that of its baseline."""
        return f"{self.client}-{self.server}"


PAIRS = tuple(Pair(client, server) for client in ERAS for server in ERAS)


class Subject(NamedTuple):
    """One suite at one revision."""

    suite: str
    revision: str

    @property
    def title(self) -> str:
        """Its name for people."""
        return self.revision if self.suite == NEXT else f"{self.revision} (0.1.16)"

    @property
    def era(self) -> Era:
        """Its protocol, by the name in the gateway's configuration."""
        return "stateless" if self.revision == _STATELESS else "session"

    @property
    def requirements(self) -> Path:
        """The suite's list of scored scenarios; not every revision has one."""
        return MODULES / self.suite / "requirements" / f"{self.revision}.yaml"

    def arguments(self) -> list[str]:
        """Return the suite's command line arguments."""
        if self.requirements.exists():
            return ["--requirements", self.revision]
        return ["--suite", "all", "--spec-version", self.revision]

    def counts(self, scenario: str) -> bool:
        """Return whether a scenario is scored; without a list, all are."""
        return not self.requirements.exists() or scenario in scored(self.requirements)


class Run(NamedTuple):
    """A subject, the route to the server, and the server's protocol."""

    subject: Subject
    route: Route
    server: Era

    @property
    def pair(self) -> Pair:
        """The protocols of client and server."""
        return Pair(self.subject.era, self.server)

    @property
    def title(self) -> str:
        """Its name in tables and baselines."""
        crossing = f" to {self.server}" if self.server != self.subject.era else ""
        return f"{self.subject.title} {self.route}{crossing}"


SUBJECTS = (
    *(Subject(NEXT, revision) for revision in (*_SESSION_REVISIONS, _STATELESS)),
    *(Subject(STABLE, revision) for revision in _SESSION_REVISIONS),
)


def runs(routes: Collection[Route], pairs: Collection[Pair]) -> Iterator[Run]:
    """Yield the possible runs."""
    for subject, server, route in product(SUBJECTS, ERAS, ROUTES):
        run = Run(subject, route, server)
        possible = route != "direct" or server == subject.era
        if possible and route in routes and run.pair in pairs:
            yield run


def scored(path: Path) -> set[str]:
    """Parse the list under `server:` in a requirement file, a simple subset of YAML."""
    names: set[str] = set()
    inside = False
    for line in path.read_text(encoding="utf-8").splitlines():
        if line[:1] not in {" ", "#", ""}:
            inside = line == "server:"
        elif inside and line.startswith("  - "):
            names.add(line.removeprefix("  - "))
    return names
