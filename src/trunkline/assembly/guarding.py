"""Guarding: who stands at the door, as `[auth]` has it now, and who takes their place later.

    Guarding ──open──> a guard and its pages, for a new door
             ──prepare──> others for the same door, when the configuration has changed
             ──identify──> who started this process, for stdio

Refuses to import what makes sure of anybody unless somebody is asked: a client that starts us over
stdio does not wait for that.

Rule upheld here: a guard that cannot be made leaves everything as it is, and no door without one.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from trunkline.config import AuthSettings, HttpSettings
from trunkline.mcp.principal import LOCAL, Principal

if TYPE_CHECKING:
    from trunkline.auth.guard import TokenGuard
    from trunkline.transports.http_guard import Guard, Pages
    from trunkline.transports.http_server import HttpServer

HEEDED = ("auth", "http.path", "http.certificate")
"""The tables and keys by which a guard is made: if none differs, the one who stands there stays."""


class Guarding:
    """Makes guards, one at a time."""

    def __init__(self, auth: AuthSettings | None, tell: Callable[[str, str], None]) -> None:
        """Begin with nobody at the door; `tell` hears of those who are turned away, and why."""
        self._auth = auth
        self._tell = tell
        self._guard: TokenGuard | None = None

    @property
    def asks(self) -> bool:
        """Tell whether anybody is asked who they are."""
        return self._auth is not None and self._auth.asks

    async def identify(self, environ: Mapping[str, str]) -> Principal:
        """Return who started this process; raises ValueError, with a remedy, if nobody knows."""
        if self._auth is None or not self._auth.asks:
            return LOCAL
        from trunkline.assembly.identity import identify_stdio  # noqa: PLC0415

        return await identify_stdio(self._auth, environ)

    def open(self, http: HttpSettings) -> "tuple[Guard, Pages]":
        """Return who stands at a door, and what everybody may read there; needs a running loop.

        Raises ValueError for files that are no good.
        """
        return self._install(self._make(self._auth, http))

    def prepare(
        self, auth: AuthSettings | None, http: HttpSettings, door: "HttpServer | None"
    ) -> Callable[[], None]:
        """Return what has others ask as `auth` has it; nothing proven before counts from then on.

        Raises ValueError for files that are no good, and then nothing is different.
        """
        guard = None if door is None else self._make(auth, http)

        def apply() -> None:
            self._auth = auth
            if door is not None:
                old = {} if self._guard is None else self._guard.resource.pages()
                kept = {path: page for path, page in door.pages.items() if path not in old}
                door.guard, pages = self._install(guard)
                door.pages = {**kept, **pages}

        return apply

    def _make(self, auth: AuthSettings | None, http: HttpSettings) -> "TokenGuard | None":
        if auth is None or not auth.asks:
            return None
        from trunkline.assembly.identity import guard_of  # noqa: PLC0415

        return guard_of(auth, http, self._tell)

    def _install(self, guard: "TokenGuard | None") -> "tuple[Guard, Pages]":
        from trunkline.transports.http_guard import Open  # noqa: PLC0415

        self.stop()
        self._guard = guard
        if guard is None:
            return Open(), {}
        guard.start()
        return guard, guard.resource.pages()

    def stop(self) -> None:
        """Let whoever stands at the door go."""
        if self._guard is not None:
            self._guard.stop()
            self._guard = None
