"""Serve the console: its page, its JSON and its events, to who has a session."""

from __future__ import annotations

import asyncio
import hashlib
import re
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import cache
from importlib import resources
from typing import Any
from urllib.parse import parse_qs

import orjson

from slipform import __version__
from slipform.build_info import build_in_use
from slipform.config import ServerSettings
from slipform.errors import RequestError
from slipform.proxy.admission.admission import Caller
from slipform.proxy.calls.endpoints import UnknownPathError
from slipform.proxy.calls.pages import WrongMethodError
from slipform.proxy.console.access import ConsoleAccess, console_secret
from slipform.proxy.console.history import CallHistory, matches, parse_query
from slipform.proxy.deployment import Deployment
from slipform.proxy.http_server.asgi import Receive, Scope, Send, read_body, send_page
from slipform.proxy.observability.call_record import CallTrace, Header
from slipform.schema.limits import LARGE_BYTES

ROOT = "/console"
API = f"{ROOT}/api/v1/"
_MAX_BODY = 16 * 1024 * 1024
_MAX_ROWS = 200
_BATCH_SECONDS = 0.1
_LONGEST_TRACING = 60.0
_STATIC = re.compile(r"[a-z_]{1,40}\.(?:js|css|svg)")
_TYPES = {"js": b"text/javascript; charset=utf-8", "css": b"text/css; charset=utf-8", "svg": b"image/svg+xml"}
_POLICY = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    b"base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; "
    b"trusted-types 'none'"
)
_SECURITY: tuple[Header, ...] = (
    (b"content-security-policy", _POLICY),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), microphone=(), geolocation=(), payment=(), usb=()"),
)


ServeCall = Callable[[str, Scope, Receive, Send, Caller], Awaitable[None]]
"""Answers a call of the API at a path, for a caller who is known already."""


class Console:
    """The console of one worker, over all its configurations."""

    def __init__(
        self, settings: ServerSettings, bound: str | None, deployment: Callable[[], Deployment], serve_call: ServeCall
    ) -> None:
        self.history = CallHistory(settings.console_bytes, settings.trace_bytes)
        self._bound = bound
        self._deployment = deployment
        self._serve_call = serve_call
        self._started = time.time()
        self._tracing_until = 0.0

    # -- what the application tells ---------------------------------------------------------------

    def trace(self, headers: Mapping[bytes, bytes], settings: ServerSettings, *, own: bool = False) -> CallTrace | None:
        """What keeps the words of a call that begins, if they are to be kept."""
        if headers.get(b"x-slipform-trace") == b"off" or b"no-store" in headers.get(b"cache-control", b""):
            return None
        if own or settings.traces == "on" or settings.debug_traces or time.time() < self._tracing_until:
            return CallTrace()
        return CallTrace(only_failures=True) if settings.traces == "failures" else None

    # -- requests ---------------------------------------------------------------------------------

    def _access(self) -> ConsoleAccess:
        deployment = self._deployment()
        return ConsoleAccess(deployment.settings.server, deployment.gate.guard, self._bound, console_secret)

    @property
    def is_on(self) -> bool:
        """Whether there is a console in this configuration."""
        return self._access().is_on

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request under /console."""
        access, headers = self._access(), dict(scope["headers"])
        method, path = scope["method"], scope["path"]
        if not self.is_on:
            raise UnknownPathError(
                f"There is nothing at {method} {path}", hint="`server.console: on` serves a console."
            )
        access.check_host(headers)
        if not path.startswith(API):
            await self._page(method, path, headers, send)
            return
        name, _, rest = path.removeprefix(API).partition("/")
        if method not in ("GET", "HEAD"):
            access.check_change(headers)
        if name == "session":
            await self._session(method, access, scope, receive, send)
            return
        caller = access.operator(headers)
        query = {key: values[-1] for key, values in parse_qs(scope.get("query_string", b"").decode("latin-1")).items()}
        if (method, name) == ("GET", "events"):
            await self._events(receive, send)
        elif (method, name) == ("POST", "play"):
            await self._serve_call("/v1/chat/completions", scope, receive, send, caller)
        elif method == "GET":
            await _send(send, self._read(name, rest, query, caller))
        else:
            body = await read_body(receive, _MAX_BODY)
            await _send(send, await self._change(method, name, rest, _parsed(body)))

    async def _page(self, method: str, path: str, headers: Mapping[bytes, bytes], send: Send) -> None:
        if method not in ("GET", "HEAD"):
            raise WrongMethodError(f"{path} does not take {method}", hint="The console's pages are read.")
        name = path.removeprefix(f"{ROOT}/static/")
        if name != path:
            if not _STATIC.fullmatch(name) or (found := static_file(name)) is None:
                raise UnknownPathError(f"There is no file {path[:100]}")
            kind = _TYPES[name.rpartition(".")[2]]
        else:
            found, kind = _index(), b"text/html; charset=utf-8"
        body, tag = found
        told = (*_SECURITY, (b"etag", tag))
        if headers.get(b"if-none-match") == tag:
            await send_page(send, 304, b"", kind, told)
        else:
            await send_page(send, 200, body, kind, told)

    async def _session(self, method: str, access: ConsoleAccess, scope: Scope, receive: Receive, send: Send) -> None:
        if method == "DELETE":
            await _send(send, {"ok": True}, [(b"set-cookie", access.ended().encode())])
            return
        if method != "POST":
            raise WrongMethodError("A session is made with POST and ended with DELETE")
        given = _parsed(await read_body(receive, 4096))
        cookie = access.sign_in(str(given.get("token") or ""), str(given.get("key") or ""))
        if scope.get("scheme") == "https":
            cookie += "; Secure"
        await _send(send, {"ok": True}, [(b"set-cookie", cookie.encode())])

    # -- what is read -----------------------------------------------------------------------------

    def _read(self, name: str, rest: str, query: Mapping[str, str], caller: Caller) -> Any:
        from slipform.proxy.console import views

        deployment = self._deployment()
        router = deployment.client.router
        if name == "me":
            return self._me(caller)
        if name == "requests" and not rest:
            return self._rows(query)
        if name == "requests":
            return self._request(rest)
        if name == "stats":
            window = min(max(_number(query.get("window"), 900.0), 10.0), 86400.0)
            return views.stats(self.history.rows(), window)
        if name == "schemas":
            return {"schemas": views.schema_health(self.history.rows())}
        if name == "providers":
            return {"providers": views.provider_health(router, self.history.rows())}
        if name == "models":
            names = [each for each in router.names() if caller.may_use(each, router)]
            return {"models": names, "default": deployment.settings.first_model}
        if name == "keys":
            return {"keys": deployment.gate.guard.listed_keys()}
        raise UnknownPathError(f"There is nothing at {API}{name}")

    def _me(self, caller: Caller) -> dict[str, Any]:
        deployment = self._deployment()
        return {
            "version": __version__,
            "build": str(build_in_use()),
            "operator": caller.name,
            "keys": deployment.gate.guard.wants_keys,
            "generation": deployment.generation,
            "started": self._started,
            "traces": {"mode": self._trace_mode(), "until": self._tracing_until or None},
            "kept": self.history.sizes(),
            "models": deployment.settings.first_model,
        }

    def _trace_mode(self) -> str:
        server = self._deployment().settings.server
        return "on" if server.debug_traces or time.time() < self._tracing_until else server.traces

    def _rows(self, query: Mapping[str, str]) -> dict[str, Any]:
        words = parse_query(query.get("q", ""))
        limit = int(min(max(_number(query.get("limit"), 100.0), 1.0), _MAX_ROWS))
        before = _number(query.get("before"), float("inf"))
        rows: list[dict[str, Any]] = []
        more = False
        for row in self.history.rows():
            if row["at"] >= before or not matches(row, words):
                continue
            if len(rows) == limit:
                more = True
                break
            row.pop("detail", None)
            rows.append(row)
        under_way = [row for row in self.history.under_way() if matches(row, words)] if before == float("inf") else []
        return {"rows": rows, "under_way": under_way, "more": more, "kept": self.history.sizes()}

    def _request(self, rest: str) -> dict[str, Any]:
        identity, _, part = rest.partition("/")
        row = self.history.find(identity)
        if row is None or part not in ("", "export"):
            raise UnknownPathError(
                f"There is no call {identity[:64]!r}",
                hint="It made way for newer ones, or another worker or an earlier run of the server has it.",
            )
        row["absent"] = self._why_absent(row)
        return row

    def _why_absent(self, row: Mapping[str, Any]) -> str | None:
        """Why the words of a call are not here."""
        if row["trace"] is not None:
            return None
        if row["traced"]:
            return "Its words made way for newer ones."
        if self._trace_mode() == "on":
            return "It was made before tracing was on, or its caller asked for no trace."
        if self._trace_mode() == "failures":
            return "Only the words of calls that fail are kept."
        return "Tracing was off: `server.traces: on`, or the button above, keeps the words of calls to come."

    async def _change(self, method: str, name: str, rest: str, given: Mapping[str, Any]) -> Any:
        from slipform.proxy.console import views

        if (method, name, rest) == ("POST", "schemas", "check"):
            document = given.get("schema")
            if len(orjson.dumps(document, default=str)) > LARGE_BYTES:
                return await asyncio.to_thread(views.check_schema, document)
            return views.check_schema(document)
        if (method, name) == ("POST", "rejudge"):
            text, document = given.get("text"), given.get("schema")
            if not isinstance(text, str) or not isinstance(document, dict):
                raise RequestError("`text` and `schema` are needed", where="text")
            return await asyncio.to_thread(views.judge_again, text, document)
        if name == "tracing":
            minutes = min(max(_number(given.get("minutes"), 10.0), 0.0), _LONGEST_TRACING) if method == "POST" else 0.0
            self._tracing_until = time.time() + 60 * minutes if minutes else 0.0
            return {"traces": {"mode": self._trace_mode(), "until": self._tracing_until or None}}
        if (method, name) == ("DELETE", "requests"):
            self.history.clear()
            return {"ok": True}
        raise UnknownPathError(f"There is nothing at {method} {API}{name}")

    # -- events -----------------------------------------------------------------------------------

    async def _events(self, receive: Receive, send: Send) -> None:
        """What happens, as server-sent events, in batches; a sign of life every few seconds."""
        subscriber = self.history.subscribe()
        head = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-cache"), *_SECURITY]
        await send({"type": "http.response.start", "status": 200, "headers": head})
        gone = asyncio.ensure_future(_until_gone(receive))
        try:
            await send({"type": "http.response.body", "body": b"event: hello\ndata: {}\n\n", "more_body": True})
            while not gone.done():
                waiting = asyncio.ensure_future(subscriber.wake.wait())
                await asyncio.wait([waiting, gone], timeout=10, return_when=asyncio.FIRST_COMPLETED)
                waiting.cancel()
                await asyncio.wait([gone], timeout=_BATCH_SECONDS)
                if not gone.done():
                    body = subscriber.take() or b": alive\n\n"
                    await send({"type": "http.response.body", "body": body, "more_body": True})
        finally:
            gone.cancel()
            self.history.unsubscribe(subscriber)


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _send(send: Send, content: Any, headers: list[Header] | None = None) -> None:
    await send_page(send, 200, orjson.dumps(content, default=str), b"application/json", (*_SECURITY, *(headers or ())))


def _parsed(body: bytes) -> Mapping[str, Any]:
    try:
        given = orjson.loads(body or b"{}")
    except orjson.JSONDecodeError as error:
        raise RequestError(f"The body is not JSON: {error}") from None
    if not isinstance(given, dict):
        raise RequestError("The body is not a JSON object")
    return given


def _number(value: Any, default: float) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        return default


@cache
def static_file(name: str) -> tuple[bytes, bytes] | None:
    """A file of the page and its tag; None when there is none."""
    file = resources.files("slipform.proxy.console").joinpath("static", name)
    if not file.is_file():
        return None
    body = file.read_bytes()
    return body, b'"%s"' % hashlib.sha256(body).hexdigest()[:20].encode()


def _index() -> tuple[bytes, bytes]:
    found = static_file("index.html")
    if found is None:
        raise UnknownPathError("The console's page is not in this build")
    return found
