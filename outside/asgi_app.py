"""The gateway in a Starlette application, under uvicorn: python asgi_app.py PATH CONFIG PORT."""

import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route

from trunkline.app.application import App
from trunkline.config import load_config

path, config, port = sys.argv[1:]
gateway = App(load_config(Path(config), os.environ))


@asynccontextmanager
async def lifespan(app: Starlette) -> AsyncIterator[None]:
    async with gateway.running():
        yield


async def hello(request: Request) -> PlainTextResponse:
    return PlainTextResponse("hello from the application around it")


application = (
    gateway.asgi()
    if path == "/"
    else Starlette(routes=[Route("/", hello), Mount(path, gateway.asgi())], lifespan=lifespan)
)
uvicorn.run(application, host="127.0.0.1", port=int(port))
