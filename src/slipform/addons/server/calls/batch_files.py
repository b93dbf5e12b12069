"""Forward an uploaded file as it arrives, after checking and renaming the models of a batch's lines.

Lines with a schema are encoded for the vendor, and their answers are enforced when they are downloaded
(`batch_shapes`): only with keys, because only then the owner of a file is known. Without keys they are refused.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Callable
from typing import IO, Any, Final, NamedTuple

from slipform.addons.server.admission.admission import Caller
from slipform.addons.server.calls.batch_shapes import BatchShapes
from slipform.addons.server.calls.endpoints import NotServedError
from slipform.addons.server.calls.model_names import check_fields, check_only, folded
from slipform.addons.server.calls.multipart import FormError, FormReader, PartEnd, PartHead, TextField, name_steps
from slipform.addons.server.calls.parsed_body import write_body
from slipform.addons.server.calls.references import Reference, find_references
from slipform.addons.server.calls.shapes import asks_for_shape
from slipform.addons.server.calls.unsupported_fields import STATE
from slipform.codecs.foreign_fields import read_foreign
from slipform.errors import RequestError, SlipformError, TooLargeError
from slipform.providers.http import HttpProvider
from slipform.providers.network.transport import Upload
from slipform.text.strict import parse

_IN_MEMORY: Final = 1 << 20
_PIECE: Final = 1 << 16
_MAX_FIELD: Final = 1 << 16
_MAX_LINE: Final = 8 << 20
_APIS: Final = {"/v1/chat/completions": "openai-chat", "/v1/responses": "openai-responses"}
_LINE_FIELDS: Final = frozenset({"custom_id", "method", "url", "body"})
_REQUEST_FIELDS: Final = frozenset({"custom_id", "params"})
_MOST_MODELS: Final = 100
_LINE_ENDS: Final = ((b"\xc2\x85", b"\\u0085"), (b"\xe2\x80\xa8", b"\\u2028"), (b"\xe2\x80\xa9", b"\\u2029"))
"""Characters that end a line for some parsers but may occur in JSON, and their escapes."""
_FILE: Final = "file"
_HINT: Final = "Use `slipform batch`, which enforces, or give the server `keys_file` and a ledger."


class IncomingForm:
    """A form with a file, read as it arrives. Data that arrives before the target is known is stored on disk."""

    def __init__(
        self, boundary: bytes, pieces: AsyncIterator[bytes], max_bytes: int, declared: int | None = None
    ) -> None:
        self._max_bytes = max_bytes
        if declared is not None:
            self._check_size(declared)
        self._boundary = boundary
        self._reader = FormReader(boundary)
        self._pieces = pieces
        self._declared = declared
        self._waiting: IO[bytes] = tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY)  # noqa: SIM115 — `close` does
        self._made: IO[bytes] | None = None
        self._size = 0
        self._fields: dict[str, bytes] = {}
        self._complete: set[str] = set()
        self._open: PartHead | None = None

    def close(self) -> None:
        """Delete the temporary files."""
        self._waiting.close()
        if self._made is not None:
            self._made.close()

    async def field(self, name: str) -> str | None:
        """Return the text of a field, as soon as it has arrived; None when the form has none."""
        while name not in self._complete and (piece := await self._next()):
            self._waiting.write(piece)
        if name in self._complete:
            return self._fields[name].decode("utf-8", "replace")
        return None

    async def upload(self) -> Upload:
        """Return the form unchanged, for a vendor that reads it at its own pace.

        A small form is read completely first, so that nothing is sent before all of it is checked.
        """
        while self._size < _IN_MEMORY and (piece := await self._next()):
            self._waiting.write(piece)
        return Upload(self._all(), self._declared)

    async def renamed(self, rename: LineRenamer) -> Upload:
        """Return the form with every line of its file renamed, once all of it has arrived and is allowed."""
        while piece := await self._next():
            self._waiting.write(piece)
        made, size = await asyncio.to_thread(self._rewrite, rename)
        return Upload(_from_file(made), size)

    async def _next(self) -> bytes:
        """Return the next piece, after parsing it; empty at the end of the form."""
        async for piece in self._pieces:
            self._size += len(piece)
            self._check_size(self._size)
            for event in self._reader.feed(piece):
                self._note(event)
            if piece:
                return piece
        if not self._reader.done:
            raise FormError("The form is cut short")
        return b""

    def _note(self, event: PartHead | bytes | PartEnd) -> None:
        """Store a field of the form; raises `FormError` for a second one of the same name, or another file."""
        head = self._open
        if isinstance(event, PartHead):
            self._open = event
            if event.name in self._fields:
                raise FormError(f"The field {event.name!r} is there twice", where=event.name)
            is_named_file = folded("".join(name_steps(event.name))) == _FILE
            if event.is_file != is_named_file or (is_named_file and event.name != _FILE):
                raise FormError("The form of a file has one file, in the field `file`", where=event.name)
            self._fields[event.name] = b""
        elif head is not None and not head.is_file:
            if isinstance(event, bytes):
                self._fields[head.name] += event
                if len(self._fields[head.name]) > _MAX_FIELD:
                    raise FormError(f"The field {head.name!r} is too long", where=head.name)
            else:
                self._complete.add(head.name)
                self._check_field(head.name)

    def _check_field(self, name: str) -> None:
        """Raise for a field that names a resource: no vendor's uploads have one, and it may follow the file."""
        field = TextField(name, self._fields[name])
        for reference in field.references:
            if reference.must_own:
                raise FormError(f"The form of a file names a {reference.kind}", where=name, hint="Leave it out.")
        if field.content != self._fields[name]:
            raise FormError(f"The field {name!r} has a key twice", where=name)

    def _check_size(self, size: int) -> None:
        if size > self._max_bytes:
            hint = "Send a smaller file, or raise `server.max_file_bytes`."
            raise TooLargeError(f"The file is larger than {self._max_bytes:,} bytes", hint=hint)

    async def _all(self) -> AsyncIterator[bytes]:
        async for piece in _from_file(self._waiting):
            yield piece
        while piece := await self._next():
            yield piece

    def _rewrite(self, rename: LineRenamer) -> tuple[IO[bytes], int]:
        """Encode the form again with every line renamed; return the file and its size."""
        self._waiting.seek(0)
        made = self._made = tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY)  # noqa: SIM115 — `close` does
        reader = FormReader(self._boundary)
        line = b""
        in_file = False
        while piece := self._waiting.read(_PIECE):
            for event in reader.feed(piece):
                if isinstance(event, PartHead):
                    in_file = event.is_file
                    line = b""
                    made.write(b"--%b\r\n%b\r\n\r\n" % (self._boundary, event.lines))
                elif isinstance(event, PartEnd):
                    made.write(rename.line(line) if line.strip() else b"")
                    made.write(b"\r\n")
                    line = b""
                elif not in_file:
                    made.write(event)
                else:
                    *whole, line = (line + event).split(b"\n")
                    made.writelines(rename.line(each) + b"\n" for each in whole if each.strip())
                    if len(line) > _MAX_LINE:
                        raise TooLargeError(f"A line of the batch is larger than {_MAX_LINE:,} bytes")
        made.write(b"--%b--\r\n" % self._boundary)
        return made, made.tell()


async def _from_file(file: IO[bytes]) -> AsyncIterator[bytes]:
    file.seek(0)
    while piece := file.read(_PIECE):
        yield piece


def _one_line(data: bytes) -> bytes:
    for character, escaped in _LINE_ENDS:
        data = data.replace(character, escaped)
    return data


class ResolvedModel(NamedTuple):
    """A model that a request names: its provider, the provider's configured name, and the names of the model."""

    name: str
    provider: HttpProvider
    upstream: str
    """The vendor's name; empty where the request names no model."""
    checked: str = ""
    """The name that was compared with the key's patterns."""


class LineRenamer:
    """Checks the requests of one batch, and gives each the vendor's name of its model; all need the same provider."""

    def __init__(
        self, caller: Caller, resolve: Callable[[object], ResolvedModel], shapes: BatchShapes | None = None
    ) -> None:
        self.shapes = shapes
        """The shapes of requests with a schema; None where they cannot be stored."""
        self._caller = caller
        self._resolve = resolve
        self._target: tuple[str, HttpProvider] | None = None
        self._resolved_models: dict[object, ResolvedModel] = {}
        self._count = 0
        self.model = ""
        """The vendor's name of the first model."""
        self.references: set[Reference] = set()
        """The resources that the lines refer to."""

    @property
    def models(self) -> list[str]:
        """The models that the requests name, in the form that was checked."""
        return [each.checked for each in self._resolved_models.values() if each.checked]

    def target(self) -> tuple[str, HttpProvider]:
        """Return the provider of all requests; raises `RequestError` when there were none."""
        if self._target is None:
            raise RequestError("The batch has no requests", where="file")
        return self._target

    def line(self, line: bytes) -> bytes:
        """Return one line of a batch's file with its model renamed; raises with the line's number."""
        self._count += 1
        where = f"line {self._count}"
        try:
            request = parse(line)
        except ValueError as error:
            raise RequestError(f"The line is not JSON: {error}", where=where) from None
        if not isinstance(request, dict) or not isinstance(request.get("body"), dict):
            raise RequestError("Expected an object with a `body`", where=where)
        if self._caller.models is not None:
            check_only(request, _LINE_FIELDS)
        self.references.update(find_references(request))
        api = _APIS.get(str(request.get("url")), "")
        body = self._vendor_request(request["body"], f"{where}: body", api, request.get("custom_id"))
        return _one_line(write_body({**request, "body": body}))

    def request(self, request: Any, where: str, api: str) -> dict[str, Any]:
        """Return one of Anthropic's requests with its model renamed."""
        if not isinstance(request, dict) or not isinstance(request.get("params"), dict):
            raise RequestError("Expected an object with `params`", where=where)
        if self._caller.models is not None:
            check_only(request, _REQUEST_FIELDS)
        params = self._vendor_request(request["params"], f"{where}.params", api, request.get("custom_id"))
        return {**request, "params": params}

    def _vendor_request(self, body: dict[str, Any], where: str, api: str, custom_id: object) -> dict[str, Any]:
        """Return a line's request for the vendor; raises for a request that a batch, or this key, may not contain."""
        if api.startswith("openai-") and (foreign := read_foreign(api, body)) is not None:
            body = foreign.data
        is_shaped = bool(api) and asks_for_shape(api, body)
        if is_shaped and self.shapes is None:
            raise NotServedError("Without keys, the answers of a batch cannot be enforced", where=where, hint=_HINT)
        state = next((name for name in STATE if body.get(name) is not None), None)
        if api == "openai-responses" and state is not None:
            raise NotServedError("A batch cannot go on with a response", where=f"{where}.{state}", hint=_HINT)
        if self._caller.models is not None:
            check_fields(body, names_model=True)
        resolved = self._resolve_named(body.get("model"), where)
        if is_shaped and self.shapes is not None:
            return _encode_with_schema(self.shapes, custom_id, api, body, resolved, where)
        if resolved.upstream:
            return {**body, "model": resolved.upstream}
        return body

    def _resolve_named(self, model: object, where: str) -> ResolvedModel:
        """Resolve the model of a request; raises for a name that is not a text."""
        if model is not None and not isinstance(model, str):
            raise RequestError("The model is not a name", where=f"{where}.model", hint="Name it as `provider/model`.")
        return self._resolved_models.get(model) or self._resolve_first(model, where)

    def _resolve_first(self, model: str | None, where: str) -> ResolvedModel:
        """Resolve a model that no earlier request has named."""
        if len(self._resolved_models) >= _MOST_MODELS:
            raise RequestError(f"The batch names more than {_MOST_MODELS} models", where=where)
        resolved = self._resolve(model)
        if self._target is not None and self._target[0] != resolved.name:
            raise RequestError(
                f"The batch asks {self._target[0]!r} and {resolved.name!r}",
                where=where,
                hint="Make one batch for each.",
            )
        self._target = (resolved.name, resolved.provider)
        self.model = self.model or resolved.upstream
        self._resolved_models[model] = resolved
        return resolved


def _encode_with_schema(
    shapes: BatchShapes, custom_id: object, api: str, body: dict[str, Any], resolved: ResolvedModel, where: str
) -> dict[str, Any]:
    """Return the body of a request with a schema, encoded for the vendor; its shape is added to `shapes`."""
    name = f"{resolved.name}/{resolved.upstream}"
    try:
        encoded: dict[str, Any] = shapes.add(custom_id, api, body, name, resolved.provider)
    except SlipformError as error:
        error.where = f"{where}.{error.where}" if error.where else where
        raise
    return encoded
