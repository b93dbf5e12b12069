"""Several models for one request: the next is asked when one cannot answer."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from slipform.client import AsyncClient
from slipform.codecs.serving import ServedRequest, Serving
from slipform.config import Settings
from slipform.enforce import Report
from slipform.errors import (
    EnforcementError,
    RefusalError,
    RequestError,
    SlipformError,
    UpstreamError,
    UpstreamRequestError,
)
from slipform.server.answers import Inbound, answer
from slipform.server.http import Send

_log = logging.getLogger("slipform.server")
_LISTED = "models"
_MOST = 8


def decode(api: Serving, body: bytes | Mapping[str, Any], path: str) -> ServedRequest:
    """The request; where its `model` is a list, the first of them stands for all, and `asked_models` knows the rest."""
    try:
        return api.decode_request(body, path=path)
    except RequestError as error:
        # Looked at only now, so that the usual request, with one model, is read once.
        if error.where != "model":
            raise
        fields: Mapping[str, Any] = orjson.loads(body) if isinstance(body, bytes) else body
        names = fields.get("model")
        if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
            raise
    if len(names) > _MOST:
        raise RequestError(f"More than {_MOST} models are listed", where="model", hint="List fewer.")
    served = api.decode_request({**fields, "model": names[0]}, path=path)
    return dataclasses.replace(served, options={**served.options, _LISTED: tuple(dict.fromkeys(names))})


def asked_models(served: ServedRequest) -> tuple[str, ...]:
    """The models a request names, as the caller wrote them."""
    listed: tuple[str, ...] | None = served.options.get(_LISTED)
    return listed if listed is not None else (served.request.model,)


async def answer_first(
    call: Inbound, models: Sequence[str], client: AsyncClient, settings: Settings, send: Send
) -> None:
    """Write the answer of the first of these models that can give one; each is asked only while nothing was sent."""
    if len(models) == 1:
        await answer(_aimed(call, models[0]), client, settings, send)
        return
    record = call.record
    failed: list[dict[str, Any]] = []
    before = Report()
    for name in models:
        provider, record.upstream_model = client.router.resolve(name)
        record.provider = provider.name
        try:
            await answer(_aimed(call, name), client, settings, send)
        except SlipformError as error:
            failed.append({"model": name, "code": error.code, "message": str(error)})
            before = _joined(before, error.report)
            if len(failed) == len(models) or record.status or not moves_on(error):
                if len(failed) > 1:
                    error.details["models"] = failed
                    error.report = before
                raise
            _log.warning("%s cannot answer (%s); the next model is asked", name, error.code)
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


def _aimed(call: Inbound, model: str) -> Inbound:
    """The call, to this model."""
    if call.served.request.model == model:
        return call
    served = dataclasses.replace(call.served, request=call.served.request.replace(model=model))
    return dataclasses.replace(call, served=served)
