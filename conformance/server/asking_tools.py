"""Tools that need client features: elicitation, sampling and roots."""

import json
from typing import Any

from mcp_types import CallToolRequestParams

from conformance.server.asking import ROOTS, Ask, ask, declares, elicitation, opened
from conformance.server.asking import sampling as sample
from conformance.server.samples import Context, JsonObject
from conformance.server.toolbox import Toolbox, argument, says, strings

Params = CallToolRequestParams

TOOLS = Toolbox()

STRING: JsonObject = {"type": "string"}
NAME = elicitation("What is your name?", {"name": STRING})
CONFIRM = elicitation("Please confirm", {"ok": {"type": "boolean"}})


def outcome(answer: dict[str, Any]) -> str:
    """Describe the result of an elicitation."""
    return f"action={answer['action']}, content={json.dumps(answer.get('content'))}"


def value(answer: dict[str, Any], name: str) -> str:
    """Return one value of a form; the user may have declined."""
    content: JsonObject = answer.get("content") or {}
    return str(content.get(name, "nobody"))


@TOOLS.add("test_sampling", "Ask the client's model.", strings(prompt="What to ask"))
async def sampling(ctx: Context, params: Params) -> JsonObject:
    answer = (await ask(ctx, params, {"reply": sample(argument(params, "prompt"))}))["reply"]
    return says(f"LLM response: {json.dumps(answer['content'])}")


@TOOLS.add("test_elicitation", "Ask the user.", strings(message="What to say to the user"))
async def plain_elicitation(ctx: Context, params: Params) -> JsonObject:
    form: JsonObject = {
        "username": {"type": "string", "description": "User's response"},
        "email": {"type": "string", "description": "User's email address"},
    }
    asks = {"form": elicitation(argument(params, "message"), form)}
    return says(f"User response: <{outcome((await ask(ctx, params, asks))['form'])}>")


@TOOLS.add("test_elicitation_sep1034_defaults", "Ask the user, with defaults.")
async def elicitation_defaults(ctx: Context, params: Params) -> JsonObject:
    form: JsonObject = {
        "name": {"type": "string", "default": "John Doe"},
        "age": {"type": "integer", "default": 30},
        "score": {"type": "number", "default": 95.5},
        "status": {
            "type": "string",
            "enum": ["active", "inactive", "pending"],
            "default": "active",
        },
        "verified": {"type": "boolean", "default": True},
    }
    return await _completed(ctx, params, elicitation("Who are you?", form, required=[]))


@TOOLS.add("test_elicitation_sep1330_enums", "Ask the user to choose, in five ways.")
async def elicitation_enums(ctx: Context, params: Params) -> JsonObject:
    plain = ["option1", "option2", "option3"]
    titled = [
        {"const": "value1", "title": "First Option"},
        {"const": "value2", "title": "Second Option"},
        {"const": "value3", "title": "Third Option"},
    ]
    form: JsonObject = {
        "untitledSingle": {"type": "string", "enum": plain},
        "titledSingle": {"type": "string", "oneOf": titled},
        "legacyEnum": {
            "type": "string",
            "enum": ["opt1", "opt2", "opt3"],
            "enumNames": ["Option One", "Option Two", "Option Three"],
        },
        "untitledMulti": {"type": "array", "items": {"type": "string", "enum": plain}},
        "titledMulti": {"type": "array", "items": {"anyOf": titled}},
    }
    return await _completed(ctx, params, elicitation("Which ones?", form, required=[]))


async def _completed(ctx: Context, params: Params, question: Ask) -> JsonObject:
    answer = (await ask(ctx, params, {"form": question}))["form"]
    return says(f"Elicitation completed: {outcome(answer)}")


@TOOLS.add("test_streaming_elicitation", "Ask the user, where the answer could be a stream.")
async def streaming_elicitation(ctx: Context, params: Params) -> JsonObject:
    return await _completed(ctx, params, NAME)


@TOOLS.add("test_missing_capability", "Need sampling.")
async def missing_capability(ctx: Context, params: Params) -> JsonObject:
    # By a request: the session protocol has no error for a missing client capability.
    await ask(ctx, params, {"reply": sample("Are you there?")})
    return says("The client has sampling.")


@TOOLS.add("test_input_required_result_elicitation", "Ask the user for a name.")
async def result_elicitation(ctx: Context, params: Params) -> JsonObject:
    answer = (await ask(ctx, params, {"user_name": NAME}))["user_name"]
    return says(f"Hello, {value(answer, 'name')}!")


@TOOLS.add("test_input_required_result_sampling", "Ask the client's model for a capital.")
async def result_sampling(ctx: Context, params: Params) -> JsonObject:
    asks = {"capital_question": sample("What is the capital of France?")}
    answer = (await ask(ctx, params, asks))["capital_question"]
    return says(json.dumps(answer["content"]))


@TOOLS.add("test_input_required_result_list_roots", "Ask for the roots.")
async def result_list_roots(ctx: Context, params: Params) -> JsonObject:
    answer = (await ask(ctx, params, {"client_roots": ROOTS}))["client_roots"]
    return says(*(root["uri"] for root in answer["roots"]))


@TOOLS.add("test_input_required_result_request_state", "Ask, and want a state back.")
async def result_request_state(ctx: Context, params: Params) -> JsonObject:
    state = opened(params)
    await ask(ctx, params, {"confirm": CONFIRM}, {"asked": "confirm"})
    return says("state-ok" if state else "no state")


@TOOLS.add("test_input_required_result_tampered_state", "Ask, and refuse another state.")
async def result_tampered_state(ctx: Context, params: Params) -> JsonObject:
    return await result_request_state(ctx, params)


@TOOLS.add("test_input_required_result_multiple_inputs", "Ask for three things at a time.")
async def result_multiple_inputs(ctx: Context, params: Params) -> JsonObject:
    opened(params)
    asks = {
        "user_name": NAME,
        "greeting": sample("Generate a greeting", max_tokens=50),
        "client_roots": ROOTS,
    }
    return says(*map(json.dumps, (await ask(ctx, params, asks, {"asked": "three"})).values()))


@TOOLS.add("test_input_required_result_multi_round", "Ask for a name, then for a colour.")
async def result_multi_round(ctx: Context, params: Params) -> JsonObject:
    state = opened(params) or {}
    name = state.get("name")
    if name is None:
        step = elicitation("Step 1: What is your name?", {"name": STRING})
        name = value((await ask(ctx, params, {"step1": step}, {"round": "1"}))["step1"], "name")
    step = elicitation("Step 2: What is your favorite color?", {"color": STRING})
    state = {"round": "2", "name": name}
    color = value((await ask(ctx, params, {"step2": step}, state))["step2"], "color")
    return says(f"{name} likes {color}.")


@TOOLS.add("test_input_required_result_capabilities", "Ask only what the client can answer.")
async def result_capabilities(ctx: Context, params: Params) -> JsonObject:
    every = {"user_name": NAME, "greeting": sample("Generate a greeting"), "client_roots": ROOTS}
    asks = {key: each for key, each in every.items() if declares(ctx, each.capability)}
    return says(*map(json.dumps, (await ask(ctx, params, asks)).values()))
