"""Several models for one request: the next is asked when one cannot answer."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Coroutine, Sequence
from typing import Any

from slipform.client import AsyncClient
from slipform.codecs.serving import error_fields
from slipform.config import Settings
from slipform.enforce import Report
from slipform.errors import (
    EnforcementError,
    RefusalError,
    SlipformError,
    UpstreamError,
    UpstreamRequestError,
)
from slipform.ir.request import CallCount
from slipform.server.answers import answer
from slipform.server.http import Send
from slipform.server.inbound import Inbound

_log = logging.getLogger("slipform.server")


def answer_first(
    call: Inbound, models: Sequence[str], client: AsyncClient, settings: Settings, send: Send
) -> Coroutine[Any, Any, None]:
    """Write the answer of the first of these models that can give one; each is asked only while nothing was sent."""
    calls = CallCount(settings.enforcement.max_calls)
    if len(models) == 1:
        return answer(_aimed(call, models[0], calls), client, settings, send)
    return _one_by_one(call, models, client, settings, send, calls)


async def _one_by_one(
    call: Inbound, models: Sequence[str], client: AsyncClient, settings: Settings, send: Send, calls: CallCount
) -> None:
    record = call.record
    failed: list[dict[str, Any]] = []
    before = Report()
    for name in models:
        provider, record.upstream_model = client.router.resolve(name)
        record.provider = provider.name
        try:
            await answer(_aimed(call, name, calls), client, settings, send)
        except SlipformError as error:
            failed.append({"model": name, "code": error.code, "message": error_fields(error)["message"]})
            before = _joined(before, error.report)
            if len(failed) == len(models) or record.status or calls.is_spent or not moves_on(error):
                if calls.is_spent and len(failed) < len(models) and moves_on(error):
                    calls.tell(error)
                if len(failed) > 1:
                    error.details["models"] = failed
                    error.report = before
                raise
            _log.warning("%r cannot answer (%s); the next model is asked", name, error.code)
            record.fallbacks += 1
            record.report, record.strategy = None, ""
        else:
            # Logs and metrics count what the others spent; the caller is told what the answer itself cost.
            record.report = _joined(before, record.report) if before.attempts else record.report
            return


def _joined(before: Report, report: object) -> Report:
    if not isinstance(report, Report):
        return before
    return Report((*before.attempts, *report.attempts), report.warnings)


def moves_on(error: SlipformError) -> bool:
    """Whether another model may do better: not when the request itself is at fault, and not after a refusal.

    >>> moves_on(UpstreamError("The server is down")), moves_on(UpstreamRequestError("Too long"))
    (True, False)
    """
    if isinstance(error, UpstreamRequestError):
        return error.details.get("category") == "not_found"
    return isinstance(error, UpstreamError | EnforcementError) and not isinstance(error, RefusalError)


def _aimed(call: Inbound, model: str, calls: CallCount) -> Inbound:
    """The call, to this model, counted here."""
    served = dataclasses.replace(call.served, request=call.served.request.replace(model=model, calls=calls))
    return call._replace(served=served)
