"""Files of KEY=VALUE lines, as `env_file` names them.

    # a comment
    export TOKEN="two words"     # quotes and `export` may stay as they are
    DEBUG=1

Refuses what shells do beyond that: no references, no values of more than one line.
"""

import re

from trunkline.config.surroundings import Problem

_LINE = re.compile(r"(?:export\s+)?([^\s=#]+)\s*=\s*(.*)")
_QUOTED = re.compile(r"""("(?:[^"\\]|\\.)*+"|'[^']*+')\s*(?:#.*)?""")
_COMMENT = re.compile(r"(?:^|\s)#.*")
_ESCAPE = re.compile(r"\\(.)")
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t"}


def parse_env_file(text: str, name: str, problem: Problem) -> dict[str, str]:
    """Return the variables of `text`; a line that sets none is a problem."""
    variables: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        if not stripped or stripped.startswith("#"):
            continue
        found = _LINE.fullmatch(stripped)
        if found is None:
            # Not the line itself: what has no "=" may be the rest of a secret.
            problem(f"line {number} of {name} is not KEY=VALUE", "mend it, or put # before it")
        else:
            variables[found[1]] = _value(found[2])
    return variables


def _value(text: str) -> str:
    found = _QUOTED.fullmatch(text)
    if found is None:
        return _COMMENT.sub("", text, count=1).rstrip()
    inside = found[1][1:-1]
    if found[1][0] == "'":
        return inside
    return _ESCAPE.sub(lambda escape: _ESCAPES.get(escape[1], escape[1]), inside)
