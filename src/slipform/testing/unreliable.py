"""Simulate a model that reads well but answers badly: `UnreliableModel`, to test pipelines over long documents."""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, TypeAlias

from slipform.codecs import Capabilities
from slipform.ir import ModelRequest, ModelResponse, Usage
from slipform.testing.model import FakeModel

RecordReader: TypeAlias = Callable[[str], Any]
"""Returns the perfect answer: a list of records, or an object with lists in it."""
_DIGIT = re.compile(r"\d")
_CHARACTERS_PER_TOKEN = 4


@dataclass(frozen=True, slots=True)
class Faults:
    """The probability of each fault, between 0 and 1."""

    skipped: float = 0.10
    """Records that are omitted from one answer."""
    repeated: float = 0.02
    merged: float = 0.01
    """Pairs of neighbours that are merged into one record."""
    invented: float = 0.01
    misread: float = 0.005
    """Records with one wrong digit."""
    swapped: float = 0.01
    """Pairs of neighbours in the wrong order."""
    truncated: float = 0.10
    """Answers that are cut at a random character, as by a token limit."""
    stopped: float = 0.03
    """Answers that end early, after 30 to 90 % of their records."""
    hidden: float = 0.0
    """Records that are omitted from every answer."""


class UnreliableModel(FakeModel):
    """A provider that reads its input correctly and then makes mistakes, the same ones for the same seed.

    `read` gets the text of the last user message and returns the right records. The mistakes of a call depend on the
    seed, on its text and on how often that text came before, not on the order of concurrent calls.

    >>> model = UnreliableModel(lambda text: [{"word": word} for word in text.split()], Faults(0, 0, 0, 0, 0, 0, 0, 0))
    >>> from slipform.ir import Message
    >>> model.complete(ModelRequest("any", (Message.user("one two"),))).text
    '[{"word": "one"}, {"word": "two"}]'
    """

    def __init__(
        self, read: RecordReader, faults: Faults | None = None, seed: int = 0, *, name: str = "unreliable"
    ) -> None:
        capabilities = Capabilities(native=True)
        super().__init__(self._respond, name=name, capabilities=capabilities)
        self._read = read
        self._faults = faults or Faults()
        self._seed = seed
        self._repeats: Counter[str] = Counter()

    def _respond(self, request: ModelRequest) -> ModelResponse:
        text = request.messages[-1].text
        with self._lock:
            self._repeats[text] += 1
            repeat = self._repeats[text]
        chance = random.Random(_digest(f"{self._seed}\0{repeat}\0{text}"))  # noqa: S311 — repeatable, not secret
        answer = _with_lists(self._read(text), lambda records: self._spoil(records, chance))
        answer_text = json.dumps(_in_shape(answer, request), ensure_ascii=False)
        is_cut = chance.random() < self._faults.truncated
        if is_cut:
            answer_text = answer_text[: chance.randrange(len(answer_text))]
        prompt = sum(len(message.text) for message in request.messages)
        usage = Usage(input=-(-prompt // _CHARACTERS_PER_TOKEN), output=-(-len(answer_text) // _CHARACTERS_PER_TOKEN))
        return ModelResponse(text=answer_text, finish="length" if is_cut else "stop", usage=usage)

    def _spoil(self, records: Sequence[Any], chance: random.Random) -> list[Any]:
        """Return the records with the faults of single records, and the early stop."""
        faults = self._faults
        spoilt: list[Any] = []
        for record in records:
            if self._is_hidden(record) or chance.random() < faults.skipped:
                continue
            if spoilt and chance.random() < faults.merged:
                spoilt[-1] = _merged(spoilt[-1], record, chance)
                continue
            spoilt.append(_misread(record, chance) if chance.random() < faults.misread else record)
            if chance.random() < faults.repeated:
                spoilt.insert(chance.randrange(len(spoilt) + 1), record)
            if chance.random() < faults.invented:
                spoilt.append(_invented(record, chance))
            if len(spoilt) > 1 and chance.random() < faults.swapped:
                spoilt[-1], spoilt[-2] = spoilt[-2], spoilt[-1]
        if chance.random() < faults.stopped:
            return spoilt[: int(len(spoilt) * chance.uniform(0.3, 0.9))]
        return spoilt

    def _is_hidden(self, record: Any) -> bool:
        share = self._faults.hidden
        if not share:
            return False
        return _digest(f"{self._seed}\0{json.dumps(record, sort_keys=True)}") % 10_000 < share * 10_000


def _digest(text: str) -> int:
    return int.from_bytes(blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest())


def _with_lists(answer: Any, change: Callable[[Sequence[Any]], list[Any]]) -> Any:
    if isinstance(answer, Mapping):
        return {key: change(value) if isinstance(value, list) else value for key, value in answer.items()}
    return change(answer)


def _in_shape(answer: Any, request: ModelRequest) -> Any:
    """Return a list of records under the only list of the requested schema, where that is an object."""
    response_format = request.response_format
    if response_format is None or isinstance(answer, Mapping):
        return answer
    properties = response_format.json_schema.schema.get("properties", {})
    if len(properties) != 1:
        return answer
    return {next(iter(properties)): answer}


def _merged(first: Any, second: Any, chance: random.Random) -> Any:
    if not isinstance(first, Mapping) or not isinstance(second, Mapping):
        return first
    return {key: second.get(key, value) if chance.random() < 0.5 else value for key, value in first.items()}


def _misread(record: Any, chance: random.Random) -> Any:
    """Return a record with one digit of one value changed."""
    if not isinstance(record, Mapping):
        return _with_other_digits(record, chance, most=1)
    names = [name for name, value in record.items() if _has_digit(value)]
    if not names:
        return record
    name = chance.choice(names)
    return {**record, name: _with_other_digits(record[name], chance, most=1)}


def _invented(record: Any, chance: random.Random) -> Any:
    """Return a similar record with other digits everywhere."""
    if not isinstance(record, Mapping):
        return _with_other_digits(record, chance, most=0)
    return {name: _with_other_digits(value, chance, most=0) for name, value in record.items()}


def _has_digit(value: Any) -> bool:
    return not isinstance(value, bool) and isinstance(value, str | int | float) and bool(_DIGIT.search(str(value)))


def _with_other_digits(value: Any, chance: random.Random, *, most: int) -> Any:
    """Return a value with `most` of its digits, or all of them (0), replaced; never with a leading zero."""
    if not _has_digit(value):
        return value
    text = str(value)
    places = [match.start() for match in _DIGIT.finditer(text)]
    chosen = set(chance.sample(places, most) if most else places)
    digits = [_other_digit(sign, chance) if place in chosen else sign for place, sign in enumerate(text)]
    changed = "".join(digits)
    return changed if isinstance(value, str) else type(value)(changed)


def _other_digit(digit: str, chance: random.Random) -> str:
    return chance.choice([other for other in "123456789" if other != digit])
