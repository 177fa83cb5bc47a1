"""Mirrors: the headers of HTTP requests, as far as they must say what the body says."""

from collections.abc import Mapping

from msgspec import Struct

from trunkline.jsonrpc import Raw
from trunkline.mcp.headers import HeaderMap, Mirrored, check_arguments, check_mirrors, mirrored
from trunkline.mcp.meta import Params

_SHORT = 256
"""How long that may be, in bytes, which is kept of a body."""


class Mirrors(Struct, eq=False):
    """The headers, names in lower case, and which of them came more than once.

    Many requests may have the same.
    """

    headers: Mapping[bytes, bytes]
    repeated: frozenset[bytes]
    agreed: Mirrored | None = None
    """What a body said to which they were found to say the same: another need not be compared."""

    def check_body(self, method: str, params: Params) -> None:
        """Refuse a request whose headers say something else than its body."""
        said = mirrored(method, params)
        if said != self.agreed:
            check_mirrors(self.headers, self.repeated, method, params)
            _, version, name = said
            self.agreed = (method, _kept(version), _kept(name))

    def check(self, marked: HeaderMap, arguments: Raw | None) -> None:
        """Refuse a call of a tool whose headers say something else than its arguments."""
        check_arguments(marked, arguments, self.headers, self.repeated)


def _kept(raw: Raw | None) -> Raw | None:
    """Return what to keep of a body: nothing that is long, and nothing that keeps all of it.

    None is as good: where a body says nothing, there is nothing to compare.
    """
    return None if raw is None or len(raw) > _SHORT else raw.copy()
