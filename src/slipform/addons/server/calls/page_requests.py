"""Answer requests for pages: health, metrics, models, spending, documentation, the console."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from slipform.addons.server.admission.admission import AdmissionControl, Caller
from slipform.addons.server.admission.budgets import KeyBudget
from slipform.addons.server.admission.refusals import NotAllowed, error_headers, log_refusal
from slipform.addons.server.calls import pages
from slipform.addons.server.calls.endpoints import Located, UnknownPathError, WebSocketError, methods_at, refusal_of
from slipform.addons.server.calls.routes import (
    OLLAMA_LISTING,
    Listing,
    api_at,
    error_api,
    listing_at,
    named_model,
    paths,
)
from slipform.addons.server.console.static_files import ROOT as CONSOLE
from slipform.addons.server.deployment import Deployment
from slipform.addons.server.http_server.asgi import (
    Receive,
    Scope,
    Send,
    client_address,
    local_host,
    read_body,
    read_query,
    send_bytes,
    send_json,
    send_page,
)
from slipform.addons.server.observability.call_record import Header, request_id
from slipform.addons.server.worker_state import WorkerState
from slipform.codecs.model_name import check_name
from slipform.codecs.request_fields import read_body as read_object
from slipform.errors import RequestError, SlipformError, UnknownModelError


@dataclass(frozen=True, slots=True)
class PageRequest:
    """One request for a page, which reaches no provider."""

    state: WorkerState
    method: str
    located: Located | None
    """Its row of the endpoint table, if it has one."""
    scope: Scope
    headers: dict[bytes, bytes]
    receive: Receive
    send: Send

    @property
    def path(self) -> str:
        """The path in the request."""
        path: str = self.scope["path"]
        return path

    @property
    def query(self) -> bytes:
        """The query string in the request."""
        query: bytes = self.scope.get("query_string", b"")
        return query

    @property
    def deployment(self) -> Deployment:
        """The configuration in use."""
        return self.state.deployments.current

    @property
    def guard(self) -> AdmissionControl:
        """The admission control of the configuration in use."""
        return self.deployment.gate.guard

    async def caller(self) -> Caller:
        """Return the caller by its key; raises for a host name of another server, and for a wrong key."""
        self.guard.check_host(self.headers, local_host(self.scope))
        return await self.guard.authenticate(self.headers, self.query, client_address(self.scope))

    async def shows(self, page: str) -> bool:
        """Return whether the caller may see all of a page; raises for a wrong key, but not for none."""
        if self.state.worker is not None and self.scope.get("server") is None:
            return True  # another worker, on a socket that only workers can reach
        if not self.guard.is_own_host(self.headers, local_host(self.scope)):
            return False
        return await self.guard.operator_sees(page, self.headers, self.query, client_address(self.scope))

    async def check_operator(self, page: str) -> None:
        """Raise unless the caller may see this operators' page."""
        if await self.shows(page):
            return
        self.guard.check_host(self.headers, local_host(self.scope))
        caller = self.guard.caller(self.headers, self.query)  # raises without any key
        raise NotAllowed(
            f"{self.path} is for operators, and the API key {caller.name!r} is not one of theirs",
            hint="Make one with `slipform keys add NAME --operator`, or list the page in `server.open_pages`.",
            key=caller.id,
        )


async def serve_page(request: PageRequest) -> None:
    """Serve a page; errors have the format of the API whose clients use this path."""
    path = request.path
    headers = request.headers
    try:
        await _page(request)
    except SlipformError as error:
        status, body = error_api(path, headers, request.located).encode_error(error)
        identity = request_id(headers)
        log_refusal(error, address=client_address(request.scope), request_id=identity, path=path)
        more: list[Header] = [(b"x-request-id", identity.encode())]
        if isinstance(error, pages.WrongMethodError):
            allowed = methods_at(path, headers) or ["GET", "HEAD"]
            more.append((b"allow", ", ".join(allowed).encode()))
        elif isinstance(error, WebSocketError):
            more.append((b"upgrade", b"HTTP/1.1"))
        await send_bytes(request.send, status, body, [*more, *error_headers(error)])


async def _page(request: PageRequest) -> None:
    """Serve a request that is not a model call."""
    path = request.path
    row = None if request.located is None else request.located.row
    if request.headers.get(b"upgrade", b"").lower() == b"websocket":
        raise WebSocketError(
            f"WebSockets are not served at {path[:100]}", hint="Use HTTP: POST, with `stream` for a stream."
        )
    if path == CONSOLE or path.startswith(f"{CONSOLE}/"):
        await request.state.console(request.scope, request.receive, request.send)
    elif row is not None and row.family == "ollama" and row.kind == "served":
        await _OLLAMA_PAGES.get(row.path, _ollama_model)(request)
    else:
        await _listed_page(request)


async def _listed_page(request: PageRequest) -> None:
    located = request.located
    method = request.method
    path = request.path if located is None else located.path
    if located is not None and located.row.kind == "refused":
        raise refusal_of(located.row, method, path)
    listing = listing_at(path, request.headers)
    page = _PAGES.get(path)
    is_read = method in ("GET", "HEAD")
    if api_at(path) is not None or (not is_read and (listing or path in pages.PAGES)):
        raise _wrong_method(method, path)
    if listing is not None:
        await _models(request, listing, path)
    elif page is not None:
        await page(request)
    elif methods_at(path, request.headers):
        raise _wrong_method(method, path)
    else:
        raise UnknownPathError(f"Nothing is served at {method} {path[:200]}", hint=f"slipform serves {paths()}.")


def _wrong_method(method: str, path: str) -> pages.WrongMethodError:
    return pages.WrongMethodError(f"{path} does not take {method}", hint=f"slipform serves {paths()}.")


async def _live(request: PageRequest) -> None:
    await send_json(request.send, 200, pages.health())


async def _ready(request: PageRequest) -> None:
    state = request.state
    waiting = "draining" if state.is_draining else state.waiting_for
    generation = state.deployments.current.generation
    shown = generation if await request.shows("readyz") else None
    await send_json(request.send, *pages.readiness(waiting, shown, reload_refused=state.last_reload_refused))


async def _version(request: PageRequest) -> None:
    await send_json(request.send, 200, pages.version(detailed=await request.shows("version")))


async def _openapi(request: PageRequest) -> None:
    await request.check_operator("openapi")
    await send_bytes(request.send, 200, pages.openapi_bytes())


async def _docs(request: PageRequest) -> None:
    await request.check_operator("docs")
    await send_page(request.send, 200, pages.openapi_page(), b"text/html; charset=utf-8")


async def _root(request: PageRequest) -> None:
    """Redirect a browser to the console, and show the server's front page to all other clients."""
    headers = request.headers
    has_console = request.state.console.is_on
    if b"text/html" in headers.get(b"accept", b"") and has_console:
        await send_page(request.send, 303, b"", b"text/plain", [(b"location", b"/console/")])
    else:
        page, kind = pages.front(headers.get(b"user-agent", b""), has_console=has_console)
        await send_page(request.send, 200, page, kind)


async def _spend(request: PageRequest) -> None:
    """Return the spending of the caller's own key."""
    caller = await request.caller()
    spending = request.deployment.gate.spending
    if spending is None:
        hint = "Set `ledger.path`, or `server.keys_file`, in slipform.yaml."
        raise UnknownPathError("Nothing is written down here of what is spent", hint=hint)
    budget = caller.budget or KeyBudget()
    standing = await spending.standing(caller.id, budget)
    await send_json(request.send, 200, pages.spend(caller.name, budget, standing, time.time()))


async def _metrics(request: PageRequest) -> None:
    await request.check_operator("metrics")
    metrics = request.state.metrics
    worker = request.state.worker
    is_alone = read_query(request.scope).get("worker") == "self"
    accept = request.headers.get(b"accept", b"").decode("latin-1")
    if worker is None or is_alone:
        page, kind = metrics.render(accept)
    else:
        page, kind = metrics.render(accept, await worker.others(), worker=str(worker.index))
    await send_page(request.send, 200, page, kind.encode())


async def _models(request: PageRequest, listing: Listing, path: str) -> None:
    caller = await request.caller()
    gate = request.deployment.gate
    router = request.deployment.client.router
    started = request.state.started
    name = named_model(path)
    if not name:
        await send_json(request.send, 200, listing.many(await gate.model_names(caller), started))
        return
    try:
        router.resolve(check_name(name, "the path"))
        if not caller.may_use(name, router):
            raise UnknownModelError(f"Unknown model {name!r}")
    except UnknownModelError as error:
        raise (error if caller.models is None else UnknownModelError(f"Unknown model {name!r}")) from None
    await send_json(request.send, 200, listing.one(name, started))


async def _ollama_version(request: PageRequest) -> None:
    await send_json(request.send, 200, {"version": pages.OLLAMA_VERSION})


async def _ollama_running(request: PageRequest) -> None:
    await send_json(request.send, 200, {"models": []})


async def _ollama_models(request: PageRequest) -> None:
    await _models(request, OLLAMA_LISTING, "/models")


async def _ollama_model(request: PageRequest) -> None:
    limit = request.deployment.settings.server.max_body_bytes
    body = await read_body(request.receive, limit, None, request.headers.get(b"content-length"))
    fields = read_object(body)
    name = fields.get("model") or fields.get("name")
    if not isinstance(name, str) or not name:
        raise RequestError("The model is missing", where="model")
    await _models(request, OLLAMA_LISTING, f"/models/{name}")


_Page: TypeAlias = Callable[[PageRequest], Awaitable[None]]
_PAGES: Final[Mapping[str, _Page]] = {
    "/": _root,
    **dict.fromkeys(pages.LIVE, _live),
    **dict.fromkeys(pages.READY, _ready),
    "/v1/slipform/spend": _spend,
    "/version": _version,
    "/metrics": _metrics,
    "/openapi.json": _openapi,
    "/docs": _docs,
}
_OLLAMA_PAGES: Final[Mapping[str, _Page]] = {
    "/api/version": _ollama_version,
    "/api/ps": _ollama_running,
    "/api/tags": _ollama_models,
}
