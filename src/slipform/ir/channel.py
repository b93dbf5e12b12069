"""One growing text with its parser: what is new is read once, the value keeps its identity."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

from slipform.ir.lift import Lift
from slipform.ir.messages import UNRESOLVED


class JsonParser(Protocol):
    """What the reducer needs of a streaming parser; it is immutable, each call gives the next one."""

    @property
    def value(self) -> Any:
        """The value read so far."""
        ...

    @property
    def complete(self) -> bool:
        """Whether the value has closed."""
        ...

    @property
    def error(self) -> Any:
        """What is wrong with the text, or None."""
        ...

    def feed(self, chunk: str, /) -> JsonParser:
        """The parser after these characters."""
        ...

    def finish(self) -> JsonParser:
        """The parser at the end of the text."""
        ...


Resolver: TypeAlias = Callable[[Any, Any, Any], Any]
"""`resolve(schema, parser, cache)`: a match has a `value`, what can match no more has a `message`, the rest waits."""


class Reading(NamedTuple):
    """What texts are read with: a maker of parsers, a resolver, and a maker of the resolver's caches."""

    parser: Callable[[], JsonParser]
    resolve: Resolver
    cache: Callable[[], Any] = dict


class Channel:
    """One growing text: its parser, its cache, and the last value that matched."""

    __slots__ = (
        "_cache",
        "_deferred",
        "_fed",
        "_lift",
        "_live",
        "_parser",
        "_resolve",
        "_schema",
        "error",
        "mismatch",
        "value",
    )

    def __init__(self, schema: Mapping[str, Any], reading: Reading, *, deferred: bool) -> None:
        self._schema = schema
        self._parser = reading.parser()
        self._resolve = reading.resolve
        self._deferred = deferred
        self._cache = reading.cache()
        self._fed = 0
        self._lift: Lift | None = None
        self._live: Callable[..., Any] | None = None
        self.value: Any = UNRESOLVED
        self.error: str | None = None
        self.mismatch = False
        """Whether the error is that good JSON does not match the schema."""

    def lift_with(self, lift: Lift) -> None:
        """The text is in the vendor's shape: show it in the caller's, while it grows if that can be done."""
        self._lift = lift
        if lift.growing is not None:
            self._live = lift.growing()
            self._schema = lift.schema

    def sync(self, pieces: Sequence[str]) -> Any:
        """Read the pieces that are new and give the value the text has now."""
        if len(pieces) > self._fed:
            self._parser = self._parser.feed("".join(pieces[self._fed :]))
            self._fed = len(pieces)
            self._settle()
        return self.value

    def close(self, pieces: Sequence[str]) -> None:
        """Read the rest and settle value and error."""
        self.sync(pieces)
        self._parser = self._parser.finish()
        self._settle(final=True)

    def _settle(self, *, final: bool = False) -> None:
        if self.error is not None:
            return
        if self._parser.error is not None:
            self.error = str(self._parser.error)
            return
        whole = self._parser.complete
        if not whole and final:
            self.error = "the text ended before the value was whole"
            return
        if self._lift is not None and self._live is None:
            if whole:
                self.value = self._lift(self._parser.value)
            return
        if self._deferred and not whole:
            return
        match = self._resolve(self._schema, self._parser, self._cache)
        found = getattr(match, "value", UNRESOLVED)
        if found is not UNRESOLVED:
            self._show(found, whole=whole)
        elif whole or hasattr(match, "message"):
            self.mismatch = True
            self.error = f"the value does not match the schema: {match}"

    def _show(self, value: Any, *, whole: bool) -> None:
        if self._live is None or self._lift is None:
            self.value = value
            return
        shown = self._live(value, done=whole)
        if shown is not self._lift.pending:
            self.value = shown


def default_reading() -> Reading:
    """Slipform's own parser and resolver, imported when they are first needed."""
    from importlib import import_module

    text = import_module("slipform.text.resolve")
    return Reading(import_module("slipform.text.parser").Parser, text.resolve, text.ResolveCache)
