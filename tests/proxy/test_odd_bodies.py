"""Odd bodies at every row: an error in the API's own shape or the vendor's answer, never a fault of the server's."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from slipform.addons.server.calls.endpoints import EndpointRow
from tests.conftest import THOROUGH
from tests.proxy import every_row
from tests.proxy.asgi import Reply
from tests.proxy.every_row import Request, file, form, provider_of, rows, text, world
from tests.proxy.fuzzing import WRONG, places, replaced

NOT_JSON_OBJECTS: dict[str, bytes] = {
    "nothing": b"",
    "white space": b" \r\n\t",
    "null": b"null",
    "a list": b"[1]",
    "a text": b'"x"',
    "a number": b"1",
    "half of it": b'{"model": "gpt/m"',
    "two of them": b'{"model": "gpt/m"}{"model": "gpt/m"}',
    "not JSON": b"model=gpt/m",
    "bytes": b"\xff\xfe\x00",
    "UTF-16": '{"model": "gpt/m"}'.encode("utf-16"),
    "a byte order mark": b'\xef\xbb\xbf{"model": "gpt/m"}',
    "a NUL": b"\x00",
    "NaN": b'{"model": "gpt/m", "x": NaN}',
    "infinity": b'{"model": "gpt/m", "x": -Infinity}',
    "a number that is too large": b'{"model": "gpt/m", "x": 1e999}',
    "half a character": b'{"model": "gpt/m", "x": "\\ud800"}',
    "half a character after a long number": b'{"y": 1%b, "model": "gpt/m", "x": "\\ud800"}' % (b"0" * 400),
    "half a character as a key": b'{"y": 1%b, "model": "gpt/m", "\\udfff": 1}' % (b"0" * 400),
    "a number of 5,000 digits": b'{"model": "gpt/m", "x": %b}' % (b"1" * 5000),
    "lists without an end": b'{"model": "gpt/m", "x": ' + b"[" * 10_000,
    "bytes that are not UTF-8": b'{"model": "gpt/m", "x": "\xff"}',
    "a control character": b'{"model": "gpt/m", "x": "\n"}',
}
"""Bodies that no row can read."""


def deep(levels: int, field: str = "x") -> str:
    return f'"{field}":' + '{"a":[' * (levels // 2) + "1" + "]}" * (levels // 2)


def _oddly_written(row: EndpointRow) -> Iterator[tuple[str, bytes]]:
    fields = json.dumps(every_row.fields_of(row, f"{provider_of(row)}/m"))
    for levels in (200, 240, 300, 900, 1100, 5000) if THOROUGH else (240, 1100):
        yield f"{levels} levels", f"{fields[:-1]},{deep(levels)}}}".encode()
        yield f"{levels} levels in tools", f'{fields[:-1]},"tools":[{{"parameters":{{{deep(levels)}}}}}]}}'.encode()
        yield f"{levels} levels in metadata", f"{fields[:-1]},{deep(levels, 'metadata')}}}".encode()
    yield "keys twice", f"{fields[:-1]},{fields[1:]}".encode()
    yield "a long number", f'{fields[:-1]},"x":{"9" * 400}}}'.encode()
    yield "an empty key", f'{fields[:-1]},"":{{"":""}}}}'.encode()
    yield "a long key", f'{fields[:-1]},"{"k" * 10_000}":1}}'.encode()
    yield "no fields", b"{}"
    yield "a model alone", json.dumps({"model": f"{provider_of(row)}/m"}).encode()


def _wrong_values(row: EndpointRow) -> Iterator[tuple[str, bytes]]:
    """A wrong value in every place of a body, and in every field that is looked at for any row."""
    fields = every_row.fields_of(row, f"{provider_of(row)}/m")
    looked_at = ("stream", "tools", "tool_choice", "file_id", "previous_response_id", "conversation", "container")
    fields |= dict.fromkeys((*looked_at, "slipform", "extra_body", "metadata", "audio", "prompt"))
    spots = list(places(fields))
    for at, place in enumerate(spots):
        for number, value in enumerate(WRONG):
            if THOROUGH or (at + number + len(row.path)) % 12 == 0:
                yield f"{place} {value!r}", json.dumps(replaced(fields, place, value)).encode()


def _forms(row: EndpointRow) -> Iterator[tuple[str, bytes]]:
    start = [text("model", f"{provider_of(row)}/m"), text("purpose", "batch")]
    for name, content in NOT_JSON_OBJECTS.items():
        yield f"a line: {name}", form([*start, file(content=content)])
        yield f"a field: {name}", form([*start, text("x", ""), ('; name="tools"', content), file()])
        yield f"the model: {name}", form([('; name="model"', content), ('; name="purpose"', content), file()])
    for levels in (300, 1100, 5000):
        nested = f"{{{deep(levels)}}}".encode()
        yield f"a line of {levels} levels", form([*start, file(content=b'{"body":' + nested + b"}")])
        yield f"a field of {levels} levels", form([*start, ('; name="tools"', nested), file()])
    for line in (
        b'{"body":{"model":{}}}',
        b'{"body":{"model":[1],"tools":3}}',
        b'{"body":{"response_format":3}}',
        b'{"url":[],"body":{"model":"gpt/m","input":[{"id":{}}]}}',
        b'{"url":"/v1/responses","body":{"text":3}}',
    ):
        yield f"the line {line!r}", form([*start, file(content=line)])
    yield "no parts", form([])
    yield "no form", b"x"
    yield "nothing", b""
    yield "half of it", form([*start, file()])[:-9]
    yield "no file", form(start)


def odd_requests(row: EndpointRow) -> Iterator[tuple[str, Request, bool]]:
    """Odd requests for a row: the name of each, the request, and whether it must be refused."""
    made = every_row.request_of(row, {kind: f"{kind}-1" for kind in row.resources})
    odd = [(name, body, row.sent == "json" and (bool(body) or not row.body_optional))
           for name, body in NOT_JSON_OBJECTS.items()]  # fmt: skip
    if row.sent == "json":
        odd += [(name, body, False) for name, body in (*_oddly_written(row), *_wrong_values(row))]
    elif row.sent:
        odd += [(name, body, False) for name, body in _forms(row)]
    for name, body, is_refused in odd:
        yield name, Request(made.method, made.path, made.headers, body), is_refused
    for kind in (
        "",
        "text/plain",
        "multipart/form-data",
        "multipart/form-data; boundary=b",
        "application/x-unknown",
        "\xff",
    ):
        yield f"as {kind!r}", Request(made.method, made.path, {**made.headers, "content-type": kind}, made.body), False
    mounted = f"/p/{provider_of(row)}{made.path}"
    yield "under a mount", Request(made.method, mounted, made.headers, b"["), row.sent == "json"
    for encoding in ("gzip", "br", "nonsense", "\xff"):
        headers = {**made.headers, "content-encoding": encoding}
        yield f"in {encoding!r}", Request(made.method, made.path, headers, made.body), row.sent == "json"
    for query in ("limit=x", "after=%00", "limit=%ff", "stream=true&stream=false", "a=1&" * 2000, "limit=99999"):
        yield f"the query {query[:30]}", Request(made.method, f"{made.path}?{query}", made.headers, made.body), False
    for provider in ("", "nobody", "\xff", "gpt/m", "claude"):
        headers = {**made.headers, "x-slipform-provider": provider}
        yield f"of the provider {provider!r}", Request(made.method, made.path, headers, made.body), False


def problem(row: EndpointRow, reply: Reply, *, is_refused: bool) -> str:
    """What is wrong with a reply; empty for nothing."""
    if reply.status == 200 and not is_refused:
        return ""
    if not 400 <= reply.status < 500 and reply.status not in (501, 502):
        return "neither refused nor answered"
    if reply.status >= 500 and is_refused:
        return "not refused by the server itself"
    try:
        content = reply.json()
        error = content["error"]
        message = error if row.family == "ollama" else error["message"]
    except (ValueError, KeyError, TypeError):
        return f"no error of the API's: {reply.body[:100]!r}"
    if reply.status == 502 and "The response has no" not in message:  # the scripted vendor's holds nothing
        return f"blamed on the vendor: {message[:200]}"
    if row.family == "anthropic":
        fits = content.get("type") == "error" and isinstance(error["type"], str)
    elif row.family == "gemini":
        fits = error["code"] == reply.status and isinstance(error["status"], str)
    else:
        fits = row.family == "ollama" or {"message", "type", "param", "code"} <= set(error)
    return "" if isinstance(message, str) and message and fits else f"another API's error: {reply.body[:100]!r}"


@pytest.mark.parametrize(
    "keys", [None, {"limited": ["*/m", "*/m*"]}, {"free": None}], ids=["no keys", "limited", "free"]
)
async def test_an_odd_body_is_refused_in_the_apis_shape_at_every_row(
    tmp_path: Path, keys: dict[str, Any] | None, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    failures: list[str] = []
    async with world(tmp_path, keys) as there:
        who = next(iter(there.keys), None)
        for row in rows():
            if who is not None:
                there.give(who, {kind: f"{kind}-1" for kind in ("file", "response", "conversation", "item", "batch")})
            for name, request, is_refused in odd_requests(row):
                reply = await there.send(request, who)
                if wrong := problem(row, reply, is_refused=is_refused and row.kind != "served"):
                    failures.append(f"{row.method} {row.path}: {name}: {reply.status} {wrong}")
                if raised := [each.getMessage()[:200] for each in caplog.records if each.exc_info]:
                    failures.append(f"{row.method} {row.path}: {name}: {raised}")
                caplog.clear()
    assert failures == []
