"""Enforce the budgets of keys: reserve before each attempt, settle after the call.

The highest cost of an attempt is reserved before the vendor is called, so that concurrent calls cannot spend the same
money: a bound of its prompt's tokens (`prompt_size`), and the output limit that is sent to the vendor
(`output_limits`), at the model's price. The vendor's own count replaces it afterwards. An attempt with an incomplete
count, because the client or the connection was lost, is charged what was reserved, or what was relayed if that is
more.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import secrets
import sqlite3
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

from slipform.addons.server.admission import ledger as books
from slipform.addons.server.admission.budgets import (
    NANOS,
    CallNeed,
    KeyBudget,
    LedgerUnavailable,
    NoPrice,
    Standing,
    bucket_of,
    budget_refusal,
    is_over_soft,
    period_end,
    remaining_headers,
)
from slipform.addons.server.admission.ledger import CallEntry, Hold, SpendLedger
from slipform.addons.server.admission.output_limits import MAX_LIMIT, OutputRequest, requested_output, sent_output
from slipform.addons.server.admission.prompt_size import estimate_input
from slipform.addons.server.admission.refusals import TooManyRequests
from slipform.addons.server.observability.call_record import CallRecord
from slipform.codecs import make_codec
from slipform.codecs.answer import count
from slipform.codecs.usage import StreamMeter
from slipform.errors import SlipformError, UpstreamError
from slipform.ir import CompletionChunk, ModelRequest, ModelResponse, Usage
from slipform.ir.request import is_heavy
from slipform.ir.response import NO_USAGE
from slipform.prices import AnyPrice, cost_of, is_known
from slipform.providers.concurrency import off_loop
from slipform.providers.http import HttpProvider
from slipform.schema.limits import LARGE_BYTES

if TYPE_CHECKING:
    from slipform.addons.server.admission.admission import Caller
    from slipform.addons.server.admission.shared_state import SharedState, SpendAct
    from slipform.config import Settings
    from slipform.engine.drive import AsyncModel
    from slipform.engine.planning import ModelRoute
    from slipform.ir.response import ChunkSink
    from slipform.providers import Provider

T = TypeVar("T")
Rewrite: TypeAlias = Callable[[bytes], bytes]
"""Changes the pieces of a stream."""
_log = logging.getLogger("slipform.server")
_BYTES_PER_TOKEN = 4
"""Bytes of text per token, as in `guess_tokens`."""
_RENEW_SECONDS = 10.0
_WAIT_SECONDS = 10.0
"""Seconds that a call waits for room that only other calls' reservations take."""
_POLL_SECONDS = 0.25
"""Seconds between checks whether another process has released a reservation."""
_MAX_NANOS = 10**17
"""The highest cost of one call: sums of many calls still fit the ledger's integers."""
_KEEP_SECONDS = 2 * 86_400
"""Seconds that Redis stores a period after its end."""
_LIMITS: Final = (None, "concurrent", "tokens", "cost")
_AMOUNTS: Final = frozenset({"tokens", "cost"})
"""Limits that may have room again when other calls end."""


@dataclass(eq=False, slots=True)
class AttemptCharge:
    """One call to a vendor: its reservation, and the usage of its answer."""

    model: str
    price: AnyPrice | None
    reserved: Usage = NO_USAGE
    reported: Usage = NO_USAGE
    """The usage that the vendor has reported so far."""
    text_bytes: int = 0
    """Bytes of the text that has arrived so far."""
    pieces: int = 0
    """Pieces of that text; each is at least one token."""
    is_complete: bool = False
    """Whether the answer is complete."""
    is_refused: bool = False
    """Whether the vendor refused the request, or never received it."""

    def add_chunks(self, chunks: Sequence[CompletionChunk]) -> None:
        """Count the text and the usage of these chunks."""
        for chunk in chunks:
            arguments = [call.arguments for call in chunk.tool_calls if isinstance(call.arguments, str)]
            self.add_texts([chunk.text, chunk.reasoning, chunk.refusal, *arguments])
            if chunk.usage is not None:
                self.report(chunk.usage)

    def add_texts(self, texts: Sequence[str]) -> None:
        """Count these pieces of text."""
        for text in texts:
            if text:
                self.text_bytes += len(text.encode("utf-8", "surrogatepass"))
                self.pieces += 1

    def report(self, usage: Usage) -> None:
        """Add the vendor's reported usage to that reported before."""
        previous = self.reported
        total = count(usage.total)
        input_tokens = count(usage.input)
        output_tokens = count(usage.output)
        if output_tokens is None and input_tokens is not None and total is not None:
            output_tokens = max(0, total - input_tokens)
        cached = count(usage.cached)
        written = count(usage.cache_write)
        self.reported = Usage(
            previous.input if input_tokens is None else input_tokens,
            previous.output if output_tokens is None else output_tokens,
            cached=previous.cached if cached is None else cached,
            cache_write=previous.cache_write if written is None else written,
            service_tier=usage.service_tier or previous.service_tier,
        )

    def charged(self) -> Usage:
        """Return the usage to charge: the reported one, else the reservation; if incomplete, at least what arrived.

        A count of 0 for a prompt, or for a text that arrived, is ignored.
        """
        if self.is_refused:
            return Usage(0, 0)
        relayed = max(self.pieces, -(-self.text_bytes // _BYTES_PER_TOKEN))
        reserved = self.reserved
        reported = self.reported
        if not self.is_complete:
            input_tokens = max(reserved.input or 0, reported.input or 0)
            return Usage(input_tokens, max(reserved.output or 0, reported.output or 0, relayed))
        output_tokens: int | None = reported.output or relayed
        if not output_tokens and reported.output is None:
            output_tokens = reserved.output
        return reported.replace(input=reported.input or reserved.input, output=output_tokens)

    def nanos(self, usage: Usage) -> int | None:
        """Return the cost of this usage in nanos; None without a price."""
        cost = cost_of(self.price, usage)
        if cost is None:
            return None
        return math.ceil(min(cost * NANOS, _MAX_NANOS) - 1e-3)


class _MeteredSink:
    """Passes the chunks of a stream on, and counts them for an attempt."""

    def __init__(self, attempt: AttemptCharge, sink: ChunkSink) -> None:
        self._attempt = attempt
        self._sink = sink

    def push(self, chunks: Sequence[CompletionChunk]) -> Sequence[CompletionChunk] | None:
        """Count these chunks and pass them on."""
        self._attempt.add_chunks(chunks)
        return self._sink.push(chunks)

    def push_texts(self, texts: list[str], call: int = -1) -> Sequence[CompletionChunk] | None:
        """`push`, for chunks that have only text, or arguments of one call."""
        self._attempt.add_texts(texts)
        return self._sink.push_texts(texts, call)


class Spending:
    """The spending under one configuration: prices, the ledger, and the sums shared through Redis."""

    def __init__(
        self,
        price_of: Callable[[str], AnyPrice | None],
        ledger: SpendLedger | None,
        settings: Settings,
        shared: SharedState | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.price_of = price_of
        self.ledger = ledger
        self.assumed_output = settings.ledger.assumed_output_tokens
        self._on_loss = settings.ledger.on_loss
        self._shared = shared if ledger is not None else None
        self.clock = clock
        self._machine = ""
        self._warned: set[tuple[str, str]] = set()
        self._holds: dict[str, tuple[Hold, KeyBudget]] = {}
        """The reservations of the calls in progress here."""
        self._queues: dict[str, _Queue] = {}
        """The queues of calls that wait for room, by key."""
        self._publishing: set[asyncio.Task[None]] = set()
        self._renewed = 0.0

    async def reserve(self, hold: Hold, budget: KeyBudget, model: str) -> Standing:
        """Reserve the tokens and the cost of a call; raises where the budget has no room for them."""
        need = CallNeed(hold.name, hold.tokens, hold.cost)
        standing, limit = await self._reserved(hold, budget, model)
        if limit in _AMOUNTS and standing.has_room_later(budget, hold.tokens, hold.cost):
            standing, limit = await self._wait_for_room(hold, budget, model)
        if limit == "concurrent":
            raise TooManyRequests(
                f"{standing.live} of your requests are under way, as many as the API key {hold.name!r} may have",
                hint="Wait for one of them to finish.",
                retry_after=1,
            )
        if limit is not None:
            raise budget_refusal(limit, budget, standing, need, self.clock())
        self._holds[hold.id] = hold, budget
        if is_over_soft(budget, standing):
            self._warn(hold, budget, standing, self.clock())
        return standing

    async def _wait_for_room(self, hold: Hold, budget: KeyBudget, model: str) -> tuple[Standing, str | None]:
        """Reserve as soon as other calls of the key have released enough; calls are served in their order."""
        queue = self._queues.setdefault(hold.key, _Queue())
        queue.waiting += 1
        end = time.monotonic() + _WAIT_SECONDS
        try:
            async with queue.turn:
                while True:
                    queue.released.clear()
                    stands, limit = await self._reserved(hold, budget, model)
                    left = end - time.monotonic()
                    if limit not in _AMOUNTS or left <= 0 or not stands.has_room_later(budget, hold.tokens, hold.cost):
                        return stands, limit
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(queue.released.wait(), min(left, _POLL_SECONDS))
        finally:
            queue.waiting -= 1
            if not queue.waiting:
                del self._queues[hold.key]

    async def standing(self, key: str, budget: KeyBudget) -> Standing:
        """Return the current standing of a key, over all machines if they share a Redis.

        Redis does not count requests: their number is always that of this machine.
        """
        now = self.clock()
        reply = None
        if self._shared is not None:
            reply = await self._query_redis("read", key, budget, "", bucket_of(budget.period, now))
        local = await self._run(lambda db: books.standing(db, key, budget.period, now))
        if reply is None:
            return local
        return Standing(local.requests, *reply[1:])

    def settle(self, hold: Hold | None, budget: KeyBudget | None, entry: CallEntry) -> None:
        """Record the cost of a call and release its reservation, without waiting.

        An entry that cannot be stored is replaced by one with the reserved amounts.
        """
        ledger = self.ledger
        if ledger is None:
            return
        if hold is None or budget is None:
            unknown = entry._replace(tokens_in=0, tokens_out=0, cost=None)
            ledger.post(
                lambda db: books.settle(db, None, entry.at, entry), lambda db: books.settle(db, None, entry.at, unknown)
            )
            return
        shared_bucket = None if self._shared is None else bucket_of(budget.period, hold.at)
        reserved = entry._replace(tokens_in=hold.tokens, tokens_out=0, cost=hold.cost)
        ledger.post(
            lambda db: books.settle(db, hold.id, hold.at, entry, shared_bucket),
            lambda db: books.settle(db, hold.id, hold.at, reserved, shared_bucket),
        )
        self._announce_release(hold, budget)

    def release(self, hold: Hold, budget: KeyBudget) -> None:
        """Release the reservation of a call that was never sent, without waiting."""
        if self.ledger is None:
            return
        shared_bucket = None if self._shared is None else bucket_of(budget.period, hold.at)
        self.ledger.post(lambda db: books.release(db, hold.id, hold.key, shared_bucket))
        self._announce_release(hold, budget)

    def _announce_release(self, hold: Hold, budget: KeyBudget) -> None:
        """Notify the calls that wait for room, here and on other machines."""
        self._holds.pop(hold.id, None)
        if hold.key in self._queues:
            self._queues[hold.key].released.set()
        if self._shared is not None:
            task = asyncio.ensure_future(self._publish(hold.key, budget, hold.at))
            self._publishing.add(task)
            task.add_done_callback(self._publishing.discard)

    async def refresh(self) -> None:
        """Renew the reservations here, and publish the spending again to a Redis that has lost it."""
        if self.ledger is None or (not self._holds and self._shared is None):
            return
        with contextlib.suppress(LedgerUnavailable):  # which is logged where the file is opened
            await self._refreshed(self.ledger, self._shared)

    async def _refreshed(self, ledger: SpendLedger, shared: SharedState | None) -> None:
        """Renew the reservations of running calls, and publish this machine's spending to the shared state."""
        if shared is not None:
            if not self._machine:
                self._machine = await self._run(books.machine_of)
            if await shared.knows_spending_of(self._machine) is False and await self._publish_all():
                await shared.mark_spending_of(self._machine)
        now = time.monotonic()
        if now - self._renewed < _RENEW_SECONDS:
            return
        self._renewed = now
        for key, bucket in await self._run(books.untold_buckets) if shared is not None else ():
            await self._query_redis("read", key, KeyBudget(), "", bucket)
        owner = ledger.owner
        moment = self.clock()
        await self._run(lambda db: books.renew(db, owner, moment))
        if shared is not None:
            for hold, budget in list(self._holds.values()):
                await self._query_redis("renew", hold.key, budget, hold.id, bucket_of(budget.period, hold.at))

    async def close(self) -> None:
        """Write the pending entries, and close the ledger."""
        await asyncio.gather(*self._publishing, return_exceptions=True)
        if self.ledger is not None:
            await asyncio.to_thread(self.ledger.close)

    async def _reserved(self, hold: Hold, budget: KeyBudget, model: str) -> tuple[Standing, str | None]:
        ledger = self.ledger
        now = self.clock()
        if ledger is None:
            raise _unavailable("no `ledger.path` is set")
        if self._shared is not None:
            bucket = bucket_of(budget.period, hold.at)
            reply = await self._query_redis("reserve", hold.key, budget, hold.id, bucket, hold.tokens, hold.cost)
            if reply is not None:
                return Standing(0, *reply[1:]), _LIMITS[reply[0]]
            if self._on_loss == "refuse":
                raise _unavailable("Redis, which counts for all machines, cannot be reached")
        owner = ledger.owner
        return await self._run(
            lambda db: books.reserve(db, hold, hold.tokens, hold.cost, budget, model=model, owner=owner, now=now)
        )

    async def _publish(self, key: str, budget: KeyBudget, at: float) -> None:
        """Publish the spending of a key to Redis; after a failure, the next call or refresh publishes it."""
        with contextlib.suppress(LedgerUnavailable):
            await self._query_redis("read", key, budget, "", bucket_of(budget.period, at))

    async def _query_redis(
        self, act: SpendAct, key: str, budget: KeyBudget, hold_id: str, bucket: str, tokens: int = 0, cost: int = 0
    ) -> list[int] | None:
        """Publish what a key has spent here and run a step of the budget script; None while Redis is away."""
        ledger = self.ledger
        shared = self._shared
        if ledger is None or shared is None or shared.down:
            return None
        if not self._machine:
            self._machine = await self._run(books.machine_of)
        here = await self._run(lambda db: books.snapshot(db, key, bucket))
        limits = [-1 if each is None else each for each in (budget.max_tokens, budget.nanos, budget.max_concurrent)]
        now = self.clock()
        end = period_end(bucket.partition(":")[0], now) if ":" in bucket else None
        life = 0 if end is None else math.ceil(end.timestamp() - now) + _KEEP_SECONDS
        arguments: list[int | float | str] = [self._machine, hold_id, here.tokens, here.cost, tokens, cost, *limits]
        reply = await shared.spend(
            act, f"{{{key}}}:{bucket}", [*arguments, books.LEASE_SECONDS, life, *here.settled_holds]
        )
        if reply is not None and here.settled_holds:
            ledger.post(lambda db: books.prune_published(db, here.settled_holds))
        return reply

    async def _publish_all(self) -> bool:
        """Publish what every key has spent here in the current periods, and what is reserved."""
        now = self.clock()
        is_complete = True
        for key, bucket in await self._run(lambda db: books.sums_at(db, now)):
            is_complete &= await self._query_redis("read", key, KeyBudget(), "", bucket) is not None
        for hold, budget in list(self._holds.values()):
            bucket = bucket_of(budget.period, hold.at)
            reply = await self._query_redis("restore", hold.key, budget, hold.id, bucket, hold.tokens, hold.cost)
            is_complete &= reply is not None
        return is_complete

    async def _run(self, act: Callable[[sqlite3.Connection], T]) -> T:
        if self.ledger is None:
            raise _unavailable("no `ledger.path` is set")
        try:
            return await self.ledger.run(act)
        except (sqlite3.Error, OSError, OverflowError) as error:
            raise _unavailable(str(error)) from error

    def _warn(self, hold: Hold, budget: KeyBudget, stands: Standing, now: float) -> None:
        """Log that a soft limit is exceeded, once per period."""
        mark = (hold.key, bucket_of(budget.period, now))
        if mark not in self._warned:
            self._warned = {each for each in self._warned if each[0] != hold.key} | {mark}
            _log.warning(
                "budget: soft limit passed, key=%r, tokens=%s, money=%.6g",
                hold.name,
                stands.tokens,
                stands.cost / NANOS,
            )


class _Queue:
    """The calls of a key that wait for room: the first checks for room, the others queue behind it."""

    __slots__ = ("released", "turn", "waiting")

    def __init__(self) -> None:
        self.turn = asyncio.Lock()
        self.released = asyncio.Event()
        self.waiting = 0


def _unavailable(reason: str) -> LedgerUnavailable:
    return LedgerUnavailable(
        f"What this API key has spent cannot be looked up now: {reason}", hint="Try again in a moment.", retry_after=2
    )


class CallSpending:
    """One call: its reservation, and the charges of its attempts."""

    def __init__(self, spending: Spending, caller: Caller, record: CallRecord) -> None:
        self._spending = spending
        self._caller = caller
        self._record = record
        self._attempts: list[AttemptCharge] = []
        self._hold: Hold | None = None

    @property
    def assumed_output(self) -> int:
        """The tokens that are reserved for an answer to a request without a limit."""
        return self._spending.assumed_output

    def check_prices(self, models: Sequence[str]) -> None:
        """Raise `NoPrice` for the first of these models (`provider/model`) that needs a price and has none."""
        budget = self._caller.budget
        if budget is None or not budget.is_of_money:
            return
        for model in models:
            if not is_known(self._spending.price_of(model)):
                raise NoPrice(
                    f"The API key {self._caller.name!r} has a budget of money, and the price of {model!r} is not known",
                    hint=f"Set it in slipform.yaml: `prices: {{{model}: {{input: …, output: …}}}}`, in money for a "
                    "million tokens; 0 is a price.",
                )

    async def begin(
        self, model: str, body: bytes, output: OutputRequest, *, codec: str = "", media: Sequence[int] = ()
    ) -> AttemptCharge:
        """Reserve the highest cost of another attempt before these bytes are sent; raises where the budget has no room.

        `output` is the output limit in the request; `media` are the sizes of its files.
        """
        attempt = AttemptCharge(model, self._spending.price_of(model))
        budget = self._caller.budget
        if budget is not None:
            self.check_prices((model,))
            size = partial(estimate_input, body, media, codec)
            tokens = await asyncio.to_thread(size) if len(body) >= LARGE_BYTES else size()
            limit = self.assumed_output if output.limit is None else output.limit
            attempt.reserved = Usage(tokens, limit * output.answers)
            await self._reserve(attempt, budget)
        self._attempts.append(attempt)
        return attempt

    async def _reserve(self, attempt: AttemptCharge, budget: KeyBudget) -> None:
        """Reserve the charges of the earlier attempts and the highest cost of this one."""
        first = self._hold is None
        hold = self._hold or Hold(secrets.token_hex(12), self._caller.id, self._caller.name, self._spending.clock())
        charges = [(each, each.charged()) for each in self._attempts]
        charges.append((attempt, attempt.reserved))
        tokens = sum((usage.input or 0) + (usage.output or 0) for _, usage in charges)
        cost = sum(each.nanos(usage) or 0 for each, usage in charges)
        hold = hold._replace(tokens=tokens, cost=cost)
        try:
            stands = await self._spending.reserve(hold, budget, attempt.model)
        except (asyncio.CancelledError, LedgerUnavailable):
            if first:  # the caller left, or no answer arrived: the reservation may exist nevertheless
                self._spending.release(hold, budget)
            raise
        self._hold = hold
        self._record.budget_headers = tuple(remaining_headers(budget, stands))

    async def begin_forwarded(
        self, model: str, api: str, body: bytes, *, codec: str, vendor_field: str | None
    ) -> bytes:
        """Reserve for a forwarded request; return its bytes, with the reserved output limit where the key has limits.

        `vendor_field` is the vendor's field for the limit, where the API has several.
        """
        if self._caller.budget is None:
            await self.begin(model, body, OutputRequest())
            return body
        limit = partial(sent_output, api, body, self.assumed_output, vendor_field)
        sent, output = await asyncio.to_thread(limit) if len(body) >= LARGE_BYTES else limit()
        body = sent if self._caller.is_limited else body
        await self.begin(model, body, output, codec=codec)
        return body

    async def begin_request(self, route: ModelRoute, request: ModelRequest) -> tuple[AttemptCharge, ModelRequest]:
        """Reserve for a request of the engine; return it, with the reserved output limit where the key has limits."""
        model = route.router.full_name(request.model)
        if self._caller.budget is None:
            return await self.begin(model, b"", OutputRequest()), request
        if request.max_tokens is None and self._caller.is_limited:
            request = request.replace(max_tokens=self.assumed_output)
        provider, upstream = route.router.resolve(request.model)
        encode = partial(_encoded, provider, request.replace(model=upstream))
        body, codec = await off_loop(encode) if is_heavy(request) else encode()
        return await self.begin(model, body, _output_of(request), codec=codec), request

    def meter_stream(self, api: str, rewrite: Rewrite | None) -> Rewrite | None:
        """Return a function that rewrites the pieces of the current stream, by `rewrite` if given, and counts them."""
        if self._caller.budget is None:
            return rewrite
        attempt = self._attempts[-1]
        meter = StreamMeter(api)

        def feed(data: bytes) -> bytes:
            meter.feed(data)
            attempt.text_bytes = meter.text_bytes
            attempt.pieces = meter.pieces
            attempt.report(meter.usage)
            return data if rewrite is None else rewrite(data)

        return feed

    def forwarded(self) -> None:
        """Note that the answer to the current attempt has been forwarded, as far as it arrived."""
        record = self._record
        if record.status >= 400:
            self.refused()
        elif record.outcome == "ok":
            self._attempts[-1].report(record.tokens)
            self._attempts[-1].is_complete = True

    def failed(self, error: BaseException) -> None:
        """Note that the current attempt has failed: it is free where the vendor refused it, or never received it."""
        if isinstance(error, UpstreamError) and (
            error.status is not None or error.details.get("phase") in ("connect", "send")
        ):
            self.refused()

    def refused(self) -> None:
        """Note that the vendor answered the current attempt with an error, unless it has generated something."""
        if self._attempts and not self._attempts[-1].text_bytes:
            self._attempts[-1].is_refused = True

    def finish(self, error: SlipformError | None = None) -> None:
        """End the call, and record its cost."""
        record = self._record
        attempts = self._attempts
        if not attempts and not record.cached:
            return
        model = attempts[-1].model if attempts else f"{record.provider}/{record.upstream_model}"
        charges = [(each, each.charged()) for each in attempts]
        costs = [each.nanos(usage) for each, usage in charges]
        entry = CallEntry(
            at=self._spending.clock(),
            key=self._caller.id,
            name=self._caller.name,
            request=record.request_id,
            model=model,
            tokens_in=sum(usage.input or 0 for _, usage in charges),
            tokens_out=sum(usage.output or 0 for _, usage in charges),
            cost=None if None in costs else sum(cost or 0 for cost in costs),
            attempts=len(attempts),
            outcome=error.code if error else record.outcome,
        )
        self._spending.settle(self._hold, self._caller.budget, entry)


def _output_of(request: ModelRequest) -> OutputRequest:
    """Return the output limits of a request of the engine; the number of answers is in its vendor's fields."""
    answers = requested_output(request.extra_for or "openai-chat", request.extra).answers
    limit = request.max_tokens
    return OutputRequest(None if limit is None or limit <= 0 else min(limit, MAX_LIMIT), answers)


def _encoded(provider: Provider, request: ModelRequest) -> tuple[bytes, str]:
    """Return a request as its vendor receives it, and the vendor's codec."""
    if isinstance(provider, HttpProvider):
        codec = provider.codec_for(request.model, request.response_format)
    else:
        codec = make_codec("openai-chat", provider.capabilities(request.model))
    return codec.encode_request(request, stream=False).body, codec.name


def metered(route: ModelRoute, spending: CallSpending) -> AsyncModel:
    """Return a model that reserves before each request of a route, and counts its answer."""
    from slipform.engine.drive import AsyncModel

    async def complete(request: ModelRequest) -> ModelResponse:
        attempt, request = await spending.begin_request(route, request)
        try:
            response = await route.complete_async(request)
        except BaseException as error:
            spending.failed(error)
            raise
        attempt.add_texts([response.text, *[call.arguments for call in response.tool_calls]])
        attempt.report(response.usage)
        attempt.is_complete = True
        return response

    async def stream(request: ModelRequest, sink: ChunkSink) -> AsyncGenerator[Sequence[CompletionChunk], None]:
        attempt, request = await spending.begin_request(route, request)
        try:
            async with aclosing(route.batches_async(request, _MeteredSink(attempt, sink))) as batches:
                async for batch in batches:
                    yield batch
        except BaseException as error:
            spending.failed(error)
            raise
        attempt.is_complete = True

    return AsyncModel(complete, stream)


def ledger_path(settings: Settings, environment: Mapping[str, str]) -> Path | None:
    """Return the path of the ledger: configured, else beside the key file, else in systemd's state folder.

    >>> from slipform.config import read_settings
    >>> ledger_path(read_settings("server: {keys_file: keys.json}"), {}).as_posix()
    'keys.json.ledger.db'
    """
    if settings.ledger.path is not None:
        return Path(settings.ledger.path)
    if settings.server.keys_file is None:
        return None
    keys = Path(settings.server.keys_file)
    folder = environment.get("STATE_DIRECTORY", "").partition(":")[0]
    return (Path(folder) if folder else keys.parent) / f"{keys.name}.ledger.db"
