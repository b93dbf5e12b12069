"""A tiny server on loopback that answers from a script through the serving codecs."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from slipform.codecs import ServedApi, ServedRequest, find_api
from slipform.codecs.codec import Stamp
from slipform.errors import SlipformError
from slipform.ir import CompletionChunk, ModelResponse, ToolDelta

STAMP = Stamp(now=lambda: 1_700_000_000.0, new_id=lambda: "0123456789abcdef")


@dataclass
class Script:
    """What to answer, and what was asked."""

    response: ModelResponse = field(default_factory=ModelResponse)
    chunks: list[CompletionChunk] | None = None
    error: SlipformError | None = None
    fail_after: SlipformError | None = None
    keep_alive: bool = False
    seen: list[ServedRequest] = field(default_factory=list)
    url: str = ""


def as_chunks(response: ModelResponse) -> list[CompletionChunk]:
    """An answer in small pieces, with interleaved calls and usage after the finish."""
    chunks = [CompletionChunk(id=response.id, model=response.model)]
    chunks += [CompletionChunk(reasoning=piece) for piece in pieces(response.reasoning)]
    chunks += [CompletionChunk(text=piece) for piece in pieces(response.text)]
    chunks += [CompletionChunk(refusal=piece) for piece in pieces(response.refusal or "")]
    for index, call in enumerate(response.tool_calls, start=1):
        chunks.append(CompletionChunk(tool_calls=(ToolDelta(index, call.id, call.name),)))
    deltas = [
        [ToolDelta(index, arguments=piece) for piece in pieces(call.arguments)]
        for index, call in enumerate(response.tool_calls, start=1)
    ]
    for step in range(max(map(len, deltas), default=0)):
        chunks += [CompletionChunk(tool_calls=(each[step],)) for each in deltas if step < len(each)]
    chunks.append(CompletionChunk(finish=response.finish, raw_finish=response.raw_finish))
    chunks.append(CompletionChunk(usage=response.usage))
    return chunks


def pieces(text: str) -> list[str]:
    return [text[at : at + 3] for at in range(0, len(text), 3)]


def serving_for(path: str) -> ServedApi:
    for end, name in (
        ("/chat/completions", "openai-chat"),
        ("/responses", "openai-responses"),
        ("/messages", "anthropic"),
    ):
        if path.partition("?")[0].endswith(end):
            return find_api(name)
    return find_api("gemini")


@contextmanager
def server(script: Script) -> Iterator[Script]:
    class Handler(BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            pass

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            serving = serving_for(self.path)
            try:
                served = serving.decode_request(body, path=self.path)
                script.seen.append(served)
                if script.error is not None:
                    raise script.error
            except SlipformError as error:
                status, content = serving.encode_error(error)
                self.reply(status, "application/json", content)
                return
            if served.stream:
                self.reply(200, serving.content_type_stream, b"".join(self.stream(serving, served)))
            else:
                self.reply(200, "application/json", serving.encode_response(script.response, served))

        def stream(self, serving: ServedApi, served: ServedRequest) -> Iterator[bytes]:
            encoder = serving.encode_stream(served)
            for chunk in as_chunks(script.response) if script.chunks is None else script.chunks:
                yield encoder.feed(chunk)
                if script.keep_alive:
                    yield encoder.keep_alive()
            yield encoder.finish() if script.fail_after is None else encoder.fail(script.fail_after)

        def reply(self, status: int, kind: str, body: bytes) -> None:
            self.send_response(status)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        thread = threading.Thread(target=http.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        script.url = f"http://127.0.0.1:{http.server_address[1]}"
        try:
            yield script
        finally:
            http.shutdown()
            thread.join()
