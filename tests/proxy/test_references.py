"""What one key owns is of no use to another, by any row, any field that names a resource and any spelling of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from slipform.addons.server.calls.endpoints import EndpointRow
from slipform.addons.server.calls.references import FIELDS, MAX_DEPTH, find_references
from slipform.addons.server.calls.resources import mark
from slipform.errors import RequestError
from slipform.testing import Raw, Received
from tests.conftest import THOROUGH
from tests.proxy import every_row
from tests.proxy.every_row import Request, file, form, provider_of, rows, rows_with_body, text, world

NAMES = {
    "fileid": "file_id", "fileids": "file_ids", "inputfileid": "input_file_id", "inputfileids": "input_file_ids",
    "previousresponseid": "previous_response_id", "conversation": "conversation", "container": "container",
    "containerid": "container_id", "containerids": "container_ids", "approvalrequestid": "approval_request_id",
    "audio": "audio", "batchid": "batch_id", "conversationid": "conversation_id", "errorfileid": "error_file_id",
    "file": "file", "files": "files", "inputfile": "input_file", "inputfiles": "input_files", "itemid": "item_id",
    "outputfileid": "output_file_id", "responseid": "response_id", "trainingfile": "training_file",
    "validationfile": "validation_file",
}  # fmt: skip
"""The fields of the table as their APIs write them."""
ADAS = {kind: f"{kind}-of-ada" for kind in ("file", "response", "conversation", "item", "batch", "container", "audio")}
EVES = {kind: f"{kind}-of-eve" for kind in ADAS}
Spelling = Callable[[str, str], str]


def _escaped(word: str) -> str:
    return "".join(f"\\u{ord(letter):04x}" for letter in word)


def _nested(levels: int) -> Spelling:
    return lambda name, value: '{"x":' * levels + f'{{"{name}":"{value}"}}' + "}" * levels


SPELLINGS: dict[str, Spelling] = {
    "plain": lambda name, value: f'{{"{name}":"{value}"}}',
    "an escaped key": lambda name, value: f'{{"{_escaped(name)}":"{value}"}}',
    "one escaped letter": lambda name, value: f'{{"{_escaped(name[0])}{name[1:]}":"{value}"}}',
    "an escaped value": lambda name, value: f'{{"{name}":"{_escaped(value)}"}}',
    "upper case": lambda name, value: f'{{"{name.upper()}":"{value}"}}',
    "camel case": lambda name, value: f'{{"{"".join(each.title() for each in name.split("_"))}":"{value}"}}',
    "no type": lambda name, value: f'{{"source":{{"{name}":"{value}"}}}}',
    "a type that is null": lambda name, value: f'{{"type":null,"{name}":"{value}"}}',
    "deep": _nested(100),
    "too deep": _nested(MAX_DEPTH + 5),
    "a list": lambda name, value: f'{{"{name}":["{value}"]}}',
    "a list of lists": lambda name, value: f'{{"x":[[[{{"{name}":[["{value}"]]}}]]]}}',
    "an object": lambda name, value: f'{{"{name}":{{"id":"{value}"}}}}',
    "in extra_body": lambda name, value: f'{{"extra_body":{{"{name}":"{value}"}}}}',
    "in a tool": lambda name, value: f'{{"tools":[{{"type":"x","{name}":"{value}"}}]}}',
    "in a part": lambda name, value: f'{{"content":[{{"type":"file","file":{{"{name}":"{value}"}}}}]}}',
    "of a key that is there twice": lambda name, value: f'{{"{name}":null,"{name}":"{value}"}}',
}
ITEMS: dict[str, str] = {
    "a reference": '{"input":[{"type":"item_reference","id":"@"}]}',
    "no type": '{"input":[{"id":"@"}]}',
    "a type that is null": '{"input":[{"type":null,"id":"@"}]}',
    "an escaped type": '{"input":[{"type":"item\\u005freference","id":"@"}]}',
    "an escaped id": '{"input":[{"\\u0069d":"@"}]}',
    "upper case": '{"INPUT":[{"ID":"@"}]}',
    "items": '{"items":[{"id":"@"}]}',
    "not in a list": '{"input":{"id":"@"}}',
    "a list of lists": '{"input":[[{"id":"@"}]]}',
    "anywhere": '{"x":[{"type":"item_reference","id":"@"}]}',
    "stored reasoning": '{"input":[{"type":"reasoning","id":"@","summary":[]}]}',
    "a picture": '{"input":[{"type":"image_generation_call","id":"@"}]}',
    "with content": '{"input":[{"type":"message","role":"user","id":"@","content":"x"}]}',
    "a second type": '{"input":[{"type":"message","TYPE":"item_reference","id":"@","content":"x"}]}',
    "a reference with content": '{"input":[{"type":"item_reference","id":"@","content":"x","role":"user"}]}',
}


class Case(NamedTuple):
    """A request that names a resource of Ada's."""

    name: str
    request: Request


def _with_fragment(row: EndpointRow, fragment: str) -> bytes:
    """The body of a row with the fields of a fragment, which stays as it is written."""
    fields = json.dumps(every_row.fields_of(row, f"{provider_of(row)}/m"))
    return f"{fields[:-1]},{fragment[1:]}".encode()


def _json_bodies(row: EndpointRow) -> Iterator[tuple[str, bytes]]:
    for at, (plain, field) in enumerate(FIELDS.items()):
        for number, (spelling, write) in enumerate(SPELLINGS.items()):
            # Without `make test-all` each field comes in two spellings, and over the rows in all of them.
            if THOROUGH or (at + number + len(row.path)) % (len(SPELLINGS) // 2) == 0:
                yield f"{plain}, {spelling}", _with_fragment(row, write(NAMES[plain], ADAS[field.kind]))
    for spelling, fragment in ITEMS.items():
        yield f"item, {spelling}", _with_fragment(row, fragment.replace("@", ADAS["item"]))


def _form_bodies(row: EndpointRow) -> Iterator[tuple[str, bytes]]:
    start = [text("model", f"{provider_of(row)}/m")] if row.sent == "form" else [text("purpose", "assistants")]
    for plain, field in FIELDS.items():
        if not field.must_own:
            continue
        name = NAMES[plain]
        value = ADAS[field.kind]
        yield f"{plain}, a field", form([*start, file(), text(name, value)])
        yield f"{plain}, before the file", form([text(name, value), *start, file()])
        yield f"{plain}, upper case", form([*start, file(), text(name.upper(), value)])
        yield f"{plain}, in brackets", form([*start, file(), text(f"tools[x][{name}][]", value)])
        yield f"{plain}, JSON", form([*start, file(), text("tools", f'[{{"{_escaped(name)}":"{value}"}}]')])
        yield f"{plain}, a file", form([*start, file(name, value.encode())])


def _line_bodies() -> Iterator[tuple[str, bytes]]:
    for plain, field in FIELDS.items():
        body = json.loads(SPELLINGS["deep"](NAMES[plain], ADAS[field.kind]))
        yield f"{plain}, a line", form([text("purpose", "batch"), file(content=every_row.line("gpt/m", **body))])
        beside = json.dumps({**json.loads(every_row.line("gpt/m")), "Body": body}).encode()
        yield f"{plain}, beside the body of a line", form([text("purpose", "batch"), file(content=beside)])


def foreign_requests() -> Iterator[Case]:
    """A request for every row that takes a body or names a resource, for every field and spelling."""
    for row in rows("enforced", "forwarded", "counted"):
        made = every_row.request_of(row, EVES)
        bodies = {"json": _json_bodies, "form": _form_bodies, "file": _form_bodies}.get(row.sent, lambda _: iter(()))
        for name, body in bodies(row):
            yield Case(f"{row.method} {row.path}: {name}", Request(made.method, made.path, made.headers, body))
        for kind in row.resources:
            path = every_row.path_of(row, {**EVES, kind: ADAS[kind]})
            yield Case(f"{row.method} {row.path}: {kind}", Request(made.method, path, made.headers, made.body))
        for cursor in sorted({"after", "after_id", "before_id"} & row.query):
            path = f"{every_row.path_of(row, EVES)}?{cursor}={ADAS[row.lists or 'item']}"
            yield Case(f"{row.method} {row.path}: {cursor}", Request(made.method, path, made.headers, made.body))
    made = every_row.request_of(next(row for row in rows("forwarded") if row.model == "lines"))
    for name, body in _line_bodies():
        yield Case(f"lines: {name}", Request(made.method, made.path, made.headers, body))


async def test_no_row_passes_on_what_another_key_owns_however_a_request_names_it(tmp_path: Path) -> None:
    failures: list[str] = []
    count = 0
    async with world(tmp_path, {"ada": None, "eve": None}) as there:
        there.give("ada", ADAS)
        there.give("eve", EVES)
        there.give("eve", {"file": "file-of-caller"})
        for name, request in foreign_requests():
            count += 1
            reply = await there.send(request, "eve")
            if reply.status not in (400, 403, 404) or there.reached:
                failures.append(f"{name}: {reply.status}, {[each.path for each in there.reached]}")
    assert failures == []
    assert count > 1500, "the table of endpoints or of fields was not read"


async def test_of_a_key_that_is_there_twice_the_vendor_gets_the_one_that_was_checked(tmp_path: Path) -> None:
    failures: list[str] = []
    async with world(tmp_path, {"ada": None, "eve": None}) as there:
        there.give("ada", ADAS)
        there.give("eve", EVES)
        there.give("eve", {"file": "file-of-caller"})
        for row in rows_with_body():
            made = every_row.request_of(row, EVES)
            twice = f'{{"x":[{{"file_id":"{ADAS["file"]}","file\\u005fid":"{EVES["file"]}"}}]}}'
            body = (
                _with_fragment(row, twice)
                if row.sent == "json"
                else form([text("model", f"{provider_of(row)}/m"), text("purpose", "x"), file(), text("x", twice)])
            )
            reply = await there.send(Request(made.method, made.path, made.headers, body), "eve")
            if reply.status >= 500 or any(ADAS["file"].encode() in each.body for each in there.reached):
                failures.append(f"{row.path}: {reply.status} {reply.body[:100]!r}")
    assert failures == []


def _own(row: EndpointRow) -> Iterator[tuple[str, Request, str]]:
    """Requests that name what is the caller's own, and the id that the vendor must get."""
    made = every_row.request_of(row, ADAS)
    provider = provider_of(row)
    for plain, field in FIELDS.items() if row.sent in ("json", "form") else ():
        value = mark(provider, ADAS["response"]) if field.kind == "response" else ADAS[field.kind]
        if row.sent == "form":
            body = form([text("model", f"{provider}/m"), file(), text(NAMES[plain], value)])
        else:
            body = _with_fragment(row, SPELLINGS["upper case"](NAMES[plain], value))
        yield plain, Request(made.method, made.path, made.headers, body), ADAS[field.kind]
    if row.sent == "json":
        body = _with_fragment(row, ITEMS["no type"].replace("@", ADAS["item"]))
        yield "item", Request(made.method, made.path, made.headers, body), ADAS["item"]
    if row.resources:
        path = every_row.path_of(row, {**ADAS, "response": mark(provider, ADAS["response"])})
        yield "path", Request(made.method, path, made.headers, made.body), ADAS[row.owner_kind()]


async def test_what_a_key_owns_reaches_the_vendor_in_the_vendors_spelling_by_every_row(tmp_path: Path) -> None:
    failures: list[str] = []
    async with world(tmp_path, {"ada": None}) as there:
        there.give("ada", {"file": "file-of-caller"})
        for row in rows("enforced", "forwarded", "counted"):
            there.give("ada", ADAS)  # the row before may have deleted one
            for name, request, identity in _own(row):
                reply = await there.send(request, "ada")
                sent = [f"{each.path} {each.body.decode('latin-1')}" for each in there.reached]
                if reply.status != 200 or len(sent) != 1 or identity not in sent[0] or "resp_sf1" in sent[0]:
                    failures.append(f"{row.method} {row.path}: {name}: {reply.status} {reply.body[:200]!r} {sent}")
    assert failures == []


WORDS: dict[str, Any] = {NAMES[plain]: ADAS[field.kind] for plain, field in FIELDS.items()} | {
    "id": ADAS["item"],
    "type": "item_reference",
    "input": [{"id": ADAS["item"]}],
}
"""Data of a caller that has a field of every name in the table."""
SCHEMA: Any = {"type": "object", "properties": {name: {"type": "string"} for name in WORDS}, "default": WORDS}
FUNCTION = {"name": "look", "parameters": SCHEMA}
CALL = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": WORDS}}
USE = {"type": "tool_use", "id": "t", "name": "look", "input": WORDS}
OLLAMA_CALL = {"role": "assistant", "tool_calls": [{"function": {"name": "look", "arguments": WORDS}}]}
MADE_HERE = {"type": "reasoning", "id": "rs_slipform_1", "summary": []}
PARTS = [
    {"functionCall": {"name": "look", "args": WORDS}},
    {"function_call": {"name": "look", "args": WORDS}},
    {"functionResponse": {"name": "look", "response": WORDS}},
    {"function_response": {"name": "look", "response": WORDS}},
]
DATA: dict[str, tuple[str, Any]] = {
    "the schema of a tool, in Chat": ("/v1/chat/completions", {"tools": [{"type": "function", "function": FUNCTION}]}),
    "the schema of an old function": ("/v1/chat/completions", {"functions": [FUNCTION]}),
    "the arguments of a call, in Chat": (
        "/v1/chat/completions", {"messages": [*every_row.TALK, {"role": "assistant", "tool_calls": [CALL]}]},
    ),
    "metadata": ("/v1/chat/completions", {"metadata": WORDS}),
    "the arguments of a template": ("/v1/chat/completions", {"chat_template_kwargs": WORDS}),
    "a message that is JSON": (
        "/v1/chat/completions", {"messages": [{"role": "user", "content": json.dumps(WORDS)}]},
    ),
    "the schema of a tool, in Responses": ("/v1/responses", {"tools": [{"type": "function", **FUNCTION}]}),
    "the schema of a server's tool": (
        "/v1/responses", {"input": [{"type": "mcp_list_tools", "tools": [{"name": "a", "input_schema": SCHEMA}]}]},
    ),
    "the arguments of a call, in Responses": (
        "/v1/responses", {"input": [{"type": "function_call", "call_id": "c", "name": "look", "arguments": WORDS}]},
    ),
    "the names of variables": ("/v1/responses", {"prompt": {"id": "p", "variables": {**WORDS, "input": "x"}}}),
    "the schema of a tool, in Messages": ("/v1/messages", {"tools": [{"name": "look", "input_schema": SCHEMA}]}),
    "examples of a tool's arguments": (
        "/v1/messages", {"tools": [{"name": "look", "input_schema": SCHEMA, "input_examples": [WORDS]}]},
    ),
    "the arguments of a call, in Messages": (
        "/v1/messages",
        {"messages": [{"role": "assistant", "content": [USE]}]},
    ),
    "the arguments of a call, in a batch": (
        "/v1/messages/batches",
        {"requests": [{"custom_id": "1", "params": {"model": "claude/m", "messages": [
            {"role": "assistant", "content": [USE]}]}}]},
    ),
    "arguments and results, in Gemini": (
        "/v1beta/models/{model}:generateContent", {"contents": [{"role": "model", "parts": PARTS}]},
    ),
    "arguments, where Gemini counts": (
        "/v1beta/models/{model}:countTokens",
        {"generateContentRequest": {"contents": [{"role": "model", "parts": PARTS}]}},
    ),
    "the schemas of functions, in Gemini": (
        "/v1beta/models/{model}:generateContent",
        {"tools": [{"functionDeclarations": [{"name": "look", "parametersJsonSchema": SCHEMA}]},
                   {"function_declarations": [{"name": "look", "parameters": SCHEMA, "response": SCHEMA}]}]},
    ),
    "the arguments of a call, in Ollama": (
        "/api/chat", {"messages": [OLLAMA_CALL]},
    ),
    "the options of Ollama's engine": ("/api/generate", {"options": WORDS}),
    "documents to rank": ("/v1/rerank", {"documents": [WORDS]}),
}  # fmt: skip
"""Where a request holds its caller's data: nothing there is a reference, not even another key's id."""


@pytest.mark.parametrize("name", DATA)
def test_the_callers_own_data_refers_to_nothing(name: str) -> None:
    fields = DATA[name][1]
    assert find_references(json.loads(json.dumps(fields))) == []
    upper = json.loads(json.dumps(fields).upper().replace("NULL", "null"))
    if "JSON" not in name:
        assert find_references(upper), "only the exact spelling is known to be data"


async def test_requests_whose_data_holds_such_words_are_served(tmp_path: Path) -> None:
    failures = []
    async with world(tmp_path, {"ada": None, "eve": None}) as there:
        there.give("ada", ADAS)
        for name, (path, fields) in DATA.items():
            row = next(row for row in rows("enforced", "forwarded", "counted") if row.path == path)
            reply = await there.send(every_row.request_of(row, **fields), "eve")
            if not there.reached:
                failures.append(f"{name}: {reply.status} {reply.body[:200]!r}")
    assert failures == []


ANSWERED: dict[str, tuple[str, Any]] = {
    "a message with an id of its own": (
        "/v1/responses", [{"type": "message", "id": "@", "role": "assistant", "content": [{"type": "output_text"}]}]),
    "a call with an id of its own": (
        "/v1/responses", [{"type": "function_call", "id": "@", "call_id": "c", "name": "f", "arguments": "{}"}]),
    "encrypted reasoning": (
        "/v1/responses", [{"type": "reasoning", "id": "@", "summary": [], "encrypted_content": "x"}]),
    "reasoning that slipform has made": ("/v1/responses", [MADE_HERE]),
    "a file that is cited": ("/v1/responses", [{"role": "assistant", "content": [
        {"type": "output_text", "text": "x", "annotations": [{"type": "file_citation", "file_id": "@"}]}]}]),
    "a result of a search": ("/v1/responses", [
        {"type": "file_search_call", "queries": ["x"], "results": [{"file_id": "@", "text": "x"}]}]),
    "a container in which code ran": ("/v1/responses", [
        {"type": "code_interpreter_call", "code": "x", "container_id": "@", "outputs": [{"file_id": "@"}]}]),
    "a file that a tool of the vendor's has written": ("/v1/messages", [{"role": "assistant", "content": [
        {"type": "bash_code_execution_tool_result", "content": {"content": [{"file_id": "@"}]}}]}]),
    "a citation": ("/v1/messages", [{"role": "assistant", "content": [
        {"type": "text", "text": "x", "citations": [{"type": "char_location", "file_id": "@"}]}]}]),
}  # fmt: skip
"""Parts of earlier answers, sent back whole: their ids are of any age and origin."""


async def test_an_earlier_answer_comes_back_with_its_ids_unless_they_are_anothers(tmp_path: Path) -> None:
    failures = []
    async with world(tmp_path, {"ada": None, "eve": None}) as there:
        for kind in ("item", "file", "container"):
            there.give("ada", {kind: f"{kind}-9"})
        for name, (path, turns) in ANSWERED.items():
            row = next(row for row in rows("enforced") if row.path == path)
            field = "input" if path == "/v1/responses" else "messages"
            for identity in ("nobodys", "item-9", "file-9", "container-9"):
                content = json.loads(json.dumps([*every_row.TALK, *turns]).replace("@", identity))
                reply = await there.send(every_row.request_of(row, **{field: content}), "eve")
                kinds = {each.kind for each in find_references({field: content})}
                expected = 0 if identity.removesuffix("-9") in kinds else 1
                if len(there.reached) != expected:
                    failures.append(f"{name}: {identity}: {reply.status} {reply.body[:200]!r}")
    assert failures == []


def created(received: Received) -> Any:
    """What a vendor answers that makes containers, files, audio and items besides."""
    path = received.path
    if path.endswith("/responses"):
        item = {"id": "ci_1", "type": "code_interpreter_call", "container_id": "cntr_1"}
        content: Any = {"id": "resp_1", "object": "response", "output": [item]}
    elif path.endswith("/messages"):
        block = {"type": "bash_code_execution_tool_result", "content": {"content": [{"file_id": "file_1"}]}}
        content = {"id": "msg_1", "type": "message", "container": {"id": "cntr_2"}, "content": [block]}
    elif path.endswith("/chat/completions"):
        content = {"id": "c", "choices": [{"message": {"role": "assistant", "audio": {"id": "audio_1"}}}]}
    else:
        content = {"object": "list", "data": [{"id": "msg_2", "type": "message"}]}
    body = json.dumps(content).encode()
    if b'"stream": true' in received.body:
        event = {"type": "response.completed", "response": content} if path.endswith("/responses") else content
        if path.endswith("/messages"):
            event = {"type": "message_delta", "delta": content}
        pieces = b"data: " + json.dumps(event).encode() + b"\n\ndata: [DONE]\n\n"
        return Raw(tuple(pieces[at : at + 7] for at in range(0, len(pieces), 7)), 200, EVENTS, chunked=True)
    return Raw((body,), 200, {"content-type": "application/json"})


EVENTS = {"content-type": "text/event-stream"}
CREATED: dict[str, tuple[Any, set[tuple[str, str]]]] = {
    "/v1/responses": ({}, {("response", "resp_1"), ("item", "ci_1"), ("container", "cntr_1")}),
    "/v1/messages": (
        {"tools": [{"type": "code_execution_20250825", "name": "code_execution"}]},
        {("container", "cntr_2"), ("file", "file_1")},
    ),
    "/v1/chat/completions": ({"audio": {"voice": "alloy", "format": "wav"}}, {("audio", "audio_1")}),
    "/v1/conversations/{conversation}/items": ({"items": []}, {("item", "msg_2")}),
}


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("path", CREATED)
async def test_what_an_answer_creates_belongs_to_the_key_that_asked(tmp_path: Path, path: str, streamed: bool) -> None:
    fields, expected = CREATED[path]
    row = next(row for row in rows("enforced", "forwarded") if row.path == path and row.method == "POST")
    async with world(tmp_path, {"ada": None}, created) as there:
        there.give("ada", {"conversation": "conv-1"})
        before = there.resources()
        request = every_row.request_of(row, {"conversation": "conv-1"}, **fields)
        if streamed and row.kind == "enforced":
            request = every_row.request_of(row, stream=True, **fields)
        assert (await there.send(request, "ada")).status == 200
        await there.app.deployments.close()  # when all has been written
        assert {(kind, identity) for _, identity, kind, _ in there.resources() - before} == expected


def test_a_request_that_is_too_deep_to_be_walked_is_refused() -> None:
    for levels, is_refused in ((MAX_DEPTH - 1, False), (MAX_DEPTH, True), (900, True)):
        value: Any = {"x": 1}
        for _ in range(levels):
            value = [value]
        if is_refused:
            with pytest.raises(RequestError, match="levels deep"):
                find_references(value)
        else:
            assert find_references(value) == []


def test_a_reference_that_is_not_a_text_is_refused_with_its_place() -> None:
    for value in (1, True, 1.5):
        with pytest.raises(RequestError, match="file_id"):
            find_references({"messages": [{"file_id": value}]})
    assert find_references({"file_id": None, "file_ids": [], "conversation": {}, "container": {"type": "auto"}}) == []


async def test_a_conversation_stays_its_owners_when_an_item_of_it_is_deleted(tmp_path: Path) -> None:
    row = next(row for row in rows("forwarded") if row.method == "DELETE" and row.resources == ("conversation", "item"))
    shown = next(row for row in rows("forwarded") if row.method == "GET" and row.resources == ("conversation",))
    async with world(tmp_path, {"ada": None}) as there:
        there.give("ada", ADAS)
        assert (await there.send(every_row.request_of(row, ADAS), "ada")).status == 200
        assert ("keeps", ADAS["item"]) not in {each[:2] for each in there.resources()}
        assert (await there.send(every_row.request_of(shown, ADAS), "ada")).status == 200


async def test_a_request_names_so_many_resources_and_no_more(tmp_path: Path) -> None:
    row = next(row for row in rows("enforced") if row.path == "/v1/chat/completions")
    ids = [f"file-{at}" for at in range(10_001)]
    async with world(tmp_path, {"ada": None}) as there:
        there.give("ada", {"file": ids[0]})
        assert (await there.send(every_row.request_of(row, file_ids=ids[:1] * 2_000), "ada")).status == 200
        assert (await there.send(every_row.request_of(row, file_ids=ids[:2]), "ada")).status == 404
        assert (await there.send(every_row.request_of(row, file_ids=ids), "ada")).status == 400
        assert there.reached == []
