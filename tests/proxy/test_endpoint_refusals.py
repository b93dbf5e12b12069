"""What forwarded endpoints refuse, and in which words: forms, files, batches, keys with models, vendors that fail."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple
from urllib.parse import urlsplit

import pytest

from slipform.addons.server.admission.keys import add_key
from slipform.testing import FakeVendor, Raw
from tests.conftest import PERSON
from tests.proxy.account import Account, answered
from tests.proxy.proxying import Reply, call, proxied
from tests.proxy.test_endpoints import EVENTS, raw_post, upstream


def form(*parts: tuple[str, bytes], end: bytes = b"--b--\r\n") -> bytes:
    """A form of parts, each given by its `content-disposition` after `form-data` and its content."""
    head = "--b\r\ncontent-disposition: form-data%s\r\n\r\n"
    return b"".join((head % disposition).encode() + content + b"\r\n" for disposition, content in parts) + end


PURPOSE = ('; name="purpose"', b"batch")


def batch(*lines: Any) -> bytes:
    """A form with a batch's file of these lines."""
    texts = [line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines]
    return form(PURPOSE, ('; name="file"; filename="f.jsonl"', b"\n".join(texts)))


def line(**body: Any) -> dict[str, Any]:
    return {"custom_id": "1", "url": "/v1/chat/completions", "body": {"model": "up/m", "messages": [], **body}}


SHAPE = {"type": "json_schema", "json_schema": {"name": "p", "schema": PERSON}}
TEXT = ('; name="x"', b"1")
REFUSED: dict[str, tuple[str, bytes, int, str]] = {
    "no requests in a batch": ("/v1/files", batch(), 400, "The batch has no requests"),
    "a line that is no JSON": ("/v1/files", batch(line(), b"{"), 400, "line 2: The line is not JSON"),
    "a line without a body": ("/v1/files", batch({"custom_id": "1"}), 400, "line 1: Expected an object with a `body`"),
    "a model that is a list": ("/v1/files", batch(line(model=["up/m"])), 400, "1: body.model: The model is not a name"),
    "two providers in one batch": (
        "/v1/files", batch(line(), line(model="other/m")), 400, "line 2: body: The batch asks 'up' and 'other'",
    ),
    "a schema in a batch": ("/v1/files", batch(line(response_format=SHAPE)), 501, "slipform batch"),
    "a batch that goes on with a response": (
        "/v1/files",
        batch({"url": "/v1/responses", "body": {"model": "up/m", "input": "x", "previous_response_id": "r"}}),
        501, "line 1: body.previous_response_id: A batch cannot go on with a response",
    ),
    "a form that is cut short": ("/v1/files", form(PURPOSE, end=b""), 400, "The form is cut short"),
    "a field that is there twice": ("/v1/files", form(PURPOSE, PURPOSE), 400, "The field 'purpose' is there twice"),
    "a field that is too long": (
        "/v1/files", form(('; name="purpose"', b"x" * 70_000)), 400, "The field 'purpose' is too long",
    ),
    "no name": ("/v1/files", form(("", b"x")), 400, "A part of the form has no plain name"),
    "a name with a backslash": ("/v1/files", form(('; name="a\\"b"', b"x")), 400, "in one way only"),
    "a name twice": ("/v1/files", form(('; name="a"; name="b"', b"x")), 400, "cannot be read"),
    "no disposition": ("/v1/files", b"--b\r\ncontent-type: a/b\r\n\r\nx\r\n--b--\r\n", 400, "no `content-disposition`"),
    "headers without an end": ("/v1/files", b"--b\r\n" + b"x" * 20_000, 400, "The headers of a part are too long"),
    "a part without content": (
        "/v1/files", b'--b\r\ncontent-disposition: form-data; name="a"\r\n\r\n--b--\r\n' + b" " * 99, 400,
        "A part of the form has no content",
    ),
    "something after a delimiter": ("/v1/files", b"--bx\r\n", 400, "delimiter of the form is followed by"),
    "too many parts": ("/v1/files", form(*[(f'; name="p{at}"', b"") for at in range(2_000)]), 400, "parts"),
    "a model that is no text": (
        "/v1/audio/transcriptions", form(('; name="model"', b"\xff")), 400, "The field 'model' is not UTF-8",
    ),
    "a model that is a file": (
        "/v1/audio/transcriptions", form(('; name="model"; filename="m"', b"up/m")), 400, "must be there once, as text",
    ),
    "no model": ("/v1/audio/transcriptions", form(TEXT), 400, "model: The model is missing"),
}  # fmt: skip


@pytest.fixture
def vendor() -> Iterator[FakeVendor]:
    with FakeVendor([answered({"id": "file-1"})]) as vendor:
        yield vendor


@pytest.fixture
def address(vendor: FakeVendor) -> Iterator[str]:
    providers = {"up": upstream(vendor), "other": upstream(vendor), "claude": upstream(vendor, "anthropic")}
    with proxied(providers, {"default_model": "up/m", "server": {"max_file_bytes": 1 << 20}}) as address:
        yield address


def message(reply: Reply) -> str:
    error = reply.json["error"]
    return f"{error['param']}: {error['message']}" if error.get("param") else str(error["message"])


@pytest.mark.parametrize("name", REFUSED)
def test_a_form_that_cannot_be_passed_on_is_refused_with_its_place(address: str, vendor: FakeVendor, name: str) -> None:
    path, body, status, said = REFUSED[name]
    reply = raw_post(address, path, body)
    assert reply.status == status, reply.body
    assert said in message(reply)
    assert not vendor.requests


@pytest.mark.parametrize(
    ("method", "path", "body", "headers", "status", "said"),
    [
        ("POST", "/v1/files", {}, {}, 400, "Expected a form"),
        ("POST", "/v1/files", {}, {"content-encoding": "gzip"}, 400, "A compressed file cannot be forwarded"),
        ("POST", "/v1/messages/batches", {"requests": []}, {}, 400, "Expected an array of requests"),
        (
            "POST",
            "/v1/messages/batches",
            {"requests": [3]},
            {},
            400,
            "Expected an object with `params`, at requests[0]",
        ),
        ("POST", "/v1/embeddings", {"input": "x"}, {}, 400, "model: The model is missing"),
        ("POST", "/v1/embeddings", {"model": ["up/m"], "input": "x"}, {}, 400, "model: The model is missing"),
        ("GET", "/v1/files", None, {"x-slipform-provider": "nobody"}, 400, "Unknown provider 'nobody'"),
        ("POST", "/v1/rerank", {"model": "claude/m"}, {}, 501, "The provider 'claude' has no"),
    ],
)
def test_what_a_request_lacks_is_told_with_its_place(
    address: str, vendor: FakeVendor, method: str, path: str, body: Any, headers: dict[str, str], status: int, said: str
) -> None:
    reply = call(address, path, body, headers, method)
    assert reply.status == status, reply.body
    error = reply.json["error"]
    assert said in f"{error.get('param')}: {error['message']}"
    assert not vendor.requests


def test_a_file_larger_than_the_limit_is_refused_by_what_it_says_and_by_what_arrives(address: str) -> None:
    large = form(PURPOSE, ('; name="file"; filename="f"', b"x" * (1 << 20)))
    assert raw_post(address, "/v1/files", large).status == 413
    chunks = b"".join(
        b"%x\r\n%b\r\n" % (len(piece), piece)
        for piece in (large[at : at + 65_536] for at in range(0, len(large), 65_536))
    )
    with sending(address, "transfer-encoding: chunked", chunks) as answer:
        assert answer.readline().split()[1] == b"413"


@contextmanager
def sending(address: str, header: str, body: bytes) -> Iterator[IO[bytes]]:
    """Send a form to the files by hand; gives the answer."""
    host = urlsplit(address)
    with socket.create_connection((str(host.hostname), int(host.port or 0)), 30) as wire:
        head = f"POST /v1/files HTTP/1.1\r\nhost: {host.netloc}\r\ncontent-type: multipart/form-data; boundary=b\r\n"
        wire.sendall(f"{head}{header}\r\n\r\n".encode() + body)
        with wire.makefile("rb") as answer:
            yield answer


def test_a_file_that_stops_arriving_is_not_waited_for_longer_than_the_limit(vendor: FakeVendor) -> None:
    settings = {"default_model": "up/m", "server": {"body_seconds": 0.05}}
    with (
        proxied({"up": upstream(vendor)}, settings) as address,
        sending(address, "content-length: 999", form(PURPOSE, end=b"")) as answer,
    ):
        assert answer.readline().split()[1] == b"400"
        length = int(http.client.parse_headers(answer)["content-length"])
        assert b"Nothing of the file arrived for 0.05 seconds" in answer.read(length)
    assert not vendor.requests


class World(NamedTuple):
    """A server with keys: `all` may use everything, `narrow` the models of one provider, `alias` one alias."""

    address: str
    secrets: dict[str, str]
    account: Account

    def ask(self, who: str, path: str, body: Any = None, method: str | None = None, **headers: str) -> Reply:
        said = {name.replace("_", "-"): value for name, value in headers.items()}
        return call(self.address, path, body, {"authorization": f"Bearer {self.secrets[who]}", **said}, method)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    keys, account, other = tmp_path / "keys.json", Account(), Account()
    patterns: dict[str, Any] = {"all": None, "narrow": ["up/*"], "alias": ["small"], "elsewhere": ["other/m"]}
    secrets = {name: add_key(keys, name, models=models)[1] for name, models in patterns.items()}
    settings = {
        "server": {"keys_file": str(keys)}, "default_model": "up/m", "model_aliases": {"small": "up/m"},
    }  # fmt: skip
    with account.vendor as vendor, other.vendor as second:
        providers = {"up": upstream(vendor), "other": upstream(second)}
        with proxied(providers, settings) as address:
            yield World(address, secrets, account)


@pytest.mark.parametrize(("who", "status"), [("all", 200), ("narrow", 200), ("alias", 200), ("elsewhere", 400)])
def test_a_key_with_models_sees_only_the_files_of_their_providers(world: World, who: str, status: int) -> None:
    reply = world.ask(who, "/v1/files", x_slipform_provider="up")
    assert reply.status == status
    if status != 200:
        assert reply.json["error"]["message"].startswith("Unknown provider 'up'"), "as if it did not exist"


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        ({"input": "x"}, 403, "the request names none"),
        ({"model": "other/m", "input": "x"}, 403, ""),
        ({"model": "up/m", "input": "x", "file": "f"}, 403, "may not send 'file'"),
        ({"model": "up/m", "input": "x"}, 200, ""),
    ],
)
def test_a_key_with_models_names_one_of_them_and_no_other_way_to_a_model(
    world: World, body: Any, status: int, said: str
) -> None:
    world.account.other = lambda _: answered({"id": "1", "results": []})
    named = {} if "model" in body else {"x_slipform_provider": "up"}
    reply = world.ask("narrow", "/v1/moderations", body, **named)
    assert reply.status == status
    assert status == 200 or said in reply.json["error"]["message"]


def test_a_model_under_a_providers_own_path_is_that_providers(world: World) -> None:
    world.account.other = lambda received: answered({"model": received.json()["model"]})
    assert world.ask("all", "/p/up/v1/embeddings", {"model": "m", "input": "x"}).json == {"model": "m"}


def test_a_file_that_was_deleted_belongs_to_nobody(world: World) -> None:
    sent = form(('; name="purpose"', b"assistants"), ('; name="file"; filename="f"', b"x"))
    headers = {"authorization": f"Bearer {world.secrets['all']}", "x-slipform-provider": "up"}
    made = raw_post(world.address, "/v1/files", sent, headers).json["id"]
    assert world.ask("all", f"/v1/files/{made}").status == 200
    assert world.ask("narrow", f"/v1/files/{made}").status == 404
    assert world.ask("narrow", f"/v1/files/{made}", method="DELETE").status == 404
    assert world.ask("all", f"/v1/files/{made}", method="DELETE").json["deleted"] is True
    asked = len(world.account.vendor.requests)
    assert world.ask("all", f"/v1/files/{made}").status == 404
    assert len(world.account.vendor.requests) == asked, "the vendor is no longer asked for it"


def test_a_file_that_a_batch_names_must_be_the_callers(world: World) -> None:
    image = {"type": "file", "file": {"file_id": "file-of-another"}}
    body = batch(line(messages=[{"role": "user", "content": [image]}]))
    reply = raw_post(world.address, "/v1/files", body, {"authorization": f"Bearer {world.secrets['all']}"})
    assert reply.status == 404
    assert "Unknown file 'file-of-another'" in reply.json["error"]["message"]


@pytest.mark.parametrize("limit", ["0", "x", "-1", "%C2%B2", "999999", ""])
def test_a_page_of_no_size_is_refused(world: World, limit: str) -> None:
    reply = world.ask("all", f"/v1/files?limit={limit}", x_slipform_provider="up")
    assert reply.status == (200 if limit == "" else 400)
    assert limit == "" or reply.json["error"]["param"] == "limit"


@pytest.mark.parametrize(
    ("step", "status"),
    [
        (answered({"error": {"message": "No such key"}}, 401), 401),
        (Raw((b"<html>",), 200, {"content-type": "text/html"}), 502),
        (Raw((b"[1]",), 200, {"content-type": "application/json"}), 502),
    ],
)
def test_a_list_that_the_vendor_does_not_give_is_the_vendors_error(world: World, step: Raw, status: int) -> None:
    world.account.other = lambda _: step
    reply = world.ask("all", "/v1/files", x_slipform_provider="up")
    assert reply.status == status, reply.body


@pytest.mark.parametrize("body", [b"not JSON", b"[1, 2]"])
def test_an_answer_about_a_file_that_is_no_object_comes_back_as_it_is(body: bytes) -> None:
    step = Raw((body,), 200, {"content-type": "application/json"})
    with FakeVendor([step]) as vendor, proxied({"up": upstream(vendor)}) as address:
        assert call(address, "/v1/files/file-1").body == body


def test_a_stream_of_pictures_that_breaks_ends_in_an_error_event() -> None:
    event = b'data: {"type": "image_generation.partial_image"}\n\n'
    broken = Raw((event, event), 200, EVENTS, cut_after=1, ending="reset", chunked=True)
    with FakeVendor([broken]) as vendor, proxied({"up": upstream(vendor)}) as address:
        reply = call(address, "/v1/images/generations", {"model": "up/m", "prompt": "x", "stream": True})
    *_, last = [json.loads(each.removeprefix(b"data: ")) for each in reply.body.split(b"\n\n") if each]
    assert reply.body.startswith(event)
    assert last["error"]["code"] == "upstream_error"
