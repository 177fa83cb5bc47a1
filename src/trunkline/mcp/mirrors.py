"""Mirrors: the headers of HTTP requests, as far as they must say what the body says."""

from collections.abc import Mapping

from msgspec import Struct

from trunkline.jsonrpc import Raw
from trunkline.mcp.envelope import expect_envelope
from trunkline.mcp.headers import (
    HeaderMap,
    Mirrored,
    check_arguments,
    check_mirrors,
    mirrored,
    refuse_repeated,
)
from trunkline.mcp.meta import Meta, Params

_SHORT = 256
"""How long a name may be that is kept of a body."""


class Mirrors(Struct, eq=False):
    """The headers, names in lower case, and which of them came more than once.

    Many requests may have the same.
    """

    headers: Mapping[bytes, bytes]
    repeated: frozenset[bytes]
    agreed: Mirrored | None = None
    """What a body said to which they were found to say the same: another need not be compared."""

    def check_body(self, method: str, params: Params) -> None:
        """Refuse a request whose headers say something else than its body.

        Before that, one that has such a header twice, or no envelope.
        """
        body = mirrored(method, params)
        if body != self.agreed:
            refuse_repeated(self.repeated)
            expect_envelope(params)
            check_mirrors(self.headers, self.repeated, method, params)
            self.agreed = _kept(*body)

    def check(self, marked: HeaderMap, arguments: Raw | None) -> None:
        """Refuse a call of a tool whose headers say something else than its arguments."""
        check_arguments(marked, arguments, self.headers, self.repeated)


def _kept(method: str, said: Meta | None, name: str | None) -> Mirrored:
    """Return what to keep of a body: nothing that is long.

    None is as good: where a body says nothing, there is nothing to compare.
    """
    short = name is not None and len(name) <= _SHORT
    return method, said if said is not None and said.lasting else None, name if short else None
