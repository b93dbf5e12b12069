"""Count what calls cost, and keep keys within their budgets: reserve before each attempt, settle when the call is over.

What a call may cost is estimated: its bytes, what it allows the model to write, at the price of the model. That much is
held before the vendor is asked, so calls that run at the same time cannot spend the same money. Afterwards the vendor's
own count takes its place. What was sent and never told (a client that left, a vendor without usage) counts as
estimated.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import re
import secrets
import sqlite3
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import orjson

from slipform.enforce import Report
from slipform.engine.setup import Price, cost_of, guess_tokens, price_of
from slipform.errors import SlipformError, UpstreamError
from slipform.ir import CompletionChunk, ModelRequest, ModelResponse, Usage
from slipform.proxy.admission import ledger as books
from slipform.proxy.admission.budgets import (
    NANOS,
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
from slipform.proxy.admission.ledger import CallEntry, Hold, SpendLedger
from slipform.proxy.admission.refusals import TooManyRequests
from slipform.proxy.observability.call_record import CallRecord
from slipform.schema.limits import LARGE_BYTES

if TYPE_CHECKING:
    from slipform.config import Settings
    from slipform.engine.drive import AsyncModel
    from slipform.engine.planning import ModelRoute
    from slipform.ir.response import ChunkSink
    from slipform.proxy.admission.admission import Caller
    from slipform.proxy.admission.shared_state import SharedState, SpendAct

T = TypeVar("T")
_log = logging.getLogger("slipform.server")
_BYTES_PER_TOKEN = 3
_TEMPLATE_TOKENS = 32
"""What a vendor's chat template adds to a conversation."""
_ADDED_TOKENS = 1_000
"""What slipform may add to the prompt of an enforced call: the schema once more, an example, instructions."""
_ENCODED = re.compile(rb"(?<![A-Za-z0-9+/=_-])[A-Za-z0-9+/=_-]{4096,}")
_MEDIA_TOKENS, _MEDIA_BYTES_PER_TOKEN = 1_000, 40
"""An image, a recording or a document within a body: its bytes say little of its tokens."""
_RENEW_SECONDS = 10.0
_MOST_ASKING = 8
"""Questions to Redis at the same time: hundreds of calls that come at once would each open a connection."""
_KEEP_SECONDS = 2 * 86_400
"""How long Redis keeps a period that is over."""
_LIMITS: Final = (None, "concurrent", "tokens", "cost")


def estimate_input(body: bytes, media: Sequence[int] = ()) -> int:
    """About how many tokens a request's bytes are, rather too many than too few; `media` are sizes of files among them.

    >>> estimate_input(b"x" * 300)
    132
    """
    size, tokens = len(body) - sum(media), _TEMPLATE_TOKENS
    tokens += sum(_MEDIA_TOKENS + length // _MEDIA_BYTES_PER_TOKEN for length in media)
    if size > 4096 and not media:
        for found in _ENCODED.finditer(body):
            length = found.end() - found.start()
            size -= length
            tokens += _MEDIA_TOKENS + length // _MEDIA_BYTES_PER_TOKEN
    return tokens + math.ceil(size / _BYTES_PER_TOKEN)


_OUTPUT_FIELDS = ("max_completion_tokens", "max_output_tokens", "max_tokens", "maxOutputTokens", "num_predict")
_COUNT_FIELDS = ("n", "candidateCount", "best_of")
_INNER_FIELDS = ("generationConfig", "generation_config", "options")


def requested_output(body: bytes, assumed: int) -> int:
    """How many tokens a request lets the model write, over all the answers it asks for.

    >>> requested_output(b'{"max_tokens": 50, "n": 2}', 1024)
    100
    """
    try:
        data = orjson.loads(body)
    except orjson.JSONDecodeError:
        return assumed
    fields: dict[str, Any] = dict(data) if isinstance(data, Mapping) else {}
    for name in _INNER_FIELDS:
        if isinstance(inner := fields.get(name), Mapping):
            fields.update(inner)
    return _largest(fields, _OUTPUT_FIELDS, assumed) * _largest(fields, _COUNT_FIELDS, 1)


def _largest(fields: Mapping[str, Any], names: Sequence[str], default: int) -> int:
    counts = [value for name in names if isinstance(value := fields.get(name), int) and value > 0]
    return max(counts, default=default)


@dataclass(eq=False, slots=True)
class _Attempt:
    """One call to a vendor: what it was expected to take, and whether it came to nothing."""

    model: str
    price: Price | None
    expected: Usage
    refused: bool = False

    def usage(self, told: Usage, text: str = "") -> Usage:
        """What it took: as the vendor told, and as was expected where it did not."""
        output = told.output
        if output is None and told.total is not None and told.input is not None:
            output = max(0, told.total - told.input)
        if output is None:
            output = guess_tokens(text) if text else self.expected.output
        return Usage(self.expected.input if told.input is None else told.input, output)

    def nanos(self, usage: Usage) -> int | None:
        cost = cost_of(self.price, usage)
        return None if cost is None else math.ceil(cost * NANOS - 1e-3)


class Spending:
    """What all calls of one configuration spend: prices, the ledger, and what is shared through Redis."""

    def __init__(
        self,
        prices: Mapping[str, Price],
        ledger: SpendLedger | None,
        settings: Settings,
        shared: SharedState | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.prices = prices
        self.ledger = ledger
        self.assumed_output = settings.ledger.assumed_output_tokens
        self._on_loss = settings.ledger.on_loss
        self._shared = shared if ledger is not None else None
        self.clock = clock
        self._machine = ""
        self._warned: set[tuple[str, str]] = set()
        self._holds: dict[str, tuple[Hold, KeyBudget]] = {}
        """What is held for the calls under way here."""
        self._telling: set[asyncio.Task[None]] = set()
        self._renewed = 0.0
        self._asking = asyncio.Semaphore(_MOST_ASKING)

    async def reserve(self, hold: Hold, tokens: int, cost: int, budget: KeyBudget, model: str) -> tuple[Hold, Standing]:
        """Add so much to what is held for a call; raises where the budget has no room for it."""
        now = self.clock()
        stands, limit = await self._reserved(hold, tokens, cost, budget, model, now)
        if limit == "concurrent":
            raise TooManyRequests(
                f"{stands.live} of your requests are under way, as many as the API key {hold.name!r} may have",
                hint="Wait for one of them to finish.",
                retry_after=1,
            )
        if limit is not None:
            raise budget_refusal(limit, budget, stands, hold.name, tokens, cost, now)
        hold = hold.more(tokens, cost)
        self._holds[hold.id] = hold, budget
        if is_over_soft(budget, stands):
            self._warn(hold, budget, stands, now)
        return hold, stands

    async def standing(self, key: str, budget: KeyBudget) -> Standing:
        """How a key stands now, over all machines where they share a Redis."""
        now = self.clock()
        if self._shared is not None:
            said = await self._ask("read", key, budget, "", bucket_of(budget.period, now))
            if said is not None:
                requests = (await self._run(lambda db: books.standing(db, key, budget.period, now))).requests
                return Standing(requests, *said[1:])
        return await self._run(lambda db: books.standing(db, key, budget.period, now))

    def settle(self, hold: Hold | None, entry: CallEntry) -> None:
        """Write down what a call has cost, and release what was held for it; nothing is waited for."""
        ledger = self.ledger
        if ledger is None:
            return
        if hold is None:
            ledger.post(lambda db: books.settle(db, None, entry.at, entry))
            return
        _, budget = self._holds.pop(hold.id, (hold, None))
        if budget is None or self._shared is None:
            ledger.post(lambda db: books.settle(db, hold.id, hold.at, entry))
            return
        bucket = bucket_of(budget.period, hold.at)
        ledger.post(lambda db: books.settle(db, hold.id, hold.at, entry, tell=bucket))
        task = asyncio.ensure_future(self._told(hold.key, budget, hold.at))
        self._telling.add(task)
        task.add_done_callback(self._telling.discard)

    async def refresh(self) -> None:
        """Renew what is held for the calls under way here, and tell a Redis that has lost it what was spent."""
        if self.ledger is None or (not self._holds and self._shared is None):
            return
        with contextlib.suppress(LedgerUnavailable):  # which is logged where the file is opened
            await self._refreshed(self.ledger, self._shared)

    async def _refreshed(self, ledger: SpendLedger, shared: SharedState | None) -> None:
        if shared is not None:
            if not self._machine:
                self._machine = await self._run(books.machine_of)
            if await shared.knows_spending_of(self._machine) is False and await self._tell_all():
                await shared.mark_spending_of(self._machine)
        now = time.monotonic()
        if now - self._renewed < _RENEW_SECONDS:
            return
        self._renewed = now
        for key, bucket in await self._run(books.untold_buckets) if shared is not None else ():
            await self._ask("read", key, KeyBudget(), "", bucket)
        owner, moment = ledger.owner, self.clock()
        await self._run(lambda db: books.renew(db, owner, moment))
        if shared is not None:
            for hold, budget in list(self._holds.values()):
                await self._ask("renew", hold.key, budget, hold.id, bucket_of(budget.period, hold.at))

    async def close(self) -> None:
        """Write what is left."""
        await asyncio.gather(*self._telling, return_exceptions=True)
        if self.ledger is not None:
            await asyncio.to_thread(self.ledger.close)

    async def _reserved(
        self, hold: Hold, tokens: int, cost: int, budget: KeyBudget, model: str, now: float
    ) -> tuple[Standing, str | None]:
        ledger = self.ledger
        if ledger is None:
            raise _unavailable("no `ledger.path` is set")
        if self._shared is not None:
            bucket = bucket_of(budget.period, hold.at)
            said = await self._ask("reserve", hold.key, budget, hold.id, bucket, tokens, cost)
            if said is not None:
                return Standing(0, *said[1:]), _LIMITS[said[0]]
            if self._on_loss == "refuse":
                raise _unavailable("Redis, which counts for all machines, cannot be reached")
        owner = ledger.owner
        return await self._run(
            lambda db: books.reserve(db, hold, tokens, cost, budget, model=model, owner=owner, now=now)
        )

    async def _told(self, key: str, budget: KeyBudget, at: float) -> None:
        """Tell Redis what a key has spent here; what it was not told, it is told with the next call or refresh."""
        with contextlib.suppress(LedgerUnavailable):
            await self._ask("read", key, budget, "", bucket_of(budget.period, at))

    async def _ask(
        self, act: SpendAct, key: str, budget: KeyBudget, hold_id: str, bucket: str, tokens: int = 0, cost: int = 0
    ) -> list[int] | None:
        """What Redis says of a key, after it was told what the key has spent here; None while it is away."""
        ledger, shared = self.ledger, self._shared
        if ledger is None or shared is None or shared.down:
            return None
        if not self._machine:
            self._machine = await self._run(books.machine_of)
        here = await self._run(lambda db: books.snapshot(db, key, bucket))
        limits = [-1 if each is None else each for each in (budget.max_tokens, budget.nanos, budget.max_concurrent)]
        now = self.clock()
        end = period_end(bucket.partition(":")[0], now) if ":" in bucket else None
        life = 0 if end is None else math.ceil(end.timestamp() - now) + _KEEP_SECONDS
        told: list[int | float | str] = [self._machine, hold_id, here.tokens, here.cost, tokens, cost, *limits]
        async with self._asking:
            said = await shared.spend(act, f"{{{key}}}:{bucket}", [*told, books.LEASE_SECONDS, life, *here.settled])
        if said is not None and here.settled:
            ledger.post(lambda db: books.forget_told(db, here.settled))
        return said

    async def _tell_all(self) -> bool:
        """Tell Redis what every key has spent here in the periods that are not over, and what is held."""
        now, told = self.clock(), True
        for key, bucket in await self._run(lambda db: books.sums_at(db, now)):
            told &= await self._ask("read", key, KeyBudget(), "", bucket) is not None
        for hold, budget in list(self._holds.values()):
            bucket = bucket_of(budget.period, hold.at)
            said = await self._ask("restore", hold.key, budget, hold.id, bucket, hold.tokens, hold.cost)
            told &= said is not None
        return told

    async def _run(self, act: Callable[[sqlite3.Connection], T]) -> T:
        if self.ledger is None:
            raise _unavailable("no `ledger.path` is set")
        try:
            return await self.ledger.run(act)
        except (sqlite3.Error, OSError) as error:
            raise _unavailable(str(error)) from error

    def _warn(self, hold: Hold, budget: KeyBudget, stands: Standing, now: float) -> None:
        """A line of the log when a soft limit is passed, once a period."""
        mark = (hold.key, bucket_of(budget.period, now))
        if mark not in self._warned:
            self._warned = {each for each in self._warned if each[0] != hold.key} | {mark}
            _log.warning(
                "the API key %r has passed its soft limit: %s tokens and %.6g are spent in this period",
                hold.name, stands.tokens, stands.cost / NANOS,
            )  # fmt: skip


def _unavailable(reason: str) -> LedgerUnavailable:
    return LedgerUnavailable(
        f"What this API key has spent cannot be looked up now: {reason}", hint="Try again in a moment.", retry_after=2
    )


class CallSpending:
    """One call: what is held for it, what its attempts were expected to take, and what they did take."""

    def __init__(
        self,
        spending: Spending,
        caller: Caller,
        record: CallRecord,
        body: bytes,
        *,
        enforced: bool,
        media: Sequence[int] = (),
    ) -> None:
        self._spending = spending
        self._caller = caller
        self._record = record
        self._body = body
        self._media = media
        self._enforced = enforced
        self._input = 0
        self._attempts: list[_Attempt] = []
        self._hold: Hold | None = None

    def check_prices(self, models: Sequence[str]) -> None:
        """Raise `NoPrice` for the first of these models (`provider/model`) that has none and needs one."""
        budget = self._caller.budget
        if budget is None or not budget.is_of_money:
            return
        for model in models:
            if price_of(self._spending.prices, model) is None:
                raise NoPrice(
                    f"The API key {self._caller.name!r} has a budget of money, and the price of {model!r} is not known",
                    hint=f"Set it in slipform.yaml: `prices: {{{model}: {{input: …, output: …}}}}`, in money for a "
                    "million tokens; 0 is a price.",
                )

    async def begin(self, model: str, max_tokens: int | None = None) -> None:
        """Hold what one more attempt may cost, before it is sent; raises where the budget has no room for it.

        `max_tokens` is what is assumed of what the model writes where the request does not say; 0 if it only reads.
        """
        attempt = _Attempt(model, price_of(self._spending.prices, model), Usage())
        budget = self._caller.budget
        if budget is not None:
            self.check_prices((model,))
            attempt.expected = await self._expected(max_tokens)
            hold = self._hold or Hold(secrets.token_hex(12), self._caller.id, self._caller.name, self._spending.clock())
            tokens = (attempt.expected.input or 0) + (attempt.expected.output or 0)
            self._hold, stands = await self._spending.reserve(
                hold, tokens, attempt.nanos(attempt.expected) or 0, budget, model
            )
            self._record.budget_headers = tuple(remaining_headers(budget, stands))
        self._attempts.append(attempt)

    async def _expected(self, max_tokens: int | None) -> Usage:
        """What the next attempt may take."""
        if not self._input:
            body, media = self._body, self._media
            read = asyncio.to_thread(estimate_input, body, media) if len(body) >= LARGE_BYTES else None
            tokens = estimate_input(body, media) if read is None else await read
            self._input = tokens + _ADDED_TOKENS * self._enforced
        assumed = self._spending.assumed_output if max_tokens is None else max_tokens
        output = requested_output(self._body, assumed) if assumed else 0
        before = sum(each.expected.output or 0 for each in self._attempts)  # a retry shows the answers before it
        return Usage(self._input + before, output)

    def failed(self, error: BaseException) -> None:
        """The attempt under way has failed: it cost nothing where the vendor refused it, or it was never sent."""
        if isinstance(error, UpstreamError) and (
            error.status is not None or error.details.get("phase") in ("connect", "send")
        ):
            self._attempts[-1].refused = True

    def refused(self) -> None:
        """The vendor answered the attempt under way with an error."""
        if self._attempts:
            self._attempts[-1].refused = True

    def finish(self, error: SlipformError | None = None) -> None:
        """The call is over: write down what it cost."""
        record = self._record
        if not self._attempts and not record.cached:
            return
        report = error.report if error is not None and isinstance(error.report, Report) else record.report
        told = [(record.tokens, "")] if report is None else [(each.usage, each.candidate) for each in report.attempts]
        answered = [each for each in self._attempts if not each.refused]
        total, cost, known = Usage(0, 0), 0, True
        for attempt, (usage, text) in zip(answered, [*told, *[(Usage(), "")] * len(answered)], strict=False):
            usage = attempt.usage(usage, text)
            total += usage
            nanos = attempt.nanos(usage)
            cost, known = cost + (nanos or 0), known and nanos is not None
        model = self._attempts[-1].model if self._attempts else f"{record.provider}/{record.upstream_model}"
        entry = CallEntry(
            self._spending.clock(), self._caller.id, self._caller.name, record.request_id, model, total.input or 0,
            total.output or 0, cost if known else None, len(self._attempts), error.code if error else record.outcome,
        )  # fmt: skip
        self._spending.settle(self._hold, entry)


def metered(route: ModelRoute, spending: CallSpending) -> AsyncModel:
    """What sends a route's requests, each held for before it is sent."""
    from slipform.engine.drive import AsyncModel

    async def begin(request: ModelRequest) -> None:
        await spending.begin(route.router.full_name(request.model), request.max_tokens)

    async def complete(request: ModelRequest) -> ModelResponse:
        await begin(request)
        try:
            return await route.complete_async(request)
        except BaseException as error:
            spending.failed(error)
            raise

    async def stream(request: ModelRequest, sink: ChunkSink) -> AsyncGenerator[Sequence[CompletionChunk], None]:
        await begin(request)
        try:
            async with aclosing(route.batches_async(request, sink)) as batches:
                async for batch in batches:
                    yield batch
        except BaseException as error:
            spending.failed(error)
            raise

    return AsyncModel(complete, stream)


def ledger_path(settings: Settings, environment: Mapping[str, str]) -> Path | None:
    """Where the ledger is: where the settings say, else beside the key file, or in the folder systemd gave for state.

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
