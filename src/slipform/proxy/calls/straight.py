"""The straight way: a call with a shape whose answer needs nothing done to it goes through, and is only judged.

Most calls are alike in all but their messages, and most vendors that hold themselves to a schema answer well. So what
the codecs make of all but the messages is kept, by its bytes, and a good answer goes back as the vendor wrote it.
Whatever is unusual about a request keeps it off this way; an answer that will not do is handed to the general way,
which goes on from there as if it had asked itself.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

import orjson

from slipform.bounded import BoundedCache
from slipform.codecs.codec import ServedRequest, Serving
from slipform.codecs.openai_chat.straight import is_plain_talk, plain_answer, with_text
from slipform.codecs.schema_channel import SchemaChannel as Spelling
from slipform.config import Settings
from slipform.enforce import Plan, Report, enforce
from slipform.enforce.loop import settled
from slipform.engine.planning import plan_for
from slipform.engine.tracing import is_observed
from slipform.errors import SlipformError, UpstreamError
from slipform.ir import ModelWarning
from slipform.library.async_client import AsyncClient
from slipform.off_loop import in_background, off_loop
from slipform.providers.forward import Route
from slipform.providers.http import HttpProvider
from slipform.providers.network.transport import Begun
from slipform.proxy.calls.forward import ForwardRoutes
from slipform.proxy.http_server.asgi import Send, send_bytes
from slipform.proxy.observability.call_record import CallRecord
from slipform.schema import OutputStrategy, is_large
from slipform.schema.limits import check_size, is_heavy_text
from slipform.schema.python_types import is_kept

_API = "openai-chat"
_TURNS = "messages"
_PROBE = [{"role": "user", "content": "What is said here is of no account."}]
_MOST_KNOWN = 128
_LONGEST = 1 << 15
_TIMES_TEXT = 50
"""How many bytes are kept alive for each byte that calls have in common, most of which is their schema."""
_NO_HEADERS: Mapping[str, str] = MappingProxyType({})


class Straight(NamedTuple):
    """What calls have in common that differ only in their messages."""

    served: ServedRequest
    """Without messages."""
    provider: HttpProvider
    route: Route
    plan: Plan
    warnings: tuple[ModelWarning, ...]
    """What was lost on the way to the vendor's spelling."""
    before: bytes
    after: bytes
    """What is sent before and after the messages."""


class Sent(NamedTuple):
    """One such call: what it has in common with others, and the whole of what is sent."""

    way: Straight
    body: bytes


class Straights:
    """Which calls can go straight; what all but their messages comes to is worked out when it is seen again.

    >>> Straights(AsyncClient(), Settings(), ForwardRoutes(AsyncClient().router, Settings())).find(None, {}) is None
    True
    """

    def __init__(self, client: AsyncClient, settings: Settings, ways: ForwardRoutes) -> None:
        self._client = client
        self._ways = ways
        self._open = not settings.cache.enabled
        self._known = BoundedCache[bytes, Straight | None]("straight ways", entries=_MOST_KNOWN, max_bytes=32_000_000)
        self._seen: set[int] = set()
        self._limits = settings.server

    def find(self, api: Serving | None, data: Mapping[str, Any]) -> Sent | None:
        """The call as one that goes straight, or None when it has to be looked at more closely."""
        if api is None or api.name != _API or not self._open:
            return None
        turns = data.get(_TURNS)
        if not is_plain_talk(turns):
            return None
        rest = {**data}
        del rest[_TURNS]
        try:
            key = orjson.dumps(rest)
        except TypeError:  # nested more deeply than can be written
            return None
        way = self._known.get(key) if key in self._known else self._learn(api, rest, key)
        if way is None or is_observed() or way.provider.has_lessons(way.route.model):
            return None
        return Sent(way, b"%b%b%b" % (way.before, orjson.dumps(turns), way.after))

    def _learn(self, api: Serving, rest: Mapping[str, Any], key: bytes) -> Straight | None:
        """Nothing is kept of what is seen only once: a shape of its own for every call is no rare thing."""
        mark = hash(key)
        if mark not in self._seen or len(key) > _LONGEST:
            if len(self._seen) >= _MOST_KNOWN:
                self._seen.clear()
            self._seen.add(mark)
            return None
        if not is_heavy_text(key):
            return self._worked_out_and_kept(api, rest, key)
        # It would keep the event loop from others; until it is done, such calls go the general way.
        self._seen.discard(mark)
        in_background(partial(self._worked_out_and_kept, api, rest, key))
        return None

    def _worked_out_and_kept(self, api: Serving, rest: Mapping[str, Any], key: bytes) -> Straight | None:
        try:
            way = self._worked_out(api, rest)
        except SlipformError:
            way = None  # the general way will say what is wrong
        self._known.put(key, way, 5_000 + _TIMES_TEXT * len(key))
        return way

    def _worked_out(self, api: Serving, rest: Mapping[str, Any]) -> Straight | None:
        served = api.decode_request({**rest, _TURNS: _PROBE}, path="")
        request, router = served.request, self._client.router
        wanted = request.response_format
        if wanted is None or not is_kept(wanted.json_schema) or request.tools or served.stream:
            return None
        limits = self._limits
        check_size({"": wanted.json_schema.schema}, limits.max_schema_bytes, limits.max_schema_nodes)
        found = self._ways.way(api.name, request.model, streamed=False)
        if found is None or request.extra.get("n") not in (None, 1):
            return None
        provider, route = found
        plan = plan_for(router, request, self._client.options)
        timed = plan.budget.seconds is not None
        if plan.strategy is not OutputStrategy.NATIVE or timed or plan.price or plan.watch(request) is not None:
            return None
        if next(enforce(request, plan)) != request or provider.has_lessons(route.model):
            return None
        spelled = provider.spelled(request.replace(model=route.model))
        if not isinstance(spelled.context, Spelling) or spelled.context.strategy is not OutputStrategy.NATIVE:
            return None
        before, _, after = spelled.body.partition(orjson.dumps(_PROBE))
        without = {**orjson.loads(spelled.body), _TURNS: []}
        if spelled.context.lift is not None or orjson.loads(before + b"[]" + after) != without:
            return None
        unsaid = ServedRequest(request.replace(messages=()), False, served.options)
        return Straight(unsaid, provider, route, plan, spelled.warnings, before, after)


async def go_straight(sent: Sent, record: CallRecord, send: Send) -> Begun | None:
    """Write the vendor's answer, if it will do; otherwise that answer, for the general way to go on from.

    What is given back has to be closed.
    """
    way, began = sent.way, time.monotonic()
    try:
        answer = await way.provider.forward_async(way.route, sent.body, _NO_HEADERS)
        if not 200 <= answer.status < 300:
            return Begun(answer.stream, b"", began)
        try:
            body = await answer.read_whole()
        finally:
            await answer.close()
    except UpstreamError as error:
        error.report = Report()
        raise
    told, judged = None, (way, body, record, time.monotonic() - began)
    if not is_large(body):
        heavy = is_heavy_text(way.before) or is_heavy_text(way.after)
        told = await off_loop(_judged, *judged) if heavy else _judged(*judged)
    if told is None:
        return Begun(answer.stream, body, began)
    record.status = 200
    await send_bytes(send, 200, told, record.headers())
    return None


def _judged(way: Straight, body: bytes, record: CallRecord, seconds: float) -> bytes | None:
    """What the caller gets, if the answer will do, with the record saying why."""
    try:
        data = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    said = plain_answer(data, way.warnings)
    outcome = None if said is None else settled(said, way.plan, way.served.request.model, seconds)
    if said is None or outcome is None:
        return None
    record.report, record.strategy = outcome.report, way.plan.strategy.value
    return body if outcome.text == said.text else with_text(data, outcome.text)
