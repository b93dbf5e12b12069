"""Submit, poll, search, cancel and download batches at a vendor, over its provider's own connection and key."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import orjson

from slipform.addons.batch.scheduler import is_temporary
from slipform.codecs.batches import BatchApi, BatchCall, BatchRequest, BatchStatus, find_batch_api
from slipform.errors import AuthenticationError, ConfigError, RateLimitError, UpstreamError
from slipform.files.replacing import replacing
from slipform.providers import Provider
from slipform.providers.forward import Forwarded, Route
from slipform.providers.http import HttpProvider
from slipform.providers.network.transport import Upload
from slipform.providers.retry import requested_wait
from slipform.providers.router import Router

_MAX_BYTES: Final = 1 << 32
_PIECE: Final = 1 << 18
_MAX_PAGES: Final = 20
_CLOCK_SKEW: Final = 600.0
_RETRIES: Final = 8
_LONGEST_PAUSE: Final = 120.0
GONE: Final = frozenset({404, 410})
"""Statuses of a batch, or a file, that the vendor has deleted."""


class UnclearSubmitError(UpstreamError):
    """The vendor may have accepted a batch: the connection broke, or the server failed, while it was submitted."""


@dataclass(frozen=True, slots=True)
class VendorBatches:
    """The batches of one model at its vendor."""

    provider: HttpProvider
    model: str
    """The vendor's own name for it."""
    api: BatchApi
    sleep: Callable[[float], Awaitable[None]] = field(default=asyncio.sleep, repr=False)

    @classmethod
    def of(
        cls, provider: Provider, model: str, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    ) -> VendorBatches:
        """Return the batches of a provider; raises `ConfigError` where it has no batch API."""
        name = provider.batch_api if isinstance(provider, HttpProvider) else ""
        return cls(provider, model, find_batch_api(name, provider.name), sleep)  # type: ignore[arg-type]  # it raises

    async def submit(self, batch: BatchRequest) -> str:
        """Submit a batch and return its id; raises `UnclearSubmitError` where the vendor may have accepted it."""
        file = ""
        if self.api.upload is not None:
            uploaded, _ = await self._patiently(self.api.upload(batch))
            file = str(uploaded["id"])
            await self._wait_until_processed(uploaded)
        try:
            created, _ = await self._patiently(self.api.create(batch, file), only_refused=True)
        except UpstreamError as error:
            if _is_unclear(error):
                raise UnclearSubmitError(error.message, hint=error.hint, status=error.status) from error
            raise
        return self._status_of(created).id

    async def status(self, batch: str) -> tuple[BatchStatus, float | None]:
        """Return a batch, and the seconds that the vendor asks to wait before the next look."""
        data, wait = await self._patiently(self.api.status(batch))
        return self._status_of(data), wait

    async def cancel(self, batch: str) -> None:
        """Ask the vendor to stop a batch; one that has just ended is left as it is."""
        try:
            await self._patiently(self.api.cancel(batch))
        except UpstreamError as error:
            if error.status is None or not 400 <= error.status < 500:
                raise

    async def find(self, tag: str, since: float, count: int, others: Collection[str]) -> BatchStatus | None:
        """Return the batch with this tag; where the vendor keeps no tags, one of that size that nobody knows."""
        cursor = ""
        for _ in range(_MAX_PAGES):
            data, _ = await self._patiently(self.api.page(cursor))
            listed, cursor = self.api.read_list(data)
            statuses = [self._status_of(each) for each in listed]
            for status in statuses:
                if status.id in others or (self.api.has_tags and status.tag != tag):
                    continue
                if self.api.has_tags or (status.total == count and status.created > since - _CLOCK_SKEW):
                    return status
            if not cursor or not statuses or statuses[-1].created < since - _CLOCK_SKEW:
                return None
        return None

    async def download(self, status: BatchStatus, path: Path) -> None:
        """Write the results of a batch to a file, whole or not at all."""
        for attempt in range(_RETRIES):
            try:
                with replacing(path) as file:
                    file.writelines(line + b"\n" for line in status.inline)
                    for place in status.result_paths:
                        async with self._opened(BatchCall(place, method="GET")) as answer:
                            while piece := await answer.read():
                                file.write(piece)
                        file.write(b"\n")
            except UpstreamError as error:
                if attempt == _RETRIES - 1 or not may_repeat(error):
                    raise
                await self.sleep(_pause(error, attempt))
            else:
                return

    async def _wait_until_processed(self, uploaded: dict[str, Any]) -> None:
        """Wait for a vendor that looks through a file before it takes a batch of it (Azure)."""
        attempt = 0
        while uploaded.get("status") in ("pending", "running"):
            await self.sleep(min(2.0**attempt, _LONGEST_PAUSE))
            attempt += 1
            uploaded, _ = await self._patiently(BatchCall(f"/files/{uploaded['id']}", method="GET"))

    async def _patiently(self, call: BatchCall, *, only_refused: bool = False) -> tuple[dict[str, Any], float | None]:
        """Make a call, again after a pause where the vendor is busy; `only_refused`: only where it did nothing."""
        attempt = 0
        while True:
            try:
                async with self._opened(call) as answer:
                    data = orjson.loads(await answer.read_whole())
                    return data, requested_wait(answer.headers)
            except orjson.JSONDecodeError as error:
                raise UpstreamError(f"The vendor's answer about a batch is not JSON: {error}") from error
            except UpstreamError as error:
                repeats = isinstance(error, RateLimitError) if only_refused else may_repeat(error)
                if attempt == _RETRIES or not repeats or error.details.get("retryable") is False:
                    raise
                await self.sleep(_pause(error, attempt))
                attempt += 1

    @asynccontextmanager
    async def _opened(self, call: BatchCall) -> AsyncIterator[Forwarded]:
        headers = {**self._ordinary.headers, "content-type": call.content_type}
        route = Route(self.model, call.path, headers, False, False, call.method, _MAX_BYTES)
        # As an upload, it does not count as a live call of so many tokens in the provider's minute.
        body = Upload(_pieces(call.body), len(call.body)) if call.body else b""
        answer = await self.provider.forward_async(route, body, {})
        try:
            if answer.status >= 300:
                codec = self.provider.codec_for(self.model, None)
                error = codec.decode_error(answer.status, answer.headers, await answer.read_whole())
                error.where = error.where or f"{self.provider.name}{call.path.partition('?')[0]}"
                raise error
            yield answer
        finally:
            await answer.close()

    @property
    def path(self) -> str:
        """The path of an ordinary request to the model."""
        return self._ordinary.path

    @property
    def _ordinary(self) -> Route:
        route = self.provider.route(self.model, streamed=False)
        if route is None:
            raise ConfigError(f"Requests to {self.provider.name}/{self.model} cannot be put into a batch", where="via")
        return route

    def _status_of(self, data: Any) -> BatchStatus:
        try:
            return self.api.read_status(data)
        except (KeyError, TypeError, ValueError) as error:
            raise UpstreamError(f"The vendor describes a batch in an unknown way: {error!r}") from error


async def _pieces(body: bytes) -> AsyncIterator[bytes]:
    view = memoryview(body)
    for start in range(0, len(body), _PIECE):
        yield bytes(view[start : start + _PIECE])


def batches_of(router: Router, models: Sequence[str]) -> VendorBatches:
    """Return the batches of a job's model; raises `ConfigError` before anything is sent where that cannot be."""
    if len(models) > 1:
        raise ConfigError(
            "A vendor's batch asks one model, and several are named",
            where="model",
            hint="Name one model, or leave `via` out: live calls try one after the other.",
        )
    return VendorBatches.of(*router.resolve(models[0]))


def _is_unclear(error: UpstreamError) -> bool:
    if isinstance(error, RateLimitError | AuthenticationError):
        return False
    if error.status is None:
        return error.details.get("phase") not in ("connect", "send")
    return error.status >= 500 or error.status < 300


def may_repeat(error: UpstreamError) -> bool:
    """Whether a call that changes nothing may succeed a little later."""
    broke = error.status is None and error.details.get("phase") in ("connect", "send", "head", "body")
    return broke or isinstance(error, RateLimitError) or is_temporary(error)


def _pause(error: UpstreamError, attempt: int) -> float:
    return min(error.retry_after or 2.0**attempt, _LONGEST_PAUSE)
