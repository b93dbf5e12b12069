"""Serve one call: admit it, read it, write its answer, and record its end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from functools import lru_cache

import msgspec

from slipform.addons.server.admission.admission import Admission, Caller
from slipform.addons.server.admission.refusals import WrongKey
from slipform.addons.server.calls.call import Call
from slipform.addons.server.calls.endpoints import Located
from slipform.addons.server.calls.inbound import Inbound, read_call, read_without_parsing
from slipform.addons.server.calls.request_switches import has_switches
from slipform.addons.server.calls.routes import route_of
from slipform.addons.server.console.history import CallHistory
from slipform.addons.server.http_server.asgi import (
    Receive,
    RecordingSend,
    Scope,
    Send,
    check_size,
    cycle_of,
    decompressed,
    local_host,
    read_body,
    run_until_disconnected,
)
from slipform.addons.server.observability.call_record import CallRecord, Header, request_id
from slipform.addons.server.worker_state import WorkerState
from slipform.codecs import ServedApi
from slipform.engine import tracing
from slipform.errors import SlipformError

_log = logging.getLogger("slipform.server")
_UNUSUAL_HEADERS = frozenset({b"content-encoding", b"x-slipform-provider"})
"""Headers of calls that cannot be read from their body alone."""


class Asgi(msgspec.Struct, frozen=True):
    """The arguments of an ASGI application for one request."""

    scope: Scope
    receive: Receive
    send: Send


class ShuttingDownError(SlipformError):
    """The time for requests in progress to finish is over."""

    code = "shutting_down"
    http_status = 503


async def serve(
    state: WorkerState,
    api: ServedApi,
    asgi: Asgi,
    cors_headers: Sequence[Header] = (),
    located: Located | None = None,
    authenticated_caller: Caller | None = None,
) -> None:
    """Serve one call from its first byte to its last; errors are written in the shape of the API."""
    scope = asgi.scope
    send = asgi.send
    headers = dict(scope["headers"])
    row = None if located is None or located.row.kind == "enforced" else located.row
    name = api.name if row is None else row.name
    record = CallRecord(request_id(headers), name, b"x-request-id" not in headers)
    deployment = state.deployments.current
    deployment.users += 1
    record.generation = deployment.generation
    state.metrics.call_started()
    console = state.console
    cycle = cycle_of(scope, send)
    own = authenticated_caller is not None
    record.trace = console.recording.trace(record, headers, deployment.settings.server, own=own)
    entry = console.history.begin(record)
    extra = (*cors_headers, (b"x-slipform-call", entry.encode())) if own else cors_headers
    out = RecordingSend(send, record, cycle, extra, None if record.trace is None else bytearray())
    call = Call(api, scope, headers, asgi.receive, cycle, located, deployment, record, entry, out, authenticated_caller)
    span = None
    if tracing.is_tracing():
        route = route_of(scope["path"]) if located is None else located.row.path
        span = tracing.start_server_span(scope["method"], route, headers)
    try:
        await _answer(call, console.history)
    except SlipformError as error:
        await call.refuse(error)
    except asyncio.CancelledError:
        if not state.is_draining:
            raise
        await call.fail(ShuttingDownError("The server is shutting down", hint="Retry the request."))
    except Exception:  # noqa: BLE001 — the caller gets an error in the right shape, the log the traceback
        _log.exception("unexpected error on %s", scope["path"])
        await call.fail(SlipformError("An unexpected error inside slipform", hint="See the server's log."))
    finally:
        call.end()
        state.metrics.call_ended(record, caching=deployment.settings.cache.enabled)
        console.history.end(entry, record, record.trace)
        if span is not None:
            tracing.end_server_span(span, record.fields())
        deployment.users -= 1
        if state.deployments.retired:
            await state.deployments.close_unused()


async def _answer(call: Call, history: CallHistory) -> None:
    """Admit a call, read it and write its answer."""
    scope = call.scope
    headers = call.headers
    cycle = call.cycle  # None under another ASGI server, or inside a middleware
    guard = call.deployment.gate.guard
    client = scope.get("client")
    address = str(client[0]) if client else ""
    rate_limit_headers: Sequence[Header] = ()
    try:
        caller = call.authenticated_caller or guard.caller(headers, scope.get("query_string", b""))
    except WrongKey:  # raises it again, or refuses an address with too many wrong keys
        caller = await guard.authenticate(headers, scope.get("query_string", b""), address)
    call.caller = caller
    call.record.caller = caller.name
    if guard.is_limited(caller):
        rate_limit_headers = await guard.check_rate_limit(caller, address, call.api.name)
    with guard.admit(caller, headers, rate_limit_headers, address, cycle) as admission:
        if call.located is not None and call.located.row.kind != "enforced":
            await _answer_endpoint(call, admission)
            return
        body = None if cycle is None else cycle.take()
        inbound = None if body is None else _read_without_parsing(call, body, admission)
        if inbound is None:
            inbound = await _read_call(call, body, admission)
        if call.record.trace is not None or history.subscribers:
            history.announce(call.entry, call.record, call.body)
        work = call.deployment.gate.answer(inbound, admission, call.out)
        if cycle is None:
            await run_until_disconnected(work, call.receive, call.out)
        else:
            with cycle:
                await work


async def _answer_endpoint(call: Call, admission: Admission) -> None:
    """Answer a call of an endpoint that is forwarded, counted or served without enforcement."""
    gate = call.deployment.gate
    gate.guard.check_host(call.headers, local_host(call.scope))
    call.admission = admission
    work = gate.answer_endpoint(call, admission)
    if call.cycle is None:
        # Other servers report a disconnect in place of the body, which has not been read yet.
        await work
    else:
        await run_until_disconnected(work, call.receive, call.out)


def _read_without_parsing(call: Call, body: bytes, admission: Admission) -> Inbound | None:
    """Read a call whose body has arrived, using the frame of an earlier one with the same fields."""
    headers = call.headers
    gate = call.deployment.gate
    if len(body) > gate.settings.server.max_body_bytes or call.located is not None or not _are_plain(tuple(headers)):
        return None
    admission.body_read()
    call.body = body
    return read_without_parsing(call.api, body, call.record, headers, call.caller, gate)


@lru_cache(maxsize=64)
def _are_plain(names: tuple[bytes, ...]) -> bool:
    """Return whether calls with these headers can be read from their body alone."""
    return _UNUSUAL_HEADERS.isdisjoint(names) and not has_switches(names)


async def _read_call(call: Call, body: bytes | None, admission: Admission) -> Inbound:
    """Read a call of one of the APIs that slipform serves, and its body where it had not arrived yet."""
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
    return await read_call(call.api, body, call.record, context)
