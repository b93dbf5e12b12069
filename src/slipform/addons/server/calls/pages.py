"""Build the pages: health, version, model lists, and the OpenAPI document, also as HTML."""

from __future__ import annotations

import platform
import re
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from functools import cache
from html import escape
from importlib import resources
from typing import Any, TypeAlias

import orjson
import yaml

from slipform import __version__
from slipform.addons.server.admission.budgets import NANOS, KeyBudget, Standing, period_end, period_start
from slipform.addons.server.calls.endpoints import ROWS, EndpointRow
from slipform.build_info import build_in_use
from slipform.errors import RequestError
from slipform.schema.document import reference_of, reference_steps

LIVE = frozenset({"/healthz", "/health/liveliness", "/health/liveness"})
READY = frozenset({"/readyz", "/health/readiness"})
PAGES = frozenset({*LIVE, *READY, "/", "/version", "/metrics", "/openapi.json", "/docs", "/v1/slipform/spend"})


class WrongMethodError(RequestError):
    """The path exists, but does not support the method."""

    code = "method_not_allowed"
    http_status = 405


def front(user_agent: bytes, *, has_console: bool = False) -> tuple[bytes, bytes]:
    """Return the page at `/` and its content type: clients check it for a running server, or for Ollama's text.

    >>> front(b"ollama-python/0.6.3")[0]
    b'Ollama is running'
    """
    if user_agent.lower().startswith(b"ollama"):
        return b"Ollama is running", b"text/plain; charset=utf-8"
    links = {"docs": "/docs", "openapi": "/openapi.json", "models": "/v1/models", "health": "/healthz"}
    if has_console:
        links["console"] = "/console/"
    return orjson.dumps({"name": "slipform", "status": "ok", "docs": "/docs", "links": links}), b"application/json"


def health() -> dict[str, Any]:
    """Return that the process is alive.

    >>> health()
    {'status': 'ok'}
    """
    return {"status": "ok"}


def readiness(
    waiting_for: str | None, generation: int | None, *, reload_refused: bool = False
) -> tuple[int, dict[str, Any]]:
    """Return whether the server is ready for requests; for operators, who pass a generation, also why not.

    They also learn that the last reload was refused. The reason, which names files and settings, is only in the log.

    >>> readiness(None, 2)
    (200, {'status': 'ready', 'config': 2})
    """
    status = 200 if waiting_for is None else 503
    if generation is None:
        return status, {"status": "ready" if waiting_for is None else "not ready"}
    detail: dict[str, Any] = {"status": waiting_for or "ready", "config": generation}
    if reload_refused:
        detail["last_reload"] = "refused: the server's log says why"
    return status, detail


def spend(name: str, budget: KeyBudget, standing: Standing, now: float) -> dict[str, Any]:
    """Return the spending of a key in its period, the amounts reserved for calls in progress, and its limits."""
    end = period_end(budget.period, now)
    limits = {
        "cost": budget.max_cost,
        "tokens": budget.max_tokens,
        "soft_cost": budget.soft_cost,
        "soft_tokens": budget.soft_tokens,
        "concurrent": budget.max_concurrent,
    }
    return {
        "key": name,
        "period": budget.period or "all",
        "since": period_start(budget.period, now).isoformat() if budget.period else None,
        "until": None if end is None else end.isoformat(),
        "requests": standing.requests,
        "spent": {"tokens": standing.tokens, "cost": standing.cost / NANOS},
        "held": {"tokens": standing.held_tokens, "cost": standing.held_cost / NANOS, "calls": standing.live},
        "limits": {limit: value for limit, value in limits.items() if value is not None},
    }


def version(*, detailed: bool = True) -> dict[str, Any]:
    """Return the version of slipform; for operators, also the platform and whether it is compiled."""
    fields = {"name": "slipform", "version": __version__}
    if detailed:
        return {**fields, "python": platform.python_version(), "build": str(build_in_use())}
    return fields


def model_list(names: Sequence[str], created: int) -> dict[str, Any]:
    """List the models by name, in the format of OpenAI's API."""
    return {"object": "list", "data": [model_entry(name, created) for name in names]}


def model_entry(name: str, created: int) -> dict[str, Any]:
    """Describe one model in the format of OpenAI's API."""
    return {"id": name, "object": "model", "created": created, "owned_by": "slipform"}


def anthropic_models(names: Sequence[str], created: int) -> dict[str, Any]:
    """List the models by name, in the format of Anthropic's API, on one page."""
    entries = [anthropic_model(name, created) for name in names]
    first, last = (entries[0]["id"], entries[-1]["id"]) if entries else (None, None)
    return {"data": entries, "has_more": False, "first_id": first, "last_id": last}


def anthropic_model(name: str, created: int) -> dict[str, Any]:
    """Describe one model in the format of Anthropic's API."""
    when = datetime.fromtimestamp(created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {"type": "model", "id": name, "display_name": name, "created_at": when}


def gemini_models(names: Sequence[str], created: int) -> dict[str, Any]:
    """List the models by name, in the format of Gemini's API, on one page."""
    return {"models": [gemini_model(name, created) for name in names]}


def gemini_model(name: str, created: int) -> dict[str, Any]:
    """Describe one model in the format of Gemini's API."""
    del created
    return {
        "name": f"models/{name}",
        "baseModelId": name,
        "version": "1",
        "displayName": name,
        "supportedGenerationMethods": ["generateContent", "streamGenerateContent"],
    }


OLLAMA_VERSION = "0.12.0"
"""The version of Ollama whose API is served: its clients request one."""


def ollama_models(names: Sequence[str], created: int) -> dict[str, Any]:
    """List the models by name, in the format of Ollama's API."""
    when = datetime.fromtimestamp(created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    details = {
        "format": "",
        "family": "slipform",
        "families": ["slipform"],
        "parameter_size": "",
        "quantization_level": "",
    }
    return {
        "models": [
            {"name": name, "model": name, "modified_at": when, "size": 0, "digest": "", "details": details}
            for name in names
        ]
    }


def ollama_model(name: str, created: int) -> dict[str, Any]:
    """Describe one model in the format of Ollama's API."""
    entry = ollama_models([name], created)["models"][0]
    fields = {"modelfile": f"FROM {name}", "parameters": "", "template": "", "model_info": {}}
    return {
        **fields,
        "details": entry["details"],
        "modified_at": entry["modified_at"],
        "capabilities": ["completion", "tools"],
    }


JsonObject: TypeAlias = dict[str, Any]


@cache
def openapi_document() -> JsonObject:
    """Return the OpenAPI 3.1 document: openapi.yaml with the version and the endpoints of the table.

    >>> openapi_document()["openapi"]
    '3.1.0'
    """
    text = resources.files("slipform.addons.server").joinpath("openapi.yaml").read_text("utf-8")
    loader = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader  # the C loader takes an eighth of the time
    document: JsonObject = yaml.load(text, loader)  # noqa: S506 — both are safe
    paths: dict[str, JsonObject] = {path: dict(methods) for path, methods in document["paths"].items()}
    for row in ROWS:
        method = "post" if row.method == "*" else row.method.lower()
        paths.setdefault(row.path.replace("*", "{rest}"), {}).setdefault(method, _row_operation(row))
    return {**document, "paths": paths, "info": {**document["info"], "version": __version__}}


_ERRORS = {"anthropic": "AnthropicError", "gemini": "GeminiError", "ollama": "OllamaError"}


def _row_operation(row: EndpointRow) -> JsonObject:
    """Return the description of an endpoint that openapi.yaml lacks: the vendor defines its request and answer."""
    names = re.findall(r"{(\w+)}", row.path.replace("*", "{rest}"))
    error = {"schema": {"$ref": f"#/components/schemas/{_ERRORS.get(row.family, 'OpenAIError')}"}}
    responses: JsonObject = {"default": {"description": "An error.", "content": {"application/json": error}}}
    if row.kind == "refused":
        responses = {str(row.status): {**responses["default"], "description": f"Not served here. {row.instead}"}}
    else:
        responses["200"] = {"description": "The vendor's answer.", "content": {"*/*": {"schema": {}}}}
    operation: JsonObject = {"summary": row.title, "x-slipform": row.kind, "responses": responses}
    if names:
        schema = {"type": "string", "minLength": 1}
        operation["parameters"] = [{"name": each, "in": "path", "required": True, "schema": schema} for each in names]
    if row.sent and row.kind != "refused":
        kind = "application/json" if row.sent == "json" else "multipart/form-data"
        operation["requestBody"] = {"required": True, "content": {kind: {"schema": {"type": "object"}}}}
    return operation


_PLACES = {"body": "body", "part": "form", "path": "path", "lines": "lines of a batch's file", "requests": "requests"}


def endpoint_lines() -> Iterator[str]:
    """Return the rows of the endpoint table as lines of the table in docs/endpoints.md."""
    for row in ROWS:
        method = "any" if row.method == "*" else row.method
        remark = row.instead
        if row.kind in ("forwarded", "counted"):
            places = {
                "body": "in the body",
                "part": "in the form",
                "path": "in the path",
                "lines": "in the file's lines",
            }
            place = places.get(row.model, "in each request" if row.model else "")
            remark = (
                f"{'model ' + place if place else 'no model'}; providers that speak {', '.join(row.upstream or ())}"
            )
            if row.creates or row.lists or row.resources:
                remark += "; owned by the key"
        what = str(row.status) if row.kind == "refused" else row.kind
        yield f"| `{method} {row.path}` | {row.title} | {what} | {remark} |"


@cache
def openapi_bytes() -> bytes:
    """Return the OpenAPI document as JSON."""
    return orjson.dumps(openapi_document())


@cache
def openapi_page() -> bytes:
    """Return the OpenAPI document as one HTML page, without scripts and external resources."""
    operations = [
        _operation(method, path, operation)
        for path, methods in openapi_document()["paths"].items()
        for method, operation in methods.items()
    ]
    schemas = [
        f"<details id='{escape(name)}'><summary>{escape(name)}</summary><pre>{_schema_html(schema)}</pre></details>"
        for name, schema in openapi_document()["components"]["schemas"].items()
    ]
    body = "\n".join([*operations, "<h2>Schemas</h2>", *schemas])
    return _HTML.replace("{version}", escape(__version__)).replace("{body}", body).encode()


def _operation(method: str, path: str, operation: JsonObject) -> str:
    body_schema = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema")
    lines = [f"<details><summary><b>{method.upper()}</b> <code>{escape(path)}</code> {escape(operation['summary'])}"]
    lines.append("</summary><table>")
    if body_schema is not None:
        lines.append(f"<tr><td>body</td><td>{_link(body_schema)}</td></tr>")
    for status, response in operation["responses"].items():
        kinds = ", ".join(
            f"{escape(kind)} {_link(each['schema'])}" for kind, each in response.get("content", {}).items()
        )
        lines.append(f"<tr><td>{status}</td><td>{escape(response['description'])} <small>{kinds}</small></td></tr>")
    return "".join([*lines, "</table></details>"])


def _link(schema: JsonObject) -> str:
    steps = [reference_steps(reference_of(each)) for each in schema.get("anyOf", [schema])]
    named = [each[-1] for each in steps if each]
    return " or ".join(f"<a href='#{escape(name)}'>{escape(name)}</a>" for name in named)


def _schema_html(schema: Any) -> str:
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
