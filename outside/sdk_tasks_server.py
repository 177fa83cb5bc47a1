"""A server on the Python SDK 2.x whose tools are tasks: python sdk_tasks_server.py PORT."""

import asyncio
import itertools
import sys
from collections.abc import Sequence
from typing import Any

import mcp_types as types
from mcp.server import MCPServer
from mcp.server.extension import Extension, MethodBinding
from mcp.server.mcpserver import require_client_extension
from mcp.shared.exceptions import MCPError


class TaskParams(types.RequestParams):
    task_id: str


class Tasks(Extension):
    """Runs every tool but `executions` as a task, and rejects clients without task support."""

    identifier = "io.modelcontextprotocol/tasks"

    def __init__(self) -> None:
        self.numbers = itertools.count(1)
        self.running: dict[str, asyncio.Task[Any]] = {}
        self.cancelled: list[str] = []

    def methods(self) -> Sequence[MethodBinding]:
        return [
            MethodBinding("tasks/get", TaskParams, self.get),
            MethodBinding("tasks/cancel", TaskParams, self.cancel),
        ]

    async def intercept_tool_call(self, params: Any, ctx: Any, call_next: Any) -> Any:
        if params.name == "executions":
            return await call_next(ctx)
        require_client_extension(ctx, self.identifier)
        id = f"task-{next(self.numbers)}-ü"
        self.running[id] = asyncio.create_task(call_next(ctx))
        return {"resultType": "task", **self.state(id)}

    def state(self, id: str) -> dict[str, Any]:
        said: dict[str, Any] = {"taskId": id, "ttlMs": 60000, "pollIntervalMs": 100}
        said |= dict.fromkeys(("createdAt", "lastUpdatedAt"), "2026-01-01T00:00:00Z")
        task = self.running[id]
        if not task.done():
            return said | {"status": "working"}
        if task.cancelled():
            return said | {"status": "cancelled"}
        if (error := task.exception()) is not None:
            return said | {"status": "failed", "error": {"code": -32000, "message": str(error)}}
        found = task.result()
        result = found if isinstance(found, dict) else found.model_dump(by_alias=True, mode="json")
        return said | {"status": "completed", "result": result}

    async def get(self, ctx: Any, params: TaskParams) -> dict[str, Any]:
        if params.task_id not in self.running:
            raise MCPError(types.INVALID_PARAMS, "unknown task")
        return {"resultType": "complete", **self.state(params.task_id)}

    async def cancel(self, ctx: Any, params: TaskParams) -> dict[str, Any]:
        self.cancelled.append(params.task_id)
        self.running[params.task_id].cancel()
        return {"resultType": "complete"}


tasks = Tasks()
server = MCPServer("tasks", extensions=[tasks])
executed: list[str] = []


@server.tool()
async def slow(word: str) -> str:
    executed.append(word)
    await asyncio.sleep(0.3)
    return f"slowly: {word}"


@server.tool()
async def never() -> str:
    executed.append("never")
    await asyncio.Event().wait()
    return "never"


@server.tool()
def executions() -> str:
    return f"{' '.join(executed)}; cancelled: {len(tasks.cancelled)}"


server.run(transport="streamable-http", host="127.0.0.1", port=int(sys.argv[1]))
