"""Enforce the schemas of a batch's requests when its results are downloaded.

The vendor answers a batch hours after its requests were forwarded. So each request with a schema is encoded for the
vendor when it arrives, its shape is stored with the file's owner, and each answer is repaired, patched and validated
while the results are downloaded. A batch cannot be retried: an invalid answer becomes an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any

import msgspec
import orjson

from slipform.addons.server.calls.endpoints import NotServedError
from slipform.codecs import ServedApi, ServedRequest, find_api
from slipform.codecs.batches import UNREADABLE, BatchApi
from slipform.codecs.request_fields import dumps
from slipform.enforce import Outcome, Plan, enforce
from slipform.engine.planning import ModelRoute
from slipform.engine.setup import Options
from slipform.errors import EnforcementError, RefusalError, RequestError, SlipformError, TruncatedError
from slipform.ir import ModelRequest, ModelResponse
from slipform.providers.http import HttpProvider
from slipform.providers.router import Router

_CONVERSATION: Mapping[str, Any] = {"messages": [], "input": "", "system": None, "instructions": None}
"""Replacements for fields of a request that do not matter for validation."""
_HINT = "Use `slipform batch --via batch`, which enforces and asks again."


class ShapedRequest(msgspec.Struct, frozen=True):
    """The shape of a request: its fields without the conversation."""

    api: str
    model: str
    """`provider/model`."""
    downgrades: tuple[str, ...]
    body: msgspec.Raw


class BatchShapes(msgspec.Struct):
    """The shapes of the requests of a batch that have a schema."""

    frames: dict[str, ShapedRequest] = msgspec.field(default_factory=dict)
    """The shapes by their hashes: the requests of most batches share one."""
    lines: dict[str, str] = msgspec.field(default_factory=dict)
    """The hash of each request's shape, by the id that the caller gave it."""

    def add(self, custom_id: object, api: str, body: Mapping[str, Any], model: str, provider: HttpProvider) -> Any:
        """Store the shape of a request; return its body, encoded for the vendor. `model` is `provider/model`."""
        if provider.api != api:
            raise NotServedError(f"The provider of {model!r} speaks another API", hint=_HINT)
        if not isinstance(custom_id, str) or not custom_id:
            raise RequestError("A request with a schema needs a `custom_id`")
        if body.get("n") not in (None, 1):
            raise NotServedError("Several answers to a request of a batch cannot be enforced", where="n", hint=_HINT)
        served = find_api(api).decode_request(body)
        if served.stream:
            raise RequestError("A request of a batch cannot stream", where="stream")
        request = served.request.replace(model=model.partition("/")[2])
        downgrades = provider.batch_downgrades(request)
        fields = {name: _CONVERSATION.get(name, value) for name, value in body.items()}
        frame = ShapedRequest(api, model, tuple(sorted(downgrades)), msgspec.Raw(dumps(fields)))
        digest = blake2b(_encoder.encode(frame), digest_size=12).hexdigest()
        self.frames[digest] = frame
        self.lines[custom_id] = digest
        return orjson.loads(provider.prepare_batched(request, downgrades).encoded.body)

    def to_json(self) -> str:
        """Return all shapes as JSON."""
        return _encoder.encode(self).decode()

    @classmethod
    def from_json(cls, text: str) -> BatchShapes:
        """Parse the result of `to_json`."""
        return _decoder.decode(text)


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(BatchShapes)


@dataclass(frozen=True, slots=True)
class _Frame:
    """The plan for validating answers to requests of one shape."""

    api: ServedApi
    served: ServedRequest
    request: ModelRequest
    """The request with the vendor's name of the model."""
    plan: Plan
    provider: HttpProvider
    downgrades: frozenset[str]

    def answer(self, body: bytes) -> ModelResponse:
        """Return the valid answer, or a refused or truncated one; raises `SlipformError` for any other."""
        prepared = self.provider.prepare_batched(self.request, self.downgrades)
        response = self.provider.read_batched(self.request, prepared, body)
        steps = enforce(self.request, self.plan)
        next(steps)
        try:
            steps.send(response)
        except StopIteration as stop:
            outcome: Outcome = stop.value
            return outcome.answer
        except (RefusalError, TruncatedError) as error:
            return error.response or response
        steps.close()
        raise EnforcementError("The answer is not valid, and a batch cannot be asked again")


class EnforcedResults:
    """Enforces the lines of a file of results as they arrive."""

    def __init__(self, shapes: BatchShapes, api: BatchApi, router: Router, options: Options) -> None:
        self._shapes = shapes
        self._api = api
        self._router = router
        budget = replace(options.budget, attempts=1, continuations=0)
        self._options = replace(options, budget=budget, on_failure="raise", formatter=None)
        self._frames: dict[str, _Frame] = {}
        self._rest = b""

    def feed(self, data: bytes) -> bytes:
        """Return the complete lines so far; for empty data, the last one."""
        if not data:
            rest = self._rest
            self._rest = b""
            return self._line(rest) if rest.strip() else rest
        *whole, self._rest = (self._rest + data).split(b"\n")
        return b"".join([self._line(line) + b"\n" if line.strip() else b"\n" for line in whole])

    def _line(self, line: bytes) -> bytes:
        try:
            result = self._api.read_result(line)
        except UNREADABLE:
            return b""  # a line that cannot be parsed cannot be validated
        digest = self._shapes.lines.get(result.id)
        if digest is None or not result.answer:
            return line
        frame = self._frame(digest)
        try:
            answer = frame.answer(result.answer)
        except SlipformError as error:
            error.hint = _HINT
            status, body = frame.api.encode_error(error)
            return self._written(line, status, orjson.loads(body))
        return self._written(line, 200, frame.api.answer(answer, frame.served, frame.api.stamp))

    def _written(self, line: bytes, status: int, body: dict[str, Any]) -> bytes:
        fields = orjson.loads(line)
        if self._api.name != "anthropic":
            fields["response"] = {**fields["response"], "status_code": status, "body": body}
        elif status == 200:
            fields["result"] = {"type": "succeeded", "message": body}
        else:
            fields["result"] = {"type": "errored", "error": body}
        return dumps(fields)

    def _frame(self, digest: str) -> _Frame:
        made = self._frames.get(digest)
        if made is not None:
            return made
        frame = self._shapes.frames[digest]
        api = find_api(frame.api)
        served = api.decode_request(bytes(frame.body))
        route = ModelRoute(self._router, frame.model)
        plan = route.plan(served.request.replace(model=frame.model), self._options)
        provider = route.provider
        if not isinstance(provider, HttpProvider):
            raise NotServedError(f"The provider of {frame.model!r} has no batches any more")
        request = served.request.replace(model=route.model)
        made = _Frame(api, served, request, plan, provider, frozenset(frame.downgrades))
        self._frames[digest] = made
        return made
