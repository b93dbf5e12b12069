"""Answer the calls of the endpoint table that are forwarded or counted: one forwarder reads all rows.

For every row: the model is named, checked against the key's patterns and renamed in its place; the provider is found;
the path is built from the row; ids in the path belong to the key that asks; what the answer names belongs to it too.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple

import orjson

from slipform.addons.server.admission.admission import Admission, Caller
from slipform.addons.server.admission.output_limits import OutputRequest, requested_output, with_one_limit
from slipform.addons.server.admission.refusals import NotAllowed
from slipform.addons.server.admission.spending import CallSpending, Rewrite, Spending
from slipform.addons.server.calls import batch_files
from slipform.addons.server.calls.batch_shapes import BatchShapes, EnforcedResults
from slipform.addons.server.calls.endpoints import EndpointRow, Located, NotServedError, upstream_path
from slipform.addons.server.calls.forward import AnswerChanges, ForwardedCall, pass_through, renamed
from slipform.addons.server.calls.honoured import RESPONSES, response_stores_of
from slipform.addons.server.calls.model_names import check_fields, check_only, folded, is_named_plainly
from slipform.addons.server.calls.multipart import (
    FormError,
    FormPart,
    TextField,
    boundary_of,
    field_text,
    form_type,
    name_steps,
    read_form,
    with_text,
    write_form,
)
from slipform.addons.server.calls.parsed_body import BodyChecks, ParsedBody, parse_body_async, write_body
from slipform.addons.server.calls.references import FIELDS, Field, Ownership, Reference
from slipform.addons.server.calls.replaced_ids import ReplacedIds
from slipform.addons.server.calls.resources import (
    NoSuchResourceError,
    ResourceStore,
    ResponseMarks,
    ResponseNotStoredError,
    mark,
    unmark,
)
from slipform.addons.server.calls.stored_endpoints import StoredRequest, answer_stored, is_stored_here
from slipform.addons.server.calls.stored_responses import ResponseStore
from slipform.addons.server.calls.token_counts import count_tokens
from slipform.addons.server.http_server.asgi import Receive, RecordingSend, decompressed, send_whole
from slipform.addons.server.http_server.asgi import read_body as receive_body
from slipform.addons.server.http_server.request_cycle import RequestCycle
from slipform.addons.server.observability.call_record import CallRecord, Header
from slipform.codecs.answer import read_json
from slipform.codecs.batches import BATCH_APIS
from slipform.codecs.model_name import check_name, excerpt_of
from slipform.codecs.request_fields import dumps, read_body
from slipform.codecs.vendor_errors import openai_error
from slipform.config import Settings
from slipform.engine.planning import model_price
from slipform.engine.setup import Options
from slipform.errors import RequestError, SlipformError
from slipform.ir.request import CallCount
from slipform.providers.forward import Route
from slipform.providers.http import HttpProvider
from slipform.providers.network.transport import Upload
from slipform.providers.router import Router
from slipform.schema.limits import LARGE_BYTES

_MAX_KNOWN: Final = 256
_MAX_PAGES: Final = 50
"""Pages of a vendor's list that are looked through for the caller's own resources."""
_ASKS_A_MODEL: Final = frozenset({"body", "part", "path"})
"""Where the request of a row names its model whose call costs something: those of batches cost later, files nothing."""
_IMAGE_TOKENS: Final = 8_000
"""Reserved for each image that is made; OpenAI's largest takes 6,240."""
_DRAWS: Final = {"/images/": "images", ":predict": "gemini-predict"}
"""Parts of the paths whose answers are images, and the fields that say how many."""
_NOT_MODELS: Final = frozenset({"input_audio_transcription", "training_file", "file"})
_INNER: Final = frozenset({"generatecontentrequest", "requests"})
_BATCH_FIELDS: Final = frozenset({"input_file_id", "endpoint", "completion_window", "metadata", "output_expires_after"})
"""All that OpenAI's API has; another server could find the requests themselves in a further one."""
_NO_FIELD: Final = Field("", must_own=False)
_CURSORS: Final = ("after", "after_id", "before", "before_id")
_SHOWN: Final = 60
_GOES_ALONG: Final = (b"anthropic-beta", b"anthropic-version", b"openai-beta", b"accept")


@dataclass(frozen=True, slots=True)
class EndpointCall:
    """One request for a row."""

    located: Located
    headers: Mapping[bytes, bytes]
    query: Mapping[str, str]
    origin: str
    """The address by which the client reached this server, for addresses in answers."""
    receive: Receive
    cycle: RequestCycle | None
    caller: Caller
    record: CallRecord
    admission: Admission

    @property
    def row(self) -> EndpointRow:
        """The row of the request."""
        return self.located.row


_RESULT_FILES = ("output_file_id", "error_file_id")


class Target(NamedTuple):
    """Where a call goes: the provider under its name here, the vendor's name of the model, and what is sent."""

    name: str
    provider: HttpProvider
    model: str = ""
    body: bytes | Upload = b""
    streamed: bool = False
    content_type: str | None = None
    media: tuple[int, ...] = ()
    """The sizes of the files in a form."""
    answers: int = 1
    """How many a request asks for, where it is known."""
    batch_models: tuple[str, ...] | None = None
    """The models that the lines of a batch's file name, each of them checked; None for any other request."""
    batch_shapes: BatchShapes | None = None
    """What the requests of a batch that have a schema ask for."""


class EndpointForwarder:
    """Answers rows, for one configuration."""

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
        self._responses = responses
        self._replaced_ids = replaced_ids
        self._settings = settings
        self._store = store
        self._prices = options.prices
        self._options = options
        self._max_calls = options.budget.calls
        self._routes: dict[tuple[str, str, str, bool], Route] = {}

    async def answer(self, call: EndpointCall, send: RecordingSend, spending: Spending | None = None) -> None:
        """Write the whole response; errors before its first byte are raised. What a model costs is held and settled."""
        if not call.row.sent:
            call.admission.body_read()
        if call.row.creates == "batch" and (budget := call.caller.budget) is not None and budget.is_limited:
            raise NotAllowed(
                f"The API key {call.caller.name!r} has a budget, and nobody would count here what a batch costs",
                hint="Use `slipform batch`, or a key without a budget.",
                key=call.caller.id,
            )
        if await self._answer_stored(call, send):
            return
        segments = await self._own_segments(call)
        with contextlib.ExitStack() as cleanup:
            if call.row.kind == "counted":
                target, data = await self._read_json(call)
                if not isinstance(target.provider, HttpProvider) or target.provider.api not in (
                    call.row.upstream or {}
                ):
                    await self._count(call, target, data, send)
                    return
            else:
                target = await self._target(call, segments, cleanup)
            if spending is None or call.row.kind == "counted" or call.row.model not in _ASKS_A_MODEL:
                await self._forward(call, target, segments, send)
                return
            body = target.body if isinstance(target.body, bytes) else b""
            count_answers = partial(_with_answer_count, call, target)
            target = await asyncio.to_thread(count_answers) if len(body) >= LARGE_BYTES else count_answers()
            body = target.body if isinstance(target.body, bytes) else b""
            spent = CallSpending(spending, call.caller, call.record)
            codec = target.provider.api
            name = f"{target.name}/{target.model or 'default'}"
            await spent.begin(name, body, _output(call.row, target), codec=codec, media=target.media)
            failure: SlipformError | None = None
            try:
                await self._forward(call, target, segments, send, spent)
                spent.forwarded()
            except SlipformError as error:
                spent.failed(error)
                failure = error
                raise
            finally:
                spent.finish(failure)

    async def _answer_stored(self, call: EndpointCall, send: RecordingSend) -> bool:
        """Answer a request for what slipform itself stores; return False for any other."""
        row = call.row
        store = self._responses(call.caller.id)
        has_provider = self._named_provider(call) is not None or bool(self._capable_providers(row))
        if store is None or not is_stored_here(row, call.located.segments, has_provider=has_provider):
            return False
        body = await self._body(call) if row.sent else b""
        data = (await self._parse(call, body)).data if body else {}
        request = StoredRequest(store, call.located.segments, call.query, data)
        answer = dumps(await answer_stored(row, request))
        call.record.status = 200
        await _send_json(send, 200, answer, call.record.headers())
        return True

    async def _forward(
        self,
        call: EndpointCall,
        target: Target,
        segments: Mapping[str, str],
        send: RecordingSend,
        spent: CallSpending | None = None,
    ) -> None:
        row = call.row
        record = call.record
        record.provider = target.name
        record.upstream_model = target.model
        record.stream = target.streamed
        await self._check_cursors(call, target.name)
        if row.lists and self._store is not None:
            await self._list(call, target, segments, send)
            return
        route = self._route(call, target, segments, call.query)
        price = model_price(self._prices, target.provider, target.model) if row.usage else None
        headers = self._request_headers(call, target)
        forwarded = ForwardedCall(row.usage, target.provider, route, target.body, headers, price)
        calls = CallCount(self._max_calls)
        change = partial(self._changed, call, target) if _has_ids(row) else None
        rewrite: Rewrite | None = None
        if row.owner_kind() == "response" and target.streamed:
            rewrite = ResponseMarks(target.name, {}, self._store, call.caller.id).feed
        if row.answered == "bytes" and row.resources and self._store is not None:
            rewrite = await self._enforced_results(target.name, segments[row.resources[-1]], row.family)
        if spent is not None and target.streamed and row.usage and not _draws(row):
            rewrite = spent.meter_stream(row.usage, rewrite)
        result = await pass_through(forwarded, calls, send, record, AnswerChanges(_error_event, change, rewrite))
        record.status = result.status
        record.outcome = result.outcome
        record.usage = result.usage
        if row.method == "DELETE" and result.status < 300 and self._store is not None:
            await self._store.remove(target.name, segments[row.resources[-1]])

    async def _enforced_results(self, provider: str, identity: str, family: str) -> Rewrite | None:
        """Return what enforces the results of a batch whose requests had schemas; None for any other file."""
        shapes = None if self._store is None else await self._store.batch_shapes(provider, identity)
        if shapes is None or family not in BATCH_APIS:
            return None
        read = await asyncio.to_thread(BatchShapes.from_json, shapes)
        return EnforcedResults(read, BATCH_APIS[family], self._router, self._options).feed

    async def _count(self, call: EndpointCall, target: Target, data: dict[str, Any], send: RecordingSend) -> None:
        """Count the tokens of a request for a provider that speaks another API."""
        record = call.record
        record.provider = target.name
        record.upstream_model = target.model
        calls = CallCount(self._max_calls)
        counted = await count_tokens(call.row.family, data, target.model, target.provider, calls)
        record.status = 200
        how = b"estimated" if counted.is_estimate else b"counted"
        headers = [*record.headers(), (b"x-slipform-token-count", how)]
        await _send_json(send, 200, dumps(counted.answer(call.row.family)), headers)

    # Who is asked, and with what.

    async def _target(self, call: EndpointCall, segments: Mapping[str, str], cleanup: contextlib.ExitStack) -> Target:
        row = call.row
        if row.sent == "file":
            return await self._upload(call, cleanup)
        if row.model == "part":
            return await self._read_parts(call)
        if row.model == "requests":
            return await self._read_requests(call)
        if row.sent == "json" and row.model:
            return (await self._read_json(call))[0]
        streamed = row.answered == "bytes" or (row.answered == "events" and call.query.get("stream") == "true")
        body = await self._body(call) if row.sent else b""
        data: dict[str, Any] = {}
        references: Sequence[Reference] = ()
        if body or (row.sent and not row.body_optional):
            data, body, references = await self._parse(call, body)
            self._check_fields(call, data)
        name = segments.get("provider") or await self._keeper(call, references) or self._provider_name(call)
        await self._ownership(call, name).check(references)
        if row.creates == "batch":
            await self._check_batch(call, name, data)
        return Target(name, self._provider(name, row), "", body, streamed)

    async def _keeper(self, call: EndpointCall, references: Sequence[Reference]) -> str | None:
        """Return the provider that keeps what a request refers to, such as a batch's file; None where it is unknown."""
        if self._store is None or self._named_provider(call) is not None:
            return None
        owners = await self._store.owners({(each.kind, each.identity) for each in references if each.must_own})
        able = set(self._capable_providers(call.row))
        keepers = {name for pairs in owners.values() for name, key in pairs if key == call.caller.id} & able
        return keepers.pop() if len(keepers) == 1 else None

    async def _check_batch(self, call: EndpointCall, provider: str, data: Mapping[str, Any]) -> None:
        """Raise `NotAllowed` for a batch of a key with model limits, unless every line of its file was checked."""
        caller = call.caller
        if caller.models is None:
            return
        check_only(data, _BATCH_FIELDS)
        identity = data.get("input_file_id")
        models = None
        if self._store is not None and isinstance(identity, str):
            models = await self._store.batch_models(provider, identity)
        if models is None:
            raise NotAllowed(
                "This API key may use certain models only, and the lines of this file were not checked",
                hint="Upload the file again with the text field `purpose` set to `batch`.",
                key=caller.id,
            )
        caller.check(models, self._router)

    async def _read_json(self, call: EndpointCall) -> tuple[Target, dict[str, Any]]:
        row = call.row
        data, body, references = await self._parse(call, await self._body(call))
        in_path = row.model == "path"
        model = call.located.segments.get("model") if in_path else call.located.model or data.get("model")
        self._check_fields(call, data)
        resolved = self._resolved(call, model)
        await self._ownership(call, resolved.name).check(references)
        streamed = row.answered == "bytes" or (row.answered == "events" and _is_streamed(data))
        if in_path:
            body = _with_inner_names(data, body, str(model), resolved.upstream)
        elif resolved.upstream:
            body = renamed(body, data, resolved.upstream, plainly=is_named_plainly(body))
            data = {**data, "model": resolved.upstream}
        return Target(resolved.name, resolved.provider, resolved.upstream, body, streamed), data

    async def _read_parts(self, call: EndpointCall) -> Target:
        """A form, written again with the vendor's name of the model."""
        body = await self._body(call)
        boundary = boundary_of(call.headers.get(b"content-type", b""))
        is_large = len(body) > LARGE_BYTES
        fields = await asyncio.to_thread(_form_fields, body, boundary) if is_large else _form_fields(body, boundary)
        for part, field in fields:
            self._check_part(call, part, field)
        parts = [part for part, _ in fields]
        resolved = self._resolved(call, call.located.model or field_text(parts, "model"))
        references = [each for _, field in fields if field is not None for each in field.references]
        await self._ownership(call, resolved.name).check(references)
        streamed = call.row.answered == "events" and (field_text(parts, "stream") or "").lower() == "true"
        if resolved.upstream:
            parts = with_text(parts, "model", resolved.upstream)
        media = tuple(len(part.content) for part in parts if part.head.is_file)
        form = write_form(parts, boundary)
        counts = [_whole(part) for part in parts if part.head.name == "n"] if call.caller.is_limited else []
        return Target(
            resolved.name,
            resolved.provider,
            resolved.upstream,
            form,
            streamed,
            form_type(boundary),
            media,
            max(counts, default=1),
        )

    def _check_part(self, call: EndpointCall, part: FormPart, field: TextField | None) -> None:
        """Refuse a part of a form that a server could read as the model's name or as an id, and that is not checked."""
        name = part.head.name
        steps = name_steps(name)
        if folded(steps[0]) == "model" and name != "model":
            raise FormError(f"The field {name!r} could be read as the model's name", where=name)
        if field is None and any(FIELDS.get(folded(step), _NO_FIELD).must_own for step in steps):
            raise FormError(f"The field {name!r} must be a text", where=name)
        self._check_fields(call, {steps[0]: ""} if field is None else field.data)

    async def _read_requests(self, call: EndpointCall) -> Target:
        """Anthropic's batches: every request in them names its model; all must be of one provider."""
        data, _, references = await self._parse(call, await self._body(call))
        requests = data.get("requests")
        if not isinstance(requests, list) or not requests:
            raise RequestError("Expected an array of requests", where="requests")
        if call.caller.models is not None:
            check_only(data, ("requests",))
        rename = self._line_renamer(call)
        made = [rename.request(each, f"requests[{at}]", "anthropic") for at, each in enumerate(requests)]
        name, provider = rename.target()
        await self._ownership(call, name).check(references)
        body = write_body({**data, "requests": made})
        return Target(name, provider, rename.model, body, batch_shapes=rename.shapes)

    def _line_renamer(self, call: EndpointCall) -> batch_files.LineRenamer:
        shapes = None if self._store is None else BatchShapes()
        return batch_files.LineRenamer(call.caller, partial(self._resolved, call), shapes)

    async def _upload(self, call: EndpointCall, cleanup: contextlib.ExitStack) -> Target:
        """A file, passed on while it arrives; the lines of a batch's are checked and renamed first."""
        if b"content-encoding" in call.headers:
            raise RequestError(
                "A compressed file cannot be forwarded", where="content-encoding", hint="Send it uncompressed."
            )
        server = self._settings.server
        boundary = boundary_of(call.headers.get(b"content-type", b""))
        pieces = _pieces(call, server.body_seconds)
        form = batch_files.IncomingForm(boundary, pieces, server.max_file_bytes, _declared(call.headers))
        cleanup.callback(form.close)
        call.admission.body_read()  # each piece has a time limit of its own
        kind = form_type(boundary)
        if call.row.family == "openai" and await form.field("purpose") == "batch":
            rename = self._line_renamer(call)
            upload = await form.renamed(rename)
            name, provider = rename.target()
            await self._ownership(call, name).check(list(rename.references))
            models = tuple(rename.models)
            return Target(
                name, provider, rename.model, upload, content_type=kind, batch_models=models, batch_shapes=rename.shapes
            )
        name = self._provider_name(call)
        return Target(name, self._provider(name, call.row), "", await form.upload(), content_type=kind)

    def _ownership(self, call: EndpointCall, provider: str) -> Ownership:
        return Ownership(self._store, call.caller.id, [provider], response_stores_of([provider], self._router))

    async def _parse(self, call: EndpointCall, body: bytes) -> ParsedBody:
        has_keys = self._store is not None or call.caller.models is not None
        keeps_state = tuple(call.row.upstream or ()) == (RESPONSES,)
        return await parse_body_async(body, BodyChecks(call.row.model == "body", has_keys, keeps_state))

    async def _body(self, call: EndpointCall) -> bytes:
        limit = self._settings.server.max_forwarded_bytes
        body = await receive_body(call.receive, limit, call.cycle, call.headers.get(b"content-length"))
        call.admission.body_read()
        encoding = call.headers.get(b"content-encoding")
        if encoding is None:
            return body
        return await decompressed(body, encoding, limit)

    def _check_fields(self, call: EndpointCall, data: Mapping[str, Any]) -> None:
        if call.caller.models is None:
            return
        # Some bodies repeat the model of the path; `_with_inner_names` compares it.
        check_fields(data, names_model=call.row.model in _ASKS_A_MODEL)
        for inner in _inner_requests(data) if call.row.model == "path" else ():
            check_fields(inner, names_model=True)
        for name in _NOT_MODELS & data.keys() if call.row.sent == "json" else ():
            raise NotAllowed(f"This API key may use certain models only, and may not send {excerpt_of(name)}")

    def _resolved(self, call: EndpointCall, model: object) -> batch_files.ResolvedModel:
        """Check the model that a request names, and resolve its provider."""
        row = call.row
        record = call.record
        if model is None and not row.model_required:
            if call.caller.models is not None:
                raise NotAllowed(
                    "This API key may use certain models only, and the request names none", hint="Name the model."
                )
            name = self._provider_name(call)
            return batch_files.ResolvedModel(name, self._provider(name, row), "")
        if not isinstance(model, str) or not model:
            raise RequestError("The model is missing", where="model", hint="Name it as `provider/model`.")
        mount = self._named_provider(call)
        if mount is not None and not model.startswith(f"{mount}/"):
            model = f"{mount}/{model}"
        check_name(model)
        call.caller.check((model,), self._router)
        record.model = record.model or model
        first = self._router.candidates(model)[0]
        name, _, upstream = self._router.full_name(first).partition("/")
        return batch_files.ResolvedModel(name, self._provider(name, row), upstream, model)

    def _named_provider(self, call: EndpointCall) -> str | None:
        named = call.headers.get(b"x-slipform-provider")
        if named is None:
            return call.located.provider
        return named.decode("latin-1")

    def _provider_name(self, call: EndpointCall) -> str:
        """The provider of a call that names no model: the one it names, else the only one there is."""
        row = call.row
        named = self._named_provider(call)
        able = self._capable_providers(row)
        if named is None:
            if len({self._address(name) for name in able}) > 1:
                raise RequestError(
                    f"Several providers have {row.title.lower()}: {', '.join(able)}",
                    hint=f"Name one: `x-slipform-provider: {able[0]}`, or the path /p/{able[0]}{row.path}.",
                )
            if not able and row.owner_kind() == "response":
                raise ResponseNotStoredError("No provider here keeps responses", where="response")
            if not able:
                raise NotServedError(f"No provider here has {row.title.lower()}", hint="Configure one that has.")
            named = able[0]
        if named not in self._router.providers or not _may_use_provider(call.caller, named, self._router):
            raise RequestError(f"Unknown provider {excerpt_of(named)}", where="x-slipform-provider")
        return named

    def _capable_providers(self, row: EndpointRow) -> list[str]:
        codecs = row.upstream or {}
        providers = self._router.providers.items()
        return [name for name, each in providers if isinstance(each, HttpProvider) and each.api in codecs]

    def _address(self, name: str) -> str:
        provider = self._router.providers[name]
        if isinstance(provider, HttpProvider):
            return provider.base_url
        return name

    def _provider(self, name: str, row: EndpointRow) -> HttpProvider:
        provider = self._router.providers.get(name)
        if row.kind == "counted" and provider is not None:
            return provider  # type: ignore[return-value]  # any can be counted for; see token_counts
        if not isinstance(provider, HttpProvider) or provider.api not in (row.upstream or {}):
            able = ", ".join(self._capable_providers(row))
            raise NotServedError(
                f"The provider {name!r} has no {row.title.lower()}",
                hint=f"Ask one that has: {able}." if able else "No provider that is configured here has.",
            )
        return provider

    # What goes out.

    def _route(
        self, call: EndpointCall, target: Target, segments: Mapping[str, str], query: Mapping[str, str]
    ) -> Route:
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

    def _request_headers(self, call: EndpointCall, target: Target) -> Mapping[str, str]:
        headers = {name.decode(): call.headers[name].decode("latin-1") for name in _GOES_ALONG if name in call.headers}
        if target.content_type is not None:
            headers["content-type"] = target.content_type
        return headers

    # Whose the resources are.

    async def _own_segments(self, call: EndpointCall) -> Mapping[str, str]:
        """The ids of the path as the vendor knows them, and the provider that keeps them where that is known."""
        row = call.row
        segments = call.located.segments
        kind = row.owner_kind()
        if not kind:
            return segments
        provider, identity = unmark(segments[kind]) if kind == "response" else (None, segments[kind])
        if kind == "response":
            identity = (await self._replaced_ids(call.caller.id).vendor_ids([identity])).get(identity, identity)
        if self._store is not None:
            named = provider or self._named_provider(call)
            provider = await self._store.provider_of(kind, identity, call.caller.id, named)
            inner = [Reference(each, segments[each], each, must_own=False) for each in row.resources[1:]]
            await self._ownership(call, provider).check(inner)
        if provider is not None and provider not in self._router.providers:
            raise NoSuchResourceError(f"Unknown {kind} {segments[kind][:100]!r}", where=kind)
        return {**segments, kind: identity, **({"provider": provider} if provider else {})}

    async def _check_cursors(self, call: EndpointCall, provider: str) -> None:
        """Check the resources by which a page of a list begins or ends; a list inside a resource has items."""
        row = call.row
        kind = row.lists or ("item" if row.resources else "")
        named = [(name, call.query[name]) for name in _CURSORS if name in row.query and call.query.get(name)]
        references = [Reference(kind, value, name, must_own=bool(row.lists)) for name, value in named if kind]
        await self._ownership(call, provider).check(references)

    async def _changed(self, call: EndpointCall, target: Target, status: int, data: bytes) -> bytes:
        """An answer with its addresses leading here and its ids marked, once it is known whose they are."""
        try:
            answer = orjson.loads(data)
        except orjson.JSONDecodeError:
            return data
        if status >= 300 or not isinstance(answer, dict):
            return data
        await self._remember(call, target, answer)
        return dumps(_rewrite_addresses(await self._with_caller_ids(call, answer), call, target.name))

    async def _with_caller_ids(self, call: EndpointCall, answer: dict[str, Any]) -> dict[str, Any]:
        """A response that the vendor keeps, with the ids under which the caller saw it."""
        names = ("id", "previous_response_id")
        ids = [answer[name] for name in names if isinstance(answer.get(name), str)]
        if "response" not in (call.row.creates, call.row.owner_kind()) or not ids:
            return answer
        caller_ids = await self._replaced_ids(call.caller.id).caller_ids(ids)
        return {**answer, **{name: caller_ids[answer[name]] for name in names if answer.get(name) in caller_ids}}

    async def _remember(self, call: EndpointCall, target: Target, answer: Mapping[str, Any]) -> None:
        row = call.row
        store = self._store
        key = call.caller.id
        if store is None:
            return
        identity = answer.get("id")
        await self._remember_shapes(store, target, answer)  # before the results are known to be the key's
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

    async def _remember_shapes(self, store: ResourceStore, target: Target, answer: Mapping[str, Any]) -> None:
        """Remember what the requests of a file, or of a batch, ask for, and which files have its results."""
        identity = answer.get("id")
        if not isinstance(identity, str):
            return
        if target.batch_shapes is not None and target.batch_shapes.lines:
            await store.add_batch_shapes(target.name, identity, target.batch_shapes.to_json())
        source = answer.get("input_file_id")
        if isinstance(source, str):
            results = [answer[field] for field in _RESULT_FILES if isinstance(answer.get(field), str)]
            await store.copy_batch_shapes(target.name, [source, identity], [identity, *results])

    async def _list(self, call: EndpointCall, target: Target, segments: Mapping[str, str], send: RecordingSend) -> None:
        """A list of the caller's own: the vendor's pages are read on until one is full."""
        row = call.row
        record = call.record
        store = self._store
        query = dict(call.query)
        limit = _page_size(query)
        own: list[Any] = []
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
                await _send_json(send, status, data, record.headers())
                return
            answer = read_json(data)
            entries = [each for each in answer.get("data") or () if isinstance(each, dict)]
            ids = [str(each.get("id")) for each in entries]
            mine = await store.owned(target.name, row.lists, call.caller.id, ids) if store is not None else set(ids)
            own += [each for each in entries if each.get("id") in mine]
            for each in own:
                await self._remember(call, target, each)
            has_more = answer.get("has_more") is True and bool(ids)
            if not has_more or len(own) > limit:
                break
            query[row.cursor] = ids[-1]
        page = own[:limit]
        answer |= {"data": page, "has_more": has_more or len(own) > limit}
        for field, at in (("first_id", 0), ("last_id", -1)):
            if field in answer:
                answer[field] = page[at].get("id") if page else None
        record.status = 200
        await _send_json(send, 200, dumps(_rewrite_addresses(answer, call, target.name)), record.headers())


def _with_answer_count(call: EndpointCall, target: Target) -> Target:
    """A call with the number of answers that its JSON asks for; a key that can run out sends no other field for it."""
    row = call.row
    body = target.body
    if call.caller.budget is None or not row.writes or row.sent != "json" or not isinstance(body, bytes) or not body:
        return target
    kind = next((kind for path, kind in _DRAWS.items() if path in row.path), "")
    data = read_body(body)
    if call.caller.is_limited:
        data = with_one_limit(kind, data)
        body = write_body(data)
    return target._replace(body=body, answers=requested_output(kind, data).answers)


def _output(row: EndpointRow, target: Target) -> OutputRequest:
    """Return what a call may make the model write; the request has no field for a limit."""
    if not row.writes:
        return OutputRequest(0)
    return OutputRequest(_IMAGE_TOKENS if _draws(row) else None, target.answers)


def _draws(row: EndpointRow) -> bool:
    """Whether the answer is images."""
    return any(path in row.path for path in _DRAWS)


def _whole(part: FormPart) -> int:
    text = part.content.decode("latin-1").strip()
    if not text.isascii() or not text.isdigit() or len(text) > 4 or not int(text):
        raise RequestError(f"{excerpt_of(text)} is not a number of answers", where="n", hint="Send a whole number.")
    return int(text)


def _has_ids(row: EndpointRow) -> bool:
    return row.answered != "bytes" and bool(row.creates or row.lists or row.resources)


def _rewrite_addresses(answer: dict[str, Any], call: EndpointCall, provider: str) -> dict[str, Any]:
    """Return an answer whose addresses lead to this server, with the provider in the ids of its responses."""
    entries = answer.get("data")
    if isinstance(entries, list):
        made = [_rewrite_addresses(each, call, provider) if isinstance(each, dict) else each for each in entries]
        answer = {**answer, "data": made}
    if isinstance(answer.get("results_url"), str) and isinstance(answer.get("id"), str):
        # The SDK would take the caller's key to the vendor's address.
        answer = {**answer, "results_url": f"{call.origin}/v1/messages/batches/{answer['id']}/results"}
    if "response" in (call.row.creates, call.row.owner_kind()) and str(answer.get("object", "")).startswith("response"):
        for field in ("id", "previous_response_id"):
            if isinstance(answer.get(field), str):
                answer = {**answer, field: mark(provider, answer[field])}
    return answer


def _form_fields(body: bytes, boundary: bytes) -> list[tuple[FormPart, TextField | None]]:
    """The parts of a form, the texts among them read as data, and as bytes in which nothing else can be read."""
    read: list[tuple[FormPart, TextField | None]] = []
    for part in read_form(body, boundary):
        if part.head.is_file:
            read.append((part, None))
        else:
            field = TextField(part.head.name, part.content)
            read.append((FormPart(part.head, field.content), field))
    return read


def _inner_requests(data: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The requests inside a body of Gemini's, which may repeat the model of the path."""
    for name, value in data.items():
        if folded(name) in _INNER:
            yield from (each for each in (value if isinstance(value, list) else [value]) if isinstance(each, dict))


def _with_inner_names(data: dict[str, Any], body: bytes, model: str, upstream: str) -> bytes:
    """A body of Gemini's with the vendor's name wherever it repeats the model of the path; another one is refused."""
    is_changed = False
    for each in (data, *_inner_requests(data)):
        for name in [name for name, value in each.items() if folded(name) == "model" and value is not None]:
            if str(each[name]).removeprefix("models/") != model:
                raise RequestError(
                    f"The path asks for {excerpt_of(model)}, and the body for {excerpt_of(each[name])}",
                    where=name[:_SHOWN],
                )
            each[name] = f"models/{upstream}"
            is_changed = True
    return write_body(data) if is_changed else body


def _is_streamed(data: Mapping[str, Any]) -> bool:
    return data.get("stream") is True or data.get("stream_format") == "sse"


def _may_use_provider(caller: Caller, provider: str, router: Router) -> bool:
    """Whether a key with model patterns may use what a provider keeps: one of them must be for that provider."""
    if caller.models is None:
        return True
    named = (pattern.partition("/")[0] for pattern in caller.models)
    if provider in named or "*" in caller.models:
        return True
    aliases = (name for name in router.aliases if caller.allows(name))
    return any(router.full_name(name).partition("/")[0] == provider for name in aliases)


def _page_size(query: dict[str, str]) -> int:
    text = query.get("limit", "20")
    if not text.isascii() or not text.isdigit() or len(text) > 5 or not int(text):
        raise RequestError(f"{excerpt_of(text)} is not a number of resources", where="limit")
    query["limit"] = str(max(100, int(text)))
    return int(text)


def _declared(headers: Mapping[bytes, bytes]) -> int | None:
    length = headers.get(b"content-length", b"")
    if length.isdigit() and len(length) < 20:
        return int(length)
    return None


async def _pieces(call: EndpointCall, seconds: float) -> AsyncIterator[bytes]:
    """The pieces of a request's body; each must arrive within so many seconds."""
    more = True
    while more:
        try:
            async with asyncio.timeout(seconds):
                message = await call.receive()
        except TimeoutError:
            raise RequestError(f"Nothing of the file arrived for {seconds:g} seconds", hint="Send it faster.") from None
        if message["type"] == "http.disconnect":
            raise RequestError("The client went away before the request was whole")
        yield message.get("body", b"")
        more = message.get("more_body", False)


def _error_event(error: SlipformError) -> bytes:
    return b"data: " + dumps(openai_error(error)) + b"\n\n"


async def _send_json(send: RecordingSend, status: int, data: bytes, headers: list[Header]) -> None:
    head = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(data)), *headers]
    await send_whole(send, status, head, data)
