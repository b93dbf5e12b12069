"""Turn a model request into the engine's request and the reader of its answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, TypeAlias

from slipform.enforce.coercion import Switches
from slipform.enforce.early_stop import EarlyStop
from slipform.enforce.judging import Requirement, judge
from slipform.enforce.loop import as_invalid_format
from slipform.errors import JsonEnforcementError, RequestError
from slipform.ir import (
    LossyEncode,
    Message,
    ModelRequest,
    ModelResponse,
    ModelWarning,
    Reasoning,
    Text,
    ToolCall,
    ToolDelta,
    ToolResult,
)
from slipform.ir.request import Guard
from slipform.providers.embedded.answer import (
    Check,
    EngineAnswerReader,
    Read,
    ReadCall,
    StopHook,
    described,
    offered,
    prompt_grammar,
    spelled,
    tool_grammar,
)
from slipform.providers.embedded.decoding.constrain import Constraint, Unwrap, any_object, constrain_retry
from slipform.schema import JsonSchemaSpec, OutputStrategy, Schema

MAX_TOKENS = 1024
"""How long an answer may get when the caller does not say."""

_HEEDED = ("min_p", "repeat_penalty")
"""What the engine takes beyond the usual sampling, read from a request's `extra`."""

_UNDERSTOOD = frozenset({*_HEEDED, "n", *(field.name for field in fields(Guard))})

_AS_WRITTEN = Switches(coerce=False, drop_extra=False, rename_keys=False, fill_constants=False)

HookFactory: TypeAlias = Callable[[Guard], StopHook | None]


@dataclass(frozen=True, slots=True)
class Call:
    """One generation: the engine's request, and what reads the answer."""

    body: dict[str, Any]
    warnings: tuple[ModelWarning, ...]
    answer: Callable[[], EngineAnswerReader]
    """Makes the reader of one answer; a second try needs a second reader."""
    seconds: float | None = None
    """How long it may take."""


@dataclass(frozen=True, slots=True)
class _Decoding:
    """How the answer is held, and read."""

    grammar: str | None = None
    warnings: tuple[ModelWarning, ...] = ()
    read: Callable[[], Read] = lambda: _plain
    hook: Callable[[], StopHook | None] = lambda: None
    system: str | None = None
    """What the model has to be told besides."""
    check: Check | None = None
    """What looks at the finished answer: for the bounds it has reached, or whether it is to fail hard."""
    may_stop: bool = False
    """Whether the answer may be left before the engine says what it has cost."""


def prepare(request: ModelRequest, options: Guard, stop_hook: HookFactory | None) -> Call:
    """What to ask the engine; raises what can be known to be wrong before any token is drawn."""
    _refuse_several(request)
    decoding = _decoding(request, options, stop_hook)
    structured = decoding.grammar is not None or request.response_format is not None
    sampling = request.sampling
    wanted = {
        "messages": _messages(request, decoding.system),
        "max_tokens": _limit(request),
        "temperature": 0 if sampling.temperature is None and structured else sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "seed": sampling.seed,
        "frequency_penalty": sampling.frequency_penalty,
        "presence_penalty": sampling.presence_penalty,
        **{name: request.extra.get(name) for name in _HEEDED},
        "stop": list(sampling.stop) or None,
        "grammar": decoding.grammar,
        "stream_options": {"include_usage": True},
        # With each piece, because an answer that is stopped early never gets to its usage.
        "timings_per_token": decoding.may_stop or None,
    }
    return Call(
        {name: value for name, value in wanted.items() if value is not None},
        (*_unheeded(request), *decoding.warnings),
        lambda: EngineAnswerReader(decoding.read(), decoding.hook(), request.model, decoding.check),
        request.timeout,
    )


def _decoding(request: ModelRequest, options: Guard, stop_hook: HookFactory | None) -> _Decoding:
    tools = offered(request)
    wanted = request.response_format
    if wanted is not None and wanted.strategy is OutputStrategy.PROMPTED and not tools:
        options = Guard.of(request.extra, options)
        grammar = prompt_grammar(options, hooked=stop_hook is not None)
        if stop_hook:
            return _Decoding(grammar, hook=partial(stop_hook, options), may_stop=True)
        if options.response_format_fail_hard:
            return _fail_hard(grammar, options, wanted.json_schema)
        return _Decoding(grammar, may_stop=options.watches)
    constraint = _constraint(request)
    if tools:
        grammar, warnings = tool_grammar(request, tools, constraint, _limit(request))
        return _Decoding(grammar, warnings, ReadCall, system=described(request, tools))
    if constraint is None:
        return _Decoding()
    read = _unwrapping if constraint.wrapped else lambda: _plain
    return _Decoding(constraint.grammar, constraint.warnings, read, check=constraint.reached)


def _fail_hard(grammar: str | None, options: Guard, spec: JsonSchemaSpec) -> _Decoding:
    """For who asks this provider itself and gets the text as it was written: nothing about it may need mending."""
    schema = Schema.of(spec)

    def hook() -> StopHook:
        watch = EarlyStop(options, schema, _AS_WRITTEN)

        def stop(piece: str) -> bool:
            over = watch.feed(piece)
            if watch.error is not None:
                raise as_invalid_format(watch.error)
            return over

        return stop

    def check(text: str) -> tuple[ModelWarning, ...]:
        verdict = judge(ModelResponse(text=text), Requirement(schema, switches=_AS_WRITTEN))
        if verdict.error is not None:
            raise as_invalid_format(verdict.error)
        if verdict.repairs:
            broken = JsonEnforcementError(f"The JSON is broken: {verdict.repairs[0].kind}", hint="Ask again.")
            raise as_invalid_format(broken)
        return ()

    return _Decoding(grammar, hook=hook, check=check, may_stop=True)


def _constraint(request: ModelRequest) -> Constraint | None:
    if request.response_format is not None:
        return constrain_retry(request.response_format.json_schema.schema, _limit(request), request.messages)
    return any_object(_limit(request)) if request.json_mode else None


def _limit(request: ModelRequest) -> int:
    return request.max_tokens or MAX_TOKENS


def _plain(text: str) -> tuple[str, tuple[ToolDelta, ...]]:
    return text, ()


def _unwrapping() -> Read:
    unwrap = Unwrap()
    return lambda text: (unwrap.feed(text), ())


def _unheeded(request: ModelRequest) -> tuple[ModelWarning, ...]:
    said: list[ModelWarning] = []
    if request.parallel_tool_calls and request.tools:
        said.append(LossyEncode("unsupported", "The embedded model calls one tool at a time.", "parallel_tool_calls"))
    if request.reasoning is not None:
        said.append(LossyEncode("unsupported", "The embedded model has no reasoning to switch on.", "reasoning"))
    if any(isinstance(part, Reasoning) for message in request.messages for part in message.parts):
        said.append(LossyEncode("unsupported", "Earlier reasoning is not shown to the embedded model.", "messages"))
    for name, value in request.extra.items():
        if name not in _UNDERSTOOD and value not in (None, False):
            said.append(LossyEncode("unsupported", f"The embedded model does not heed {name!r}.", f"extra.{name}"))
    return tuple(said)


def _refuse_several(request: ModelRequest) -> None:
    several = request.extra.get("n")
    if several not in (None, 1):
        raise RequestError(
            f"The embedded model gives one answer at a time, and {several!r} are asked for",
            where="n",
            hint="Leave `n` out, and ask again for each further answer.",
        )


def _messages(request: ModelRequest, system: str | None) -> list[dict[str, str]]:
    messages = [_message(message) for message in request.messages]
    if system is None:
        return messages
    if messages and messages[0]["role"] == "system":
        first = {**messages[0], "content": f"{messages[0]['content']}\n{system}"}
        return [first, *messages[1:]]
    return [{"role": "system", "content": system}, *messages]


def _message(message: Message) -> dict[str, str]:
    said: list[str] = []
    for part in message.parts:
        if isinstance(part, Text):
            said.append(part.text)
        elif isinstance(part, ToolCall):
            said.append(spelled(part))
        elif isinstance(part, ToolResult):
            said.append(_result(part, message.role))
        elif not isinstance(part, Reasoning):
            raise _unreadable(part, message.role)
    # Small models' templates know no tool role; what a tool gave back is told to them.
    role = "user" if message.role == "tool" else message.role
    return {"role": role, "content": "".join(said)}


def _result(result: ToolResult, role: str) -> str:
    for part in result.parts:
        if not isinstance(part, Text):
            raise _unreadable(part, role)
    text = "".join(part.text for part in result.parts if isinstance(part, Text))
    opening = "The tool failed" if result.is_error else "The tool gave back"
    return f"{opening}: {text}"


def _unreadable(part: object, role: str) -> RequestError:
    return RequestError(
        f"The embedded model reads text only, and a {role} message holds a {type(part).__name__}",
        hint="Send text, or name another provider's model.",
    )
