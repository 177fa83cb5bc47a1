"""A server on the Python SDK 1.x whose tools are tasks of 2025-11-25, over stdio."""

import anyio
from mcp import types
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server

server = Server("tasks1")
server.experimental.enable_tasks()
executed: list[str] = []

SIZE = {"type": "object", "properties": {"size": {"type": "integer"}}, "required": ["size"]}
TASK = types.ToolExecution(taskSupport=types.TASK_REQUIRED)


def result(text: str) -> types.CallToolResult:
    return types.CallToolResult(content=[types.TextContent(type="text", text=text)])


@server.list_tools()
async def tools() -> list[types.Tool]:
    names = {"order": TASK, "fail": TASK, "never": TASK, "executions": None}
    return [
        types.Tool(name=name, inputSchema={"type": "object"}, execution=execution)
        for name, execution in names.items()
    ]


@server.call_tool()
async def call(name: str, arguments: dict) -> types.CallToolResult | types.CreateTaskResult:
    if name == "executions":
        return result(" ".join(executed))
    context = server.request_context.experimental
    context.validate_task_mode(types.TASK_REQUIRED)

    async def work(task) -> types.CallToolResult:
        executed.append(name)
        if name == "fail":
            raise RuntimeError("no disk")
        if name == "never":
            try:
                await anyio.sleep_forever()
            finally:
                executed.append("stopped")
        answer = await task.elicit("Which size?", SIZE)
        return result(f"{answer.action} {(answer.content or {}).get('size')}")

    return await context.run_task(work)


async def main() -> None:
    async with stdio_server() as (reading, writing):
        await server.run(reading, writing, server.create_initialization_options())


anyio.run(main)
