"""A server of the session protocol whose tool asks its user, over stdio or Streamable HTTP.

It is as small as possible, so that the gateway dominates the measurement.
"""

import asyncio
import json
import sys
from collections import Counter
from typing import Any

FORM = {"message": "Sure?", "requestedSchema": {"type": "object", "properties": {}}}
TOOL = {"name": "ask", "inputSchema": {"type": "object"}}


def question(id: str) -> dict[str, Any]:
    """Return the tool's request."""
    return {"jsonrpc": "2.0", "id": id, "method": "elicitation/create", "params": FORM}


def result(id: Any, value: dict[str, Any]) -> dict[str, Any]:
    """Return an answer."""
    return {"jsonrpc": "2.0", "id": id, "result": value}


def tool_result(number: int, answer: Any) -> dict[str, Any]:
    """Return the tool's result: the number of the call, and the answer."""
    return {"content": [], "structuredContent": {"n": number, "answer": answer}}


def answer_plain(message: dict[str, Any]) -> dict[str, Any]:
    """Answer all but the call of the tool."""
    if message["method"] == "initialize":
        return {
            "protocolVersion": "2025-11-25",
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "asking", "version": "1"},
        }
    return {"tools": [TOOL]} if message["method"] == "tools/list" else {}


class InputHttpServer:
    """The server over HTTP; it counts the runs of its tool per call."""

    def __init__(self) -> None:
        self.runs: Counter[int] = Counter()
        self.answers: Counter[str] = Counter()
        self.open: dict[str, asyncio.Future[Any]] = {}

    async def serve(self) -> tuple[asyncio.Server, str]:
        """Listen; return the server and its URL."""
        server = await asyncio.start_server(self._attend, "127.0.0.1", 0, backlog=4096)
        port = server.sockets[0].getsockname()[1]
        return server, f"http://127.0.0.1:{port}/mcp"

    async def _attend(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
                length = head.partition("content-length: ")[2].partition("\r\n")[0]
                body = await reader.readexactly(int(length or 0))
                await self._answer(head.split(" ")[0], json.loads(body or b"{}"), writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _answer(self, verb: str, message: Any, writer: asyncio.StreamWriter) -> None:
        if verb != "post":
            writer.write(b"HTTP/1.1 405 No\r\ncontent-length: 0\r\n\r\n")
        elif message.get("method") == "tools/call":
            await self._run(message, writer)
        elif "method" in message and "id" in message:
            if message["method"] == "server/discover":
                writer.write(b"HTTP/1.1 400 No\r\ncontent-length: 0\r\n\r\n")
                return
            body = json.dumps(result(message["id"], answer_plain(message))).encode()
            head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nmcp-session-id: s\r\n"
            writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        else:
            if (asked := self.open.pop(message.get("id"), None)) is not None:
                asked.set_result(message.get("result") or message.get("error"))
            writer.write(b"HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n")

    async def _run(self, message: Any, writer: asyncio.StreamWriter) -> None:
        number = message["params"]["arguments"]["n"]
        self.runs[number] += 1
        id = f"q{number}"
        asked = self.open[id] = asyncio.get_running_loop().create_future()
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n")
        writer.write(b"transfer-encoding: chunked\r\n\r\n")
        self._say(writer, question(id))
        answer = await asked
        self.answers[answer.get("action", "error")] += 1
        self._say(writer, result(message["id"], tool_result(number, answer)))
        writer.write(b"0\r\n\r\n")

    def _say(self, writer: asyncio.StreamWriter, message: dict[str, Any]) -> None:
        event = f"data: {json.dumps(message)}\n\n".encode()
        writer.write(f"{len(event):x}\r\n".encode() + event + b"\r\n")


def main() -> None:
    """Serve over stdio."""
    asked: dict[str, tuple[Any, int]] = {}
    for line in sys.stdin:
        message = json.loads(line)
        if "method" not in message:
            if (call := asked.pop(message["id"], None)) is not None:
                answer = message.get("result") or message.get("error")
                send_line(result(call[0], tool_result(call[1], answer)))
        elif message["method"] == "tools/call":
            number = message["params"]["arguments"]["n"]
            asked[f"q{number}"] = (message["id"], number)
            send_line(question(f"q{number}"))
        elif "id" in message and message["method"] == "server/discover":
            error = {"code": -32601, "message": "no"}
            send_line({"jsonrpc": "2.0", "id": message["id"], "error": error})
        elif "id" in message:
            send_line(result(message["id"], answer_plain(message)))


def send_line(message: dict[str, Any]) -> None:
    """Write a line."""
    print(json.dumps(message), flush=True)


if __name__ == "__main__":
    main()
