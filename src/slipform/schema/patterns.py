r"""Run and measure callers' regular expressions: the only module that does, and never with Python's `re`.

The engine is the validator's own (`jsonschema-rs`), so that callers and the final verdict agree on a pattern. Its
limit on backtracking does not bound the cost, for two measured reasons. A step of a pattern with look-around may read
the whole text: `(?=.*x)y` takes 17 s on 100 kB with 100,000 steps. And without look-around, the cost is the text's
length times the live positions of the automaton: `[ab]*a[ab]{10000}c` takes 14 s on 100 kB. So `search` limits the
steps of a match according to its text and pattern, and gives up (None) beyond that; the caller then leaves the
keyword to the validator. A schema whose patterns could be costly is validated with `search` too (`CountedPattern`),
within a budget for the whole value.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import cache
from typing import Any, Final, NamedTuple

import jsonschema_rs
from jsonschema_rs import FancyRegexOptions

from slipform.bounded import BoundedCache
from slipform.errors import SchemaError

MAX_PATTERN_WEIGHT = 3_000_000
"""Automaton states of all patterns of one schema together; about 100 MB."""
MAX_STEPS = 100_000
"""The most backtracking steps of the engine for one match."""
MAX_NAME_STEPS = 1_000
"""The same for the name of a property, which the validator matches while it holds the interpreter's lock."""
MAX_MATCH_WORK = 20_000_000
"""Live positions × characters × steps of one match; 2 to 14 ns each."""
MAX_VALUE_WORK = 100_000_000
"""The same for all strings of one value together."""
MAX_NAME_WORK = 30_000_000
"""The same for all names of one value together, which the validator matches at once."""

_NAME_STEPS = 10  # sufficient for a look-ahead at the beginning of a name
_FEW_STEPS = 100  # sufficient for nearly every reasonable pattern, and too cheap to be counted
_UNCOUNTED_PLACES = 500  # of all patterns of a schema; below it, values are validated without counting
_BYTES_PER_STATE = 33
_KNOWN = 256
_REPEAT = re.compile(r"\{(\d{1,7})(?:(,)(\d{0,7}))?\}")
_MAY_BACKTRACK = re.compile(r"\(\?(?!:)|\\[1-9kgKGR]|[*+?}]\+")
_ESCAPE = re.compile(r"\\[pPux]\{[^}]*\}|\\.", re.DOTALL)
_UP_TO = re.compile(r",(\d{1,7})\}")
_CLASSES = frozenset("wWdDsS")
_NAMED_GROUP = re.compile(r"\(\?<([A-Za-z_]\w*)>")
_AMBIGUOUS = re.compile(r"\[\[|--|&&|\|\||~~")  # Python's parser warns about these, and warnings are process-wide
_MAX_PARSED = 2_000
# Python's pattern parser has no public name. It is only used for parsing: its result is never run.
_parser = importlib.import_module("re._parser")


class PatternUse(NamedTuple):
    """The highest cost of a schema's patterns for a value."""

    counted: bool = False
    """Whether the work of matches has to be counted."""
    of_names: tuple[str, ...] = ()
    """The patterns to check names of properties against before validation, where that is needed."""


class MatchBudget:
    """The remaining work for matches in one value, and the number of matches that were given up."""

    __slots__ = ("given_up", "is_spent", "left")

    def __init__(self, work: int = MAX_VALUE_WORK) -> None:
        self.left = work
        self.given_up = 0
        self.is_spent = False

    def spend(self, work: int) -> bool:
        """Use this much of the remaining work; return False where less remains."""
        if work > self.left:
            self.is_spent = True
            return False
        self.left -= work
        return True


_BUDGET: ContextVar[MatchBudget | None] = ContextVar("pattern_budget", default=None)


@contextmanager
def counting() -> Iterator[MatchBudget]:
    """Use one budget for all matches inside, also where this is nested."""
    budget = _BUDGET.get()
    if budget is not None:
        yield budget
        return
    budget = MatchBudget()
    token = _BUDGET.set(budget)
    try:
        yield budget
    finally:
        _BUDGET.reset(token)


def search(pattern: str, text: str) -> bool | None:
    """Return whether a text contains a match of a pattern; None when that would cost too much to find out.

    None also for an invalid expression, and for a text that is not Unicode.

    >>> search("^a", "ab"), search("^a", "ba"), search("(", "a")
    (True, False, None)
    """
    engine = _engine(pattern)
    if engine is None:
        return None
    budget = _BUDGET.get()
    try:
        match = engine.search(text, budget.spend if budget else _is_little)
    except ValueError:  # a lone surrogate
        match = None
    if match is None and budget is not None:
        budget.given_up += 1
    return match


def is_pattern(pattern: str) -> bool:
    """Return whether it is a regular expression that the validator supports, and not too large."""
    return _engine(pattern) is not None


def _escaped(char: str, special: str) -> str:
    return f"\\{char}" if char in special else char


def _class_follows(pattern: str, at: int) -> bool:
    return _ESCAPE.match(pattern, at) is not None and pattern[at + 1] in _CLASSES


def intended_pattern(pattern: str) -> str:
    r"""Return a pattern that the validator refuses in the spelling that other engines read.

    Brackets first in a class or alone, braces that repeat nothing, a dash beside a class such as `\w`: literal.

    >>> intended_pattern("[][]+"), intended_pattern(r"^{[\w-.]}$"), intended_pattern(r"a{,3}\Z")
    ('[\\]\\[]+', '^\\{[\\w\\-.]\\}$', 'a{0,3}$')
    """
    out: list[str] = []
    at = 0
    size = len(pattern)
    in_class = beside_class = False
    while at < size:
        match = _ESCAPE.match(pattern, at) or (None if in_class else _REPEAT.match(pattern, at))
        if match is not None:
            out.append("$" if match[0] == r"\Z" else match[0])
            at = match.end()
            beside_class = match[0][1:] in _CLASSES
            continue
        char = pattern[at]
        at += 1
        if in_class and char == "]" and out[-1] not in ("[", "[^"):
            in_class = False
            out.append(char)
        elif in_class:
            is_dash = char == "-" and (beside_class or _class_follows(pattern, at))
            out.append(_escaped(char, "[]-" if is_dash else "[]"))
        elif char == "[":
            in_class = True
            out.append("[^" if pattern.startswith("^", at) else "[")
            at += len(out[-1]) - 1
        elif char == "{" and (open_end := _UP_TO.match(pattern, at)):
            out.append(f"{{0,{open_end[1]}}}")
            at = open_end.end()
        else:
            out.append(_escaped(char, "{}]"))
        beside_class = False
    return "".join(out)


def with_intended_patterns(document: Any) -> Any:
    """Return a copy of a schema in which patterns that the validator refuses are replaced by `meant`."""
    if isinstance(document, list):
        return [with_intended_patterns(item) for item in document]
    if not isinstance(document, dict):
        return document
    copy = {key: with_intended_patterns(value) for key, value in document.items()}
    if isinstance(copy.get("pattern"), str):
        copy["pattern"] = accepted(copy["pattern"])
    if isinstance(keyed := copy.get("patternProperties"), dict):
        copy["patternProperties"] = {accepted(name): value for name, value in keyed.items()}
    return copy


def accepted(pattern: str) -> str:
    """Return a spelling of a pattern that the validator accepts: its own, if that is accepted."""
    engine = _engine(pattern)
    return pattern if engine is None else engine.pattern


def parsed(pattern: str) -> Any:
    """Return the parse tree of a pattern by Python's parser; None where that fails."""
    if len(pattern) > _MAX_PARSED or _AMBIGUOUS.search(pattern):
        return None
    try:
        return _parser.parse(_NAMED_GROUP.sub(r"(?P<\1>", pattern))
    except (re.error, RecursionError, OverflowError):
        return None


def survey(documents: list[Any]) -> PatternUse:
    """Return the highest cost of the patterns of these schemas.

    Raises `SchemaError` where they would need too much memory together.
    """
    values: set[str] = set()
    names: set[str] = set()
    stack = list(documents)
    weight = 0
    while stack:
        item = stack.pop()
        if isinstance(item, dict):
            patterns = [item["pattern"]] if isinstance(item.get("pattern"), str) else []
            values.update(patterns)
            if isinstance(keyed := item.get("patternProperties"), dict):
                names.update(keyed)
                patterns += keyed
            weight += sum(map(pattern_weight, patterns))
            stack.extend(item.values())
        elif isinstance(item, list):
            stack.extend(item)
        if weight > MAX_PATTERN_WEIGHT:
            raise SchemaError(
                "The patterns of this schema are too large to compile", hint="Use fewer or smaller repetitions."
            )
    every_pattern = values | names
    counted = (
        any(map(_MAY_BACKTRACK.search, every_pattern)) or sum(map(places_alive, every_pattern)) > _UNCOUNTED_PLACES
    )
    if counted:
        return PatternUse(counted=True, of_names=tuple(names))
    return PatternUse()


def can_match_names(patterns: tuple[str, ...], value: Any) -> bool:
    """Return whether the validator can match the names of all properties in a value cheaply.

    >>> can_match_names(("^(?!_)",), {"a": {"b": 1}}), can_match_names(("^(a{1,99}){1,99}$",), {"a" * 5000: 1})
    (True, False)
    """
    budget = MatchBudget(MAX_NAME_WORK)
    engines = [engine for pattern in patterns if (engine := _engine(pattern)) is not None]
    stack = [value] if engines else []
    while stack:
        item = stack.pop()
        if isinstance(item, dict):
            if not all(engine.can_match(name, budget.spend) for name in item for engine in engines):
                return False
            stack.extend(item.values())
        elif isinstance(item, list):
            stack.extend(item)
    return True


class CountedPattern:
    """The keyword `pattern`, checked with `search`; for schemas whose patterns may be costly."""

    def __init__(self, _parent: Any, pattern: str, _path: list[str | int]) -> None:
        self._pattern = pattern

    def validate(self, value: Any) -> None:
        """Raise where a string does not match, or where that cannot be decided."""
        if isinstance(value, str) and not search(self._pattern, value):
            raise ValueError("does not match the pattern")


class _Engine:
    """One pattern, compiled for each limit that was needed."""

    __slots__ = ("_backtracks", "_matching", "_places", "_verdicts", "pattern")

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        """The compiled spelling, which may differ from the caller's."""
        self._backtracks = _MAY_BACKTRACK.search(pattern) is not None
        self._places = places_alive(pattern)
        self._matching: dict[int, jsonschema_rs.Validator] = {}
        self._verdicts: dict[int, bool | None] = {}
        """Results of costly matches, by the hash of the text: streams and explanations repeat them."""
        self._within(_FEW_STEPS)

    def search(self, text: str, spend: Callable[[int], bool]) -> bool | None:
        """Return whether a text contains a match; None when that would cost too much."""
        work = self._places * (len(text) + 1)
        if work > MAX_MATCH_WORK or not spend(work):
            return None
        if not self._backtracks:
            return self._within(_FEW_STEPS).is_valid(text)
        key = hash(text)
        if key in self._verdicts:
            return self._verdicts[key]
        most = MAX_STEPS
        while most * work > MAX_MATCH_WORK:
            most //= 10
        few = min(most, _FEW_STEPS)
        match = self._search_within(few, text)
        if match is not None or not spend(few * work):
            return match
        if most > few:
            match = self._search_within(most, text) if spend(most * work) else None
        if len(self._verdicts) >= _KNOWN:
            self._verdicts.clear()
        self._verdicts[key] = match
        return match

    def can_match(self, name: str, spend: Callable[[int], bool]) -> bool:
        """Return whether a name can be matched within its steps and the remaining work."""
        work = self._places * (len(name) + 1)
        steps = _NAME_STEPS
        if not self._backtracks:
            return spend(work)
        while steps <= MAX_NAME_STEPS and spend(steps * work):
            if self._search_within(steps, name) is not None:
                return True
            steps *= 10
        return False

    def _search_within(self, steps: int, text: str) -> bool | None:
        matching = self._within(steps)
        if matching.is_valid(text):
            return True
        try:
            matching.validate(text)
        except jsonschema_rs.ValidationError as error:
            gave_up = isinstance(error.kind, jsonschema_rs.ValidationErrorKind.BacktrackLimitExceeded)
            return None if gave_up else False
        return True

    def _within(self, steps: int) -> jsonschema_rs.Validator:
        validator = self._matching.get(steps)
        if validator is None:
            validator = self._matching[steps] = jsonschema_rs.validator_for(
                {"pattern": self.pattern}, pattern_options=FancyRegexOptions(backtrack_limit=steps), offline=True
            )
        return validator


PATTERNS: Final = BoundedCache[tuple[str, ...], Any]("patterns", entries=3_000, max_bytes=48_000_000)
"""Cached results about patterns, by the kind of result and the patterns."""


def _engine(pattern: str) -> _Engine | None:
    key = ("engine", pattern)
    engine: _Engine | None = PATTERNS.get(key)
    if engine is not None or key in PATTERNS:
        return engine
    weight = pattern_weight(pattern)
    for spelling in dict.fromkeys((pattern, intended_pattern(pattern))) if weight <= MAX_PATTERN_WEIGHT else ():
        with suppress(jsonschema_rs.ValidationError, ValueError):
            engine = _Engine(spelling)
            break
    PATTERNS.put(key, engine, 2_000 + 80 * len(pattern) + _BYTES_PER_STATE * weight)
    return engine


def _is_little(_work: int) -> bool:
    return True


def pattern_weight(pattern: str) -> int:
    """Return the approximate number of states of a pattern's automaton: repetitions multiply their content.

    >>> pattern_weight("ab"), pattern_weight("(ab){100}")
    (2, 200)
    """
    return _total(pattern, _states)


def places_alive(pattern: str) -> int:
    """Return the most positions of a pattern that a text can have reached at the same time.

    These are all of its positions, except in `^[a-z]{1,5000}$` and the like: there, each character reaches one.

    >>> places_alive("[ab]*a[ab]{100}c"), places_alive("^[ab]{1,100}$")
    (103, 3)
    """
    if pattern.startswith("^") and _is_one_path(pattern):
        return 3
    return max(1, _total(pattern, _one))


def _is_one_path(pattern: str) -> bool:
    """Return whether a pattern can match in one way only, so that matching it is linear."""
    choices = 0
    place = 0
    while place < len(pattern):
        if pattern[place] in "*+?|(":
            return False
        if repeat := _REPEAT.match(pattern, place):
            if repeat[2]:
                choices += 1
            if repeat[2] and not repeat[3]:
                return False
            place += len(repeat[0])
        else:
            place += _atom_length(pattern, place)
    return choices <= 1


def _total(pattern: str, measure: Callable[[str], int]) -> int:
    """Return the sum of all atoms, multiplied by their repetitions."""
    groups = [0]
    last = place = 0
    while place < len(pattern):
        char = pattern[place]
        step = 1
        if char == "(":
            groups.append(0)
            last = 0
        elif char == ")" and len(groups) > 1:
            last = groups.pop()
            groups[-1] += last
        elif repeat := _REPEAT.match(pattern, place):
            times = max(int(repeat[1]), int(repeat[3] or 0), 1)
            groups[-1] += last * (times - 1)
            last *= times
            step = len(repeat[0])
        else:
            step = _atom_length(pattern, place)
            last = measure(pattern[place : place + step])
            groups[-1] += last
        place += step
    return sum(groups)


def _atom_length(pattern: str, place: int) -> int:
    if pattern[place] == "\\":
        return 2
    if pattern[place] == "[":
        end = pattern.find("]", place + 2)
        return (len(pattern) if end < 0 else end) - place + 1
    return 1


def _states(atom: str) -> int:
    """Return the cost of a class: Unicode classes are by far the most expensive."""
    if atom[0] == "\\":
        kind = atom[1:2]
        if kind in {"p", "P", "w", "W"}:
            return 600
        return 60 if kind in {"d", "D", "s", "S"} else 1
    if atom[0] == "[":
        if "\\p" in atom or "\\w" in atom or "^" in atom[:2]:
            return 600
        return 8
    return 10 if atom == "." else 1


def _one(atom: str) -> int:
    return 0 if atom in "^$*+?|)" else 1


_UNLIKE = re.compile(r"\\[DWSpPbBxuck0-9]|\(\?[^:]|\[\^[^\]]*\\[dws]|\[:")
"""Constructs that one engine reads more narrowly than the other; reading them more widely is harmless here."""


class TextMatcher:
    """Follows one growing string under one pattern, byte by byte.

    >>> matcher = matcher_for("^[A-Z]+-[0-9]+$")
    >>> matcher is None or (matcher.feed("AB-"), matcher.feed("x"))
    (True, False)
    """

    __slots__ = ("_matcher",)

    def __init__(self, matcher: Any) -> None:
        self._matcher = matcher
        self._matcher.try_consume_tokens([34])

    def feed(self, piece: str) -> bool:
        """Return whether the string can still match after this piece, which needs no escapes in JSON."""
        data = list(piece.encode("utf-8", "surrogatepass"))
        if self._matcher.try_consume_tokens(data) == len(data):
            return True
        # An engine that has exhausted its own limit of work has not decided: the complete string is matched later.
        return bool(self._matcher.is_error())


def matcher_for(pattern: str) -> TextMatcher | None:
    """Return a matcher at the start of a string; None without llguidance, or where the engines may differ."""
    key = ("matcher", pattern)
    if key not in PATTERNS:
        size = 50_000 + 80 * len(pattern) + 2 * pattern_weight(pattern)
        PATTERNS.put(key, _growing_matcher(pattern), size)
    compiled = PATTERNS.get(key)
    if compiled is None:
        return None
    return TextMatcher(compiled.deep_copy())


def _growing_matcher(pattern: str) -> Any:
    tokenizer = _byte_tokenizer()
    if tokenizer is None or _UNLIKE.search(pattern):
        return None
    from llguidance import LLMatcher

    made = LLMatcher(tokenizer, LLMatcher.grammar_from_json_schema({"type": "string", "pattern": pattern}))
    return None if made.is_error() else made


@cache
def _byte_tokenizer() -> Any:
    try:
        from llguidance import LLTokenizer
    except ImportError:
        return None
    return LLTokenizer("byte")
