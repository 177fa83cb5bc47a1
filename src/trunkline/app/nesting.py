"""Gateways that are servers of gateways: allowed, unless one would start itself without end.

    gateway ──variable──> command, wrappers such as `uvx`, `npx` or `sh -c` ──variable──> gateway

The variable has one digest of a configuration file for each gateway above. Servers with a `command`
get it in addition to their clean environment.

Invariants:
1. A gateway is not started below a gateway with the same configuration file.
2. At most MAX_NESTED_GATEWAYS gateways are nested, the outermost one included.
"""

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

NESTING_VARIABLE = "TRUNKLINE_NESTING"
"""Has the digests of the configurations of the gateways above this process, the outermost first."""

MAX_NESTED_GATEWAYS = 3

_SEPARATOR = ":"
# For a gateway without a file, which is told by the depth only
_NO_FILE = "-"


def nesting_variables(environ: Mapping[str, str], source: Path | None) -> dict[str, str]:
    """Return the variable for the commands of a gateway with the configuration file `source`."""
    return {NESTING_VARIABLE: _SEPARATOR.join((*_digests_above(environ), _digest(source)))}


def find_nesting_error(environ: Mapping[str, str], source: Path | None) -> str | None:
    """Return why a gateway with the file `source` must not run in this process; None if it may."""
    above = _digests_above(environ)
    if source is not None and _digest(source) in above:
        return (
            f"this gateway has started itself again, with the same configuration {source};"
            " remove the server that starts it, or give it another --config"
        )
    if len(above) >= MAX_NESTED_GATEWAYS:
        return (
            f"{len(above)} gateways have started each other, and would start this one; "
            f"at most {MAX_NESTED_GATEWAYS} may be nested"
        )
    return None


def _digests_above(environ: Mapping[str, str]) -> list[str]:
    return [each for each in environ.get(NESTING_VARIABLE, "").split(_SEPARATOR) if each]


def _digest(source: Path | None) -> str:
    if source is None:
        return _NO_FILE
    # Not the path as it is written: links lead to the same file.
    return hashlib.sha256(os.fsencode(os.path.realpath(source))).hexdigest()[:16]
