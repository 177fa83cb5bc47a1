"""The gateway inside your own application; MCP is at /tools/mcp.

pip install starlette uvicorn
uvicorn --factory examples.mounted:application --port 8000
"""
# pyright: reportMissingImports=false, reportUnknownVariableType=false
# pyright: reportUnknownParameterType=false, reportMissingParameterType=false

import os
from contextlib import asynccontextmanager
from pathlib import Path

from trunkline.app.application import DEFAULT_CONFIG, App
from trunkline.config import load_config


def application():
    from starlette.applications import Starlette  # noqa: PLC0415  not one of our packages
    from starlette.responses import PlainTextResponse  # noqa: PLC0415
    from starlette.routing import Mount, Route  # noqa: PLC0415

    file = Path("trunkline.toml")
    gateway = App(load_config(file, os.environ) if file.exists() else DEFAULT_CONFIG)

    @asynccontextmanager
    async def lifespan(_):
        async with gateway.running():  # a mounted application gets no lifespan events
            yield

    async def home(_):
        return PlainTextResponse("MCP is at /tools/mcp\n")

    routes = [Route("/", home), Mount("/tools", app=gateway.asgi())]
    return Starlette(routes=routes, lifespan=lifespan)
