"""Represent a request to a model: `ModelRequest`, its tools, sampling and guard, and the count of its calls."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, TypeAlias

import msgspec

from slipform.errors import RequestError, SlipformError
from slipform.ir.messages import Message, PlainTurns, record_repr
from slipform.schema.limits import is_heavy_text, json_text
from slipform.schema.spec import OutputStrategy, ResponseFormat
from slipform.text.fence import DEFAULT_MAX_PREFIX_CHARS, JsonFenceDetector

if TYPE_CHECKING:
    from slipform.schema.signature import Signature

_FORCED_PREFIX_CHARS = 50
"""Characters allowed before the JSON where its first character is forced."""


@dataclass(frozen=True, slots=True)
class Guard:
    """How an answer is checked while it is streamed; also read from a request's `extra`, under these names.

    >>> Guard.of({"stop_after_json": True}).watches
    True
    """

    force_json_start: bool = False
    """The first character that is not blank must be `{` or `[`; only the embedded model can guarantee it."""
    stop_after_json: bool = False
    """Reading ends, and the model is stopped, where the JSON closes."""
    response_format_fail_hard: bool = False
    """An answer that can no longer be valid is stopped at once, and failure is `InvalidResponseFormat`."""
    strict_trailing: bool = False
    """Text around the JSON, which is otherwise removed, makes an answer invalid."""
    max_prefix_chars: int | None = None
    """Characters before the JSON, after which failing hard gives up: 500, or 50 where the start is forced."""

    @classmethod
    def of(cls, extra: Mapping[str, Any], default: Guard | None = None) -> Guard:
        """Return the guard of a request's `extra` over the default one; raises `RequestError` for a wrong type.

        The names may be written in camelCase, too.
        """
        default = default or cls()
        if _OPTIONS.isdisjoint(extra):
            return default
        changes: dict[str, Any] = {}
        for name in _OPTIONS.intersection(extra):
            value = extra[name]
            field_name = _SPELLINGS[name]
            if field_name == "max_prefix_chars":
                if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                    raise RequestError(f"It must be a number of characters, not {value!r}", where=name)
            elif not isinstance(value, bool):
                raise RequestError(f"It must be true or false, not {value!r}", where=name)
            changes[field_name] = value
        return replace(default, **changes)

    @property
    def watches(self) -> bool:
        """Return whether answers must be streamed."""
        return self.stop_after_json or self.response_format_fail_hard

    def detector(self) -> JsonFenceDetector:
        """Return a detector that finds the JSON in an answer's chunks, and fails if none begins in time."""
        usual = _FORCED_PREFIX_CHARS if self.force_json_start else DEFAULT_MAX_PREFIX_CHARS
        return JsonFenceDetector(self.max_prefix_chars or usual, stop_after_json=False, fail_hard=True, loose=True)

    def to_extra(self) -> dict[str, bool]:
        """Return the options for a provider that supports them, without failing hard, which enforcement does."""
        options = {name: True for name in ("force_json_start", "stop_after_json") if getattr(self, name)}
        if self.response_format_fail_hard:
            return {**options, "response_format_fail_hard": False}
        return options

    @classmethod
    def without(cls, extra: Mapping[str, Any]) -> dict[str, Any]:
        """Return a request's `extra` without these options, which no vendor's API has."""
        return {name: value for name, value in extra.items() if name not in _OPTIONS}


_SPELLINGS: Final = {
    spelling: each.name
    for each in fields(Guard)
    for spelling in (each.name, re.sub("_([a-z])", lambda match: match[1].upper(), each.name))
}
_OPTIONS: Final = frozenset(_SPELLINGS)
RESERVED_TOOL = "output"
"""The tool that slipform adds on the tool channel; callers may not use the name."""


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool, with the JSON Schema of its arguments.

    `vendor` is set for a vendor's built-in tool (web search, for example): it names the only codec that can send it,
    and `extra[vendor]` is the tool in the vendor's format.
    """

    name: str
    parameters: Mapping[str, Any]
    description: str | None = None
    strict: bool | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)
    vendor: str | None = None
    function: Callable[..., Any] | None = field(default=None, compare=False, repr=False)
    """Runs a call, plain or async; not sent. It receives the arguments by name."""
    signature: Signature | None = field(default=None, compare=False, repr=False)
    """The types of the function's parameters, where the tool was built from one."""

    @property
    def loads_tools(self) -> bool:
        """Whether the vendor loads further tools with this one, and may call tools that were not offered."""
        own = self.extra.get(self.vendor, {}) if self.vendor is not None else {}
        return str(own.get("type", "")).startswith("tool_search")

    @classmethod
    def of(cls, function: Callable[..., Any], *, name: str | None = None, description: str | None = None) -> Tool:
        """Build a tool from a function: the schema from its signature, the descriptions from its docstring.

        Raises `SchemaError` for a function without a suitable signature.

        >>> def add(a: int, b: int) -> int:
        ...     "Add two numbers."
        ...     return a + b
        >>> tool = Tool.of(add)
        >>> tool.name, tool.description, tool.call({"a": 1, "b": 2})
        ('add', 'Add two numbers.', 3)
        """
        from slipform.schema.signature import signature_of

        read = signature_of(function, name=name)
        return cls(
            read.name,
            read.arguments.document,
            description or read.description,
            function=function,
            signature=read,
        )

    def call(self, arguments: Mapping[str, Any]) -> Any:
        """Run the function with JSON arguments, converted to its parameters' types; a coroutine if it is async."""
        if self.function is None:
            raise TypeError(f"The tool {self.name!r} has no function to run")
        if self.signature is None:
            return self.function(**arguments)
        return self.signature.call(self.function, arguments)


@dataclass(frozen=True, slots=True)
class NamedTool:
    """The choice of this tool: the model must call it."""

    name: str


ToolChoice: TypeAlias = Literal["auto", "none", "required"] | NamedTool


@dataclass(frozen=True, slots=True)
class Sampling:
    """Sampling parameters; None leaves one to the vendor."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    stop: tuple[str, ...] = ()


NO_SAMPLING: Final = Sampling()
"""Everything left to the vendor."""


class CallCount(msgspec.Struct, eq=False):
    """The upstream calls of one request, over all its models, attempts and transport retries, and their limit.

    Retries, attempts and fallbacks each have a separate budget; without this limit their product could be spent.

    >>> count = CallCount(2)
    >>> count.add("openai/a"), count.add("openai/a"), count.is_spent
    (None, None, True)
    """

    limit: int
    model: str = ""
    """The model of the last call, as `provider/model`."""
    price_list: str = ""
    """The vendor's id in slipform's list of prices; empty where the list does not have it."""
    waited_seconds: float = 0.0
    """The seconds spent waiting for whole answers, failures and pauses between attempts."""
    by_model: dict[str, int] = msgspec.field(default_factory=dict)

    def add(self, model: str) -> None:
        """Count one more call."""
        self.by_model[model] = self.by_model.get(model, 0) + 1

    @property
    def is_spent(self) -> bool:
        """Whether the limit is reached."""
        return sum(self.by_model.values()) >= self.limit

    def explain_limit(self, error: SlipformError) -> None:
        """Add to an error that the limit is reached, and by which calls."""
        if "calls" in error.details:
            return
        calls = ", ".join(f"{count} to {model}" for model, count in self.by_model.items())
        reason = f"The limit of {self.limit} calls for one request is reached ({calls}); see `enforcement.max_calls`."
        error.hint = f"{reason} {error.hint or ''}".strip()
        error.details["calls"] = {"limit": self.limit, **self.by_model}


class RequestFrame:
    """Computed values of a request that are valid for all requests that differ only in the conversation.

    Agents send the same tools and the same schema with every turn: planning, lowering and checking them again would be
    most of the work. Code that computes such a value stores it here, under a separate key.

    >>> frame = RequestFrame()
    >>> frame.keep("plan", 1)
    >>> frame.find("plan"), frame.find("channel")
    (1, None)
    """

    __slots__ = ("_values", "find")

    def __init__(self) -> None:
        self._values: Final[dict[Hashable, Any]] = {}
        self.find: Final = self._values.get
        """Return the value under a key, or None."""

    def keep(self, key: Hashable, value: Any) -> None:
        """Store a value for the next request; with too many models, the oldest is dropped."""
        if len(self._values) >= _MOST_KEPT:
            self._values.clear()
        self._values[key] = value


_MOST_KEPT: Final = 32
_OUTSIDE_FRAME: Final = frozenset({"model", "messages", "calls", "timeout", "tells_schema", "frame", "can_split"})
"""The fields in which requests of one frame may differ."""


class ModelRequest(msgspec.Struct, frozen=True):
    """One call, in a vendor-neutral form.

    `response_format` asks for JSON of a schema, `json_mode` for any JSON object, neither for text. `extra` has vendor
    fields that pass through unchanged; `extra_for` names the codec they were written for (None: any), and every other
    codec drops them with a `LossyEncode`. `reasoning` uses the keys `effort` (a word), `budget` (tokens), `summary` (a
    word or a flag) and `enabled`. `timeout` is in seconds, for this call with its transport retries; the provider's
    own limits hold too. It is not sent.
    """

    model: str
    messages: Sequence[Message]
    """A tuple, or `PlainTurns`."""
    response_format: ResponseFormat | None = None
    json_mode: bool = False
    tools: tuple[Tool, ...] = ()
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    sampling: Sampling = NO_SAMPLING
    max_tokens: int | None = None
    reasoning: Mapping[str, Any] | None = None
    metadata: Mapping[str, Any] = msgspec.field(default_factory=dict)
    extra: Mapping[str, Any] = msgspec.field(default_factory=dict)
    extra_for: str | None = None
    timeout: float | None = None
    calls: CallCount | None = None
    """The calls made for this request so far, shared by its copies; not sent or compared."""
    tells_schema: bool = False
    """Whether the messages describe the schema already; not sent or compared."""
    logprobs: int | None = None
    """The number of alternatives of each token with its probability: 0 for none, None without probabilities."""
    frame: RequestFrame | None = None
    """Values computed for requests like this one, where others are expected; not sent or compared."""
    cache_prefix: bool = False
    """Whether the shared part of requests is marked for vendors that cache marked content."""
    continues: Literal["rest", "prefill"] | None = None
    """How a cut-off answer is continued: its rest is requested, or its beginning is the last message."""
    can_split: bool = False
    """Whether the schema is requested in parts where the vendor refuses it as too large; not sent or compared."""
    beside: tuple[ModelRequest, ...] = ()
    """Requests that are sent concurrently in place of this one; not compared."""

    def __post_init__(self) -> None:
        messages = self.messages
        if type(messages) is not tuple and type(messages) is not PlainTurns:  # lists are accepted, too
            msgspec.structs.force_setattr(self, "messages", tuple(messages))
        if type(self.tools) is not tuple:
            msgspec.structs.force_setattr(self, "tools", tuple(self.tools))

    def replace(self, **changes: Any) -> ModelRequest:
        """Return a copy with these fields changed.

        >>> ModelRequest("a", ()).replace(model="b").model
        'b'
        """
        if self.frame is not None and not changes.keys() <= _OUTSIDE_FRAME:
            changes["frame"] = None
        return msgspec.structs.replace(self, **changes)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, ModelRequest):
            return _compared_values(self) == _compared_values(other)
        return NotImplemented

    __hash__ = None  # type: ignore[assignment]  # it holds mappings

    def __repr__(self) -> str:
        return record_repr("ModelRequest", _COMPARED, _compared_values(self))


@dataclass(frozen=True, slots=True)
class RequestDefaults:
    """Values for fields that a request does not set: `given` has them as fields of a request.

    >>> defaults = RequestDefaults(ModelRequest("", (), max_tokens=9, sampling=Sampling(temperature=0.5)))
    >>> defaults.apply(ModelRequest("m", (), max_tokens=5)).max_tokens
    5
    """

    given: ModelRequest
    fields: Mapping[str, Any] = field(default_factory=dict)
    """The same fields in the user's spelling."""

    def apply(self, request: ModelRequest) -> ModelRequest:
        """Return the request with the defaults for unset fields; its own objects are not merged."""
        defaults = self.given
        own = request.sampling
        pairs = (
            (each.name, getattr(own, each.name), getattr(defaults.sampling, each.name)) for each in fields(Sampling)
        )
        sampling = {name: default if value in (None, ()) else value for name, value, default in pairs}
        return request.replace(
            sampling=Sampling(**sampling),
            max_tokens=defaults.max_tokens if request.max_tokens is None else request.max_tokens,
            reasoning=defaults.reasoning if request.reasoning is None else request.reasoning,
            parallel_tool_calls=(
                defaults.parallel_tool_calls if request.parallel_tool_calls is None else request.parallel_tool_calls
            ),
            metadata={**defaults.metadata, **request.metadata},
            extra={**defaults.extra, **request.extra},
            logprobs=defaults.logprobs if request.logprobs is None else request.logprobs,
            extra_for=request.extra_for if request.extra else None,
        )


_NOT_COMPARED: Final = ("calls", "tells_schema", "frame", "can_split", "beside")
_COMPARED: Final = tuple(name for name in ModelRequest.__struct_fields__ if name not in _NOT_COMPARED)
_compared_values: Final = attrgetter(*_COMPARED)


def is_heavy(request: ModelRequest) -> bool:
    """Return whether work on this request's schemas (response format, tools) should run off the event loop.

    >>> is_heavy(ModelRequest("m", (), tools=(Tool("t", {"enum": ["x" * 5000]}),)))
    True
    """
    response_format = request.response_format
    if not request.tools and (response_format is None or response_format.json_schema.is_light):
        return False
    if request.frame is None:
        return is_heavy_text(schema_text(request))
    heavy = request.frame.find(is_heavy)
    if heavy is None:
        heavy = is_heavy_text(schema_text(request))
        request.frame.keep(is_heavy, heavy)
    return bool(heavy)


def schema_text(request: ModelRequest) -> bytes:
    """Return the JSON text of a request's schemas, one after the other."""
    spec = None
    if request.response_format is not None:
        spec = request.response_format.json_schema
    text = b"" if spec is None else spec.text or json_text(spec.schema)
    if request.tools:
        return b"".join([text, *[json_text(tool.parameters) for tool in request.tools]])
    return text


@dataclass(frozen=True, slots=True)
class ModelWarning:
    """A warning for the caller: a stable `code`, a sentence, and where it applies.

    >>> ModelWarning("schema_summary_cut", "The schema in the prompt was shortened.").code
    'schema_summary_cut'
    """

    code: str
    message: str
    path: str | None = None
    informs: ClassVar[bool] = False
    """Whether nothing is lost or doubtful: it is reported, but not counted."""


@dataclass(frozen=True, slots=True)
class ModelNote(ModelWarning):
    """Information for the caller: something was done without any loss."""

    informs: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class DowngradeWarning(ModelWarning):
    """A capability that the provider lacks; `strategy` is the channel that carried the schema instead, if any."""

    strategy: OutputStrategy | None = None


@dataclass(frozen=True, slots=True)
class LossyEncode(ModelWarning):
    """A field or constraint that the vendor's API does not support: `path` names it, `action` says what was done."""

    action: str = "dropped"
