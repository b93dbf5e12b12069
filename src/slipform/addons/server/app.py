"""Serve one request from its first byte to its last."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from importlib import import_module
from typing import Any, TypeAlias

import msgspec

from slipform.addons.local import LocalProvider
from slipform.addons.server.admission.admission import ANYBODY, Admission, Caller
from slipform.addons.server.admission.budgets import KeyBudget
from slipform.addons.server.admission.refusals import NotAllowed, WrongKey, error_headers, log_refusal
from slipform.addons.server.calls import pages
from slipform.addons.server.calls.endpoint_calls import EndpointCall
from slipform.addons.server.calls.endpoints import (
    Located,
    UnknownPathError,
    WebSocketError,
    locate,
    methods_at,
    refusal_of,
)
from slipform.addons.server.calls.inbound import Inbound, WarmReading, read_call, read_warm
from slipform.addons.server.calls.request_switches import FIELD
from slipform.addons.server.calls.routes import (
    BY_PATH,
    OLLAMA_LISTING,
    Listing,
    api_at,
    error_api,
    listing_at,
    named_model,
    paths,
    route_of,
)
from slipform.addons.server.console.console import Console
from slipform.addons.server.console.static_files import ROOT as CONSOLE
from slipform.addons.server.deployment import REFUSED, Deployment, Deployments, InForce, Load, deploy
from slipform.addons.server.http_server.asgi import (
    Receive,
    RecordingSend,
    Scope,
    Send,
    check_size,
    client_address,
    cycle_of,
    decompressed,
    read_body,
    read_query,
    run_until_disconnected,
    send_bytes,
    send_json,
    send_page,
    with_headers,
)
from slipform.addons.server.http_server.request_cycle import RequestCycle
from slipform.addons.server.observability.call_record import CallRecord, Header, request_id
from slipform.addons.server.observability.logs import log_request, log_trace
from slipform.addons.server.observability.metrics import Metrics, WorkerAddress
from slipform.codecs import ServedApi, find_api
from slipform.codecs.model_name import check_name
from slipform.codecs.request_fields import read_body as read_object
from slipform.config import ConfigReading, Settings
from slipform.engine import tracing
from slipform.engine.planning import price_list
from slipform.errors import LocalModelError, RequestError, SlipformError, UnknownModelError
from slipform.library.async_client import AsyncClient
from slipform.prices import load_price_list

_log = logging.getLogger("slipform.server")
_CALLS = frozenset({"enforced", "forwarded", "counted"})
"""The kinds of endpoints that reach a provider: they are admitted, counted and logged."""
_CLIENT_DISCONNECTED = 499
"""The status, in logs and metrics, of a call whose client did not wait for the answer."""
_UNUSUAL_HEADERS = frozenset({b"content-encoding", b"x-slipform-provider"})
"""Headers of calls whose body alone does not say what they are."""
_Page: TypeAlias = Callable[[Scope, dict[bytes, bytes], Send], Awaitable[None]]


class _HttpCall(msgspec.Struct):
    """One call from its first byte to its last."""

    api: ServedApi
    """In whose shape errors are written."""
    scope: Scope
    headers: dict[bytes, bytes]
    receive: Receive
    cycle: RequestCycle | None
    """Set where the server is ours."""
    located: Located | None
    """Its row of the endpoint table, if it has one."""
    deployment: Deployment
    record: CallRecord
    entry: str
    """Its id in the console."""
    out: RecordingSend
    caller: Caller = ANYBODY
    body: bytes = b""
    warm: WarmReading | None = None
    """What came of reading it as an earlier one with the same fields was read, where that was tried."""

    async def refuse(self, error: SlipformError) -> None:
        """Write an error, without names of models that the caller may not know; drop what its traceback holds."""
        public_error = error
        caller = self.caller
        if isinstance(error, UnknownModelError):
            public_error = caller.unknown(error, self.record.model, self.deployment.client.router)
        path = self.scope["path"]
        address = client_address(self.scope)
        log_refusal(public_error, address=address, request_id=self.record.request_id, path=path, name=caller.name)
        await self.fail(public_error)
        _forget_frames(error)

    async def fail(self, error: SlipformError) -> None:
        """Record an error, and write it unless the answer's head has been sent already."""
        record = self.record
        record.fail(error)
        if isinstance(error, LocalModelError):
            _log.warning("%s", error)  # with the place of the file, which callers are not told
        if self.out.complete or self.out.head_sent:  # an answer that has begun is left visibly unfinished
            return
        shown = None
        if record.report_asked and record.report is not None:
            shown = {FIELD: record.report.to_dict()}
        record.status, body = self.api.encode_error(error, shown)
        await send_bytes(self.out, record.status, body, [*record.headers(), *error_headers(error)])


class App:
    """Serves the vendors' APIs; every answer with a schema is valid against it or is an error.

    `load` reads the configuration again when `reload` is called; `worker` says which of several workers this is;
    `in_force` is the configuration it begins with, where that is not the first; `bound` the host it is served on.

    >>> app = App(AsyncClient(), Settings())
    """

    def __init__(
        self,
        client: AsyncClient,
        settings: Settings,
        *,
        load: Load | None = None,
        worker: WorkerAddress | None = None,
        in_force: InForce | None = None,
        bound: str | None = None,
    ) -> None:
        start = in_force or InForce(ConfigReading(settings))
        first = deploy(client, start.reading, start.generation, bound)
        if worker is not None:
            first.gate.share(worker.folder)
        self._deployments = Deployments(first)
        self._load = load
        self._worker = worker
        self._started = int(time.time())
        self._waiting_for: str | None = "starting"
        self._draining = False
        self._reloading = asyncio.Lock()
        self._warming: asyncio.Task[None] | None = None
        self.metrics = Metrics(self._names)
        self.console = Console(
            settings.server, bound, lambda: self._deployments.current, self._serve_for_console, worker
        )
        self.metrics.generation.set(start.generation)
        self.metrics.refused.inc(start.refused)
        self.metrics.last_reload_refused.set(start.last_refused)
        self._last_refused = start.last_refused
        self._pages: Mapping[str, _Page] = {
            "/": self._root,
            **dict.fromkeys(pages.LIVE, self._live),
            **dict.fromkeys(pages.READY, self._ready),
            "/v1/slipform/spend": self._spend,
            "/version": self._version,
            "/metrics": self._metrics_page,
            "/openapi.json": self._openapi,
            "/docs": self._docs,
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one ASGI connection."""
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif scope["type"] == "http":
            cors = self._deployments.current.gate.cors
            api = BY_PATH.get(scope["path"])
            if api is not None and cors is None and scope["method"] == "POST":
                await self._serve(api, scope, receive, send, ())
            elif cors is None or scope["path"].startswith(CONSOLE):  # no other page ever reads the console
                await self._http(scope, receive, send)
            elif not await cors.preflight(scope, send):
                await self._http(scope, receive, send, cors.cors_headers(scope))

    def _names(self) -> list[str]:
        return self._deployments.current.client.router.names()

    def drain(self) -> None:
        """Tell balancers, through /readyz, to send no more; requests are still served."""
        self._draining = True
        self.console.drain()

    async def reload(self) -> bool:
        """Read the configuration again: all of it takes effect, or none of it. False when it was refused."""
        if self._load is None:
            return False
        async with self._reloading:
            current = self._deployments.current
            try:
                new = self._load(current)
                new.gate.continue_from(current.gate)
                await _warm(new)
            except Exception as error:  # noqa: BLE001 — whatever it is, the old one continues
                self._last_refused = True
                self.metrics.refused.inc()
                self.metrics.last_reload_refused.set(1)
                _log.error(REFUSED, current.generation, error, exc_info=not isinstance(error, SlipformError))
                return False
            if new.settings.server != current.settings.server:
                _log.warning("`server.host`, `port`, `workers`, `log`, connection limits change only with a restart")
            self._waiting_for = None
            self._last_refused = False
            self.metrics.last_reload_refused.set(0)
            self.metrics.generation.set(new.generation)
            new.gate.start()
            await self._deployments.replace(new)
            _log.info("the configuration's generation %d serves", new.generation)
            return True

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                self._deployments.current.gate.start()
                self._warming = asyncio.create_task(self._become_ready())
                await send({"type": "lifespan.startup.complete"})
            else:
                if self._warming is not None:
                    await self._warming
                await self._deployments.close()
                await asyncio.to_thread(self.console.close)
                await send({"type": "lifespan.shutdown.complete"})
                return

    async def _become_ready(self) -> None:
        """Load the embedded model before the first request wants it, when it is the default."""
        self._waiting_for = "loading the embedded model"
        try:
            await _warm(self._deployments.current)
        except SlipformError as error:
            self._waiting_for = "the embedded model is not available"
            _log.warning("%s", error)
        else:
            self._waiting_for = None
        # What the first call with a schema needs is loaded before any caller waits for it.
        await asyncio.to_thread(import_module, "slipform.schema.lowering.lowered")
        if any(map(price_list, self._deployments.current.client.router.providers.values())):
            await asyncio.to_thread(load_price_list)

    def _http(
        self, scope: Scope, receive: Receive, send: Send, cors_headers: Sequence[Header] = ()
    ) -> Coroutine[Any, Any, None]:
        method = scope["method"]
        path = scope["path"]
        if method == "POST" and (api := api_at(path)) is not None:
            return self._serve(api, scope, receive, send, cors_headers)
        headers = dict(scope["headers"])
        located = locate("GET" if method == "HEAD" else method, path, headers)
        if located is not None and located.row.kind in _CALLS:
            api = find_api(located.row.api) if located.row.api else error_api(path, headers, located)
            return self._serve(api, scope, receive, send, cors_headers, located)
        return self._serve_page(method, located, scope, headers, receive, with_headers(send, cors_headers))

    def _serve_for_console(
        self, path: str, scope: Scope, receive: Receive, send: Send, caller: Caller
    ) -> Coroutine[Any, Any, None]:
        """Answer a call of the console's, at another path than its own, for a caller that has a session there."""
        api = api_at(path)
        if api is None:
            raise UnknownPathError(f"No API is served at {path}")
        headers = [(name, value) for name, value in scope["headers"] if name not in _CONSOLE_HEADERS]
        return self._serve(
            api, {**scope, "path": path, "headers": headers}, receive, send, (), authenticated_caller=caller
        )

    async def _serve_page(
        self,
        method: str,
        located: Located | None,
        scope: Scope,
        headers: dict[bytes, bytes],
        receive: Receive,
        send: Send,
    ) -> None:
        path: str = scope["path"]
        try:
            if headers.get(b"upgrade", b"").lower() == b"websocket":
                raise WebSocketError(
                    f"WebSockets are not served at {path[:100]}", hint="Use HTTP: POST, with `stream` for a stream."
                )
            if path == CONSOLE or path.startswith(f"{CONSOLE}/"):
                await self.console(scope, receive, send)
            elif located is not None and located.row.family == "ollama" and located.row.kind == "served":
                await self._ollama_page(located.row.path, scope, headers, receive, send)
            else:
                await self._page(method, located, scope, headers, send)
        except SlipformError as error:
            status, body = error_api(path, headers, located).encode_error(error)
            identity = request_id(headers)
            log_refusal(error, address=client_address(scope), request_id=identity, path=path)
            more: list[Header] = [(b"x-request-id", identity.encode())]
            if isinstance(error, pages.WrongMethodError):
                allowed = methods_at(path, headers) or ["GET", "HEAD"]
                more.append((b"allow", ", ".join(allowed).encode()))
            elif isinstance(error, WebSocketError):
                more.append((b"upgrade", b"HTTP/1.1"))
            await send_bytes(send, status, body, [*more, *error_headers(error)])

    async def _serve(
        self,
        api: ServedApi,
        scope: Scope,
        receive: Receive,
        send: Send,
        cors_headers: Sequence[Header],
        located: Located | None = None,
        authenticated_caller: Caller | None = None,
    ) -> None:
        headers = dict(scope["headers"])
        row = None if located is None or located.row.kind == "enforced" else located.row
        record = CallRecord(request_id(headers), api=api.name if row is None else row.name)
        deployment = self._deployments.current
        deployment.users += 1
        record.generation = deployment.generation
        self.metrics.call_started()
        cycle = cycle_of(scope, send)
        own = authenticated_caller is not None
        record.trace = self.console.trace(record, headers, deployment.settings.server, own=own)
        entry = self.console.history.begin(record)
        out = RecordingSend(send, record, cycle=cycle, capture=record.trace is not None)
        out.extra = (*cors_headers, (b"x-slipform-call", entry.encode())) if own else cors_headers
        call = _HttpCall(api, scope, headers, receive, cycle, located, deployment, record, entry, out)
        span = None
        if tracing.is_tracing():
            route = route_of(scope["path"]) if located is None else located.row.path
            span = tracing.start_server_span(scope["method"], route, headers)
        try:
            await self._answer(call, authenticated_caller)
        except SlipformError as error:
            await call.refuse(error)
        except asyncio.CancelledError:
            if not self._draining:
                raise
            await call.fail(ShuttingDownError("The server is shutting down", hint="Retry the request."))
        except Exception:  # noqa: BLE001 — the caller gets an error in the right shape, the log the traceback
            _log.exception("unexpected error on %s", scope["path"])
            await call.fail(SlipformError("An unexpected error inside slipform", hint=_SEE_LOG))
        finally:
            self._end_call(call)
            if span is not None:
                tracing.end_server_span(span, record.fields())
            deployment.users -= 1
            if self._deployments.retired:
                await self._deployments.close_unused()

    async def _answer(self, call: _HttpCall, authenticated_caller: Caller | None) -> None:
        """Admit a call, read it and write its answer."""
        scope = call.scope
        headers = call.headers
        cycle = call.cycle
        guard = call.deployment.gate.guard
        client = scope.get("client")
        address = str(client[0]) if client else ""
        rate_limit_headers: Sequence[Header] = ()
        try:
            caller = authenticated_caller or guard.caller(headers, scope.get("query_string", b""))
        except WrongKey:  # raised again, or in its place that there were too many of them
            caller = await guard.authenticate(headers, scope.get("query_string", b""), address)
        call.caller = caller
        call.record.caller = caller.name
        if guard.is_limited(caller):
            rate_limit_headers = await guard.check_rate_limit(caller, address, call.api.name)
        make_room, task = (None, None) if cycle is None else (cycle.make_room, cycle.task)
        with guard.admit(caller, headers, rate_limit_headers, address, make_room, task) as admission:
            if call.located is not None and call.located.row.kind != "enforced":
                guard.check_host(headers, _bound(scope))
                await self._answer_endpoint(call, call.located, admission)
                return
            body = None if cycle is None else cycle.take()
            inbound = None if body is None else self._read_warm(call, body, admission)
            if inbound is None:
                inbound = await self._read_call(call, body, admission)
            history = self.console.history
            if call.record.trace is not None or history.subscribers:
                history.announce(call.entry, call.record, call.body)
            work = call.deployment.gate.answer(inbound, admission, call.out)
            if cycle is None:
                await run_until_disconnected(work, call.receive, call.out)
            else:
                with cycle:
                    await work

    async def _answer_endpoint(self, call: _HttpCall, located: Located, admission: Admission) -> None:
        """Answer a call of the endpoint table."""
        origin = _origin(call.scope, call.headers)
        request = EndpointCall(
            located, call.headers, read_query(call.scope), origin, call.receive, call.cycle, call.caller, call.record,
            admission,
        )  # fmt: skip
        work = call.deployment.gate.answer_endpoint(request, call.out)
        # Another server than ours tells of a disconnect in place of the body, which is still to be read.
        await (work if call.cycle is None else run_until_disconnected(work, call.receive, call.out))

    def _read_warm(self, call: _HttpCall, body: bytes, admission: Admission) -> Inbound | None:
        """Read a call that has arrived whole, by what was read of an earlier one with the same fields."""
        headers = call.headers
        most = call.deployment.settings.server.max_body_bytes
        if len(body) > most or call.located is not None or not _UNUSUAL_HEADERS.isdisjoint(headers):
            return None
        admission.body_read()
        call.body = body
        place = call.deployment.gate.warm_place
        call.warm = read_warm(call.api, body, call.record, headers, call.caller, place)
        return call.warm[0]

    async def _read_call(self, call: _HttpCall, body: bytes | None, admission: Admission) -> Inbound:
        """Read a call of one of the APIs that slipform serves; its body, too, where that was not there at once."""
        headers = call.headers
        gate = call.deployment.gate
        most = call.deployment.settings.server.max_body_bytes
        if body is None:
            body = await read_body(call.receive, most, None, headers.get(b"content-length"))
        check_size(len(body), most)
        admission.body_read()
        if b"content-encoding" in headers:
            body = await decompressed(body, headers[b"content-encoding"], most)
        call.body = body
        context = gate.context(call.scope["path"], headers, call.caller, call.located)
        return await read_call(call.api, body, call.record, context, call.warm)

    def _end_call(self, call: _HttpCall) -> None:
        """Record the end of a call, once, whatever its outcome."""
        record = call.record
        out = call.out
        trace = record.trace
        settings = call.deployment.settings
        if trace is not None and out.captured is not None:
            trace.request = call.body
            trace.response = bytes(out.captured)
            if settings.server.debug_traces:
                log_trace(record, trace.request, trace.response)
        record.close()
        if not out.complete and record.outcome == "ok":
            record.outcome = "client_gone"
            record.status = _CLIENT_DISCONNECTED
        record.answer = None  # counting and logging need only the figures
        self.metrics.call_ended(record, caching=settings.cache.enabled)
        log_request(record)
        self.console.history.end(call.entry, record, trace)

    async def _page(
        self, method: str, located: Located | None, scope: Scope, headers: dict[bytes, bytes], send: Send
    ) -> None:
        path: str = scope["path"] if located is None else located.path
        if located is not None and located.row.kind == "refused":
            raise refusal_of(located.row, method, path)
        listing = listing_at(path, headers)
        if api_at(path) is not None or (method not in ("GET", "HEAD") and (listing or path in pages.PAGES)):
            raise pages.WrongMethodError(f"{path} does not take {method}", hint=f"slipform serves {paths()}.")
        page = self._pages.get(path)
        if listing is not None:
            await self._models(listing, path, scope, headers, send)
        elif page is not None:
            await page(scope, headers, send)
        elif methods_at(path, headers):
            raise pages.WrongMethodError(f"{path} does not take {method}", hint=f"slipform serves {paths()}.")
        else:
            raise UnknownPathError(f"Nothing is served at {method} {path[:200]}", hint=f"slipform serves {paths()}.")

    async def _live(self, _scope: Scope, _headers: dict[bytes, bytes], send: Send) -> None:
        await send_json(send, 200, pages.health())

    async def _ready(self, scope: Scope, headers: dict[bytes, bytes], send: Send) -> None:
        waiting = "draining" if self._draining else self._waiting_for
        generation = self._deployments.current.generation
        shown = generation if await self._shows("readyz", scope, headers) else None
        await send_json(send, *pages.readiness(waiting, shown, reload_refused=self._last_refused))

    async def _version(self, scope: Scope, headers: dict[bytes, bytes], send: Send) -> None:
        await send_json(send, 200, pages.version(detailed=await self._shows("version", scope, headers)))

    async def _openapi(self, scope: Scope, headers: dict[bytes, bytes], send: Send) -> None:
        await self._check_operator("openapi", scope, headers)
        await send_bytes(send, 200, pages.openapi_bytes())

    async def _docs(self, scope: Scope, headers: dict[bytes, bytes], send: Send) -> None:
        await self._check_operator("docs", scope, headers)
        await send_page(send, 200, pages.openapi_page(), b"text/html; charset=utf-8")

    async def _root(self, _scope: Scope, headers: dict[bytes, bytes], send: Send) -> None:
        """Lead a browser to the console, and tell everybody else what is here."""
        if b"text/html" in headers.get(b"accept", b"") and self.console.is_on:
            await send_page(send, 303, b"", b"text/plain", [(b"location", b"/console/")])
        else:
            page, kind = pages.front(headers.get(b"user-agent", b""), has_console=self.console.is_on)
            await send_page(send, 200, page, kind)

    async def _shows(self, page: str, scope: Scope, headers: dict[bytes, bytes]) -> bool:
        """Whether the caller may see all of a page; raises for a wrong key, not for none."""
        if self._worker is not None and scope.get("server") is None:
            return True  # another worker asks, on a socket that only they can reach
        guard = self._deployments.current.gate.guard
        if not guard.is_own_host(headers, _bound(scope)):
            return False
        return await guard.operator_sees(page, headers, scope.get("query_string", b""), client_address(scope))

    async def _check_operator(self, page: str, scope: Scope, headers: dict[bytes, bytes]) -> None:
        if await self._shows(page, scope, headers):
            return
        guard = self._deployments.current.gate.guard
        guard.check_host(headers, _bound(scope))
        caller = guard.caller(headers, scope.get("query_string", b""))  # raises without any key
        raise NotAllowed(
            f"{scope['path']} is for operators, and the API key {caller.name!r} is not one of theirs",
            hint="Make one with `slipform keys add NAME --operator`, or list the page in `server.open_pages`.",
            key=caller.id,
        )

    async def _ollama_page(
        self, path: str, scope: Scope, headers: dict[bytes, bytes], receive: Receive, send: Send
    ) -> None:
        """Answer what Ollama's clients ask beside their calls."""
        if path == "/api/version":
            await send_json(send, 200, {"version": pages.OLLAMA_VERSION})
        elif path == "/api/ps":
            await send_json(send, 200, {"models": []})
        elif path == "/api/tags":
            await self._models(OLLAMA_LISTING, "/models", scope, headers, send)
        else:
            limit = self._deployments.current.settings.server.max_body_bytes
            fields = read_object(await read_body(receive, limit, None, headers.get(b"content-length")))
            name = fields.get("model") or fields.get("name")
            if not isinstance(name, str) or not name:
                raise RequestError("The model is missing", where="model")
            await self._models(OLLAMA_LISTING, f"/models/{name}", scope, headers, send)

    async def _models(self, listing: Listing, path: str, scope: Scope, headers: dict[bytes, bytes], send: Send) -> None:
        deployment = self._deployments.current
        deployment.gate.guard.check_host(headers, _bound(scope))
        caller = await deployment.gate.guard.authenticate(
            headers, scope.get("query_string", b""), client_address(scope)
        )
        router = deployment.client.router
        name = named_model(path)
        if not name:
            await send_json(send, 200, listing.many(await deployment.gate.model_names(caller), self._started))
            return
        try:
            router.resolve(check_name(name, "the path"))
            if not caller.may_use(name, router):
                raise UnknownModelError(f"Unknown model {name!r}")
        except UnknownModelError as error:
            raise (error if caller.models is None else UnknownModelError(f"Unknown model {name!r}")) from None
        await send_json(send, 200, listing.one(name, self._started))

    async def _spend(self, scope: Scope, headers: dict[bytes, bytes], send: Send) -> None:
        """What the caller's own key has spent."""
        gate = self._deployments.current.gate
        gate.guard.check_host(headers, _bound(scope))
        caller = await gate.guard.authenticate(headers, scope.get("query_string", b""), client_address(scope))
        if gate.spending is None:
            hint = "Set `ledger.path`, or `server.keys_file`, in slipform.yaml."
            raise UnknownPathError("Nothing is written down here of what is spent", hint=hint)
        budget = caller.budget or KeyBudget()
        standing = await gate.spending.standing(caller.id, budget)
        await send_json(send, 200, pages.spend(caller.name, budget, standing, time.time()))

    async def _metrics_page(self, scope: Scope, headers: dict[bytes, bytes], send: Send) -> None:
        await self._check_operator("metrics", scope, headers)
        alone = read_query(scope).get("worker") == "self"
        accept = headers.get(b"accept", b"").decode("latin-1")
        if self._worker is None or alone:
            page, kind = self.metrics.render(accept)
        else:
            others = await self._worker.others()
            page, kind = self.metrics.render(accept, others, worker=str(self._worker.index))
        await send_page(send, 200, page, kind.encode())


_CONSOLE_HEADERS = frozenset({b"cookie", b"origin", b"x-slipform-console"})
"""Headers of the console's requests that do not of the call inside."""


class ShuttingDownError(SlipformError):
    """The time to finish requests in progress is over."""

    code = "shutting_down"
    http_status = 503


_SEE_LOG = "See the server's log."


def _origin(scope: Scope, headers: dict[bytes, bytes]) -> str:
    """The address by which a client reached this server."""
    return f"{scope.get('scheme', 'http')}://{headers.get(b'host', b'').decode('latin-1')}"


def _bound(scope: Scope) -> str:
    """The address of this machine at which a request came in."""
    server = scope.get("server")
    return str(server[0]) if server else ""


async def _warm(deployment: Deployment) -> None:
    provider, model = deployment.client.router.resolve(None)
    if isinstance(provider, LocalProvider):
        await asyncio.to_thread(provider.warm, model)


def _forget_frames(error: BaseException | None) -> None:
    """Drop the tracebacks of an error and of those behind it, when it has been told.

    Their frames hold the request, its body and the error itself: a cycle, which would keep all of that until the
    garbage collector comes, and that is seldom here.
    """
    while error is not None:
        error.__traceback__ = None
        error = error.__cause__ or error.__context__
