"""Operator: the built-in tools with which an operator looks after the gateway, over MCP.

    status, logs                      look
    pause, resume, kill, revive       change something, and are offered only where that is wanted

Refuses to offer the latter by itself: an agent that may call any tool could revive what a person
has killed. Which are offered is the configuration's to say, and who may call them the policy's.
"""

from typing import Annotated, Literal

from msgspec import Meta

from trunkline.backends.functions import Answer, Functions, asking
from trunkline.gateway.switches import NotSwitched
from trunkline.operator.desk import LINES, Desk, Done, Logs, Status
from trunkline.operator.recent import MOST

What = Annotated[
    Literal["tool", "server", "subject", "all"],
    Meta(description="What is meant: a tool, a server, a subject (one who calls), or all."),
]
Name = Annotated[
    str,
    Meta(
        max_length=256,
        description="Its name; of a tool also a pattern with * and ?. None for all.",
    ),
]
Lines = Annotated[int, Meta(description=f"How many lines, 1 to {MOST}; {LINES} unless set.")]


class Operator(Functions):
    """A backend of tools over a Desk."""

    def __init__(self, desk: Desk, changes: bool = False) -> None:
        """Offer the tools that look, and with `changes` also those that change something."""
        super().__init__()
        self._desk = desk
        look = {"readOnlyHint": True, "openWorldHint": False}
        self.tool("status", output=Status, **look)(self.status)
        self.tool("logs", output=Logs, **look)(self.logs)
        if changes:
            change = {"readOnlyHint": False, "idempotentHint": True, "openWorldHint": False}
            for name, function, destroys in (
                ("pause", self.pause, True),
                ("resume", self.resume, False),
                ("kill", self.kill, True),
                ("revive", self.revive, False),
            ):
                self.tool(name, output=Done, destructiveHint=destroys, **change)(function)

    def status(self) -> Status:
        """Say how the gateway is.

        Its version and uptime, whether it is paused, what is stopped and by whom, its sessions,
        calls in flight and parked, and of each server its state, why it is not ready, and when it
        is tried again.
        """
        return self._desk.status()

    def logs(self, lines: Lines = LINES) -> Logs:
        """Return the last of what has happened in the gateway, a line each, oldest first."""
        return self._desk.logs(lines)

    def pause(self) -> Answer:
        """Answer every call with an error until `resume`; calls under way go on, lists work."""
        return _said(self._desk.pause(_who()))

    def resume(self) -> Answer:
        """Answer calls again after a pause."""
        return _said(self._desk.resume(_who()))

    async def kill(self, what: What, name: Name = "") -> Answer:
        """Stop a tool, a server, a subject or everything, at once and until it is revived.

        Calls under way are ended, new ones answered with an error, and what is stopped is not
        listed. It stays stopped when the gateway is started again.
        """
        try:
            return _said(await self._desk.kill(what, name, _who()))
        except NotSwitched as why:
            return Answer(str(why), is_error=True)

    async def revive(self, what: What, name: Name = "") -> Answer:
        """Let something go on that was killed; what the configuration stops, it does not revive."""
        try:
            return _said(await self._desk.revive(what, name, _who()))
        except NotSwitched as why:
            return Answer(str(why), is_error=True)


def _who() -> str:
    return asking().principal.subject


def _said(done: Done) -> Answer:
    return Answer("\n".join((done.message, *done.notes)), done)
