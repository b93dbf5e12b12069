"""`HttpProvider`: a vendor over HTTP, blocking and async, over one implementation (`calls.py`)."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Iterator, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Self

from slipform.codecs.base import Capabilities, EncodedRequest
from slipform.ir import CompletionChunk, ModelRequest, ModelResponse
from slipform.ir.request import is_heavy
from slipform.providers import calls
from slipform.providers.base import Made, Through
from slipform.providers.calls_types import Finish, Read
from slipform.providers.catalog import Vendor, load_catalog
from slipform.providers.codecs_by_name import CodecFactory, codec_factory
from slipform.providers.endpoint import Endpoint
from slipform.providers.forward import Forwarded, Route, open_forward, route_of
from slipform.providers.lessons import LessonStore, MemoryLessons
from slipform.providers.network.client import HttpTransport
from slipform.providers.network.transport import Begun, Timeouts, Transport
from slipform.providers.retry import Retries
from slipform.providers.secrets import Secret
from slipform.providers.wires import AsyncWire, Wire, answered, answered_async


class HttpProvider:
    """One vendor of the catalogue, ready to answer.

    `vendor` is a name of slipform's own catalogue or a row from `load_catalog`. The key is read from the environment at
    each call unless `api_key` gives one. `settings` fill the blanks of the base URL (resource, region, project…).

    ::

        with HttpProvider("openai") as provider:
            provider.complete(ModelRequest("gpt-6-luna", (Message.user("Hello"),))).text
    """

    def __init__(
        self,
        vendor: str | Vendor,
        *,
        name: str | None = None,
        base_url: str | None = None,
        api_key: str | Secret | None = None,
        headers: Mapping[str, str] | None = None,
        settings: Mapping[str, str] | None = None,
        timeouts: Timeouts | None = None,
        retries: Retries | None = None,
        transport: Transport | None = None,
        lessons: LessonStore | None = None,
        codec: CodecFactory | None = None,
    ) -> None:
        row = load_catalog().vendor(vendor) if isinstance(vendor, str) else vendor
        self.name = name or row.name
        self._endpoint = Endpoint(
            vendor=row,
            make_codec=codec or codec_factory(row.codec),
            store=lessons if lessons is not None else MemoryLessons(),
            name=self.name,
            base_url=base_url,
            api_key=Secret(api_key) if isinstance(api_key, str) else api_key,
            headers=headers,
            settings=settings,
            timeouts=timeouts,
            retries=retries,
        )
        self.transport: Transport = transport or HttpTransport()
        """What sends its requests."""
        self._routes: dict[tuple[str, bool], Route | None] = {}

    def __repr__(self) -> str:
        return f"HttpProvider({self.name!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def base_url(self) -> str:
        """Where it calls."""
        return self._endpoint.url()

    @property
    def lessons(self) -> LessonStore:
        """What its vendor's refusals have taught."""
        return self._endpoint.store

    @property
    def timeouts(self) -> Timeouts:
        """How long it waits."""
        return self._endpoint.timeouts

    def capabilities(self, model: str) -> Capabilities:
        """What this model can do here: the catalogue's word, less what was learned from refusals."""
        return self._endpoint.capabilities(model)

    def has_lessons(self, model: str) -> bool:
        """Whether anything was learned of this model from refusals."""
        return self._endpoint.has_lessons(model)

    def spelled(self, request: ModelRequest) -> EncodedRequest:
        """What would be sent for this request now."""
        return self._endpoint.prepare(request, streamed=False).encoded

    @property
    def api(self) -> str:
        """The API it speaks, by the name of its codec."""
        return self._endpoint.vendor.codec

    def route(self, model: str, *, streamed: bool) -> Route | None:
        """Where a caller's own body for this model can be sent as it is; None where it has to be spelled anew."""
        return route_of(self._endpoint, self._routes, model, streamed=streamed)

    def forward_async(self, route: Route, body: bytes, headers: Mapping[str, str]) -> Coroutine[Any, Any, Forwarded]:
        """Send a body as it is, under this provider's own key; the answer comes back unread, errors included."""
        return open_forward(self._endpoint, self.transport, route, body, headers)

    def models(self) -> list[str]:
        """The models its row lists; empty when any name goes."""
        return list(self._endpoint.vendor.models)

    def serves(self, model: str) -> bool:
        """Whether its row lists the model, or any name goes."""
        listed = self._endpoint.vendor.models
        return not listed or model in listed

    def complete(self, request: ModelRequest) -> ModelResponse:
        """Answer, blocking."""
        return answered(calls.answer(self._endpoint, request), self.transport)

    def stream(self, request: ModelRequest) -> Iterator[CompletionChunk]:
        """Answer piece by piece, blocking; closing the iterator closes the connection."""
        steps = calls.stream(self._endpoint, request)
        wire = Wire(self.transport)
        try:
            effect = next(steps)
            while not isinstance(effect, Finish):
                if isinstance(effect, Read):
                    yield from effect.chunks
                effect = wire.step(steps, effect)
            yield from effect.chunks
        finally:
            wire.close()

    def complete_async(self, request: ModelRequest) -> Coroutine[Any, Any, ModelResponse]:
        """Answer; cancelling closes the connection."""
        return answered_async(calls.answer(self._endpoint, request), self.transport, heavy=is_heavy(request))

    def resume_async(self, request: ModelRequest, begun: Begun) -> Coroutine[Any, Any, ModelResponse]:
        """`complete_async`, where the request was sent by `forward_async` and this has come back."""
        steps = calls.answer(self._endpoint, request, begun.sent)
        return answered_async(steps, self.transport, begun, heavy=is_heavy(request))

    async def stream_async(self, request: ModelRequest) -> AsyncIterator[CompletionChunk]:
        """Answer piece by piece; closing the iterator, or cancelling, closes the connection."""
        async with aclosing(self.batches_async(request, _as_they_are)) as batches:
            async for batch in batches:
                for chunk in batch:
                    yield chunk

    async def batches_async(self, request: ModelRequest, through: Through[Made]) -> AsyncGenerator[Made, None]:
        """`stream_async`, through a function that is given the chunks that arrived together as soon as they have."""
        steps = calls.stream(self._endpoint, request)
        wire = AsyncWire(self.transport, heavy=is_heavy(request))
        try:
            effect = await wire.begin(steps)
            while not isinstance(effect, Finish):
                if not isinstance(effect, Read):
                    effect = await wire.step(steps, effect)
                    continue
                effect, made = await wire.follow(steps, effect, through)
                if made is not None:
                    yield made
            if effect.chunks and (made := through(effect.chunks)) is not None:
                yield made
        finally:
            await wire.close()

    def warm(self) -> None:
        """Nothing to wait for: connections are made by the first call and kept."""

    def close(self) -> None:
        """Let go of pooled connections."""
        self.transport.close()


def _as_they_are(chunks: Sequence[CompletionChunk]) -> Sequence[CompletionChunk]:
    return chunks
