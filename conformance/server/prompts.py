"""The prompts, and the completion of their arguments."""

from collections.abc import Awaitable, Callable
from typing import NamedTuple

from mcp.shared.exceptions import MCPError
from mcp_types import INVALID_PARAMS, CompleteRequestParams, GetPromptRequestParams

from conformance.server import changes
from conformance.server.asking import ask, elicitation
from conformance.server.samples import Context, JsonObject, complete, image, resource, text

Params = GetPromptRequestParams
Run = Callable[[Context, Params], Awaitable[list[JsonObject]]]


class Prompt(NamedTuple):
    """A prompt definition with its handler."""

    description: str
    run: Run
    arguments: dict[str, str]


PROMPTS: dict[str, Prompt] = {}
EXTRA = "test_extra_prompt"


def prompt(name: str, description: str, **arguments: str) -> Callable[[Run], Run]:
    """Register the decorated function, which returns contents, as a prompt."""

    def keep(run: Run) -> Run:
        PROMPTS[name] = Prompt(description, run, arguments)
        return run

    return keep


@prompt("test_simple_prompt", "One sentence.")
async def simple(ctx: Context, params: Params) -> list[JsonObject]:
    return [text("This is a simple prompt for testing.")]


@prompt(
    "test_prompt_with_arguments",
    "One sentence with two arguments.",
    arg1="First test argument",
    arg2="Second test argument",
)
async def with_arguments(ctx: Context, params: Params) -> list[JsonObject]:
    first, second = _argument(params, "arg1"), _argument(params, "arg2")
    return [text(f"Prompt with arguments: arg1='{first}', arg2='{second}'")]


@prompt(
    "test_prompt_with_embedded_resource", "A resource.", resourceUri="URI of the resource to embed"
)
async def with_resource(ctx: Context, params: Params) -> list[JsonObject]:
    what = resource(_argument(params, "resourceUri"), "Embedded resource content for testing.")
    return [what, text("Please process the embedded resource above.")]


@prompt("test_prompt_with_image", "A picture.")
async def with_image(ctx: Context, params: Params) -> list[JsonObject]:
    return [image(), text("Please analyze the image above.")]


@prompt("test_input_required_result_prompt", "A prompt that has to ask the user first.")
async def after_asking(ctx: Context, params: Params) -> list[JsonObject]:
    form: JsonObject = {"context": {"type": "string"}}
    asks = {"user_context": elicitation("What context should the prompt use?", form)}
    answer = (await ask(ctx, params, asks))["user_context"]
    return [text(f"Use this context: {answer.get('content')}")]


@prompt(EXTRA, "Be there only now and then.")
async def now_and_then(ctx: Context, params: Params) -> list[JsonObject]:
    return [text("Here, for now.")]


def listed() -> list[JsonObject]:
    """Return the current prompts."""
    return [
        {"name": name, "description": it.description, "arguments": _described(it.arguments)}
        for name, it in PROMPTS.items()
        if name != EXTRA or changes.has_extra("prompts")
    ]


async def made(ctx: Context, params: Params) -> JsonObject:
    """Return the messages of a prompt."""
    if params.name not in PROMPTS:
        raise MCPError(INVALID_PARAMS, f"no prompt is called {params.name!r}")
    contents = await PROMPTS[params.name].run(ctx, params)
    return complete({"messages": [{"role": "user", "content": each} for each in contents]})


async def completed(ctx: Context, params: CompleteRequestParams) -> JsonObject:
    """Return completions of an argument."""
    start = params.argument.value
    values = [f"{start}{end}" for end in ("", "-one", "-two")]
    return complete({"completion": {"values": values, "total": len(values), "hasMore": False}})


def _described(arguments: dict[str, str]) -> list[JsonObject]:
    return [
        {"name": name, "description": each, "required": True} for name, each in arguments.items()
    ]


def _argument(params: Params, name: str) -> str:
    arguments = params.arguments or {}
    if name not in arguments:
        raise MCPError(INVALID_PARAMS, f"expected {name!r}, got {sorted(arguments)!r}")
    return arguments[name]
