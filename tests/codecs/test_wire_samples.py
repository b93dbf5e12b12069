"""What we send is what the vendors' own SDKs send for the same call, up to differences that are named here."""

from __future__ import annotations

import json
from typing import Any

import pytest

from slipform.codecs import Capabilities, find_api, make_codec
from slipform.ir import Message, ModelRequest, Sampling, Tool
from slipform.schema import JsonSchemaSpec, OutputStrategy, ResponseFormat
from tests.codecs import recorded

pytestmark = pytest.mark.skipif(
    not (recorded.SHARED / "wire-samples").is_dir(), reason="the wire samples are not beside this repository"
)

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "population": {"type": "integer"}},
    "required": ["name", "population"],
    "additionalProperties": False,
}
SHAPE = ResponseFormat(JsonSchemaSpec("city", SCHEMA))
SYSTEM, USER = Message.system("You extract."), Message.user("Zürich")
EMIT = Tool("emit_city", SCHEMA, "Emit.", strict=True)
OUTPUT = "Give the final answer, city, as the arguments of this tool."


def request(model: str, *messages: Message, **fields: Any) -> ModelRequest:
    return ModelRequest(model, messages, **fields)


def caps(*quirks: str, **fields: Any) -> Capabilities:
    return Capabilities(
        **{"native": True, "forced_tool": True, "json_mode": True, "reasoning": True, **fields},
        quirks=frozenset(quirks),
    )


def shape_in(name: str, *path: str) -> ResponseFormat:
    """The schema of a sample itself, where the SDK rendered it from a class."""
    if not (recorded.SHARED / "wire-samples").is_dir():
        return SHAPE
    found = recorded.sample(name)["requests"][0]["body"]
    for step in path:
        found = found[step]
    return ResponseFormat(JsonSchemaSpec("city", found))


# sample, codec, capabilities, the same call in the IR, and what differs: path → (ours, why); None = we do not send it.
Case = tuple[str, str, Capabilities, ModelRequest, dict[str, tuple[Any, str]]]
TOOL = SHAPE.with_strategy(OutputStrategy.TOOL)
EMPTY = "the SDK always sends an empty list"
NAMED = "our tool is always called output, and says for which schema"

CASES: list[Case] = [
    (
        "openai-chat-native-create",
        "openai-chat",
        caps(max_tokens_field="max_completion_tokens"),
        request(
            "gpt-6-sol",
            SYSTEM,
            USER,
            response_format=SHAPE,
            max_tokens=500,
            reasoning={"effort": "low"},
            sampling=Sampling(seed=7),
            extra={"safety_identifier": "u1", "verbosity": "low"},
        ),
        {"response_format.json_schema.description": (None, "the IR keeps descriptions in the schema")},
    ),
    (
        "openai-chat-plain",
        "openai-chat",
        caps(),
        request(
            "gpt-4.1",
            SYSTEM,
            USER,
            max_tokens=5,
            sampling=Sampling(0.2, 0.9, frequency_penalty=0.2, presence_penalty=0.1, stop=("END",)),
            extra={"logprobs": True, "n": 1, "top_logprobs": 2},
        ),
        {},
    ),
    (
        "openai-chat-forced-tool",
        "openai-chat",
        caps(),
        request("gpt-6-sol", SYSTEM, USER, response_format=TOOL),
        {
            "tools.0.function.name": ("output", NAMED),
            "tools.0.function.description": (OUTPUT, NAMED),
            "tools.0.function.parameters": (SCHEMA, "the sample's tool has the SDK's own rendering of a class"),
            "tool_choice.function.name": ("output", NAMED),
            "stream": (None, "false is the default"),
        },
    ),
    (
        "openai-chat-json-object",
        "openai-chat",
        caps(),
        request(
            "gpt-6-sol",
            Message("system", Message.user("Reply in JSON.").parts, extra={"openai-chat": {"role": "developer"}}),
            Message.user("hi"),
            json_mode=True,
        ),
        {},
    ),
    (
        "openai-responses-forced-tool",
        "openai-responses",
        caps(),
        request("gpt-6-sol", USER, response_format=TOOL),
        {
            "tools.0.name": ("output", NAMED),
            "tools.0.description": (OUTPUT, NAMED),
            "tool_choice.name": ("output", NAMED),
        },
    ),
    (
        "openai-responses-json-object",
        "openai-responses",
        caps(),
        request("gpt-6-sol", Message.user("Reply in JSON"), json_mode=True),
        {},
    ),
    (
        "anthropic-forced-tool",
        "anthropic",
        caps(),
        request("claude-haiku-4-5", USER, response_format=TOOL, max_tokens=1024),
        {
            "tools.0.name": ("output", NAMED),
            "tools.0.description": (OUTPUT, NAMED),
            "tool_choice.name": ("output", NAMED),
        },
    ),
    (
        "anthropic-plain-sampling",
        "anthropic",
        caps(),
        request("claude-sonnet-4-6", USER, max_tokens=10, sampling=Sampling(0.2, 0.9, 5)),
        {},
    ),
    (
        "google-native-json-schema",
        "gemini",
        caps(),
        request(
            "gemini-3.5-flash",
            USER,
            response_format=shape_in("google-native-json-schema", "generationConfig", "responseJsonSchema"),
            max_tokens=50,
            sampling=Sampling(0.2, 0.9, 5, 3, 0.1, 0.1, ("END",)),
            reasoning={"effort": "low", "summary": True},
            extra={"generationConfig": {"candidateCount": 1}},
        ),
        {
            "generationConfig.thinkingConfig": (
                {"thinkingLevel": "LOW", "includeThoughts": True},
                "the SDK leaks its snake_case",
            ),
        },
    ),
    (
        "google-json-mode",
        "gemini",
        caps(),
        request("gemini-3.5-flash", Message.user("Reply in JSON"), json_mode=True),
        {},
    ),
    (
        "google-forced-tool",
        "gemini",
        caps(),
        request("gemini-3.5-flash", USER, response_format=TOOL),
        {
            "tools.0.functionDeclarations.0.name": ("output", NAMED),
            "tools.0.functionDeclarations.0.description": (OUTPUT, NAMED),
            "tools.0.functionDeclarations.0.parameters_json_schema": (None, "the SDK leaks its snake_case"),
            "tools.0.functionDeclarations.0.parametersJsonSchema": (SCHEMA, "the SDK leaks its snake_case"),
            "toolConfig.functionCallingConfig.allowedFunctionNames.0": ("output", NAMED),
            "generationConfig": (None, "empty, and so left out"),
        },
    ),
    (
        "bedrock-converse-native",
        "bedrock",
        caps(),
        request(
            "us.anthropic.claude-haiku-4-5-20251001-v1:0",
            SYSTEM,
            USER,
            response_format=SHAPE,
            max_tokens=50,
            sampling=Sampling(0.1, 0.9, 5, stop=("END",)),
        ),
        {
            "outputConfig.textFormat.structure.jsonSchema.description": (None, "descriptions stay in the schema"),
            "outputConfig.textFormat.structure.jsonSchema.schema": (
                json.dumps(SCHEMA, separators=(",", ":")),
                "a string of JSON, written without blanks",
            ),
        },
    ),
    (
        "bedrock-converse-forced-tool",
        "bedrock",
        caps(),
        request("us.amazon.nova-pro-v1:0", USER, response_format=TOOL),
        {
            "toolConfig.tools.0.toolSpec.name": ("output", NAMED),
            "toolConfig.tools.0.toolSpec.description": (OUTPUT, NAMED),
            "toolConfig.toolChoice.tool.name": ("output", NAMED),
        },
    ),
    (
        "cohere-native-chat",
        "cohere",
        caps(),
        request(
            "command-a-03-2025",
            SYSTEM,
            USER,
            response_format=SHAPE,
            max_tokens=9,
            sampling=Sampling(0.1, 0.9, 5, 1, stop=("END",)),
        ),
        {},
    ),
    (
        "cohere-forced-tool",
        "cohere",
        caps("required_only"),
        request("command-a-03-2025", SYSTEM, USER, response_format=TOOL),
        {"tools.0.function.name": ("output", NAMED), "tools.0.function.description": (OUTPUT, NAMED)},
    ),
    (
        "ollama-native-chat",
        "ollama",
        caps(),
        request(
            "qwen3",
            SYSTEM,
            USER,
            response_format=shape_in("ollama-native-chat", "format"),
            max_tokens=50,
            sampling=Sampling(0, 0.9, 5, 1, stop=("END",)),
            extra={"options": {"num_ctx": 4096}, "keep_alive": "5m"},
            reasoning={"enabled": False},
        ),
        {"tools": (None, EMPTY)},
    ),
    ("ollama-json-mode", "ollama", caps(), request("qwen3", SYSTEM, USER, json_mode=True), {"tools": (None, EMPTY)}),
    (
        "ollama-tools",
        "ollama",
        caps(),
        request("qwen3", SYSTEM, USER, tools=(EMIT,)),
        {"tools.0.function.parameters": (SCHEMA, "the SDK drops additionalProperties")},
    ),
    (
        "mistral-json-object",
        "openai-chat",
        caps("usage_always", "random_seed"),
        request("m", SYSTEM, USER, json_mode=True),
        {"stream": (None, "false is the default")},
    ),
    (
        "groq-native-create",
        "openai-chat",
        caps(),
        request("openai/gpt-oss-120b", SYSTEM, USER, response_format=SHAPE, extra={"reasoning_format": "hidden"}),
        {"include_reasoning": (None, "the sample says null to leave it out")},
    ),
    ("together-native", "openai-chat", caps(), request("m", SYSTEM, USER, response_format=SHAPE), {}),
    ("cerebras-native", "openai-chat", caps(), request("gpt-oss-120b", SYSTEM, USER, response_format=SHAPE), {}),
    (
        "fireworks-native",
        "openai-chat",
        caps(),
        request("accounts/fireworks/models/kimi-k2p5", SYSTEM, USER, response_format=SHAPE),
        {},
    ),
]


def put(body: Any, path: str, value: Any) -> None:
    *way, last = path.split(".")
    for step in way:
        body = body[int(step) if isinstance(body, list) else step]
    key: Any = int(last) if isinstance(body, list) else last
    if value is None:
        del body[key]
    else:
        body[key] = value


@pytest.mark.covers(
    "S1-23", "S1-24", "S1-26", "S1-27", "S1-31", "S1-35", "S4-02", "S4-08", "S4-13", "S4-14", "C18", "C19"
)
@pytest.mark.parametrize("case", CASES, ids=[case[0] for case in CASES])
def test_the_encoded_request_is_the_sdk_s(case: Case) -> None:
    name, codec, capabilities, wanted, differences = case
    sent = recorded.sample(name)["requests"][0]
    encoded = make_codec(codec, capabilities).encode_request(wanted, stream=False)
    expected = sent["body"]
    for path, (ours, _why) in differences.items():
        put(expected, path, ours)
    assert json.loads(encoded.body) == expected
    assert sent["path"].endswith(encoded.path)


# Requests read by the serving side and written again come out as they went in, but for these.
SERVED = {
    "openai-chat": ("openai-chat", "openai-azure-chat", "openai-old", "mistral-", "groq-", "together-", "cerebras-"),
    "openai-responses": ("openai-responses", "openai-azure-v1-responses"),
    "anthropic": ("anthropic-",),
    "gemini": ("google-",),
}
LEFT_OUT = {
    "anthropic-models-capabilities": "not a message",
    "anthropic-bedrock-invoke": "Bedrock's envelope around Messages is not served",
    "google-interactions-native": "another API",
}
# path of what differs → why
RESPELLED: dict[str, str] = {
    "stream": "false is the default",
    "stream_options": "usage is always asked for",
    "max_tokens": "the catalogue says how the limit is spelled",
    "max_completion_tokens": "the catalogue says how the limit is spelled",
    "response_format.json_schema.description": "the IR keeps descriptions in the schema",
    "response_format.json_schema.schema.description": "the IR keeps descriptions in the schema",
    "response_format.json_schema.strict": "the schema is not strict, so it is not sent as strict",
    "input.1.content": "one text needs no list",
    "model": "on Vertex it is in the path",
    "anthropic_version": "a quirk of Vertex, see its own test",
    "generationConfig": "empty",
    "generationConfig.responseSchema": "served as JSON Schema",
    "generationConfig.responseJsonSchema": "served as JSON Schema",
    "generationConfig.thinkingConfig.include_thoughts": "the SDK leaks its snake_case",
    "generationConfig.thinkingConfig.thinking_level": "the SDK leaks its snake_case",
    "generationConfig.thinkingConfig.includeThoughts": "the SDK leaks its snake_case",
    "generationConfig.thinkingConfig.thinkingLevel": "the SDK leaks its snake_case",
    "tools.0.functionDeclarations.0.parameters_json_schema": "the SDK leaks its snake_case",
    "tools.0.functionDeclarations.0.parametersJsonSchema": "the SDK leaks its snake_case",
}


def served_names() -> list[tuple[str, str]]:
    names = sorted(path.stem for path in (recorded.SHARED / "wire-samples").glob("*.json"))
    return [
        (api, name)
        for api, heads in SERVED.items()
        for name in names
        if name.startswith(heads) and name not in LEFT_OUT
    ]


def differences(ours: Any, theirs: Any, path: str = "") -> list[str]:
    """The paths at which two JSON values differ."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        found: list[str] = []
        for key in {**ours, **theirs}:
            place = f"{path}.{key}" if path else key
            same = key in ours and key in theirs
            found += differences(ours[key], theirs[key], place) if same else [place]
        return found
    if isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        pairs = enumerate(zip(ours, theirs, strict=True))
        return [found for at, (one, other) in pairs for found in differences(one, other, f"{path}.{at}")]
    return [] if ours == theirs else [path]


@pytest.mark.parametrize(("api", "name"), served_names())
def test_a_sample_read_and_written_again_comes_out_as_it_went_in(api: str, name: str) -> None:
    sent = recorded.sample(name)["requests"][0]
    served = find_api(api).decode_request(sent["body"], path=sent["path"])
    again = json.loads(make_codec(api, caps()).encode_request(served.request, stream=served.stream).body)
    assert [path for path in differences(again, sent["body"]) if path not in RESPELLED] == []


def test_claude_on_vertex_has_its_model_in_the_path_and_its_version_in_the_body() -> None:
    sent = recorded.sample("anthropic-vertex-rawpredict")["requests"][0]
    encoded = make_codec("anthropic", caps("body_version")).encode_request(
        request("claude-opus-4-6", USER, max_tokens=10), stream=False
    )
    assert json.loads(encoded.body) == sent["body"]
    assert sent["path"].endswith(encoded.path)


def test_the_openapi_form_of_a_schema_is_read_as_json_schema() -> None:
    sent = recorded.sample("google-native-response-schema")["requests"][0]
    served = find_api("gemini").decode_request(sent["body"], path=sent["path"])
    assert served.request.response_format is not None
    schema = served.request.response_format.json_schema.schema
    assert schema["properties"]["note"] == {"title": "Note", "type": ["string", "null"]}
    assert list(schema["properties"]) == ["name", "population", "kind", "coord", "note", "tags"]
    assert "property_ordering" not in schema
