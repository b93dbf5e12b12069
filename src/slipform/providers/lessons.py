"""Learned downgrades: what a vendor's 400 teaches about a model, remembered so that it is paid for once."""

from __future__ import annotations

import dataclasses
import hashlib
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Literal, NamedTuple, Protocol, TypeAlias

import orjson

from slipform.codecs.base import Capabilities
from slipform.ir import ModelRequest, ModelWarning
from slipform.schema import OutputStrategy

Lesson: TypeAlias = Literal[
    "no_native",
    "no_forced_tool",
    "no_json_mode",
    "no_sampling",
    "use_max_tokens",
    "use_max_completion_tokens",
    "no_strict",
]

LESSON_SECONDS = 24 * 3600.0
"""How long a lesson counts, since vendors do improve."""

_MEANING: dict[Lesson, str] = {
    "no_native": "does not take a schema on its native channel",
    "no_forced_tool": "cannot be made to call a tool",
    "no_json_mode": "has no JSON mode",
    "no_sampling": "does not take sampling parameters",
    "use_max_tokens": "wants `max_tokens`",
    "use_max_completion_tokens": "wants `max_completion_tokens`",
    "no_strict": "does not take strict schemas",
}

BY_SCHEMA = "by_schema"
"""Kept with a model's lessons: some of its schemas have lessons of their own. Their keys are dear to make."""
LESSONS = frozenset({*_MEANING, BY_SCHEMA})

_SCHEMA_AT_FAULT = re.compile(
    r"invalid schema for|schema is too complex|compiled grammar is too large|too many states|response_schema",
    re.IGNORECASE,
)
_UNSUPPORTED = re.compile(
    r"not? ?support|unsupported|unavailable|not (?:allowed|permitted|available|implemented)|unrecognized"
    r"|unknown (?:field|name|parameter)|extra inputs|forces tool use|must be 'json_schema' or 'text'"
    r"|deprecated for this model|only the default",
    re.IGNORECASE,
)
_ABOUT_TOOL = re.compile(
    r"tool_choice|tool choice|forces tool use|toolchoice|function_?calling_?config|forced tool", re.IGNORECASE
)
_ABOUT_STRICT = re.compile(r"\bstrict\b", re.IGNORECASE)
_ABOUT_FORMAT = re.compile(
    r"response[_ ]?format|output_config|output_format|json_schema|json_object|text\.format|textformat|outputconfig"
    r"|response_?mime_?type|response_?(?:json_?)?schema|structured[ _]outputs?|json mode",
    re.IGNORECASE,
)
_ABOUT_SAMPLING = re.compile(
    r"temperature|top_?p\b|top_?k\b|frequency_penalty|presence_penalty|sampling", re.IGNORECASE
)
_ABOUT_LIMIT = re.compile(r"max_tokens|max_completion_tokens", re.IGNORECASE)


class LessonStore(Protocol):
    """Where lessons are kept. Both calls must be quick; one that asks a remote store should keep its own copy."""

    def get(self, key: str) -> frozenset[str]:
        """The lessons under this key."""
        ...

    def add(self, key: str, lesson: str) -> None:
        """Remember one more."""
        ...


class Learned(NamedTuple):
    """One lesson, what it is about, and for how many seconds more it counts."""

    key: str
    lesson: str
    seconds: float


class MemoryLessons:
    """Lessons kept in this process: the newest `size` keys, each for `lifetime` seconds.

    >>> store = MemoryLessons()
    >>> store.add("url model", "no_native")
    >>> store.get("url model")
    frozenset({'no_native'})
    """

    def __init__(
        self, size: int = 1024, lifetime: float = LESSON_SECONDS, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._kept: OrderedDict[str, tuple[float, frozenset[str]]] = OrderedDict()
        self._size = size
        self._lifetime = lifetime
        self._clock = clock
        self._lock = threading.Lock()

    def get(self, key: str) -> frozenset[str]:
        """The lessons under this key that are not too old."""
        kept = self._kept.get(key)
        if kept is None:
            return frozenset()
        return kept[1] if self._clock() < kept[0] else frozenset()

    def add(self, key: str, lesson: str, seconds: float | None = None) -> None:
        """Remember one more, for so long, and forget the oldest when there are too many."""
        with self._lock:
            lessons = self.get(key) | {lesson}
            self._kept[key] = (self._clock() + (self._lifetime if seconds is None else seconds), lessons)
            self._kept.move_to_end(key)
            while len(self._kept) > self._size:
                self._kept.popitem(last=False)

    def learned(self) -> list[Learned]:
        """Everything that still counts, to be told to others."""
        with self._lock:
            now = self._clock()
            kept = [(key, until - now, lessons) for key, (until, lessons) in self._kept.items() if until > now]
        return [Learned(key, lesson, left) for key, left, lessons in kept for lesson in sorted(lessons)]


def model_key(base_url: str, model: str) -> str:
    """The key of what holds for a model at an address."""
    return f"{base_url} {model}"


def schema_key(base_url: str, model: str, request: ModelRequest) -> str | None:
    """The key of what holds for one schema only; another schema may well be taken by the same model."""
    if request.response_format is None:
        return None
    text = orjson.dumps(request.response_format.json_schema.schema, option=orjson.OPT_SORT_KEYS, default=repr)
    return f"{base_url} {model} {hashlib.sha256(text).hexdigest()[:16]}"


def downgrade(capabilities: Capabilities, lessons: frozenset[str]) -> Capabilities:
    """What is left of the capabilities after these lessons.

    >>> downgrade(Capabilities(native=True, forced_tool=True), frozenset({"no_native"})).auto_strategy.value
    'tool'
    """
    if not lessons:
        return capabilities
    changes: dict[str, object] = {}
    for lesson, name in (
        ("no_native", "native"),
        ("no_forced_tool", "forced_tool"),
        ("no_json_mode", "json_mode"),
        ("no_sampling", "sampling"),
    ):
        if lesson in lessons:
            changes[name] = False
    for lesson in ("use_max_tokens", "use_max_completion_tokens"):
        if lesson in lessons:
            changes["max_tokens_field"] = lesson.removeprefix("use_")
    if "no_strict" in lessons:
        changes["quirks"] = capabilities.quirks | {"no_strict"}
    return dataclasses.replace(capabilities, **changes)  # type: ignore[arg-type]


def learn(message: str, request: ModelRequest, capabilities: Capabilities) -> tuple[Lesson, bool] | None:
    """What a 400 with this message teaches, and whether it is about the schema rather than the model.

    None when it teaches nothing that another spelling of the same request could use.
    """
    if request.response_format is not None and _SCHEMA_AT_FAULT.search(message):
        rung = _rung(request, capabilities)
        return (rung, True) if rung is not None and rung != "no_json_mode" else None
    if not _UNSUPPORTED.search(message):
        return None
    lesson = _about(message, request, capabilities)
    return None if lesson is None else (lesson, False)


def _about(message: str, request: ModelRequest, capabilities: Capabilities) -> Lesson | None:
    if _ABOUT_LIMIT.search(message) and request.max_tokens is not None:
        return _other_limit(message, capabilities)
    if _ABOUT_SAMPLING.search(message) and capabilities.sampling:
        return "no_sampling"
    if _ABOUT_TOOL.search(message):
        return "no_forced_tool" if capabilities.forced_tool and _channel(request, capabilities) == "tool" else None
    if _ABOUT_FORMAT.search(message):
        return _rung(request, capabilities)
    if _ABOUT_STRICT.search(message) and "no_strict" not in capabilities.quirks:
        return "no_strict"
    return None


def _other_limit(message: str, capabilities: Capabilities) -> Lesson | None:
    if capabilities.max_tokens_field == "max_tokens" and "max_completion_tokens" in message:
        return "use_max_completion_tokens"
    if capabilities.max_tokens_field == "max_completion_tokens":
        return "use_max_tokens"
    return None


def _channel(request: ModelRequest, capabilities: Capabilities) -> Literal["native", "tool", "json_mode", "none"]:
    """The channel that `auto` uses for this request."""
    wanted = request.response_format
    if wanted is None:
        return "json_mode" if request.json_mode and capabilities.json_mode else "none"
    if wanted.strategy is not OutputStrategy.AUTO:
        return "none"  # the caller insists on a channel: an error says that it does not work, nothing replaces it
    if capabilities.native:
        return "native"
    if capabilities.forced_tool:
        return "tool"
    return "json_mode" if capabilities.json_mode else "none"


def _rung(request: ModelRequest, capabilities: Capabilities) -> Lesson | None:
    """The rung of the ladder to leave: native → forced tool → JSON mode → prompt alone."""
    rungs: dict[str, Lesson] = {"native": "no_native", "tool": "no_forced_tool", "json_mode": "no_json_mode"}
    return rungs.get(_channel(request, capabilities))


def lesson_warning(lesson: str, model: str) -> ModelWarning:
    """The warning that goes with an answer that was got in a humbler way."""
    meaning = _MEANING.get(lesson, lesson)  # type: ignore[call-overload]
    return ModelWarning(
        "capability_downgraded", f"The vendor says that {model} {meaning}; the call was made without it.", lesson
    )
