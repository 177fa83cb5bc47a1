"""Tools without client features: contents, progress, logs, errors, schemas, changes."""

import asyncio

from mcp_types import CallToolRequestParams

from conformance.server import changes
from conformance.server.samples import Context, JsonObject, audio, image, resource, text
from conformance.server.toolbox import NOTHING, Toolbox, argument, says, strings

Params = CallToolRequestParams

PAUSE = 0.05

TOOLS = Toolbox()
# Not listed until it is triggered.
EXTRA = Toolbox()


@TOOLS.add("test_simple_text", "Say one sentence.")
async def simple_text(ctx: Context, params: Params) -> JsonObject:
    return says("This is a simple text response for testing.")


@TOOLS.add("test_image_content", "Show a picture.")
async def image_content(ctx: Context, params: Params) -> JsonObject:
    return {"content": [image()]}


@TOOLS.add("test_audio_content", "Play a sound.")
async def audio_content(ctx: Context, params: Params) -> JsonObject:
    return {"content": [audio()]}


@TOOLS.add("test_embedded_resource", "Give a resource.")
async def embedded_resource(ctx: Context, params: Params) -> JsonObject:
    what = "This is an embedded resource content."
    return {"content": [resource("test://embedded-resource", what)]}


@TOOLS.add("test_multiple_content_types", "Give contents of three kinds.")
async def multiple_content_types(ctx: Context, params: Params) -> JsonObject:
    third = resource(
        "test://mixed-content-resource", '{"test":"data","value":123}', "application/json"
    )
    return {"content": [text("Multiple content types test:"), image(), third]}


@TOOLS.add("test_tool_with_logging", "Log three times while at work.")
async def tool_with_logging(ctx: Context, params: Params) -> JsonObject:
    await _log(ctx, "Tool execution started")
    await asyncio.sleep(PAUSE)
    await _log(ctx, "Tool processing data")
    await asyncio.sleep(PAUSE)
    await _log(ctx, "Tool execution completed")
    return says("Logged three times.")


@TOOLS.add("test_logging_tool", "Log, for those who want logs.")
async def logging_tool(ctx: Context, params: Params) -> JsonObject:
    await _log(ctx, "A message that only goes to who has set a log level")
    return says("Logged.")


async def _log(ctx: Context, message: str) -> None:
    # 2026-07-28 deprecates logging, but the suite still checks it.
    await ctx.session.send_log_message(  # pyright: ignore[reportDeprecated]
        "info", message, logger="fixture", related_request_id=ctx.request_id
    )


@TOOLS.add("test_tool_with_progress", "Report progress three times.")
async def tool_with_progress(ctx: Context, params: Params) -> JsonObject:
    for progress in (0, 50, 100):
        await ctx.session.report_progress(progress, 100)
        await asyncio.sleep(PAUSE)
    return says("Made progress.")


@TOOLS.add("test_error_handling", "Fail, always.")
async def error_handling(ctx: Context, params: Params) -> JsonObject:
    return says("This tool intentionally returns an error for testing") | {"isError": True}


@TOOLS.add("test_reconnection", "Close the stream of the call before there is a result.")
async def reconnection(ctx: Context, params: Params) -> JsonObject:
    if ctx.close_sse_stream is not None:
        await ctx.close_sse_stream()
    await asyncio.sleep(PAUSE)
    return says("Reconnected.")


@TOOLS.add("test_trigger_tool_change", "Change the list of tools.")
async def trigger_tool_change(ctx: Context, params: Params) -> JsonObject:
    await changes.toggle_tool(ctx)
    return says("The list of tools has changed.")


@TOOLS.add("test_trigger_prompt_change", "Change the list of prompts.")
async def trigger_prompt_change(ctx: Context, params: Params) -> JsonObject:
    await changes.toggle_prompt(ctx)
    return says("The list of prompts has changed.")


@TOOLS.add("greet", "Greet somebody.", strings(name="Whom to greet"))
async def greet(ctx: Context, params: Params) -> JsonObject:
    return says(f"Hello, {argument(params, 'name')}!")


@TOOLS.add("slow_compute", "Take some time, at once: there are no tasks here.")
async def slow_compute(ctx: Context, params: Params) -> JsonObject:
    await asyncio.sleep(PAUSE)
    return says("Computed.")


@TOOLS.add(
    "test_x_mcp_header",
    "Echo an argument that is also a header.",
    {
        "type": "object",
        "properties": {"region": {"type": "string", "x-mcp-header": "Region"}},
        "required": ["region"],
    },
)
async def x_mcp_header(ctx: Context, params: Params) -> JsonObject:
    return says(f"Region: {argument(params, 'region')}")


@TOOLS.add(
    "json_schema_2020_12_tool",
    "Tool with JSON Schema 2020-12 features",
    {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "$defs": {
            "address": {
                "$anchor": "addressDef",
                "type": "object",
                "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
            }
        },
        "properties": {
            "name": {"type": "string"},
            "address": {"$ref": "#/$defs/address"},
            "contactMethod": {"type": "string", "enum": ["phone", "email"]},
            "phone": {"type": "string"},
            "email": {"type": "string"},
        },
        "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
        "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
        "then": {"required": ["phone"]},
        "else": {"required": ["email"]},
        "additionalProperties": False,
    },
)
async def json_schema_2020_12(ctx: Context, params: Params) -> JsonObject:
    return says(f"Arguments: {params.arguments!r}")


@EXTRA.add("test_extra_tool", "Be there only now and then.", NOTHING)
async def extra_tool(ctx: Context, params: Params) -> JsonObject:
    return says("Here, for now.")
