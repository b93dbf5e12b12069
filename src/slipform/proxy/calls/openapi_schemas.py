"""The bodies of the OpenAPI document: what each API's requests, answers and errors look like here.

Only fields that slipform reads are described; every object takes more, which goes on to the vendor.
"""

from __future__ import annotations

from typing import Any

Json = dict[str, Any]

ANY_OBJECT: Json = {"type": "object"}
_TEXT: Json = {"type": "string"}
_MAYBE_TEXT: Json = {"type": ["string", "null"]}
_COUNT: Json = {"type": "integer", "minimum": 0}


def ref(name: str) -> Json:
    """A reference to one of `SCHEMAS`.

    >>> ref("ChatRequest")
    {'$ref': '#/components/schemas/ChatRequest'}
    """
    return {"$ref": f"#/components/schemas/{name}"}


def obj(required: tuple[str, ...] = (), /, **properties: Json) -> Json:
    """An object that may have more than its properties."""
    made: Json = {"type": "object", "properties": properties}
    return {**made, "required": list(required)} if required else made


def list_of(items: Json, **more: Any) -> Json:
    """An array."""
    return {"type": "array", "items": items, **more}


def _said(description: str, schema: Json) -> Json:
    return {**schema, "description": description}


_SHAPE = _said("The JSON Schema that the answer is held to.", ANY_OBJECT)
_NUMBER: Json = {"type": ["number", "null"]}
_WHOLE: Json = {"type": ["integer", "null"]}
_FLAG: Json = {"type": ["boolean", "null"]}
_STREAM = _said("Answer as server-sent events.", _FLAG)
_MODEL = _said("`provider/model`, an alias, or `local`; GET /v1/models lists them.", {"type": "string", "minLength": 1})
_REPORT = _said("`report: true` adds the report of the enforcement to the answer.", obj(report=_FLAG))
_CALL_ARGUMENTS = obj(("name",), name=_TEXT, arguments=_TEXT)


def _format(*required: str, **properties: Json) -> Json:
    kinds = [obj(("type",), type={"enum": ["text"]}), obj(("type",), type={"enum": ["json_object"]})]
    return {"anyOf": [*kinds, obj(("type", *required), type={"enum": ["json_schema"]}, **properties)]}


_NAME: Json = {"type": "string", "minLength": 1, "pattern": r"\S"}
_CONTENT: Json = {"anyOf": [_TEXT, list_of(obj(("type", "text"), type={"enum": ["text"]}, text=_TEXT), minItems=1)]}
_TOOL_SCHEMA = _said("The JSON Schema of the arguments.", ANY_OBJECT)

_REQUESTS: dict[str, Json] = {
    "ChatRequest": obj(
        ("model", "messages"),
        model=_MODEL,
        messages=list_of(
            obj(("role", "content"), role={"enum": ["system", "developer", "user", "assistant"]}, content=_CONTENT),
            minItems=1,
        ),
        response_format=_format(
            "json_schema", json_schema=obj(("name", "schema"), name=_NAME, schema=_SHAPE, strict=_FLAG)
        ),
        tools=list_of(
            obj(
                ("type", "function"),
                type={"enum": ["function"]},
                function=obj(("name",), name=_NAME, parameters=_TOOL_SCHEMA, description=_MAYBE_TEXT, strict=_FLAG),
            )
        ),
        temperature=_NUMBER,
        top_p=_NUMBER,
        seed=_WHOLE,
        max_tokens=_WHOLE,
        max_completion_tokens=_WHOLE,
        stop={"anyOf": [_TEXT, list_of(_TEXT)]},
        stream=_STREAM,
        stream_options=obj(include_usage=_FLAG),
        slipform=_REPORT,
    ),
    "ResponsesRequest": obj(
        ("model", "input"),
        model=_MODEL,
        input={
            "anyOf": [
                _TEXT,
                list_of(
                    obj(
                        ("role", "content"), role={"enum": ["system", "developer", "user", "assistant"]}, content=_TEXT
                    ),
                    minItems=1,
                ),
            ]
        },
        instructions=_MAYBE_TEXT,
        text=obj(format=_format("name", "schema", name=_NAME, schema=_SHAPE, strict=_FLAG)),
        temperature=_NUMBER,
        top_p=_NUMBER,
        max_output_tokens=_WHOLE,
        stream=_STREAM,
        slipform=_REPORT,
    ),
    "MessagesRequest": obj(
        ("model", "messages", "max_tokens"),
        model=_MODEL,
        max_tokens={"type": "integer", "minimum": 1},
        system=_CONTENT,
        messages=list_of(obj(("role", "content"), role={"enum": ["user", "assistant"]}, content=_CONTENT), minItems=1),
        output_config=obj(format=obj(("type", "schema"), type={"enum": ["json_schema"]}, schema=_SHAPE)),
        tools=list_of(obj(("name", "input_schema"), name=_NAME, input_schema=_TOOL_SCHEMA, description=_MAYBE_TEXT)),
        temperature=_NUMBER,
        top_p=_NUMBER,
        top_k=_WHOLE,
        stop_sequences=list_of(_TEXT),
        stream=_STREAM,
        slipform=_REPORT,
    ),
    "GenerateContentRequest": obj(
        ("contents",),
        contents=list_of(
            obj(("parts",), role={"enum": ["user", "model"]}, parts=list_of(obj(("text",), text=_TEXT), minItems=1)),
            minItems=1,
        ),
        systemInstruction=obj(("parts",), parts=list_of(obj(("text",), text=_TEXT), minItems=1)),
        generationConfig=obj(
            temperature=_NUMBER,
            topP=_NUMBER,
            topK=_WHOLE,
            maxOutputTokens=_WHOLE,
            stopSequences=list_of(_TEXT),
            responseMimeType={"enum": ["text/plain", "application/json"]},
            responseJsonSchema=_SHAPE,
            responseSchema=_said("The schema in Gemini's own dialect.", ANY_OBJECT),
        ),
    ),
}

_EVENT = _said(
    "An event as the vendor's API sends it: JSON, or `[DONE]`; an error after the first one is an event too.",
    obj(("data",), event=_TEXT, data=_TEXT),
)
_ANSWERS: dict[str, Json] = {
    "ChatCompletion": obj(
        ("id", "object", "created", "model", "choices"),
        id=_TEXT,
        object={"const": "chat.completion"},
        created=_COUNT,
        model=_TEXT,
        choices=list_of(
            obj(
                ("index", "message", "finish_reason"),
                index=_COUNT,
                finish_reason=_TEXT,
                message=obj(
                    ("role", "content"),
                    role={"const": "assistant"},
                    content=_said("With a schema: compact JSON that is valid against it.", _MAYBE_TEXT),
                    refusal=_MAYBE_TEXT,
                    tool_calls=list_of(obj(("id", "function"), id=_TEXT, function=_CALL_ARGUMENTS)),
                ),
            ),
            minItems=1,
        ),
        usage=obj(
            ("prompt_tokens", "completion_tokens", "total_tokens"),
            prompt_tokens=_COUNT,
            completion_tokens=_COUNT,
            total_tokens=_COUNT,
        ),
        slipform=_said("The report, when asked for.", ANY_OBJECT),
    ),
    "Response": obj(
        ("id", "object", "created_at", "model", "output", "status"),
        id=_TEXT,
        object={"const": "response"},
        created_at={"type": "number"},
        model=_TEXT,
        status=_TEXT,
        output=list_of(obj(("type",), type=_TEXT)),
        usage={"type": ["object", "null"]},
    ),
    "Message": obj(
        ("id", "type", "role", "model", "content", "stop_reason", "usage"),
        id=_TEXT,
        type={"const": "message"},
        role={"const": "assistant"},
        model=_TEXT,
        content=list_of(obj(("type",), type=_TEXT)),
        stop_reason=_MAYBE_TEXT,
        usage=obj(("input_tokens", "output_tokens"), input_tokens=_COUNT, output_tokens=_COUNT),
    ),
    "Event": _EVENT,
    "GenerateContentResponse": obj(
        ("candidates", "modelVersion", "responseId"),
        candidates=list_of(
            obj(
                ("content", "finishReason", "index"),
                content=obj(("parts", "role"), parts=list_of(ANY_OBJECT), role={"const": "model"}),
                finishReason=_TEXT,
                index=_COUNT,
            )
        ),
        modelVersion=_TEXT,
        responseId=_TEXT,
        usageMetadata=ANY_OBJECT,
    ),
}

_VIOLATION = obj(("path", "message"), path=_TEXT, message=_TEXT)
_DETAILS = obj(validation_errors=list_of(_VIOLATION))

_ERRORS: dict[str, Json] = {
    "OpenAIError": obj(
        ("error",),
        error=obj(
            ("message", "type", "param", "code"),
            message=_TEXT,
            type=_said("`structured_output_failed` when an answer could not be made valid.", _TEXT),
            param=_MAYBE_TEXT,
            code=_TEXT,
            details=_DETAILS,
        ),
    ),
    "AnthropicError": obj(
        ("type", "error"),
        type={"const": "error"},
        error=obj(("type", "message"), type=_TEXT, message=_TEXT, details=obj(("error_code",), error_code=_TEXT)),
    ),
    "GeminiError": obj(
        ("error",),
        error=obj(
            ("code", "message", "status"),
            code={"type": "integer"},
            message=_TEXT,
            status=_TEXT,
            details=list_of(ANY_OBJECT),
        ),
    ),
}

_PAGES: dict[str, Json] = {
    "Model": obj(
        ("id", "object", "created", "owned_by"),
        id=_TEXT,
        object={"const": "model"},
        created=_COUNT,
        owned_by=_TEXT,
    ),
    "ModelList": obj(("object", "data"), object={"const": "list"}, data=list_of(ref("Model"))),
    "AnthropicModel": obj(
        ("type", "id", "display_name", "created_at"),
        type={"const": "model"},
        id=_TEXT,
        display_name=_TEXT,
        created_at={"type": "string", "format": "date-time"},
    ),
    "AnthropicModelList": obj(("data", "has_more"), data=list_of(ref("AnthropicModel")), has_more={"const": False}),
    "GeminiModel": obj(
        ("name", "supportedGenerationMethods"), name=_TEXT, supportedGenerationMethods=list_of(_TEXT)
    ),
    "GeminiModelList": obj(("models",), models=list_of(ref("GeminiModel"))),
    "Health": obj(("status",), status={"const": "ok"}),
    "Readiness": obj(("status", "config"), status=_TEXT, config={"type": "integer", "minimum": 1}, last_reload=_TEXT),
    "Version": obj(
        ("name", "version", "python", "build"), name={"const": "slipform"}, version=_TEXT, python=_TEXT, build=_TEXT
    ),
}  # fmt: skip

SCHEMAS: dict[str, Json] = {**_REQUESTS, **_ANSWERS, **_ERRORS, **_PAGES}
"""All by name."""
