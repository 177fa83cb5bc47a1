"""What is run: which suite, at which revision, and what stands between it and the server.

    direct   suite ──HTTP──> server
    stdio    suite ──HTTP──> gateway ──stdio──> server
    http     suite ──HTTP──> gateway ──HTTP───> server

The server and the suite are of the same era in every run.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Literal, NamedTuple

Way = Literal["direct", "stdio", "http"]

WAYS: tuple[Way, ...] = ("direct", "stdio", "http")
MODULES = Path(__file__).parent / "node_modules"
NEXT = "conformance-next"
STABLE = "conformance-stable"

_HANDSHAKE = ("2025-06-18", "2025-11-25")
_ENVELOPE = "2026-07-28"


class Subject(NamedTuple):
    """One suite at one revision."""

    suite: str
    revision: str

    @property
    def title(self) -> str:
        """How a person calls it."""
        return self.revision if self.suite == NEXT else f"{self.revision} (0.1.16)"

    @property
    def era(self) -> str:
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
    """A subject, and the way to the server."""

    subject: Subject
    way: Way

    @property
    def title(self) -> str:
        """How it is called in tables and in the baseline."""
        return f"{self.subject.title} {self.way}"


SUBJECTS = (
    *(Subject(NEXT, revision) for revision in (*_HANDSHAKE, _ENVELOPE)),
    *(Subject(STABLE, revision) for revision in _HANDSHAKE),
)


def runs(ways: tuple[Way, ...]) -> Iterator[Run]:
    """Yield what is to be run."""
    for subject in SUBJECTS:
        for way in ways:
            yield Run(subject, way)


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
