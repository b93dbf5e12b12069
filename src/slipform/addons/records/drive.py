"""Answer the questions of a session: concurrent calls, one budget, a journal to resume from, and progress."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any, Protocol

import msgspec

from slipform.addons.batch.batch_log import is_batch_line
from slipform.addons.batch.journal import Journal
from slipform.addons.batch.scheduler import AdaptiveConcurrency, GiveUpPolicy, is_fatal, is_temporary
from slipform.addons.records.calls import FinishedCall
from slipform.addons.records.result import ExtractionReport, Progress
from slipform.addons.records.segments import Question
from slipform.addons.records.session import ExtractionSession, PieceAnswer
from slipform.errors import ConfigError, RateLimitError, UpstreamError, UpstreamRequestError
from slipform.ir import Usage

_BYTES_PER_TOKEN = 4
_ALL_AT_ONCE = 1_000_000
_SAMPLE_CHARS = 500


@dataclass(frozen=True, slots=True)
class Limits:
    """What an extraction may take in all."""

    cost: float | None = None
    tokens: int | None = None
    seconds: float | None = None
    calls: int | None = None
    concurrency: int = 8


def all_at_once(limits: Limits) -> Limits:
    """Return the limits for questions that wait together for a batch."""
    return replace(limits, concurrency=_ALL_AT_ONCE)


class QuestionFunction(Protocol):
    """Answers questions; `Caller`, and fakes in tests."""

    async def ask(self, question: Question) -> FinishedCall:
        """Return the answer; raises `UpstreamError` when the vendor fails."""
        ...


class _JournalCall(msgspec.Struct, frozen=True):
    """A call in the journal."""

    key: str
    call: FinishedCall


class CallJournal:
    """The answers of an extraction in a file; the same questions are answered from it."""

    def __init__(self, path: Path, job: dict[str, Any]) -> None:
        self._journal = Journal.open(path, job)
        self._calls: dict[str, FinishedCall] = {}
        for body in self._journal.calls():
            if is_batch_line(body):
                continue
            entry = _DECODER.decode(body)
            self._calls[entry.key] = entry.call

    @property
    def lines(self) -> Journal:
        """The file itself."""
        return self._journal

    def find(self, key: str) -> FinishedCall | None:
        """Return the answer to a question that was asked before."""
        return self._calls.get(key)

    def add(self, key: str, call: FinishedCall) -> None:
        """Write an answer."""
        self._journal.add_call(_ENCODER.encode(_JournalCall(key, call)))

    def close(self) -> None:
        """Sync and close the file."""
        self._journal.close()


_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder(_JournalCall)


@dataclass(slots=True)
class ExtractionTally:
    """What the calls of an extraction took so far."""

    limits: Limits
    started: float = field(default_factory=time.monotonic)
    calls: int = 0
    resumed: int = 0
    in_flight: int = 0
    usage: Usage = field(default_factory=Usage)
    cost: float | None = None
    stopped: str | None = None
    """The budget that is spent."""
    first_cost: Callable[[Question], float | None] | None = None
    """What a question may cost before the cost of any is known; None where the first answers come soon."""

    def add(self, call: FinishedCall) -> None:
        """Count an answer."""
        self.usage = self.usage + call.usage
        if call.cost is not None:
            self.cost = (self.cost or 0.0) + call.cost

    @property
    def tokens(self) -> int:
        """All tokens so far."""
        return (self.usage.input or 0) + (self.usage.output or 0)

    def may_start(self, question: Question) -> bool:
        """Whether the budget has room for another call, those in flight included."""
        if self.stopped is None:
            self.stopped = self._spent(question)
        return self.stopped is None

    def _spent(self, question: Question) -> str | None:
        limits = self.limits
        finished = max(1, self.calls + self.resumed - self.in_flight)
        mean_tokens = self.tokens / finished or len(question.text) / _BYTES_PER_TOKEN
        mean_cost = (self.cost or 0.0) / finished
        if self.cost is None and self.first_cost is not None:
            mean_cost = self.first_cost(question) or 0.0
        pending = self.in_flight + 1
        if limits.calls is not None and self.calls >= limits.calls:
            return f"max_calls={limits.calls:,}"
        if limits.tokens is not None and self.tokens + pending * mean_tokens > limits.tokens:
            return f"max_tokens={limits.tokens:,}"
        if limits.cost is not None and (self.cost or 0.0) + pending * mean_cost > limits.cost:
            return f"max_cost={limits.cost:g}"
        if limits.seconds is not None and time.monotonic() - self.started >= limits.seconds:
            return f"max_seconds={limits.seconds:g}"
        return None

    def report(self) -> ExtractionReport:
        """Return the totals."""
        seconds = time.monotonic() - self.started
        return ExtractionReport(self.calls + self.resumed, self.usage, self.cost, seconds, self.resumed)


class Driver:
    """Answers the questions of sessions, several at a time."""

    def __init__(
        self,
        tally: ExtractionTally,
        journal: CallJournal | None = None,
        on_progress: Callable[[Progress], None] | None = None,
    ) -> None:
        self.tally = tally
        self._journal = journal
        self._on_progress = on_progress
        self._pace = AdaptiveConcurrency(tally.limits.concurrency)
        self._policy = GiveUpPolicy()
        self._has_answer = False
        """Whether the vendor has answered a question, or may answer a shorter one."""
        self._done = 0
        self._questions = 0

    async def run(
        self,
        session: ExtractionSession,
        caller: QuestionFunction,
        on_round: Callable[[], None] | None = None,
        name: str = "",
    ) -> None:
        """Run a session to its end; call `on_round` after each round. `name` identifies the session in the journal."""
        rounds = session.run()
        try:
            questions = next(rounds)
            while True:
                answers = await self.answer_all(questions, caller, session, name)
                questions = rounds.send(answers)
                if on_round is not None:
                    on_round()
        except StopIteration:
            return

    async def answer_all(
        self, questions: Sequence[Question], caller: QuestionFunction, session: ExtractionSession, name: str
    ) -> list[PieceAnswer]:
        """Return the answers to these questions, in their order."""
        self._questions += len(questions)
        answers: list[PieceAnswer | None] = [None] * len(questions)

        async def answer(number: int) -> None:
            answers[number] = await self._answer(questions[number], caller, name)
            self._done += 1
            self._report_progress(session)

        try:
            async with asyncio.TaskGroup() as group:
                for number in range(len(questions)):
                    group.create_task(answer(number))
        except BaseExceptionGroup as error_group:
            raise error_group.exceptions[0] from None
        finished = [each for each in answers if each is not None]
        if not self._has_answer and finished:
            self._has_answer = not all(each.is_refused for each in finished)
            is_live = self.tally.limits.concurrency < _ALL_AT_ONCE
            if not self._has_answer and is_live:
                await self._check_refusal(questions[0], caller)
        return finished

    async def _check_refusal(self, question: Question, caller: QuestionFunction) -> None:
        """Raise the vendor's reason if it refuses a short text as well: smaller pieces would be refused, too."""
        sample = msgspec.structs.replace(question, text=question.text[:_SAMPLE_CHARS])
        if not self.tally.may_start(sample):
            return
        await self._pace.acquire()
        try:
            call = await self._with_retries(sample, caller)
        finally:
            self._pace.release()
        self.tally.calls += 1
        self.tally.add(call)
        self._has_answer = True
        if call.answer.is_refused:
            raise UpstreamRequestError(call.answer.failure or "")

    async def _answer(self, question: Question, caller: QuestionFunction, name: str) -> PieceAnswer:
        key = question_key(question, name)
        earlier = self._journal.find(key) if self._journal is not None else None
        if earlier is not None:
            self.tally.resumed += 1
            self.tally.add(earlier)
            return earlier.answer
        await self._pace.acquire()
        try:
            if not self.tally.may_start(question):
                return PieceAnswer(failure=f"not asked: {self.tally.stopped} was reached")
            return await self._call(question, caller, key)
        finally:
            self._pace.release()

    async def _call(self, question: Question, caller: QuestionFunction, key: str) -> PieceAnswer:
        self.tally.calls += 1
        self.tally.in_flight += 1
        try:
            call = await self._with_retries(question, caller)
        finally:
            self.tally.in_flight -= 1
        self.tally.add(call)
        if self.tally.limits.cost is not None and self.tally.cost is None:
            raise ConfigError(
                "`max_cost` cannot be kept: no price is known for the model",
                hint="Add it to `prices` in slipform.yaml, or limit max_tokens or max_calls.",
            )
        is_retried = call.answer.failure and call.answer.retryable and call.answer.splits <= question.depth
        if self._journal is not None and not is_retried:
            self._journal.add(key, call)
        return call.answer

    async def _with_retries(self, question: Question, caller: QuestionFunction) -> FinishedCall:
        retries = 0
        while True:
            started = self._pace.now()
            try:
                call = await caller.ask(question)
            except RateLimitError as error:
                if error.details.get("retryable") is False or (error.retry_after or 0) > self._policy.longest_wait:
                    raise
                self._pace.refused(started, error.retry_after)
                self._pace.release()
                await self._pace.acquire()
            except UpstreamError as error:
                retries += 1
                if not is_temporary(error) or retries > self._policy.retries:
                    if is_fatal(error):
                        raise
                    return FinishedCall(PieceAnswer(failure=str(error), retryable=True))
                await asyncio.sleep(error.retry_after or self._policy.pause * 2.0 ** (retries - 1))
            else:
                self._pace.succeeded()
                return call

    def _report_progress(self, session: ExtractionSession) -> None:
        if self._on_progress is None:
            return
        seconds = time.monotonic() - self.tally.started
        left = self._questions - self._done
        eta = seconds / self._done * left if self._done else None
        records = len(session.placement.claims) or len(session.candidates)
        self._on_progress(Progress(self._done, self._questions, records, len(session.suspects), self.tally.cost, eta))


def question_key(question: Question, name: str) -> str:
    """Return what a question is recognized by in a journal; `name` is that of its session."""
    text = f"{name}\0{question.repeat}\0{question.text}"
    return blake2b(text.encode("utf-8", "surrogatepass") + question.image, digest_size=16).hexdigest()
