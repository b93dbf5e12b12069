"""Send changed requests for every row of the endpoint table to a live server, and look for faults of its own.

    python -m tests.fuzz.fuzz_wire --cases 4000
    python -m tests.fuzz.fuzz_wire --seed 7 --only 123

A request is changed in its bytes, a value of its JSON, a header or its path, and sent over a socket. Exits with 1 when
the server answered with a 500, logged a traceback, or did not answer and did not close the connection.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import random
import re
import select
import socket
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote, urlsplit

from slipform.addons.server.calls.references import FIELDS
from tests.conftest import serving
from tests.proxy import every_row
from tests.proxy.bytes_changed import changed
from tests.proxy.every_row import Request
from tests.proxy.fuzzing import WRONG, places, replaced, without

_KEYS: dict[str, list[str] | None] = {"free": None, "limited": ["*/m", "cheap"]}
_OWNED = {kind: f"{kind}-1" for kind in ("file", "response", "conversation", "item", "batch", "container")}
_SECONDS = 10.0
_PATIENCE = 0.15
_MANY = 500
"""Values of a body beyond which it is not changed once more: it is nested deeply."""
_STATUS = re.compile(rb"^HTTP/1\.1 (\d{3}) ", re.MULTILINE)
_HEADERS = (
    "content-type: multipart/form-data", 'content-type: multipart/form-data; boundary="a', "content-type: \xff",
    "content-encoding: gzip", "content-encoding: br", "x-slipform-provider: \xff", "x-slipform-provider: gpt",
    "x-slipform-max-attempts: 0", "x-slipform-strategy: none", "anthropic-version: 1", "x-goog-api-key: k",
    "upgrade: websocket", "expect: 100-continue", "host: [", "accept: \xff", "traceparent: 00-zz", "origin: null",
)  # fmt: skip
_PLACES = ("/p/gpt", "/p/nobody", "/openai/deployments/gpt/m", "/openai", "//", "/v1/models/x:predict", "/%2e%2e")
_QUERIES = ("limit=0", "limit=%ff", "after=file-1&after=x", "stream=true", "key=%00", "a" * 5000, "&" * 300, "alt=sse")


class Tracebacks(logging.Handler):
    """Collects what the server logs with an exception, or as an error."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the record if it tells of a fault."""
        if record.exc_info or record.levelno >= logging.ERROR:
            self.lines.append(logging.Formatter().format(record)[-800:])


class WireFuzzer:
    """A live server with keys before scripted vendors, and the requests that are changed."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._tracebacks = Tracebacks()
        self.statuses: Counter[str] = Counter()

    def __enter__(self) -> Self:
        folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory()))
        vendors = self._stack.enter_context(every_row.running_vendors())
        self._world = every_row.application(folder, vendors, _KEYS)
        address = urlsplit(self._stack.enter_context(serving(self._world.app)))
        self._address = str(address.hostname), int(address.port or 0)
        logging.getLogger().addHandler(self._tracebacks)
        self._stack.callback(logging.getLogger().removeHandler, self._tracebacks)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stack.__exit__(kind, error, at)

    def run(self, seed: str, number: int) -> str:
        """Send one changed request; what was wrong with what came of it, or nothing."""
        chance = random.Random(f"{seed}/{number}")
        if number % 50 == 0:
            self._world.give("free", _OWNED)  # a request may have deleted some
        sent = self._changed_request(chance)
        got = self._exchange(sent)
        statuses = [status.decode() for status in _STATUS.findall(got or b"")]
        self.statuses.update(statuses or ["closed" if got is not None else "silent"])
        problems = [f"a {status}" for status in statuses if status == "500"]
        problems += [] if got is not None else ["no answer"]
        problems += self._tracebacks.lines
        self._tracebacks.lines.clear()
        return f"case {number} of seed {seed}: {problems}\n{sent[:2000]!r}" if problems else ""

    def _changed_request(self, chance: random.Random) -> bytes:
        row = chance.choice(every_row.rows())
        request = every_row.request_of(row, _OWNED)
        secret = chance.choice([*[secret for _, secret in self._world.keys.values()] * 20, "wrong"])
        request.headers["authorization"] = f"Bearer {secret}"
        lines: list[str] = []
        for _ in range(chance.randint(1, 2)):
            how = chance.choice(["value", "value", "body", "header", "path", "bytes"])
            if how == "value":
                request.body = _changed_value(request.body, chance)
            elif how == "body" and request.body:
                request.body = changed(request.body, chance)
            elif how == "header":
                lines.append(chance.choice(_HEADERS))
            elif how == "path":
                request.path = _changed_path(request.path, chance)
            else:
                return changed(_wire(request, lines), chance)
        return _wire(request, lines)

    def _exchange(self, sent: bytes) -> bytes | None:
        """All that comes back until the server closes; None when it neither answers nor closes."""
        with socket.create_connection(self._address, _SECONDS) as wire:
            with contextlib.suppress(OSError):  # what is refused before it is whole
                wire.sendall(sent)
            # A request that has lost its end is waited for: the server must hear that no more will come.
            if not _is_ready(wire, _PATIENCE):
                with contextlib.suppress(OSError):
                    wire.shutdown(socket.SHUT_WR)
            return b"".join(_received(wire)) if _is_ready(wire, _SECONDS) else None


def _is_ready(wire: socket.socket, seconds: float) -> bool:
    """Whether there is something to be read, or the end, within so many seconds."""
    return bool(select.select([wire], [], [], seconds)[0])


def _received(wire: socket.socket) -> Iterator[bytes]:
    """What is read until the server closes, or has nothing more to say on a connection that it keeps."""
    with contextlib.suppress(OSError):
        while _is_ready(wire, _PATIENCE) and (data := wire.recv(1 << 16)):
            yield data


def _changed_value(body: bytes, chance: random.Random) -> bytes:
    """A body of JSON with another value, or another field, in one place; any other as it is."""
    try:
        data = json.loads(body)
        spots = list(places(data))
    except (ValueError, RecursionError):
        return body
    if not isinstance(data, dict) or not spots or len(spots) > _MANY:
        return body
    place = chance.choice(spots)
    how = chance.randrange(4)
    if how == 0:
        return json.dumps(without(data, place)).encode()
    if how == 1:
        return json.dumps(replaced(data, place, chance.choice(WRONG))).encode()
    if how == 2:
        name = chance.choice([*FIELDS, "file_id", "previous_response_id", "input", "slipform", "tools", "stream"])
        value: Any = chance.choice([*WRONG, *_OWNED.values(), [*_OWNED.values()], {"id": "item-1"}])
        return json.dumps({**data, name: value}).encode()
    opening, closing = chance.choice([("[", "]"), ('{"x":', "}"), ('[{"type":', "}]")])
    levels = chance.choice([3, 110, 200, 300, 900, 1100])
    nested = opening * levels + json.dumps(chance.choice(WRONG)) + closing * levels
    return json.dumps(replaced(data, place, "NESTED")).replace('"NESTED"', nested).encode()


def _changed_path(path: str, chance: random.Random) -> str:
    how = chance.randrange(4)
    if how == 0:
        return f"{path}?{chance.choice(_QUERIES)}"
    if how == 1:
        return f"{chance.choice(_PLACES)}{path.removeprefix('/v1')}"
    if how == 2:
        return quote(changed(path.encode(), chance)[:4000], safe="/:?%")
    return path.replace("/m", chance.choice(["/", "/\u00e9", "/m%00", "/../m", "/" + "m" * 300]))


def _wire(request: Request, lines: list[str]) -> bytes:
    """A request as it goes over the wire, and nothing after it."""
    headers = [f"{name}: {value}" for name, value in request.headers.items()]
    headers += ["host: x", "connection: close", f"content-length: {len(request.body)}", *lines]
    path = quote(request.path, safe="/:?&=%+,;~.-_!*'()@$[]")
    head = f"{request.method} {path} HTTP/1.1\r\n" + "\r\n".join(headers) + "\r\n\r\n"
    return head.encode("latin-1", "replace") + request.body


def run_all(seed: str, cases: int) -> int:
    """Run cases 0 to `cases` of a seed; how many failed."""
    print(f"the wire: {cases:,} changed requests of seed {seed}", flush=True)
    began, failed = time.monotonic(), 0
    with WireFuzzer() as fuzzer:
        for number in range(cases):
            if problem := fuzzer.run(seed, number):
                failed += 1
                print(f"\nFAILED: {problem}", flush=True)
        counted = ", ".join(f"{status} {count:,}" for status, count in fuzzer.statuses.most_common())
    print(f"{cases:,} requests in {time.monotonic() - began:.0f} s: {counted}")
    print(f"500, traceback or no answer: {failed}")
    return failed


def main() -> int:
    """Run what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=4_000)
    parser.add_argument("--seed", default=str(int(time.time())))
    parser.add_argument("--only", type=int, help="the number of one case")
    options = parser.parse_args()
    if options.only is None:
        return 1 if run_all(options.seed, options.cases) else 0
    with WireFuzzer() as fuzzer:
        problem = fuzzer.run(options.seed, options.only)
    print(problem or f"holds: {', '.join(fuzzer.statuses)}")
    return 1 if problem else 0


if __name__ == "__main__":
    sys.exit(main())
