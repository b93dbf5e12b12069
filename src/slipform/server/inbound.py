"""The bytes of a call → the call: its switches, and either what was decoded or how it goes through untouched."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, NamedTuple

import orjson

from slipform.codecs.plan import dumps
from slipform.codecs.reading import read_body
from slipform.codecs.serving import ServedRequest, Serving
from slipform.config import ServerSettings, Settings
from slipform.errors import RequestError
from slipform.ir import ModelRequest
from slipform.ir.request import is_heavy
from slipform.off_loop import off_loop
from slipform.providers.network.transport import Begun
from slipform.providers.router import Router
from slipform.schema import is_large
from slipform.schema.limits import check_size
from slipform.server.guard import Caller
from slipform.server.names import check_fields, check_named_once, requested_models
from slipform.server.passthrough import Forwarding, Ways
from slipform.server.record import CallRecord
from slipform.server.straight import Sent, Straights
from slipform.server.switches import FIELD, NOTHING, Asked, switches_of

_WRITABLE = 254
"""Levels that `orjson` writes; it reads four times as many."""
_DEEPEST = 230
"""What leaves is a few levels deeper than what came."""


class Inbound(NamedTuple):
    """A call on its way: in which API it came, what was decoded, the bytes themselves, and what is known of it."""

    api: Serving
    served: ServedRequest
    body: bytes
    record: CallRecord
    models: tuple[str, ...]
    """Those it names, as its caller wrote them: one, or several to be asked one after the other."""
    asked: Asked = NOTHING
    forwarding: Forwarding | None = None
    """Set when the call goes through untouched; `served` then holds no more than the model's name."""
    straight: Sent | None = None
    """Set when the call has a shape and nothing unusual; `served` then holds no messages."""
    begun: Begun | None = None
    """What came back on the straight way, where that would not do."""

    def restored(self, begun: Begun) -> Inbound:
        """A call that had gone straight, for the general way to go on with."""
        return self._replace(served=self.api.decode_request(self.body), straight=None, begun=begun)


async def read_call(
    api: Serving,
    body: bytes,
    record: CallRecord,
    *,
    path: str,
    headers: Mapping[bytes, bytes],
    caller: Caller,
    router: Router,
    ways: Ways,
    straights: Straights,
    settings: Settings,
) -> Inbound:
    """The call, checked; a large one is read, and large schemas are looked at, off the event loop.

    Nothing is looked up or kept for a name before it is known that the caller may use it.
    """
    large = is_large(body)
    data = await asyncio.to_thread(_read, api, body) if large else _read(api, body)
    models = requested_models(api.name, data, path)
    if models:
        record.model = models[0]
    if caller.models is not None:
        caller.check(models, router)
        check_fields(data, api.name)
    asked = switches_of(data.get(FIELD), headers, settings.enforcement.max_attempts)
    if FIELD in data:
        _check_depth(data, body)
        data = {name: value for name, value in data.items() if name != FIELD}
        body = dumps(data)
    through = ways.forwarding(api.name, data, body, path=path, headers=headers)
    if through is not None:
        served, forwarding = through
        call = Inbound(api, served, body, record, models, asked, forwarding)
        record.provider, record.upstream_model = forwarding.provider.name, forwarding.route.model
    elif asked is NOTHING and not large and (straight := straights.find(api, data)) is not None:
        served = straight.way.served
        call = Inbound(api, served, body, record, models, straight=straight)
        record.enforced = True
    else:
        if models and isinstance(data.get("model"), list):  # no vendor's API has it: its reader gets the first
            data = {**data, "model": models[0]}
        given = (api, data, body, path)
        served = await asyncio.to_thread(_decode, *given) if large else _decode(*given)
        if is_heavy(served.request):
            await off_loop(_check_schemas, served.request, settings.server)
        else:
            _check_schemas(served.request, settings.server)
        call = Inbound(api, _switched(served, asked), body, record, models, asked)
        record.enforced = is_enforced(served.request, settings)
    record.model, record.stream = served.request.model, served.stream
    return call


def _read(api: Serving, body: bytes) -> dict[str, Any]:
    data = read_body(body)
    if api.name != "gemini":  # which names the model in the path
        check_named_once(body)
    return data


def is_enforced(request: ModelRequest, settings: Settings) -> bool:
    """Whether the answer has a shape to be held to."""
    tools = bool(request.tools) and settings.enforcement.tools == "enforce"
    return request.response_format is not None or request.json_mode or tools


def _switched(served: ServedRequest, asked: Asked) -> ServedRequest:
    wanted = served.request.response_format
    if asked.strategy is None or wanted is None:
        return served
    request = served.request.replace(response_format=wanted.with_strategy(asked.strategy))
    return ServedRequest(request, served.stream, served.options)


def _decode(api: Serving, data: Mapping[str, Any], body: bytes, path: str) -> ServedRequest:
    _check_depth(data, body)
    served = api.decode_request(data, path=path)
    request = served.request
    if not request.messages:
        raise RequestError("There are no messages", where="messages", hint="Send at least one.")
    shaped = request.response_format is not None or request.json_mode or bool(request.tools)
    if shaped and request.extra.get("n") not in (None, 1):
        raise RequestError("One answer is enforced per request", where="n", hint="Leave `n` out, or ask again.")
    return served


def _check_schemas(request: ModelRequest, limits: ServerSettings) -> None:
    """Refuse a request (413) whose schemas together are over the limits; nothing has been made of them yet."""
    schemas = {f"tools[{at}]": tool.parameters for at, tool in enumerate(request.tools)}
    if request.response_format is not None:
        schemas["response_format"] = request.response_format.json_schema.schema
    if schemas:
        check_size(schemas, limits.max_schema_bytes, limits.max_schema_nodes)


def _check_depth(data: Mapping[str, Any], body: bytes) -> None:
    """Refuse what can be read but, being nested so deeply, not be written again."""
    if body.count(b"{") + body.count(b"[") <= _DEEPEST:
        return
    wrapped: Any = data
    for _ in range(_WRITABLE - _DEEPEST):
        wrapped = [wrapped]
    try:
        orjson.dumps(wrapped)
    except TypeError:
        raise RequestError(f"The request is nested more than {_DEEPEST} levels deep") from None
