# Invariant: arguments that are accepted are read as the standard library reads them, without
# duplicate keys; a condition compiles or says why not, and holds, does not hold, or fails; names
# match a pattern exactly if the equal regular expression matches. Never another exception.
"""Fuzz what policies read: `python -m fuzz.policy -max_total_time=60`."""

import json
import re
import sys
from contextlib import suppress
from typing import Any

import atheris

from fuzz.inputs import mutated_bytes, mutated_text

with atheris.instrument_imports(include=["trunkline"]):
    from trunkline.jsonrpc import Raw
    from trunkline.routing.conditions import (
        Condition,
        ConditionError,
        ConditionFailed,
        StrictArguments,
        read_strict_arguments,
    )
    from trunkline.routing.naming import matches_pattern

FACTS: dict[str, Any] = {
    "tool": "fs__read",
    "backend": "fs",
    "kind": "tool",
    "subject": "anna",
    "role": "dev",
    "roles": ["dev"],
    "client": "",
    "annotations": {"readOnlyHint": True},
}

ARGUMENTS = [
    b'{"path":"/etc/passwd","n":18446744073709551615,"list":[1,2.5,null,true,{"x":"\\u00e9"}]}',
    b'{"a":{"b":{"c":[]}},"\\u0061":1}',
]

CONDITIONS = [
    "has(args.path) && args.path.startsWith('/etc')",
    "args.list.exists(x, x == 2.5) || subject in ['anna', 'bob']",
    "args.n > 10 ? tool.matches('^fs__.*') : annotations.readOnlyHint",
    "size(args.path) < 100 && !args.path.contains('..')",
]


def object_without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    assert len(found) == len(pairs)
    return found


def read(provider: atheris.FuzzedDataProvider) -> StrictArguments:
    raw = mutated_bytes(provider, ARGUMENTS)
    try:
        found = read_strict_arguments(Raw(raw))
    except ValueError:
        return StrictArguments({}, 0)
    assert found.members == json.loads(raw, object_pairs_hook=object_without_duplicates)
    return found


def check_pattern(pattern: str, text: str) -> None:
    parts = {"*": ".*", "?": "."}
    expression = "".join(parts.get(one) or re.escape(one) for one in pattern)
    expected = re.fullmatch(expression, text, re.DOTALL) is not None
    assert matches_pattern(pattern, text) == expected, (pattern, text)


def check(data: bytes) -> None:
    provider = atheris.FuzzedDataProvider(data)
    arguments = read(provider)
    letters = "ab*?_"
    pattern, text = (
        "".join(letters[provider.ConsumeIntInRange(0, 4)] for _ in range(8)) for _ in range(2)
    )
    check_pattern(pattern, text)
    try:
        condition = Condition(mutated_text(provider, CONDITIONS))
    except ConditionError as error:
        assert "\n" not in error.reason
        return
    with suppress(ConditionFailed):
        assert condition.holds(FACTS, arguments) in {True, False}


if __name__ == "__main__":
    atheris.Setup([*sys.argv, "-max_len=1024", "-len_control=0", "-timeout=20"], check)
    atheris.Fuzz()
