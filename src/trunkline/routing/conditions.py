"""Conditions: the `when` of a rule, in CEL, the Common Expression Language of Google.

    "has(args.path) && args.path.startsWith('/etc')" ──> Condition ──holds(facts)──> yes, or no,
                                                                               or ConditionFailed

Refuses to say what a failure means: a condition that asks for a key that is not there neither holds
nor does not, and whoever asked decides what follows.

Rules upheld here:
1. What cannot be understood is refused when it is read, with the line and the column of the place:
   syntax, names, functions, types as far as they are known, and whatever does not say yes or no.
2. A condition sees what it is told and nothing else: no clock, no files, no network.
3. It costs little: it is short, goes round a bounded number of times, and is asked nothing that it
   would read otherwise than the server does.

The one file that knows the library; the library is looked for only if a condition is there.
"""

import re
from collections.abc import Mapping
from functools import cache
from typing import Any

from trunkline.routing.legible import NO_ARGUMENTS, Arguments

MAX_LENGTH = 2000
"""How long a condition may be, in characters."""

MAX_VALUES = 1000
"""How many values the arguments may have for a condition that goes through them one by one."""

VARIABLES = (
    *("args", "tool", "backend", "kind"),
    *("subject", "role", "roles", "client", "annotations"),
)
"""What a condition can ask about."""

_PLACE = re.compile(r"ERROR: <input>:(-?\d+):(-?\d+): (?:Syntax error: )?([^\n]*)")
_GOES_THROUGH = re.compile(r"\b(all|exists|exists_one|map|filter|in)\b")


class ConditionError(ValueError):
    """A condition that cannot be: why, and where in it, counted from 1."""

    def __init__(self, why: str, line: int = 1, column: int = 1) -> None:
        super().__init__(why)
        self.why, self.line, self.column = why, line, column


class ConditionFailed(Exception):
    """A condition to which there is no answer; its text is for operators, it may name arguments."""


class Condition:
    """One condition, ready to be asked."""

    def __init__(self, source: str) -> None:
        """Read it; raises ConditionError."""
        if len(source) > MAX_LENGTH:
            raise ConditionError(f"expected at most {MAX_LENGTH} characters, got {len(source)}")
        self.source = source
        self._expression = _compile(source, VARIABLES)
        kind = self._expression.return_type().name()
        if kind.lower() not in {"bool", "dyn"}:
            raise ConditionError(f"expected something that is true or false, got {kind.lower()}")
        self.reads = frozenset(name for name in VARIABLES if _needs(source, name))
        """The variables that it asks about."""
        self._facts = tuple(sorted(self.reads - {"args"}))
        self._goes_through = _GOES_THROUGH.search(source) is not None

    def holds(self, facts: Mapping[str, Any], arguments: Arguments = NO_ARGUMENTS) -> bool:
        """Answer; raises ConditionFailed."""
        if self._goes_through and arguments.size > MAX_VALUES:
            raise ConditionFailed(f"expected at most {MAX_VALUES} values")
        asked: dict[str, Any] = {"args": arguments.members}
        for name in self._facts:
            fact = asked[name] = facts[name]
            if isinstance(fact, str) and "\0" in fact:
                raise ConditionFailed("expected text without NUL")  # where the library would stop
        try:
            answer = self._expression.eval(data=asked).value()
        except RuntimeError as why:
            raise ConditionFailed(str(why)) from None
        if not isinstance(answer, bool):
            raise ConditionFailed(f"expected true or false, got {answer!r}")
        return answer

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Condition) and self.source == other.source

    def __hash__(self) -> int:
        return hash(self.source)


def _needs(source: str, name: str) -> bool:
    """Tell whether a condition asks about a variable: then it means nothing without it."""
    try:
        _compile(source, tuple(known for known in VARIABLES if known != name))
    except ConditionError:
        return True
    return False


def _compile(source: str, names: tuple[str, ...]) -> Any:
    try:
        return _environment(names).compile(source)
    except RuntimeError as why:
        raise _explained(str(why)) from None


@cache
def _environment(names: tuple[str, ...]) -> Any:
    # Only whoever has conditions waits for it; it says nothing of its types.
    from cel_expr_python import cel  # noqa: PLC0415  # pyright: ignore[reportMissingTypeStubs]

    text = cel.Type.STRING
    types = dict.fromkeys(VARIABLES, text) | {
        "args": cel.Type.Map(text, cel.Type.DYN),
        "roles": cel.Type.List(text),
        "annotations": cel.Type.Map(text, cel.Type.BOOL),
    }
    return cel.NewEnv(variables={name: types[name] for name in names})


def _explained(text: str) -> ConditionError:
    """Return what the library has to say, in one line and with its place."""
    found = _PLACE.search(text)
    if found is None:
        return ConditionError("nested too deeply" if "recursion" in text else "cannot be read")
    line, column = max(1, int(found[1])), max(1, int(found[2]))
    why, _, _ = found[3].partition(" expecting {")
    why = why.replace(" (in container '')", "").replace("'<EOF>'", "the end")
    why = why.removesuffix(" [INVALID_ARGUMENT]")
    return ConditionError(why[:1].lower() + why[1:], line, column)
