"""The OpenAPI document of the proxy, and a page that shows it without fetching anything."""

from __future__ import annotations

from functools import cache
from html import escape
from typing import Any

import orjson

from slipform import __version__
from slipform.proxy.calls.openapi_schemas import ANY_OBJECT, SCHEMAS, Json, ref

_ERRORS = {
    400: "A bad request or a bad schema.",
    401: "The caller's key, or the vendor's, was not accepted.",
    403: "The caller's key may not use this model.",
    404: "An unknown model.",
    405: "Another method is served here.",
    413: "The body, or its schema, is too large.",
    422: "The schema cannot be served, the answer could not be made valid, or the model declined.",
    429: "The caller, or slipform at the vendor's, has to slow down.",
    500: "An error inside slipform.",
    502: "The vendor failed.",
    503: "Too many requests at the same time, or the model is missing.",
    504: "The vendor took too long.",
}
_HEADERS = {
    "x-request-id": "The caller's own id when it sent one, else a new one.",
    "x-slipform-request-id": "The same.",
    "x-slipform-provider": "Who answered.",
    "x-slipform-model": "The vendor's own name for the model.",
    "x-slipform-strategy": "How the schema was held: native, tool or prompted.",
    "x-slipform-attempts": "Model calls.",
    "x-slipform-repaired": "Whether the answer's JSON had to be repaired.",
    "x-slipform-patched": "Whether the answer's value had to be patched.",
    "x-slipform-warnings": "How many warnings the report has.",
    "x-slipform-cache": "`hit` for an answer from the cache.",
    "x-slipform-fallbacks": "Models that could not answer before the one that did.",
    "x-slipform-overhead-ms": "What slipform added to the vendor's time.",
}
_MODEL_IN_PATH: Json = {
    "name": "model",
    "in": "path",
    "required": True,
    "schema": {"type": "string", "minLength": 1},
    "description": "`provider/model`, an alias, or `local`.",
}


@cache
def document() -> Json:
    """The document, as OpenAPI 3.1.

    >>> document()["openapi"]
    '3.1.0'
    """
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "slipform",
            "version": __version__,
            "description": "Any language model, answering in the shape of your JSON Schema.",
        },
        "paths": _paths(),
        "components": {
            "schemas": SCHEMAS,
            "headers": {name: {"description": said, "schema": {"type": "string"}} for name, said in _HEADERS.items()},
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "x-api-key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
                "x-goog-api-key": {"type": "apiKey", "in": "header", "name": "x-goog-api-key"},
            },
        },
    }


@cache
def document_bytes() -> bytes:
    """The document as JSON."""
    return orjson.dumps(document())


def _paths() -> Json:
    chat = _call("Chat Completions", "ChatRequest", "ChatCompletion", "OpenAIError", stream=True)
    responses = _call("Responses", "ResponsesRequest", "Response", "OpenAIError", stream=True)
    messages = _call("Messages", "MessagesRequest", "Message", "AnthropicError", stream=True)
    whole = _call("generateContent", "GenerateContentRequest", "GenerateContentResponse", "GeminiError")
    streamed = _call("streamGenerateContent", "GenerateContentRequest", None, "GeminiError", stream=True)
    in_path = {"parameters": [_MODEL_IN_PATH]}
    lists = {"anyOf": [ref("ModelList"), ref("AnthropicModelList"), ref("GeminiModelList")]}
    models = {"anyOf": [ref("Model"), ref("AnthropicModel"), ref("GeminiModel")]}
    paths: Json = {
        "/v1/chat/completions": {"post": chat},
        "/v1/responses": {"post": responses},
        "/v1/messages": {"post": messages},
    }
    for version in ("v1beta", "v1"):
        paths[f"/{version}/models/{{model}}:generateContent"] = {"post": {**whole, **in_path}}
        paths[f"/{version}/models/{{model}}:streamGenerateContent"] = {"post": {**streamed, **in_path}}
    named = {"get": {**_listing("One model", models), **in_path}}
    paths |= {
        "/v1/models": {"get": _listing("The models, in the shape the client's headers ask for", lists)},
        "/v1/models/{model}": named,
        "/v1beta/models": {"get": _listing("The models, in Gemini's shape", ref("GeminiModelList"))},
        "/v1beta/models/{model}": {"get": {**_listing("One model, in Gemini's shape", ref("GeminiModel")), **in_path}},
        "/healthz": {"get": _page("Whether the process lives", ref("Health"))},
        "/readyz": {"get": _ready()},
        "/version": {"get": _page("Which slipform this is", ref("Version"))},
        "/metrics": {"get": _page("Prometheus metrics", {"type": "string"}, "text/plain")},
        "/openapi.json": {"get": _page("This document", ANY_OBJECT)},
        "/docs": {"get": _page("This document as a page", {"type": "string"}, "text/html")},
    }
    return paths


def _call(summary: str, request: str, answer: str | None, error: str, *, stream: bool = False) -> Json:
    content: Json = {}
    if answer is not None:
        content["application/json"] = {"schema": ref(answer)}
    if stream:
        content["text/event-stream"] = {"schema": ref("Event")}
    told = {name: {"$ref": f"#/components/headers/{name}"} for name in _HEADERS}
    return {
        "summary": summary,
        "requestBody": {"required": True, "content": {"application/json": {"schema": ref(request)}}},
        "responses": {"200": {"description": "The answer.", "headers": told, "content": content}, **_errors(error)},
        "security": [{}, {"bearer": []}, {"x-api-key": []}, {"x-goog-api-key": []}],
    }


def _errors(shape: str) -> Json:
    content = {"application/json": {"schema": ref(shape)}}
    with_overload = {**_ERRORS, 529: _ERRORS[503]} if shape == "AnthropicError" else _ERRORS
    return {str(status): {"description": said, "content": content} for status, said in with_overload.items()}


def _page(summary: str, schema: Json, kind: str = "application/json") -> Json:
    return {
        "summary": summary,
        "responses": {"200": {"description": "Here it is.", "content": {kind: {"schema": schema}}}},
    }


def _ready() -> Json:
    page = _page("Whether requests should be sent here", ref("Readiness"))
    said = "Not now: it is starting, loading the embedded model, or draining."
    content = {"application/json": {"schema": ref("Readiness")}}
    return {**page, "responses": {**page["responses"], "503": {"description": said, "content": content}}}


def _listing(summary: str, schema: Json) -> Json:
    page = _page(summary, schema)
    told = {"anyOf": [ref("OpenAIError"), ref("AnthropicError"), ref("GeminiError")]}
    for status in (401, 404, 429, 503):
        page["responses"][str(status)] = {
            "description": _ERRORS[status],
            "content": {"application/json": {"schema": told}},
        }
    return page


@cache
def page() -> bytes:
    """The document as one HTML page: no script, nothing fetched."""
    operations = [
        _operation(method, path, operation)
        for path, methods in document()["paths"].items()
        for method, operation in methods.items()
    ]
    schemas = [
        f"<details id='{escape(name)}'><summary>{escape(name)}</summary><pre>{_shown(schema)}</pre></details>"
        for name, schema in SCHEMAS.items()
    ]
    body = "\n".join([*operations, "<h2>Schemas</h2>", *schemas])
    return _HTML.replace("{version}", escape(__version__)).replace("{body}", body).encode()


def _operation(method: str, path: str, operation: Json) -> str:
    asked = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema")
    lines = [f"<details><summary><b>{method.upper()}</b> <code>{escape(path)}</code> {escape(operation['summary'])}"]
    lines.append("</summary><table>")
    if asked is not None:
        lines.append(f"<tr><td>body</td><td>{_link(asked)}</td></tr>")
    for status, response in operation["responses"].items():
        kinds = ", ".join(
            f"{escape(kind)} {_link(each['schema'])}" for kind, each in response.get("content", {}).items()
        )
        lines.append(f"<tr><td>{status}</td><td>{escape(response['description'])} <small>{kinds}</small></td></tr>")
    return "".join([*lines, "</table></details>"])


def _link(schema: Json) -> str:
    named = [each["$ref"].rpartition("/")[2] for each in schema.get("anyOf", [schema]) if "$ref" in each]
    return " or ".join(f"<a href='#{escape(name)}'>{escape(name)}</a>" for name in named)


def _shown(schema: Any) -> str:
    return escape(orjson.dumps(schema, option=orjson.OPT_INDENT_2).decode())


_HTML = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>slipform {version}</title>
<style>
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
details { border-top: 1px solid #8884; padding: .4rem 0 }
summary { cursor: pointer }
b { display: inline-block; min-width: 3.5rem }
pre { overflow: auto; font-size: 13px }
td { padding: .1rem 1rem .1rem 0; vertical-align: top }
:target { outline: 2px solid #58a }
@media (prefers-color-scheme: dark) { body { background: #111; color: #ddd } a { color: #8cf } }
</style></head>
<body><h1>slipform {version}</h1>
<p>Any language model, answering in the shape of your JSON Schema.
The same as a document: <a href="/openapi.json">openapi.json</a>.</p>
{body}
</body></html>
"""
