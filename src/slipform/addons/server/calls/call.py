"""Carry one call through the server: its state, its error, and its end."""

from __future__ import annotations

import logging

import msgspec

from slipform.addons.server.admission.admission import ANYBODY, Admission, Caller
from slipform.addons.server.admission.refusals import error_headers, log_refusal
from slipform.addons.server.calls.endpoints import EndpointRow, Located
from slipform.addons.server.calls.request_switches import FIELD
from slipform.addons.server.deployment import Deployment
from slipform.addons.server.http_server.asgi import (
    Receive,
    RecordingSend,
    Scope,
    client_address,
    read_query,
    send_bytes,
)
from slipform.addons.server.http_server.request_cycle import RequestCycle
from slipform.addons.server.observability.call_record import CallRecord
from slipform.addons.server.observability.logs import log_request, log_trace
from slipform.codecs import ServedApi
from slipform.errors import LocalModelError, SlipformError, UnknownModelError

_log = logging.getLogger("slipform.server")
_CLIENT_DISCONNECTED = 499
"""The status, in logs and metrics, of a call whose client disconnected before the answer."""


class Call(msgspec.Struct):
    """One call from its first byte to its last."""

    api: ServedApi
    """The API in whose format errors are written."""
    scope: Scope
    headers: dict[bytes, bytes]
    receive: Receive
    cycle: RequestCycle | None
    """Set for slipform's own HTTP server."""
    located: Located | None
    """Its row of the endpoint table, if it has one."""
    deployment: Deployment
    record: CallRecord
    entry: str
    """Its id in the console."""
    out: RecordingSend
    authenticated_caller: Caller | None = None
    """Set where the console has authenticated the caller already."""
    caller: Caller = ANYBODY
    admission: Admission | None = None
    """Set once the call is admitted."""
    body: bytes = b""

    @property
    def place(self) -> Located:
        """Its place in the endpoint table, for a call that has one."""
        if self.located is None:
            raise LookupError("The call has no row of the endpoint table")
        return self.located

    @property
    def row(self) -> EndpointRow:
        """Its row of the endpoint table, for a call that has one."""
        return self.place.row

    @property
    def query(self) -> dict[str, str]:
        """The fields of its query."""
        return read_query(self.scope)

    @property
    def origin(self) -> str:
        """The URL by which the client reached this server, for URLs in answers."""
        return f"{self.scope.get('scheme', 'http')}://{self.headers.get(b'host', b'').decode('latin-1')}"

    def body_read(self) -> None:
        """Note that the request has arrived: only the time limit of the whole request remains."""
        if self.admission is not None:
            self.admission.body_read()

    async def refuse(self, error: SlipformError) -> None:
        """Write an error, without names of models that the caller may not know; release its traceback."""
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
            _log.warning("%s", error)  # contains the path of the file, which callers must not see
        if self.out.complete or self.out.head_sent:  # an answer that has begun is left visibly incomplete
            return
        shown = None
        if record.report_asked and record.report is not None:
            shown = {FIELD: record.report.to_dict()}
        record.status, body = self.api.encode_error(error, shown)
        await send_bytes(self.out, record.status, body, [*record.headers(), *error_headers(error)])

    def end(self) -> None:
        """Record the end of the call, once, whatever its outcome."""
        record = self.record
        out = self.out
        trace = record.trace
        if trace is not None and out.captured is not None:
            trace.request = self.body
            trace.response = bytes(out.captured)
            if self.deployment.settings.server.debug_traces:
                log_trace(record, trace.request, trace.response)
        if not out.complete and record.outcome == "ok":
            record.outcome = "client_gone"
            record.status = _CLIENT_DISCONNECTED
        record.close()
        record.answer = None  # counting and logging need only the figures
        log_request(record)


def _forget_frames(error: BaseException | None) -> None:
    """Release the tracebacks of an error and of its causes, after it has been reported.

    Their frames refer to the request, its body and the error itself: a cycle, which would keep all of that in memory
    until a garbage collection, which is rare here.
    """
    while error is not None:
        error.__traceback__ = None
        error = error.__cause__ or error.__context__
