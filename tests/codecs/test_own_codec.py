"""A codec of your own is used like those of slipform: for whole answers, streams and schemas."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import orjson
import pytest

from slipform.codecs import Capabilities, Codec, make_codec, register_codec
from slipform.errors import ConfigError, UpstreamError
from slipform.ir import CompletionChunk, ModelRequest, ModelResponse
from slipform.library.client import Client
from slipform.providers.http import HttpProvider
from slipform.providers.router import Router


def encode(request: ModelRequest, channel: Any, encoding: Any, stream: bool) -> dict[str, Any]:
    return {"prompt": "\n".join(message.text for message in request.messages), "stream": stream}


def decode(body: dict[str, Any], channel: Any) -> ModelResponse:
    return ModelResponse(text=body["output"], finish="stop")


class Events:
    def __init__(self, channel: Any) -> None:
        self.ended = False
        self.fault: UpstreamError | None = None
        self.text_key = b""
        self.arguments_key = b""

    def read(self, name: str | None, data: Any) -> Sequence[CompletionChunk]:
        self.ended = data.get("done", False)
        return [CompletionChunk(data["output"], finish="stop" if self.ended else None)]

    def finish(self, done: bool) -> Sequence[CompletionChunk]:
        return []


HOUSE = Codec(
    "house", path=lambda model, _capabilities, _stream: f"/{model}", encode=encode, decode=decode, events=Events
)


class House(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = orjson.loads(self.rfile.read(int(self.headers["content-length"])))
        pieces = ['{"name": "Ada", ', '"age": 36}']
        if body["stream"]:
            events = [{"output": piece, "done": piece.endswith("}")} for piece in pieces]
            data = b"".join(b"data: %b\n\n" % orjson.dumps(event) for event in events)
        else:
            data = orjson.dumps({"output": "".join(pieces)})
        self.send_response(200)
        self.send_header("content-type", "text/event-stream" if body["stream"] else "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def house() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), House)
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


def test_a_registered_codec_answers_whole_and_streamed(house: str) -> None:
    register_codec(HOUSE)
    with HttpProvider("openai", base_url=house, api_key="k", codec=partial(make_codec, "house")) as provider:
        client = Client("house/small", router=Router({"house": provider}))
        assert client.ask(dict[str, Any], "Who?") == {"name": "Ada", "age": 36}
        with client.stream(dict[str, Any], "Who?") as stream:
            assert stream.result.value == {"name": "Ada", "age": 36}


def test_a_registered_codec_is_found_by_its_name() -> None:
    register_codec(HOUSE)
    assert make_codec("house", Capabilities()).strategy.value == "prompted"


def test_slipforms_own_codecs_cannot_be_replaced() -> None:
    with pytest.raises(ConfigError, match="itself"):
        register_codec(Codec("anthropic", path=HOUSE.path, encode=encode, decode=decode, events=Events))
