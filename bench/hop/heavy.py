"""The heavy gateways, which take part only with `--all`: ContextForge and LiteLLM.

Each has its own virtual environment. Their rate limits are off, and so is authentication where that
is possible, so that only the hop is measured.
"""

import json
import secrets
from pathlib import Path

from bench.gateway.calls import BadResponse
from bench.gateway.contestants import Contestant, ContestantSite, ServerTransport, StartedContestant
from bench.gateway.wire import open_connection
from bench.hop.peers import ROOT, python_version

CONTEXTFORGE = ROOT / ".venv-hop-contextforge"
LITELLM = ROOT / ".venv-hop-litellm"
START_TIMEOUT = 120.0


def contextforge_environment(folder: Path, stateful: bool) -> dict[str, str]:
    secret = secrets.token_hex(32)
    return {
        "HOME": str(folder),
        "DATABASE_URL": f"sqlite:///{folder}/mcp.db",
        "AUTH_REQUIRED": "false",
        "MCP_REQUIRE_AUTH": "false",
        "ALLOW_UNAUTHENTICATED_ADMIN": "true",
        "JWT_SECRET_KEY": secret,
        "AUTH_ENCRYPTION_SECRET": secret[::-1],
        "BASIC_AUTH_PASSWORD": secret + "aA!",
        "PLATFORM_ADMIN_PASSWORD": secret + "bB!",
        "DEFAULT_USER_PASSWORD": secret + "cC!",
        "SSRF_ALLOW_LOCALHOST": "true",
        "SSRF_ALLOW_PRIVATE_NETWORKS": "true",
        "MCPGATEWAY_UI_ENABLED": "false",
        "MCPGATEWAY_ADMIN_API_ENABLED": "false",
        "RATE_LIMITING_ENABLED": "false",
        "TOOL_RATE_LIMIT": "1000000000",
        "USE_STATEFUL_SESSIONS": str(stateful).lower(),
        "LOG_LEVEL": "ERROR",
        "ENVIRONMENT": "development",
    }


def contextforge(stateful: bool) -> Contestant:
    def start(place: ContestantSite) -> StartedContestant:
        async def admit() -> None:
            """Register the server over the API of the gateway, as its manual says."""
            server = {"name": "fast", "url": place.url, "transport": "STREAMABLEHTTP"}
            body = json.dumps(server).encode()
            head = (
                f"POST /gateways HTTP/1.1\r\nhost: 127.0.0.1:{place.port}\r\n"
                f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
            )
            line = await open_connection("127.0.0.1", place.port)
            reply = await line.request(head.encode() + body)
            line.close()
            if reply.status not in (200, 201, 409):  # 409: it is registered already
                raise BadResponse(
                    f"expected it to be registered, got {reply.status}: {reply.body!r}"
                )

        program = str(CONTEXTFORGE / "bin" / "mcpgateway")
        command = [program, "--host", "127.0.0.1", "--port", str(place.port)]
        environment = contextforge_environment(place.folder, stateful)
        return StartedContestant(command, place.address("/mcp/"), environment, admit)

    name = "ContextForge, " + ("stateful sessions" if stateful else "default")
    version = python_version(CONTEXTFORGE, "mcp-contextforge-gateway")
    return Contestant(name, start, version, (ServerTransport.HTTP,), start_timeout=START_TIMEOUT)


def start_litellm(place: ContestantSite) -> StartedContestant:
    """Start it with a master key, which it requires."""
    key = f"sk-{secrets.token_hex(32)}"
    config = {
        "mcp_servers": {"fast": {"url": place.url, "transport": "http"}},
        "general_settings": {"master_key": "os.environ/LITELLM_MASTER_KEY"},
        "litellm_settings": {"telemetry": False},
    }
    path = place.write("config.yaml", json.dumps(config))  # JSON is YAML, too
    program = str(LITELLM / "bin" / "litellm")
    command = [program, "--config", path, "--host", "127.0.0.1", "--port", str(place.port)]
    environment = {"HOME": str(place.folder), "LITELLM_MASTER_KEY": key, "LITELLM_LOG": "ERROR"}
    address = place.address("/mcp/")._replace(headers=(("x-litellm-api-key", f"Bearer {key}"),))
    return StartedContestant(command, address, environment)


def heavy_peers() -> list[Contestant]:
    """Return the heavy gateways."""
    version = python_version(LITELLM, "litellm")
    return [
        contextforge(stateful=False),
        contextforge(stateful=True),
        Contestant(
            "LiteLLM", start_litellm, version, (ServerTransport.HTTP,), start_timeout=START_TIMEOUT
        ),
    ]
