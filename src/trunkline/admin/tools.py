"""Operator tools: built-in MCP tools to inspect and control the gateway.

    status, logs                      read only
    pause, resume, kill, revive       change the gateway; offered only if the configuration says so

Changing tools are off by default: an agent that may call any tool could revive what a person has
killed. The configuration decides which tools are offered, the policy who may call them.
"""

from typing import Annotated, Literal

from msgspec import Meta

from trunkline.admin.service import (
    DEFAULT_LINES,
    MAX_RECENT_LINES,
    AdminService,
    CommandResult,
    GatewayState,
    RecentEvents,
)
from trunkline.backends.functions import FunctionBackend, ToolResult, current_caller
from trunkline.gateway.kill_switch import SwitchError

TargetKind = Annotated[
    Literal["tool", "server", "subject", "all"],
    Meta(description="The kind of target: a tool, a server, a subject (a caller), or all."),
]
TargetName = Annotated[
    str,
    Meta(
        max_length=256,
        description="The name; for a tool also a pattern with * and ?. Empty for all.",
    ),
]
LineCount = Annotated[
    int,
    Meta(
        ge=1,
        le=MAX_RECENT_LINES,
        description=f"Number of lines, 1 to {MAX_RECENT_LINES}; default {DEFAULT_LINES}.",
    ),
]


class OperatorTools(FunctionBackend):
    """A backend that offers an AdminService as MCP tools."""

    def __init__(self, service: AdminService, changes: bool = False) -> None:
        """Offer the read-only tools, and with `changes` also those that change the gateway."""
        super().__init__()
        self._service = service
        reads = {"readOnlyHint": True, "openWorldHint": False}
        self.tool("status", output=GatewayState, **reads)(self.status)
        self.tool("logs", output=RecentEvents, **reads)(self.logs)
        # Tools that are not offered cannot be called either, even if the policy allows them.
        if changes:
            # A repeated call changes nothing more, so clients may retry.
            writes = {"readOnlyHint": False, "idempotentHint": True, "openWorldHint": False}
            for name, function, is_destructive in (
                ("pause", self.pause, True),
                ("resume", self.resume, False),
                ("kill", self.kill, True),
                ("revive", self.revive, False),
            ):
                self.tool(name, output=CommandResult, destructiveHint=is_destructive, **writes)(
                    function
                )

    def status(self) -> GatewayState:
        """Return the state of the gateway.

        Includes version, uptime, kill switches, sessions, calls in flight and suspended calls, and
        for each server its state, its last error and the time to the next attempt.
        """
        return self._service.status()

    def logs(self, lines: LineCount = DEFAULT_LINES) -> RecentEvents:
        """Return the most recent events of the gateway, one line each, oldest first."""
        return self._service.logs(lines)

    def pause(self) -> ToolResult:
        """Refuse every new call until `resume`; calls in flight continue, and lists still work."""
        return _tool_result(self._service.pause(_caller_subject()))

    def resume(self) -> ToolResult:
        """Accept calls again after a pause."""
        return _tool_result(self._service.resume(_caller_subject()))

    async def kill(self, kind: TargetKind, name: TargetName = "") -> ToolResult:
        """Disable a tool, a server, a subject or everything, at once and until it is revived.

        Calls in flight are cancelled, new calls are refused, and disabled tools are not listed. The
        switch stays in force when the gateway restarts.
        """
        # An invalid target is for the model to correct: a tool error, not a protocol error.
        try:
            return _tool_result(await self._service.kill(kind, name, _caller_subject()))
        except SwitchError as error:
            return ToolResult(str(error), is_error=True)

    async def revive(self, kind: TargetKind, name: TargetName = "") -> ToolResult:
        """Release kill switches; those of the configuration stay."""
        try:
            return _tool_result(await self._service.revive(kind, name, _caller_subject()))
        except SwitchError as error:
            return ToolResult(str(error), is_error=True)


def _caller_subject() -> str:
    # Recorded with the switch: the event says who set it.
    return current_caller().principal.label


def _tool_result(result: CommandResult) -> ToolResult:
    return ToolResult("\n".join((result.message, *result.notes)), result)
