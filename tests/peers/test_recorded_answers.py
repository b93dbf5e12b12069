"""Official SDKs show the same of a recorded answer with the proxy in the middle as without it."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest
from google.genai import errors as google_errors
from google.genai import types as google_types
from openai.lib.streaming.chat import ChatCompletionStreamState

from tests.codecs import recorded
from tests.conftest import THOROUGH
from tests.peers.replay import Reason, Replay, replays, staged, unexplained
from tests.peers.test_peers import HERE, seen
from tests.sdk_clients import SdkClients

TURNS: Any = [{"role": "user", "content": "hi"}]


def show_chat(clients: SdkClients, case: Replay) -> Any:
    create: Any = clients.openai.chat.completions.create
    fields = {"model": "m", "messages": TURNS}
    if not case.stream:
        return create(**fields, extra_body=case.body).to_dict(mode="json", warnings=False)
    state: Any = ChatCompletionStreamState()
    for chunk in create(**fields, stream=True, extra_body={**case.body, "stream": True}):
        state.handle_chunk(chunk)
    return state.current_completion_snapshot.to_dict(mode="json", warnings=False)


def show_responses(clients: SdkClients, case: Replay) -> Any:
    create: Any = clients.openai.responses.create
    if not case.stream:
        return create(model="m", input="hi", extra_body=case.body).to_dict(mode="json", warnings=False)
    events = list(create(model="m", input="hi", stream=True, extra_body={**case.body, "stream": True}))
    kinds = [event.type for event in events]
    return {
        "response": [event.response for event in events if hasattr(event, "response")][-1].to_dict(
            mode="json", warnings=False
        ),
        "text": "".join(event.delta for event in events if event.type == "response.output_text.delta"),
        "errors": [event.to_dict(mode="json", warnings=False) for event in events if event.type == "error"],
        "order": [kind for at, kind in enumerate(kinds) if at == 0 or kinds[at - 1] != kind],
    }


def show_messages(clients: SdkClients, case: Replay) -> Any:
    body = {key: value for key, value in case.body.items() if key != "stream"}
    fields: Any = {"model": "m", "max_tokens": 50, "messages": TURNS, "extra_body": body}
    messages = clients.anthropic.messages
    if not case.stream:
        return messages.create(**fields).to_dict(mode="json", warnings=False)
    with messages.stream(**fields) as events:
        return events.get_final_message().to_dict(mode="json", warnings=False)


def show_gemini(clients: SdkClients, case: Replay) -> Any:
    body = {key: value for key, value in case.body.items() if key != "model"}
    config = google_types.GenerateContentConfig(http_options=google_types.HttpOptions(extra_body=body))
    fields: Any = {"model": case.body["model"], "contents": "hi", "config": config}
    models = clients.google.models
    events = list(models.generate_content_stream(**fields)) if case.stream else [models.generate_content(**fields)]
    hidden = {"sdk_http_response", "automatic_function_calling_history"}
    return joined([event.model_dump(mode="json", exclude_none=True, exclude=hidden) for event in events])


def joined(events: list[dict[str, Any]]) -> dict[str, Any]:
    """The answer that the events of a stream add up to, a signature apart from the text that it signs."""
    whole: dict[str, Any] = {"candidate": {}}
    parts: list[dict[str, Any]] = []
    for event in events:
        candidate = (event.get("candidates") or [{}])[0]
        for part in (candidate.get("content") or {}).get("parts") or ():
            signed = {"thought_signature": part.pop("thought_signature")} if "thought_signature" in part else {}
            is_text = part.keys() <= {"text", "thought"}
            if is_text and parts and part.keys() == parts[-1].keys():
                parts[-1]["text"] += part["text"]
            elif part != {"text": ""}:
                parts.append(part)
            if signed:
                parts.append(signed)
        whole.update({key: value for key, value in event.items() if key != "candidates"})
        whole["candidate"].update({key: value for key, value in candidate.items() if key != "content"})
    return {**whole, "parts": parts}


def show_ollama(clients: SdkClients, case: Replay) -> Any:
    names = ("model", "messages", "tools", "format", "options", "think")
    fields: Any = {"messages": TURNS, **{key: case.body[key] for key in names if key in case.body}}
    if not case.stream:
        return clients.ollama.chat(**fields).model_dump(mode="json")
    lines = list(clients.ollama.chat(**fields, stream=True))
    text = "".join(line.message.content or "" for line in lines)
    return {**lines[-1].model_dump(mode="json"), "text": text}


SHOW: dict[str, Callable[[SdkClients, Replay], Any]] = {
    "openai-chat": show_chat,
    "openai-responses": show_responses,
    "anthropic-messages": show_messages,
    "gemini-generate-content": show_gemini,
    "ollama-chat": show_ollama,
}


def show(clients: SdkClients, case: Replay) -> Any:
    """What the SDK shows its program: the answer, or the error."""
    try:
        return SHOW[case.recording.api](clients, case)
    except (openai.APIStatusError, anthropic.APIStatusError) as error:
        return {"raised": type(error).__name__, "status": error.status_code, "body": error.body}
    except google_errors.APIError as error:
        return {"raised": type(error).__name__, "status": error.code, "message": error.message}
    except (openai.APIError, anthropic.APIError) as error:
        return {"raised": type(error).__name__, "message": str(error)}
    except (AssertionError, TypeError) as error:
        return {"unreadable": repr(error)}


ERROR = Reason(
    ".*", "/(message|body/(message|code|details))", "the error of an enforced call names the model, and slipform's code"
)
COST = Reason(".*", "(/response)?/usage/cost", "slipform adds the cost of an enforced call where it knows the price")
REASONS: dict[str, list[Reason]] = {
    "openai-chat": [
        ERROR,
        Reason(
            ".*", "/choices/0/message/reasoning_content", "thinking has one name for all vendors, and the vendor's own"
        ),
        Reason(".*", "/choices/0/message/tool_calls/./type", "Mistral leaves the type of a call out"),
        Reason(
            ".*",
            "/usage/prompt_tokens_details",
            "cached tokens are where OpenAI has them, and where the vendor has them",
        ),
        Reason("gemini.*", "/usage/completion_tokens(_details)?", "Gemini counts thinking in the total alone"),
        Reason(".*stream.*", "/usage", "the client did not ask for usage; some vendors send it all the same"),
        Reason("groq.*stream.*", "/choices/0/message/channel", "Groq's name of a channel repeats with every piece"),
        Reason("openrouter.*", "/choices/0/message/tool_calls/0/function/arguments", "a call without arguments has {}"),
        Reason(
            "snowflake.*",
            "/id|/choices/0/(finish_reason|logprobs|message/.*)",
            "empty fields have a value, or are left out",
        ),
    ],
    "openai-responses": [
        ERROR,
        COST,
        Reason(".*", "(/response)?/id", "an id says which provider stores the response"),
        Reason(
            ".*", "(/response)?/tools/./strict", "tools are repeated as the client wrote them, without OpenAI's default"
        ),
        Reason(".*native.*", "/output/0/id", "the message of a refusal has an id of slipform's"),
    ],
    "anthropic-messages": [COST],
    "gemini-generate-content": [
        ERROR,
        Reason(
            ".*", "/parts/./function_call/id", "a call without an id gets one, so that its signature is found again"
        ),
        Reason(".*native.json.01[35]", ".*", "the SDK cannot read the list of events that was recorded"),
        Reason(
            ".*vertex.*00[57]",
            "/parts/0/function_call/args/.*",
            "the schema allows no such argument",
        ),
        Reason("vertex.*01[03]", "/raised", "the model calls a tool that nobody offered"),
    ],
    "ollama-chat": [],
}
"""Everything that remains. `docs/proxy.md` has the same list for readers."""


@pytest.mark.parametrize("api", SHOW)
def test_an_sdk_shows_recorded_answers_as_without_the_proxy(api: str) -> None:
    if not recorded.names():
        pytest.skip("the recordings are not beside this repository")
    cases = replays(api)
    with staged(api, cases) as stage, ExitStack() as stack:
        direct = SdkClients(stage.vendor)
        stack.callback(direct.close)
        through = SdkClients(stage.proxy)
        stack.callback(through.close)
        shown: dict[str, tuple[Any, Any]] = {}
        for case in cases:
            stage.play(case.recording.name)
            expected = show(direct, case)
            if "unreadable" not in expected:
                shown[case.recording.name] = (expected, show(through, case))
    assert len(shown) >= 0.9 * len(cases)
    if problems := unexplained(shown, REASONS[api]):
        pytest.fail(problems, pytrace=False)


def offered_tools(case: Replay) -> list[dict[str, Any]]:
    """The functions of a recorded request, by name and schema."""
    tools: list[dict[str, Any]] = []
    for tool in case.body.get("tools") or ():
        functions = tool.get("functionDeclarations") or [tool.get("function") or tool]
        for each in functions:
            schema = each.get("parameters") or each.get("input_schema") or each.get("parametersJsonSchema")
            if isinstance(each.get("name"), str) and isinstance(schema, dict):
                tools.append({"name": each["name"], "schema": in_lower_case(schema)})
    return tools


def in_lower_case(schema: Any) -> Any:
    """A schema with the names of its types as JSON Schema writes them; Gemini's other form has capitals."""
    if isinstance(schema, list):
        return [in_lower_case(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    is_type = isinstance(schema.get("type"), str)
    return {key: value.lower() if key == "type" and is_type else in_lower_case(value) for key, value in schema.items()}


CALL_IDS = Reason(".*", "/parts/./tool_call_id", "calls without an id get one, from slipform or from pydantic-ai")
PYDANTIC_AI: dict[str, list[Reason]] = {
    "openai-chat": [
        Reason("gemini.*", "/usage/.*", "Gemini counts thinking in the total alone"),
        Reason("(mistral|openrouter|snowflake).*", "/raised", "pydantic-ai reads the answer only through slipform"),
        Reason(
            ".*forced_tool.*",
            ".*/finish_reason",
            "pydantic-ai forces no call by name",
        ),
    ],
    "openai-responses": [Reason(".*", "/provider_response_id", "an id says which provider stores the response")],
    "anthropic-messages": [],
    "gemini-generate-content": [
        CALL_IDS,
        Reason(".*native.json.01[35]", ".*", "the SDK cannot read the list of events that was recorded"),
        Reason("gemini.*plain.json.002", "/status", "Gemini says 400 of a wrong key; a wrong key is 401 here"),
        Reason(
            "gemini.*unknown.stream.006",
            "/parts/0/args",
            "only slipform joins the pieces of a call",
        ),
        Reason("vertex.*plain.json.006", ".*", "a dump of gRPC, not JSON of the API"),
        Reason("vertex.*tools.json.00[57]", "/parts/0/args/.*", "the schema allows no such argument"),
        Reason("vertex.*tools.json.01[03]", "/raised", "the model calls a tool that nobody offered"),
        Reason("vertex.*unknown.*", "/provider_response_id", "an answer without an id gets one"),
    ],
}


@pytest.mark.parametrize("api", PYDANTIC_AI)
def test_pydantic_ai_makes_the_same_of_recorded_answers(api: str, tmp_path: Path) -> None:
    python = os.environ.get("SLIPFORM_PYDANTIC_AI") or str(Path(sys.prefix) / "pydantic-ai" / "bin" / "python")
    if not Path(python).exists():
        pytest.skip("pydantic-ai is not installed here with all its vendors: `make test` installs it")
    if not recorded.names():
        pytest.skip("the recordings are not beside this repository")
    cases = replays(api)[:: 1 if THOROUGH else 3]  # a third of a second for each, and twice
    (tmp_path / "cases.json").write_text(
        json.dumps(
            [
                {
                    "name": case.recording.name,
                    "api": api,
                    "model": case.body["model"],
                    "tools": offered_tools(case),
                    "stream": case.stream,
                }
                for case in cases
            ]
        )
    )
    with staged(api, cases) as stage:
        program = str(HERE / "pydantic_ai_replay_client.py")
        results = seen(python, program, stage.vendor, stage.proxy, str(tmp_path / "cases.json"))
    shown = {name: (direct, through) for name, (direct, through) in results.items() if "unreadable" not in direct}
    assert len(shown) >= 0.9 * len(cases)
    if problems := unexplained(shown, PYDANTIC_AI[api], is_sample=not THOROUGH):
        pytest.fail(problems, pytrace=False)
