"""The model that leaves is the one that was checked: in every row, wherever else a request names another."""

from __future__ import annotations

import email
import email.policy
import json
from collections.abc import Iterator
from email.message import EmailMessage
from pathlib import Path
from typing import Any

import pytest

from slipform.addons.server.calls.endpoints import EndpointRow, locate
from slipform.addons.server.calls.model_names import folded
from slipform.addons.server.calls.multipart import boundary_of, read_form
from slipform.testing import Received
from tests.proxy import every_row
from tests.proxy.every_row import (
    KINDS,
    Request,
    World,
    file,
    form,
    headers_of,
    line,
    provider_of,
    rows,
    text,
    world,
)

LIMITED = [*[f"{name}/cheap" for name in KINDS], "cheap", "small"]


def form_parts(received: Received) -> list[EmailMessage]:
    """The parts of a form as the standard library's `email` reads them."""
    head = f"content-type: {received.headers['content-type']}\r\n\r\n".encode()
    whole = email.message_from_bytes(head + received.body, policy=email.policy.HTTP)
    assert isinstance(whole, EmailMessage)
    return [part for part in whole.iter_parts() if isinstance(part, EmailMessage)]


def part_name(part: EmailMessage) -> str:
    return str(part.get_param("name", header="content-disposition"))


def named_in(value: Any) -> Iterator[str]:
    """Every model that a body names, at its top or in a request inside it."""
    for name, inner in value.items() if isinstance(value, dict) else ():
        if folded(name) == "model":
            yield str(inner).removeprefix("models/")
        elif folded(name) in ("params", "body", "generatecontentrequest", "extrabody"):
            yield from named_in(inner)
        elif folded(name) == "requests":
            for each in inner:
                yield from named_in(each)


def models_of(received: Received) -> list[str]:
    """Every model that a request at the vendor's names."""
    models = [received.path.partition("/models/")[2].partition(":")[0]] if "/models/" in received.path else []
    if "multipart" not in received.headers.get("content-type", ""):
        return [*models, *(named_in(json.loads(received.body)) if received.body else ())]
    for part in form_parts(received):
        content = part.get_payload(decode=True)
        assert isinstance(content, bytes)
        if folded(part_name(part)).startswith("model"):
            models.append(content.decode())
        elif part.get_filename() is not None and content.startswith(b"{"):
            models += [model for each in content.split(b"\n") for model in named_in(json.loads(each))]
    return models


def _json_places(row: EndpointRow, allowed: str, dear: str) -> Iterator[tuple[str, dict[str, Any], str]]:
    """Bodies that name both models; the name of the case, the fields, and what their JSON is to be changed to."""
    fields = every_row.fields_of(row, allowed)
    yield "nothing else", fields, ""
    yield "the body alone", every_row.fields_of(row, dear), ""
    yield "another case", {**fields, "Model": dear}, ""
    yield "extra_body", {**fields, "extra_body": {"model": dear}}, ""
    yield "twice", fields, f'"model":"{dear}",'
    yield "twice, escaped", fields, f'"mod\\u0065l":"{dear}",'
    yield "a list", {**fields, "model": [allowed, dear]}, ""
    for name in ("models", "fallbacks", "engine", "deployment_id", "model_id", "prompt"):
        yield name, {**fields, name: {"id": dear}}, ""
    if row.model == "requests":
        yield "requests in another case", {**fields, "Requests": every_row.fields_of(row, dear)["requests"]}, ""
    elif row.model == "path" and row.kind != "enforced":
        for name in ("generateContentRequest", "generate_content_request", "requests"):
            yield name, {**fields, name: [{"model": f"models/{dear}"}]}, ""
            yield f"{name} in another case", {**fields, name.upper(): [{"MODEL": f"models/{dear}"}]}, ""


def _json_requests(row: EndpointRow) -> Iterator[tuple[str, Request]]:
    provider = provider_of(row)
    path = every_row.path_of(row, {}).replace(f"{provider}/m", f"{provider}/cheap")
    for name, fields, before in _json_places(row, f"{provider}/cheap", "dear"):
        body = json.dumps(fields)
        yield name, Request("POST", path, headers_of(row), f"{{{before}{body[1:]}".encode())
    fields = every_row.fields_of(row, "dear")
    without = {name: value for name, value in fields.items() if name != "model"}
    short = path.removeprefix("/v1")
    for mount, model in (("", f"{provider}/cheap"), (f"/p/{provider}", "cheap"), ("", "cheap")):
        for name, sent in (("another", fields), ("none", without), ("its own", {**fields, "model": "cheap"})):
            deployed = f"{mount}/openai/deployments/{model}{short}"
            if row.model == "body" and locate("POST", deployed, {}) is not None:
                yield f"{deployed} with {name}", Request("POST", deployed, headers_of(row), json.dumps(sent).encode())
    if row.model == "body":
        for model in ("cheap", "dear"):
            named = json.dumps({**fields, "model": model}).encode()
            yield f"{model} by a header", Request("POST", path, headers_of(row, provider), named)
            yield f"{model} by a mount", Request("POST", f"/p/{provider}{path}", headers_of(row), named)
        yield "in the query", Request("POST", f"{path}?model=dear", headers_of(row), json.dumps(without).encode())


def _form_requests(row: EndpointRow) -> Iterator[tuple[str, Request]]:
    provider, path = provider_of(row), row.path
    allowed, start = text("model", f"{provider}/cheap"), [file("image")]
    forms: dict[str, list[tuple[str, bytes]]] = {
        "nothing else": [allowed, *start],
        "the form alone": [text("model", "dear"), *start],
        "twice": [allowed, *start, text("model", "dear")],
        "another case": [allowed, text("Model", "dear"), *start],
        "in brackets": [allowed, *start, text("model[]", "dear")],
        "a file": [*start, file("model", b"dear")],
        "a file besides": [allowed, *start, file("model", b"dear")],
        "another field": [allowed, text("engine", "dear"), *start],
        "JSON": [allowed, text("extra_body", '{"model": "dear"}'), *start],
    }
    for name, parts in forms.items():
        yield name, Request("POST", path, headers_of(row), form(parts))
    for mount, model in (("", f"{provider}/cheap"), (f"/p/{provider}", "cheap"), ("", "cheap")):
        for name, more in (("another", [text("model", "dear")]), ("none", []), ("its own", [text("model", "cheap")])):
            deployed = f"{mount}/openai/deployments/{model}{path.removeprefix('/v1')}"
            if locate("POST", deployed, {}) is not None:
                yield f"{deployed} with {name}", Request("POST", deployed, headers_of(row), form([*more, *start]))


def _line_requests(row: EndpointRow) -> Iterator[tuple[str, Request]]:
    separated = "\u2028" + line("dear").decode() + "\u2028"
    contents = {
        "nothing else": line("gpt/cheap"),
        "the second line": line("gpt/cheap") + b"\n" + line("gpt/dear"),
        "another case": line("gpt/cheap", Model="dear"),
        "beside the body": json.dumps({**json.loads(line("gpt/cheap")), "Body": {"model": "dear"}}).encode(),
        "twice": line("gpt/cheap").replace(b'"model"', b'"model": "dear", "model"'),
        "a line inside a line": json.dumps({**json.loads(line("gpt/cheap")), "custom_id": separated}).encode(),
        "characters that end a line": json.dumps(
            {**json.loads(line("gpt/cheap")), "custom_id": separated}, ensure_ascii=False
        ).encode(),
    }
    for name, content in contents.items():
        yield name, Request("POST", row.path, headers_of(row), form([text("purpose", "batch"), file(content=content)]))
    two = {"two files": file("x", line("gpt/dear")), "a text": text("file", line("gpt/dear").decode())}
    for name, part in {**two, "a text in upper case": text("FILE", line("gpt/dear").decode())}.items():
        parts = [text("purpose", "batch"), file(content=line("gpt/cheap")), part]
        yield name, Request("POST", row.path, headers_of(row), form(parts))


def limited_requests() -> Iterator[tuple[str, Request]]:
    """Requests for every row that names a model, which name one that the key may not use in every place there is."""
    for row in rows("enforced", "forwarded", "counted"):
        if row.model == "part":
            made = _form_requests(row)
        elif row.model == "lines":
            made = _line_requests(row)
        else:
            made = _json_requests(row) if row.model else iter(())
        for name, request in made:
            yield f"{row.path}: {name}", request


async def test_the_model_that_leaves_is_the_one_that_was_checked_by_every_row(tmp_path: Path) -> None:
    failures: list[str] = []
    served: set[str] = set()
    async with world(tmp_path, {"limited": LIMITED}) as there:
        for name, request in limited_requests():
            reply = await there.send(request, "limited")
            models = [models_of(each) for each in there.reached]
            if reply.status == 200:
                served.add(name)
            if reply.status >= 500 or (reply.status != 200 and there.reached):
                failures.append(f"{name}: {reply.status} {reply.body[:200]!r}")
            failures += [f"{name}: {each}" for each in models if set(each) != {"cheap"}]
    assert failures == []
    named = {row.path for row in rows("enforced", "forwarded", "counted") if row.model}
    assert {f"{path}: nothing else" for path in named} <= served
    assert len(served) > 100


READ_TWICE = [
    "multipart/form-data; xboundary=AAA; boundary=BBB",
    "multipart/form-data; boundary=AAA; boundary=BBB",
    "multipart/form-data; boundary=AAA; BOUNDARY=BBB",
    'multipart/form-data; x="; boundary=AAA"; boundary=BBB',
    'multipart/form-data; boundary="AAA; boundary=BBB"',
    'multipart/form-data; boundary="AA\\A"',
    "multipart/form-data; boundary*=utf-8''AAA; boundary=BBB",
    "multipart/form-data; boundary*0=A; boundary*1=AA",
    "multipart/form-data; BOUNDARY=AAA",
    "multipart/form-data; boundary =AAA",
    "multipart/form-data; boundary= AAA",
    "multipart/form-data;\tboundary=AAA\x0b",
    "multipart/form-data; boundary=AAA; charset=utf-16",
    "multipart/form-data; boundary=AAA,BBB;",
    "multipart/form-data boundary=AAA",
    "multipart/form-data, multipart/form-data; boundary=AAA",
    "multipart/mixed; boundary=AAA",
    "multipart/form-data; boundary=" + "A" * 71,
    'multipart/form-data; boundary=""',
    "text/plain; boundary=AAA",
]


def two_forms(model: str, hidden: str, boundary: str) -> bytes:
    """A form of one boundary that hides one of another in a field."""
    inner = form([text("model", hidden), text("purpose", "batch"), file(content=line(hidden))], "BBB")
    return form(
        [text("model", model), text("purpose", "batch"), text("note", inner.decode()), file(content=line(model))],
        boundary,
    )


@pytest.mark.parametrize("path", ["/v1/files", "/v1/audio/transcriptions", "/v1/images/edits"])
async def test_a_header_that_names_two_boundaries_is_refused(tmp_path: Path, path: str) -> None:
    row = next(row for row in rows("forwarded") if row.path == path)
    failures = []
    async with world(tmp_path, {"limited": LIMITED}) as there:
        for kind in READ_TWICE:
            body = two_forms("gpt/cheap", "gpt/dear", "AAA")
            reply = await there.send(Request("POST", path, {**headers_of(row), "content-type": kind}, body), "limited")
            if reply.status != 400 or there.reached:
                failures.append(f"{kind}: {reply.status}")
    assert failures == []


ODD_PARTS: dict[str, bytes] = {
    "another file name": b"content-disposition: form-data; name=\"purpose\"; filename*=utf-8''f",
    "two names": b'content-disposition: form-data; name="note"; name="purpose"',
    "a name in upper case": b'content-disposition: form-data; NAME="purpose"',
    "an escaped quote": b'content-disposition: form-data; name="note"; filename="a\\"; name=\\"purpose"',
    "two dispositions": b'content-disposition: form-data; name="a"\r\ncontent-disposition: form-data; name="purpose"',
    "a folded header": b'content-disposition: form-data;\r\n name="purpose"',
    "a bare line feed": b'content-disposition: form-data; name="a"\ncontent-disposition: form-data; name="purpose"',
    "an encoding": b'content-disposition: form-data; name="purpose"\r\ncontent-transfer-encoding: base64',
    "another charset": b'content-disposition: form-data; name="purpose"\r\ncontent-type: text/plain; charset=utf-7',
    "parts inside": b'content-disposition: form-data; name="a"\r\ncontent-type: multipart/mixed; boundary=c',
    "a wrong length": b'content-disposition: form-data; name="purpose"\r\ncontent-length: 1',
    "a length that is a word": b'content-disposition: form-data; name="purpose"\r\ncontent-length: x',
    "another header": b'content-disposition: form-data; name="purpose"\r\nx-name: purpose',
    "a charset for all": b'content-disposition: form-data; name="_charset_"',
    "no disposition": b"content-type: text/plain",
    "a disposition of another kind": b'content-disposition: attachment; name="purpose"',
    "a name that is not plain": b'content-disposition: form-data; name="pur pose"',
}
START = b'--AAA\r\ncontent-disposition: form-data; name="model"\r\n\r\ngpt/cheap\r\n'
END = b"--AAA--\r\n"
ODD_FORMS: dict[str, bytes] = {
    **{name: START + b"--AAA\r\n%b\r\n\r\nbatch\r\n" % head + END for name, head in ODD_PARTS.items()},
    "a delimiter after a bare line feed": START.replace(b"cheap", b"cheap\n--AAA\n") + END,
    "a part after a bare line feed": START.replace(
        b"cheap", b'cheap\n--AAA\r\ncontent-disposition: form-data; name="x"\r\n\r\ny'
    )
    + END,
    "a delimiter in the middle": START.replace(b"cheap", b"cheap --AAA") + END,
    "spaces after a delimiter": START.replace(b"AAA\r\n", b"AAA \r\n") + END,
    "something before": b"x\r\n" + START + END,
    "something after": START + END + START + END,
    "no end": START,
}


@pytest.mark.parametrize("path", ["/v1/files", "/v1/audio/transcriptions"])
async def test_a_form_that_readers_could_take_for_another_is_refused(tmp_path: Path, path: str) -> None:
    row = next(row for row in rows("forwarded") if row.path == path)
    headers = {**headers_of(row), "content-type": "multipart/form-data; boundary=AAA"}
    failures = []
    async with world(tmp_path, {"limited": LIMITED}) as there:
        for name, body in ODD_FORMS.items():
            reply = await there.send(Request("POST", path, headers, body), "limited")
            if reply.status != 400 or there.reached:
                failures.append(f"{name}: {reply.status}")
    assert failures == []


FORMS: dict[str, tuple[str, bytes]] = {
    "as most write it": ("multipart/form-data; boundary=AAA", START + END),
    "in quotes, as .NET writes it": ('multipart/form-data; boundary="A:A"', (START + END).replace(b"AAA", b"A:A")),
    "with lengths and encodings, as OkHttp and Apache write it": (
        "multipart/form-data;boundary=AAA",
        START + b'--AAA\r\nContent-Disposition: form-data; name="file"; filename="\xc3\xa4;b.wav"\r\n'
        b"Content-Type: audio/wav\r\nContent-Transfer-Encoding: binary\r\nContent-Length: 4\r\n\r\n"
        b"\x00\r\n\xff\r\n" + END,
    ),
    "as Spring writes it": ("multipart/form-data;charset=UTF-8;boundary=AAA", START + END),
    "without a line end at its end": ("multipart/form-data; boundary=AAA", START + END.strip()),
}


@pytest.mark.parametrize("path", ["/v1/files", "/v1/audio/transcriptions"])
@pytest.mark.parametrize("name", FORMS)
async def test_what_leaves_is_read_alike_by_every_reader(tmp_path: Path, path: str, name: str) -> None:
    row = next(row for row in rows("forwarded") if row.path == path)
    kind, body = FORMS[name]
    if path == "/v1/files":
        body = body.replace(b'name="model"', b'name="purpose"').replace(b"gpt/cheap", b"assistants")
    async with world(tmp_path, {"limited": LIMITED}) as there:
        reply = await there.send(Request("POST", path, {**headers_of(row), "content-type": kind}, body), "limited")
        assert reply.status == 200, reply.body
        (received,) = there.reached
    strict = read_form(received.body, boundary_of(received.headers["content-type"].encode()))
    lenient = form_parts(received)
    assert [part.head.name for part in strict] == [part_name(part) for part in lenient]
    assert [part.content for part in strict] == [part.get_payload(decode=True) for part in lenient]
    assert [part.head.is_file for part in strict] == [part.get_filename() is not None for part in lenient]


async def _upload(there: World, purpose: tuple[str, bytes], who: str = "limited") -> str:
    row = next(row for row in rows("forwarded") if row.model == "lines")
    body = form([purpose, file(content=line("gpt/cheap"))])
    reply = await there.send(Request("POST", row.path, headers_of(row), body), who)
    assert reply.status == 200, reply.body
    return str(reply.json()["id"])


async def _start(there: World, who: str, **fields: Any) -> int:
    row = next(row for row in rows("forwarded") if row.path == "/v1/batches" and row.method == "POST")
    body = {"endpoint": "/v1/chat/completions", "completion_window": "24h", **fields}
    return (await there.send(Request("POST", row.path, headers_of(row), json.dumps(body).encode()), who)).status


async def test_a_key_with_limits_makes_a_batch_only_of_a_file_whose_lines_were_checked(tmp_path: Path) -> None:
    async with world(tmp_path, {"limited": LIMITED}) as there:
        checked = await _upload(there, text("purpose", "batch"))
        assert await _start(there, "limited", input_file_id=checked) == 200
        assert [json.loads(each.body)["input_file_id"] for each in there.reached] == [checked]
        others: list[dict[str, Any]] = [
            {"model": "dear"},
            {"Model": "dear"},
            {"requests": []},
            {"input_files": [checked]},
        ]
        for more in others:
            assert await _start(there, "limited", input_file_id=checked, **more) in (400, 403)
            assert there.reached == []
        assert await _start(there, "limited") == 403
        there.give("limited", {"file": "file-9"})
        assert await _start(there, "limited", input_file_id="file-9") == 403
        assert there.reached == []


@pytest.mark.parametrize(
    "purpose", [text("purpose", "user_data"), text("Purpose", "batch"), text("purpose[]", "batch")]
)
async def test_a_file_of_another_purpose_is_not_taken_for_a_checked_one(
    tmp_path: Path, purpose: tuple[str, bytes]
) -> None:
    async with world(tmp_path, {"limited": LIMITED, "free": None}) as there:
        assert await _start(there, "limited", input_file_id=await _upload(there, purpose)) == 403
        assert there.reached == []


async def test_a_key_without_limits_makes_a_batch_of_any_file_of_its_own(tmp_path: Path) -> None:
    async with world(tmp_path, {"free": None}) as there:
        identity = await _upload(there, text("purpose", "user_data"), "free")
        assert await _start(there, "free", input_file_id=identity) == 200


async def test_what_was_checked_counts_after_a_restart_and_against_the_patterns_of_the_day(tmp_path: Path) -> None:
    async with world(tmp_path, {"limited": LIMITED}) as there:
        checked = await _upload(there, text("purpose", "batch"))
        secret = there.keys["limited"]
    keys = tmp_path / "keys.json"
    async with world(tmp_path, {"other": None}) as there:
        there.keys["limited"] = secret
        assert await _start(there, "limited", input_file_id=checked) == 200
    narrowed = json.loads(keys.read_text())
    written = json.dumps(narrowed).replace(json.dumps(LIMITED), json.dumps(["gpt/other"]))
    assert "gpt/other" in written
    keys.write_text(written)
    async with world(tmp_path, {"another": None}) as there:
        there.keys["limited"] = secret
        assert await _start(there, "limited", input_file_id=checked) == 403
        assert there.reached == []


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/images/generations", "/v1/images/edits"])
@pytest.mark.parametrize("prompt", ["a text", ["a", "b"], [1, 2]])
async def test_a_text_to_continue_is_not_a_stored_prompt(tmp_path: Path, path: str, prompt: Any) -> None:
    row = next(row for row in rows() if row.path == path)
    body = json.dumps({"model": "gpt/cheap", "prompt": prompt}).encode()
    if row.sent == "form":
        body = form([text("model", "gpt/cheap"), text("prompt", str(prompt)), file("image")])
    async with world(tmp_path, {"limited": LIMITED}) as there:
        assert (await there.send(Request("POST", path, headers_of(row), body), "limited")).status == 200
        assert len(there.reached) == 1
        stored = json.dumps({"model": "gpt/cheap", "prompt": {"id": "pmpt_1"}}).encode()
        if row.sent == "json":
            assert (await there.send(Request("POST", path, headers_of(row), stored), "limited")).status == 403
            assert there.reached == []
