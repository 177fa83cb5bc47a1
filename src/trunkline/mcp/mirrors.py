"""Mirrors: the headers of one HTTP request, as far as they must say what its body says."""

from collections.abc import Mapping
from typing import NamedTuple

from trunkline.jsonrpc import Raw
from trunkline.mcp.headers import HeaderMap, check_arguments


class Mirrors(NamedTuple):
    """The headers, names in lower case, and which of them came more than once."""

    headers: Mapping[bytes, bytes]
    repeated: frozenset[bytes]

    def check(self, mirrored: HeaderMap, arguments: Raw | None) -> None:
        """Refuse a call of a tool whose headers say something else than its arguments."""
        if mirrored:
            check_arguments(mirrored, arguments, self.headers, self.repeated)
