"""The OpenAPI document of the proxy, and a page that shows it without fetching anything."""

from __future__ import annotations

from functools import cache
from html import escape
from importlib import resources
from typing import Any, TypeAlias

import orjson
import yaml

from slipform import __version__
from slipform.schema.document import reference_of, reference_steps

Json: TypeAlias = dict[str, Any]


@cache
def document() -> Json:
    """The document, as OpenAPI 3.1: openapi.yaml, and the version.

    >>> document()["openapi"]
    '3.1.0'
    """
    text = resources.files("slipform.proxy").joinpath("openapi.yaml").read_text("utf-8")
    loader = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader  # the one in C takes an eighth of the time
    said: Json = yaml.load(text, loader)  # noqa: S506 — both are safe
    return {**said, "info": {**said["info"], "version": __version__}}


@cache
def document_bytes() -> bytes:
    """The document as JSON."""
    return orjson.dumps(document())


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
        for name, schema in document()["components"]["schemas"].items()
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
    steps = [reference_steps(reference_of(each)) for each in schema.get("anyOf", [schema])]
    named = [each[-1] for each in steps if each]
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
