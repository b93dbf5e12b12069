"""Answer the forwarded and counted calls of the endpoint table.

For every row: the model is checked against the key's patterns and renamed; the provider is found; the path is built
from the row; ids in the path must belong to the caller's key, and ids in the answer are recorded as belonging to it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import orjson

from slipform.addons.server.admission.output_limits import OutputRequest, requested_output, with_one_limit
from slipform.addons.server.admission.refusals import NotAllowed
from slipform.addons.server.admission.spending import CallSpending, Rewrite, Spending
from slipform.addons.server.calls.batch_shapes import BatchShapes, EnforcedResults
from slipform.addons.server.calls.endpoint_targets import BILLED_MODEL_PLACES, Target, TargetReader
from slipform.addons.server.calls.endpoints import EndpointRow, NotServedError, upstream_path
from slipform.addons.server.calls.forward import AnswerChanges, ForwardedCall, pass_through
from slipform.addons.server.calls.parsed_body import write_body
from slipform.addons.server.calls.references import Reference
from slipform.addons.server.calls.replaced_ids import ReplacedIds
from slipform.addons.server.calls.resources import (
    NoSuchResourceError,
    ResourceStore,
    ResponseMarks,
    mark,
    unmark,
)
from slipform.addons.server.calls.stored_endpoints import StoredRequest, answer_stored, is_stored_here
from slipform.addons.server.calls.stored_responses import ResponseStore
from slipform.addons.server.calls.token_counts import count_tokens
from slipform.addons.server.http_server.asgi import RecordingSend, send_whole
from slipform.addons.server.observability.call_record import Header
from slipform.codecs.answer import read_json
from slipform.codecs.batches import BATCH_APIS
from slipform.codecs.model_name import excerpt_of
from slipform.codecs.request_fields import dumps, read_body
from slipform.codecs.vendor_errors import openai_error
from slipform.config import Settings
from slipform.engine.planning import model_price
from slipform.engine.setup import Options
from slipform.errors import RequestError, SlipformError
from slipform.ir.request import CallCount
from slipform.providers.forward import Route
from slipform.providers.http import HttpProvider
from slipform.providers.router import Router
from slipform.schema.limits import LARGE_BYTES

if TYPE_CHECKING:
    from slipform.addons.server.calls.call import Call

_MAX_KNOWN: Final = 256
_MAX_PAGES: Final = 50
"""The most pages of a vendor's list that are searched for the caller's own resources."""
_IMAGE_TOKENS: Final = 8_000
"""Tokens that are reserved for each generated image; OpenAI's largest takes 6,240."""
_IMAGE_PATHS: Final = {"/images/": "images", ":predict": "gemini-predict"}
"""Parts of the paths whose answers are images, and the kind of their requests' output fields."""
_CURSORS: Final = ("after", "after_id", "before", "before_id")
_FORWARDED_HEADERS: Final = (b"anthropic-beta", b"anthropic-version", b"openai-beta", b"accept")


_RESULT_FILES = ("output_file_id", "error_file_id")


class EndpointForwarder:
    """Answers the calls of the endpoint table, for one configuration."""

    def __init__(
        self,
        router: Router,
        settings: Settings,
        store: ResourceStore | None,
        options: Options,
        replaced_ids: Callable[[str], ReplacedIds],
        responses: Callable[[str], ResponseStore | None],
    ) -> None:
        self._router = router
        self._reader = TargetReader(router, settings, store)
        self._responses = responses
        self._replaced_ids = replaced_ids
        self._settings = settings
        self._store = store
        self._prices = options.prices
        self._options = options
        self._max_calls = options.budget.calls
        self._routes: dict[tuple[str, str, str, bool], Route] = {}

    async def answer(self, call: Call, spending: Spending | None = None) -> None:
        """Write the whole response, and charge the model's cost; errors before the first byte are raised."""
        row = call.row
        if not row.sent:
            call.body_read()
        if row.creates == "batch" and (budget := call.caller.budget) is not None and budget.is_limited:
            raise NotAllowed(
                f"The API key {call.caller.name!r} has a budget, and the cost of a batch cannot be counted here",
                hint="Use `slipform batch`, or a key without a budget.",
                key=call.caller.id,
            )
        if await self._answer_stored(call):
            return
        segments = await self._own_segments(call)
        with contextlib.ExitStack() as cleanup:
            if row.kind == "counted":
                target, data = await self._reader.read_json(call)
                if isinstance(target.provider, HttpProvider) and target.provider.api in (row.upstream or {}):
                    await self._forward(call, target, segments)
                else:
                    await self._count(call, target, data)
                return
            target = await self._reader.target(call, segments, cleanup)
            if spending is None or row.model not in BILLED_MODEL_PLACES:
                await self._forward(call, target, segments)
            else:
                await self._forward_metered(call, target, segments, spending)

    async def _forward_metered(
        self, call: Call, target: Target, segments: Mapping[str, str], spending: Spending
    ) -> None:
        """Reserve the highest possible cost of a call, forward it, and settle the actual cost."""
        is_large = len(target.text) >= LARGE_BYTES
        count_answers = partial(_with_answer_count, call, target)
        target = await asyncio.to_thread(count_answers) if is_large else count_answers()
        call_spending = CallSpending(spending, call.caller, call.record)
        name = f"{target.name}/{target.model or 'default'}"
        codec = target.provider.api
        await call_spending.begin(name, target.text, _output(call.row, target), codec=codec, media=target.media)
        failure: SlipformError | None = None
        try:
            await self._forward(call, target, segments, call_spending)
            call_spending.forwarded()
        except SlipformError as error:
            call_spending.failed(error)
            failure = error
            raise
        finally:
            call_spending.finish(failure)

    async def _answer_stored(self, call: Call) -> bool:
        """Answer a request for a resource that slipform stores; return False for any other request."""
        row = call.row
        store = self._responses(call.caller.id)
        has_provider = self._reader.named_provider(call) is not None or bool(self._reader.capable_providers(row))
        if store is None or not is_stored_here(row, call.place.segments, has_provider=has_provider):
            return False
        body = await self._reader.body(call) if row.sent else b""
        data = (await self._reader.parse(call, body)).data if body else {}
        request = StoredRequest(store, call.place.segments, call.query, data)
        answer = dumps(await answer_stored(row, request))
        call.record.status = 200
        await _send_json(call.out, 200, answer, call.record.headers())
        return True

    async def _forward(
        self,
        call: Call,
        target: Target,
        segments: Mapping[str, str],
        call_spending: CallSpending | None = None,
    ) -> None:
        row = call.row
        record = call.record
        record.provider = target.name
        record.upstream_model = target.model
        record.stream = target.streamed
        await self._check_cursors(call, target.name)
        if row.lists and self._store is not None:
            await self._list(call, target, segments)
            return
        route = self._route(call, target, segments, call.query)
        price = model_price(self._prices, target.provider, target.model) if row.usage else None
        headers = self._request_headers(call, target)
        forwarded = ForwardedCall(row.usage, target.provider, route, target.body, headers, price)
        calls = CallCount(self._max_calls)
        change = partial(self._changed, call, target) if _has_ids(row) else None
        rewrite = await self._rewrite(call, target, segments)
        if call_spending is not None and target.streamed and row.usage and not _generates_images(row):
            rewrite = call_spending.meter_stream(row.usage, rewrite)
        result = await pass_through(forwarded, calls, call.out, record, AnswerChanges(_error_event, change, rewrite))
        record.status = result.status
        record.outcome = result.outcome
        record.usage = result.usage
        if row.method == "DELETE" and result.status < 300 and self._store is not None:
            await self._store.remove(target.name, segments[row.resources[-1]])

    async def _rewrite(self, call: Call, target: Target, segments: Mapping[str, str]) -> Rewrite | None:
        """Return the function that rewrites the pieces of a forwarded answer; None where nothing changes."""
        row = call.row
        if row.answered == "bytes" and row.resources and self._store is not None:
            return await self._enforced_results(target.name, segments[row.resources[-1]], row.family)
        if row.owner_kind() == "response" and target.streamed:
            return ResponseMarks(target.name, {}, self._store, call.caller.id).feed
        return None

    async def _enforced_results(self, provider: str, identity: str, family: str) -> Rewrite | None:
        """Return the function that enforces the results of a batch whose requests had schemas; None for other files."""
        shapes = None if self._store is None else await self._store.batch_shapes(provider, identity)
        if shapes is None or family not in BATCH_APIS:
            return None
        batch_shapes = await asyncio.to_thread(BatchShapes.from_json, shapes)
        return EnforcedResults(batch_shapes, BATCH_APIS[family], self._router, self._options).feed

    async def _count(self, call: Call, target: Target, data: dict[str, Any]) -> None:
        """Count the tokens of a request for a provider that speaks another API."""
        record = call.record
        record.provider = target.name
        record.upstream_model = target.model
        calls = CallCount(self._max_calls)
        counted = await count_tokens(call.row.family, data, target.model, target.provider, calls)
        record.status = 200
        method = b"estimated" if counted.is_estimate else b"counted"
        headers = [*record.headers(), (b"x-slipform-token-count", method)]
        await _send_json(call.out, 200, dumps(counted.answer(call.row.family)), headers)

    def _route(self, call: Call, target: Target, segments: Mapping[str, str], query: Mapping[str, str]) -> Route:
        row = call.row
        codec = target.provider.api
        key = (row.path, target.name, target.model, target.streamed)
        is_constant = not row.query and not row.resources
        if is_constant and key in self._routes:
            return self._routes[key]
        if row.model == "path":
            model_route = target.provider.route(target.model, streamed=False)
            if model_route is None:
                raise NotServedError(f"The provider {target.name!r} has no {row.title.lower()}")
            path = model_route.path.removesuffix(":generateContent") + (row.upstream or {})[codec]
        else:
            path = upstream_path(row, codec, segments, query)
        limit = None
        if row.answered == "bytes":
            limit = self._settings.server.max_file_bytes
        route = Route(target.model, path, {}, row.model == "body", target.streamed, row.method, limit)
        if is_constant:
            if len(self._routes) >= _MAX_KNOWN:
                self._routes.clear()
            self._routes[key] = route
        return route

    def _request_headers(self, call: Call, target: Target) -> Mapping[str, str]:
        headers = {
            name.decode(): call.headers[name].decode("latin-1") for name in _FORWARDED_HEADERS if name in call.headers
        }
        if target.content_type is not None:
            headers["content-type"] = target.content_type
        return headers

    async def _own_segments(self, call: Call) -> Mapping[str, str]:
        """Return the vendor's ids of the resources in the path, and their provider where it is known."""
        row = call.row
        segments = call.place.segments
        kind = row.owner_kind()
        if not kind:
            return segments
        provider, identity = unmark(segments[kind]) if kind == "response" else (None, segments[kind])
        if kind == "response":
            identity = (await self._replaced_ids(call.caller.id).vendor_ids([identity])).get(identity, identity)
        if self._store is not None:
            named = provider or self._reader.named_provider(call)
            provider = await self._store.provider_of(kind, identity, call.caller.id, named)
            inner = [Reference(each, segments[each], each, must_own=False) for each in row.resources[1:]]
            await self._reader.ownership(call, provider).check(inner)
        if provider is not None and provider not in self._router.providers:
            raise NoSuchResourceError(f"Unknown {kind} {segments[kind][:100]!r}", where=kind)
        return {**segments, kind: identity, **({"provider": provider} if provider else {})}

    async def _check_cursors(self, call: Call, provider: str) -> None:
        """Check that the caller owns the resources that the query uses as cursors."""
        row = call.row
        kind = row.lists or ("item" if row.resources else "")
        named = [(name, call.query[name]) for name in _CURSORS if name in row.query and call.query.get(name)]
        references = [Reference(kind, value, name, must_own=bool(row.lists)) for name, value in named if kind]
        await self._reader.ownership(call, provider).check(references)

    async def _changed(self, call: Call, target: Target, status: int, data: bytes) -> bytes:
        """Record the owner of the ids in an answer, and return it with URLs of this server and marked ids."""
        try:
            answer = orjson.loads(data)
        except orjson.JSONDecodeError:
            return data
        if status >= 300 or not isinstance(answer, dict):
            return data
        await self._record_owner(call, target, answer)
        return dumps(_rewrite_addresses(await self._with_caller_ids(call, answer), call, target.name))

    async def _with_caller_ids(self, call: Call, answer: dict[str, Any]) -> dict[str, Any]:
        """Return a response that the vendor stores, with the ids under which the caller saw it."""
        names = ("id", "previous_response_id")
        ids = [answer[name] for name in names if isinstance(answer.get(name), str)]
        if "response" not in (call.row.creates, call.row.owner_kind()) or not ids:
            return answer
        caller_ids = await self._replaced_ids(call.caller.id).caller_ids(ids)
        return {**answer, **{name: caller_ids[answer[name]] for name in names if answer.get(name) in caller_ids}}

    async def _record_owner(self, call: Call, target: Target, answer: Mapping[str, Any]) -> None:
        row = call.row
        store = self._store
        key = call.caller.id
        if store is None:
            return
        identity = answer.get("id")
        await self._store_shapes(store, target, answer)  # before the result files belong to the key
        if row.creates and isinstance(identity, str):
            await store.add(target.name, row.creates, [identity], key)
            if target.batch_models is not None:
                await store.add_batch_file(target.name, identity, target.batch_models)
        for field, kind in (row.yields or {}).items():
            value = answer.get(field)
            ids = [value]
            if isinstance(value, list):
                ids = [each.get("id") for each in value if isinstance(each, dict)]
            await store.add(target.name, kind, [each for each in ids if isinstance(each, str)], key)
        store.note_created(target.name, answer, key)

    async def _store_shapes(self, store: ResourceStore, target: Target, answer: Mapping[str, Any]) -> None:
        """Store the shapes that the requests of a file or batch ask for, by the ids of the file, batch and results."""
        identity = answer.get("id")
        if not isinstance(identity, str):
            return
        if target.batch_shapes is not None and target.batch_shapes.lines:
            await store.add_batch_shapes(target.name, identity, target.batch_shapes.to_json())
        source = answer.get("input_file_id")
        if isinstance(source, str):
            results = [answer[field] for field in _RESULT_FILES if isinstance(answer.get(field), str)]
            await store.copy_batch_shapes(target.name, [source, identity], [identity, *results])

    async def _list(self, call: Call, target: Target, segments: Mapping[str, str]) -> None:
        """Write a page of the caller's own resources, reading the vendor's pages until it is full."""
        row = call.row
        record = call.record
        query = dict(call.query)
        limit = _page_size(query)
        own: list[dict[str, Any]] = []
        answer: dict[str, Any] = {}
        calls = CallCount(_MAX_PAGES)
        has_more = True
        for _ in range(_MAX_PAGES):
            route = self._route(call, target, segments, query)
            upstream = await target.provider.forward_async(route, b"", self._request_headers(call, target), calls)
            try:
                status = upstream.status
                data = await upstream.read_whole()
            finally:
                await upstream.close()
            if status >= 300:
                record.status = status
                record.outcome = "upstream_error"
                await _send_json(call.out, status, data, record.headers())
                return
            answer = read_json(data)
            entries = [each for each in answer.get("data") or () if isinstance(each, dict)]
            own += await self._owned(call, target, entries)
            for each in own:
                await self._record_owner(call, target, each)
            has_more = answer.get("has_more") is True and bool(entries)
            if not has_more or len(own) > limit:
                break
            query[row.cursor] = str(entries[-1].get("id"))
        page = own[:limit]
        answer |= {"data": page, "has_more": has_more or len(own) > limit}
        for field, at in (("first_id", 0), ("last_id", -1)):
            if field in answer:
                answer[field] = page[at].get("id") if page else None
        record.status = 200
        await _send_json(call.out, 200, dumps(_rewrite_addresses(answer, call, target.name)), record.headers())

    async def _owned(self, call: Call, target: Target, entries: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return those of a page that belong to the caller."""
        ids = [str(each.get("id")) for each in entries]
        own = set(ids)
        if self._store is not None:
            own = set(await self._store.owned(target.name, call.row.lists, call.caller.id, ids))
        return [each for each in entries if each.get("id") in own]


def _with_answer_count(call: Call, target: Target) -> Target:
    """Return a target with the number of requested answers; a key with limits must state it in one field only."""
    row = call.row
    body = target.body
    if call.caller.budget is None or not row.writes or row.sent != "json" or not isinstance(body, bytes) or not body:
        return target
    kind = next((kind for path, kind in _IMAGE_PATHS.items() if path in row.path), "")
    data = read_body(body)
    if call.caller.is_limited:
        data = with_one_limit(kind, data)
        body = write_body(data)
    return target._replace(body=body, answers=requested_output(kind, data).answers)


def _output(row: EndpointRow, target: Target) -> OutputRequest:
    """Return the output that a call may generate; its request has no field for a limit."""
    if not row.writes:
        return OutputRequest(0)
    return OutputRequest(_IMAGE_TOKENS if _generates_images(row) else None, target.answers)


def _generates_images(row: EndpointRow) -> bool:
    """Return whether the answer contains generated images."""
    return any(path in row.path for path in _IMAGE_PATHS)


def _has_ids(row: EndpointRow) -> bool:
    return row.answered != "bytes" and bool(row.creates or row.lists or row.resources)


def _rewrite_addresses(answer: dict[str, Any], call: Call, provider: str) -> dict[str, Any]:
    """Return an answer with URLs of this server, and with the provider in the ids of its responses."""
    entries = answer.get("data")
    if isinstance(entries, list):
        rewritten = [_rewrite_addresses(each, call, provider) if isinstance(each, dict) else each for each in entries]
        answer = {**answer, "data": rewritten}
    if isinstance(answer.get("results_url"), str) and isinstance(answer.get("id"), str):
        # With the vendor's URL, the SDK would send the caller's key to the vendor.
        answer = {**answer, "results_url": f"{call.origin}/v1/messages/batches/{answer['id']}/results"}
    if "response" in (call.row.creates, call.row.owner_kind()) and str(answer.get("object", "")).startswith("response"):
        for field in ("id", "previous_response_id"):
            if isinstance(answer.get(field), str):
                answer = {**answer, field: mark(provider, answer[field])}
    return answer


def _page_size(query: dict[str, str]) -> int:
    text = query.get("limit", "20")
    if not text.isascii() or not text.isdigit() or len(text) > 5 or not int(text):
        raise RequestError(f"{excerpt_of(text)} is not a number of resources", where="limit")
    query["limit"] = str(max(100, int(text)))
    return int(text)


def _error_event(error: SlipformError) -> bytes:
    return b"data: " + dumps(openai_error(error)) + b"\n\n"


async def _send_json(send: RecordingSend, status: int, data: bytes, headers: list[Header]) -> None:
    head = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(data)), *headers]
    await send_whole(send, status, head, data)
