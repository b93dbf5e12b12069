"""Resolve the provider, the model and the forwarded body of calls of the endpoint table."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from slipform.addons.server.admission.admission import Caller
from slipform.addons.server.admission.refusals import NotAllowed
from slipform.addons.server.calls import batch_files
from slipform.addons.server.calls.batch_shapes import BatchShapes
from slipform.addons.server.calls.endpoints import EndpointRow, NotServedError
from slipform.addons.server.calls.forward import renamed
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
from slipform.addons.server.calls.resources import ResourceStore, ResponseNotStoredError
from slipform.addons.server.calls.unsupported_fields import RESPONSES, response_stores_of
from slipform.addons.server.http_server.asgi import decompressed
from slipform.addons.server.http_server.asgi import read_body as receive_body
from slipform.codecs.model_name import check_name, excerpt_of
from slipform.config import Settings
from slipform.errors import RequestError
from slipform.providers.http import HttpProvider
from slipform.providers.network.transport import Upload
from slipform.providers.router import Router
from slipform.schema.limits import LARGE_BYTES

if TYPE_CHECKING:
    from slipform.addons.server.calls.call import Call


BILLED_MODEL_PLACES: Final = frozenset({"body", "part", "path"})
"""The model places of rows whose calls cost something at once: batches cost later, files nothing."""
_NOT_MODELS: Final = frozenset({"input_audio_transcription", "training_file", "file"})
_INNER: Final = frozenset({"generatecontentrequest", "requests"})
_BATCH_FIELDS: Final = frozenset({"input_file_id", "endpoint", "completion_window", "metadata", "output_expires_after"})
"""All fields of OpenAI's API; another server could read requests from a further one."""
_NO_FIELD: Final = Field("", must_own=False)
_SHOWN: Final = 60


class Target(NamedTuple):
    """The destination of a call: the provider and its configured name, the vendor's name of the model, and the body."""

    name: str
    provider: HttpProvider
    model: str = ""
    body: bytes | Upload = b""
    streamed: bool = False
    content_type: str | None = None
    media: tuple[int, ...] = ()
    """The sizes of the files in a form."""
    answers: int = 1
    """The number of requested answers, where it is known."""
    batch_models: tuple[str, ...] | None = None
    """The models in the lines of a batch's file, all of them checked; None for any other request."""
    batch_shapes: BatchShapes | None = None
    """The shapes of a batch's requests with a schema."""

    @property
    def text(self) -> bytes:
        """The body as bytes; empty for a file."""
        return self.body if isinstance(self.body, bytes) else b""


class TargetReader:
    """Reads the requests of the endpoint table, for one configuration."""

    def __init__(self, router: Router, settings: Settings, store: ResourceStore | None) -> None:
        self._router = router
        self._settings = settings
        self._store = store

    async def target(self, call: Call, segments: Mapping[str, str], cleanup: contextlib.ExitStack) -> Target:
        """Return the target of a call of any row; `cleanup` closes the uploaded file, if there is one."""
        row = call.row
        if row.sent == "file":
            return await self._upload(call, cleanup)
        if row.model == "part":
            return await self._read_parts(call)
        if row.model == "requests":
            return await self._read_requests(call)
        if row.sent == "json" and row.model:
            return (await self.read_json(call))[0]
        streamed = row.answered == "bytes" or (row.answered == "events" and call.query.get("stream") == "true")
        body = await self.body(call) if row.sent else b""
        data: dict[str, Any] = {}
        references: Sequence[Reference] = ()
        if body or (row.sent and not row.body_optional):
            data, body, references = await self.parse(call, body)
            self._check_fields(call, data)
        name = segments.get("provider") or await self._keeper(call, references) or self._provider_name(call)
        await self.ownership(call, name).check(references)
        if row.creates == "batch":
            await self._check_batch(call, name, data)
        return Target(name, self._provider(name, row), "", body, streamed)

    async def _keeper(self, call: Call, references: Sequence[Reference]) -> str | None:
        """Return the provider that stores the resources of a request, such as a file; None where it is unknown."""
        if self._store is None or self.named_provider(call) is not None:
            return None
        owners = await self._store.owners({(each.kind, each.identity) for each in references if each.must_own})
        capable = set(self.capable_providers(call.row))
        keepers = {name for pairs in owners.values() for name, key in pairs if key == call.caller.id} & capable
        return keepers.pop() if len(keepers) == 1 else None

    async def _check_batch(self, call: Call, provider: str, data: Mapping[str, Any]) -> None:
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

    async def read_json(self, call: Call) -> tuple[Target, dict[str, Any]]:
        """Return the target of a call with a JSON body, and its data."""
        row = call.row
        data, body, references = await self.parse(call, await self.body(call))
        in_path = row.model == "path"
        model = call.place.segments.get("model") if in_path else call.place.model or data.get("model")
        self._check_fields(call, data)
        resolved = self._resolved(call, model)
        await self.ownership(call, resolved.name).check(references)
        streamed = row.answered == "bytes" or (row.answered == "events" and _is_streamed(data))
        if in_path:
            body = _with_inner_names(data, body, str(model), resolved.upstream)
        elif resolved.upstream:
            body = renamed(body, data, resolved.upstream, plainly=is_named_plainly(body))
            data = {**data, "model": resolved.upstream}
        return Target(resolved.name, resolved.provider, resolved.upstream, body, streamed), data

    async def _read_parts(self, call: Call) -> Target:
        """Read a form, and encode it again with the vendor's name of the model."""
        body = await self.body(call)
        boundary = boundary_of(call.headers.get(b"content-type", b""))
        is_large = len(body) > LARGE_BYTES
        fields = await asyncio.to_thread(_form_fields, body, boundary) if is_large else _form_fields(body, boundary)
        for part, field in fields:
            self._check_part(call, part, field)
        parts = [part for part, _ in fields]
        resolved = self._resolved(call, call.place.model or field_text(parts, "model"))
        references = [each for _, field in fields if field is not None for each in field.references]
        await self.ownership(call, resolved.name).check(references)
        streamed = call.row.answered == "events" and (field_text(parts, "stream") or "").lower() == "true"
        if resolved.upstream:
            parts = with_text(parts, "model", resolved.upstream)
        media = tuple(len(part.content) for part in parts if part.head.is_file)
        target = Target(resolved.name, resolved.provider, resolved.upstream, write_form(parts, boundary), streamed)
        target = target._replace(content_type=form_type(boundary), media=media)
        if not call.caller.is_limited:
            return target
        return target._replace(answers=_answer_count(parts))

    def _check_part(self, call: Call, part: FormPart, field: TextField | None) -> None:
        """Raise for an unchecked part of a form that a server could read as the model's name or as an id."""
        name = part.head.name
        steps = name_steps(name)
        if folded(steps[0]) == "model" and name != "model":
            raise FormError(f"The field {name!r} could be read as the model's name", where=name)
        if field is None and any(FIELDS.get(folded(step), _NO_FIELD).must_own for step in steps):
            raise FormError(f"The field {name!r} must be a text", where=name)
        self._check_fields(call, {steps[0]: ""} if field is None else field.data)

    async def _read_requests(self, call: Call) -> Target:
        """Read a batch of Anthropic's API: every request names its model; all models must have the same provider."""
        data, _, references = await self.parse(call, await self.body(call))
        requests = data.get("requests")
        if not isinstance(requests, list) or not requests:
            raise RequestError("Expected an array of requests", where="requests")
        if call.caller.models is not None:
            check_only(data, ("requests",))
        rename = self._line_renamer(call)
        renamed_requests = [
            rename.request(each, f"requests[{index}]", "anthropic") for index, each in enumerate(requests)
        ]
        name, provider = rename.target()
        await self.ownership(call, name).check(references)
        body = write_body({**data, "requests": renamed_requests})
        return Target(name, provider, rename.model, body, batch_shapes=rename.shapes)

    def _line_renamer(self, call: Call) -> batch_files.LineRenamer:
        shapes = None if self._store is None else BatchShapes()
        return batch_files.LineRenamer(call.caller, partial(self._resolved, call), shapes)

    async def _upload(self, call: Call, cleanup: contextlib.ExitStack) -> Target:
        """Forward a file while it arrives; the lines of a batch's file are checked and renamed first."""
        if b"content-encoding" in call.headers:
            raise RequestError(
                "A compressed file cannot be forwarded", where="content-encoding", hint="Send it uncompressed."
            )
        server = self._settings.server
        boundary = boundary_of(call.headers.get(b"content-type", b""))
        pieces = _pieces(call, server.body_seconds)
        form = batch_files.IncomingForm(boundary, pieces, server.max_file_bytes, _content_length(call.headers))
        cleanup.callback(form.close)
        call.body_read()  # each piece has a separate time limit
        kind = form_type(boundary)
        if call.row.family == "openai" and await form.field("purpose") == "batch":
            rename = self._line_renamer(call)
            upload = await form.renamed(rename)
            name, provider = rename.target()
            await self.ownership(call, name).check(list(rename.references))
            models = tuple(rename.models)
            return Target(
                name, provider, rename.model, upload, content_type=kind, batch_models=models, batch_shapes=rename.shapes
            )
        name = self._provider_name(call)
        return Target(name, self._provider(name, call.row), "", await form.upload(), content_type=kind)

    def ownership(self, call: Call, provider: str) -> Ownership:
        """Return the ownership check for the ids of a call to this provider."""
        return Ownership(self._store, call.caller.id, [provider], response_stores_of([provider], self._router))

    async def parse(self, call: Call, body: bytes) -> ParsedBody:
        """Return the data of a body, and the resources that it refers to."""
        has_keys = self._store is not None or call.caller.models is not None
        keeps_state = tuple(call.row.upstream or ()) == (RESPONSES,)
        return await parse_body_async(body, BodyChecks(call.row.model == "body", has_keys, keeps_state))

    async def body(self, call: Call) -> bytes:
        """Return the whole body of a call."""
        limit = self._settings.server.max_forwarded_bytes
        body = await receive_body(call.receive, limit, call.cycle, call.headers.get(b"content-length"))
        call.body_read()
        encoding = call.headers.get(b"content-encoding")
        if encoding is None:
            return body
        return await decompressed(body, encoding, limit)

    def _check_fields(self, call: Call, data: Mapping[str, Any]) -> None:
        if call.caller.models is None:
            return
        # Some bodies repeat the model of the path; `_with_inner_names` compares it.
        check_fields(data, names_model=call.row.model in BILLED_MODEL_PLACES)
        for inner in _inner_requests(data) if call.row.model == "path" else ():
            check_fields(inner, names_model=True)
        for name in _NOT_MODELS & data.keys() if call.row.sent == "json" else ():
            raise NotAllowed(f"This API key may use certain models only, and may not send {excerpt_of(name)}")

    def _resolved(self, call: Call, model: object) -> batch_files.ResolvedModel:
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
        mount = self.named_provider(call)
        if mount is not None and not model.startswith(f"{mount}/"):
            model = f"{mount}/{model}"
        check_name(model)
        call.caller.check((model,), self._router)
        record.model = record.model or model
        first = self._router.candidates(model)[0]
        name, _, upstream = self._router.full_name(first).partition("/")
        return batch_files.ResolvedModel(name, self._provider(name, row), upstream, model)

    def named_provider(self, call: Call) -> str | None:
        """Return the provider that the header or the path of a call names."""
        named = call.headers.get(b"x-slipform-provider")
        if named is None:
            return call.place.provider
        return named.decode("latin-1")

    def _provider_name(self, call: Call) -> str:
        """Return the provider of a call without a model: the named one, else the only capable one."""
        row = call.row
        named = self.named_provider(call)
        capable = self.capable_providers(row)
        if named is None:
            if len({self._address(name) for name in capable}) > 1:
                raise RequestError(
                    f"Several providers have {row.title.lower()}: {', '.join(capable)}",
                    hint=f"Name one: `x-slipform-provider: {capable[0]}`, or the path /p/{capable[0]}{row.path}.",
                )
            if not capable and row.owner_kind() == "response":
                raise ResponseNotStoredError("No provider here stores responses", where="response")
            if not capable:
                raise NotServedError(f"No provider here has {row.title.lower()}", hint="Configure one that has.")
            named = capable[0]
        if named not in self._router.providers or not _may_use_provider(call.caller, named, self._router):
            raise RequestError(f"Unknown provider {excerpt_of(named)}", where="x-slipform-provider")
        return named

    def capable_providers(self, row: EndpointRow) -> list[str]:
        """Return the names of the providers that support the row's endpoint."""
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
            capable = ", ".join(self.capable_providers(row))
            raise NotServedError(
                f"The provider {name!r} has no {row.title.lower()}",
                hint=f"Ask one that has: {capable}." if capable else "No provider that is configured here has.",
            )
        return provider


def _answer_count(parts: Sequence[FormPart]) -> int:
    """Return how many answers a form asks for."""
    return max((_whole(part) for part in parts if part.head.name == "n"), default=1)


def _whole(part: FormPart) -> int:
    text = part.content.decode("latin-1").strip()
    if not text.isascii() or not text.isdigit() or len(text) > 4 or not int(text):
        raise RequestError(f"{excerpt_of(text)} is not a number of answers", where="n", hint="Send a whole number.")
    return int(text)


def _form_fields(body: bytes, boundary: bytes) -> list[tuple[FormPart, TextField | None]]:
    """Return the parts of a form with their text fields, encoded unambiguously; files have no text field."""
    fields: list[tuple[FormPart, TextField | None]] = []
    for part in read_form(body, boundary):
        if part.head.is_file:
            fields.append((part, None))
        else:
            field = TextField(part.head.name, part.content)
            fields.append((FormPart(part.head, field.content), field))
    return fields


def _inner_requests(data: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the requests inside a body of Gemini's API, which may repeat the model of the path."""
    for name, value in data.items():
        if folded(name) in _INNER:
            yield from (each for each in (value if isinstance(value, list) else [value]) if isinstance(each, dict))


def _with_inner_names(data: dict[str, Any], body: bytes, model: str, upstream: str) -> bytes:
    """Return a body of Gemini's API with the vendor's name for the path's model; raises for another model."""
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
    """Return whether a key may use a provider's resources: one of its model patterns must be for that provider."""
    if caller.models is None:
        return True
    named = (pattern.partition("/")[0] for pattern in caller.models)
    if provider in named or "*" in caller.models:
        return True
    aliases = (name for name in router.aliases if caller.allows(name))
    return any(router.full_name(name).partition("/")[0] == provider for name in aliases)


def _content_length(headers: Mapping[bytes, bytes]) -> int | None:
    length = headers.get(b"content-length", b"")
    if length.isdigit() and len(length) < 20:
        return int(length)
    return None


async def _pieces(call: Call, seconds: float) -> AsyncIterator[bytes]:
    """Yield the pieces of a request's body; each must arrive within `seconds`."""
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
