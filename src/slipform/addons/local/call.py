"""Translate a request for the engine: messages, sampling, and the grammar that constrains the answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeAlias

from slipform.addons.local.answer import (
    CheckText,
    EngineAnswerReader,
    ReadCall,
    ReadText,
    StopHook,
    callable_tools,
    encode_call,
    prompt_grammar,
    tool_grammar,
    tools_prompt,
)
from slipform.addons.local.decoding.constrain import Constraint, Unwrap, any_object, constrain_retry
from slipform.addons.local.finishing import AnswerFinisher
from slipform.addons.local.llama import IS_SHORT
from slipform.enforce.coercion import Switches
from slipform.enforce.early_stop import EarlyStop
from slipform.enforce.judging import Requirement, judge
from slipform.enforce.loop import as_invalid_format
from slipform.enforce.prompts import Wording, first_request
from slipform.errors import JsonEnforcementError, RequestError
from slipform.ir import (
    DowngradeWarning,
    LossyEncode,
    Media,
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
from slipform.schema import JsonSchemaSpec, OutputStrategy, ResponseFormat, Schema
from slipform.schema.limits import json_text
from slipform.text.runaway import RunawayDetector

MAX_TOKENS = 1024
"""The limit of an answer when the request has none."""
_SHORT_PROMPT: Final = 8_000
_SHORT_ANSWER: Final = 256
"""Tokens that take a few seconds on two cores."""
_SHORT_SCHEMA: Final = 1_000

_EXTRA_SAMPLING = ("min_p", "repeat_penalty")
"""Sampling parameters of the engine that are read from a request's `extra`."""

_KNOWN_EXTRA = frozenset({*_EXTRA_SAMPLING, "n"})

_AS_WRITTEN = Switches.none()

_PROMPTED_BUT_CONSTRAINED = DowngradeWarning(
    "prompted_constrained",
    "With tools, the embedded model constrains its answer to the schema: the strategy `prompted` was not followed.",
    "strategy",
    OutputStrategy.NATIVE,
)

HookFactory: TypeAlias = Callable[[Guard], StopHook | None]


@dataclass(frozen=True, slots=True)
class EngineCall:
    """One generation: the engine's request, and the factory of its answer's reader."""

    body: dict[str, Any]
    warnings: tuple[ModelWarning, ...]
    answer: Callable[[], EngineAnswerReader]
    """Creates the reader of one answer; a retry needs a new reader."""
    seconds: float | None = None
    """The time limit of the call."""


@dataclass(frozen=True, slots=True)
class _Decoding:
    """How the answer is constrained and decoded."""

    grammar: str | None = None
    warnings: tuple[ModelWarning, ...] = ()
    read: Callable[[], ReadText] = lambda: _plain
    hook: Callable[[], StopHook | None] = lambda: None
    system: str | None = None
    """Text to add to the system message."""
    check: CheckText | None = None
    """Checks the finished answer: returns a warning for bounds that it reached, or raises."""
    may_stop: bool = False
    """Whether the answer may be stopped before the engine reports its usage."""
    finisher: AnswerFinisher | None = None
    """Finishes an answer that is cut off."""


def prepare(request: ModelRequest, options: Guard, stop_hook: HookFactory | None) -> EngineCall:
    """Return the engine's request; raises `RequestError` and `SchemaError` before any token is generated."""
    _refuse_several(request)
    if request.calls is None and request.response_format is not None:
        request = _instructed(request, request.response_format)
    decoding = _decoding(request, options, stop_hook)
    structured = decoding.grammar is not None or request.response_format is not None
    sampling = request.sampling
    response_format = {
        "messages": _messages(request, decoding.system),
        "max_tokens": _max_tokens(request) if decoding.finisher is None else decoding.finisher.first_tokens,
        "temperature": 0 if sampling.temperature is None and structured else sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "seed": sampling.seed,
        "frequency_penalty": sampling.frequency_penalty,
        "presence_penalty": sampling.presence_penalty,
        **{name: request.extra.get(name) for name in _EXTRA_SAMPLING},
        "stop": list(sampling.stop) or None,
        "grammar": decoding.grammar,
        "stream_options": {"include_usage": True},
        # With each chunk, because the usage of an answer that is stopped early is never reported.
        "timings_per_token": decoding.may_stop or decoding.finisher is not None or None,
        IS_SHORT: _is_short(request) or None,
        # Without alternatives, the engine reports no probabilities.
        **({} if request.logprobs is None else {"logprobs": True, "top_logprobs": max(1, request.logprobs)}),
    }
    return EngineCall(
        {name: value for name, value in response_format.items() if value is not None},
        (*_unsupported(request), *decoding.warnings),
        lambda: EngineAnswerReader(
            decoding.read(),
            decoding.hook(),
            request.model,
            decoding.check,
            RunawayDetector() if structured else None,
            decoding.finisher,
        ),
        request.timeout,
    )


def _instructed(request: ModelRequest, response_format: ResponseFormat) -> ModelRequest:
    """Return a direct call with the schema in its prompt, where only the prompt asks for it.

    For enforced calls, enforcement writes the prompt.
    """
    if response_format.strategy is not OutputStrategy.PROMPTED or request.tools:
        return request
    return first_request(request, OutputStrategy.PROMPTED, Wording()).request


def _decoding(request: ModelRequest, options: Guard, stop_hook: HookFactory | None) -> _Decoding:
    """Return how an answer is decoded: watched if only the prompt has the schema, else under a grammar, or free."""
    tools = callable_tools(request)
    response_format = request.response_format
    if response_format is not None and response_format.strategy is OutputStrategy.PROMPTED and not tools:
        options = Guard.of(request.extra, options)
        grammar = prompt_grammar(options, hooked=stop_hook is not None)
        if stop_hook:
            return _Decoding(grammar, hook=partial(stop_hook, options), may_stop=True)
        if options.response_format_fail_hard:
            return _fail_hard(grammar, options, response_format.json_schema)
        check = None
        if request.calls is None:
            check = _raw_text_check(response_format.json_schema)
        return _Decoding(grammar, may_stop=options.watches, check=check)
    constraint = _constraint(request)
    if tools:
        finisher, warnings = tool_grammar(request, tools, constraint, _max_tokens(request))
        if response_format is not None and response_format.strategy is OutputStrategy.PROMPTED:
            warnings = (*warnings, _PROMPTED_BUT_CONSTRAINED)
        system = tools_prompt(request, tools)
        return _Decoding(finisher.grammar, warnings, ReadCall, system=system, finisher=finisher)
    if constraint is None:
        return _Decoding()
    read = _unwrap_reader if constraint.wrapped else lambda: _plain
    finisher = AnswerFinisher.of(constraint, _max_tokens(request))
    return _Decoding(constraint.grammar, constraint.warnings, read, check=constraint.reached, finisher=finisher)


def _raw_text_check(spec: JsonSchemaSpec) -> CheckText:
    """Return the check of direct calls to this provider, which nothing else validates: it only warns."""
    schema = Schema.of(spec)

    def check(text: str) -> tuple[ModelWarning, ...]:
        error = judge(ModelResponse(text=text), Requirement(schema)).error
        if error is None:
            return ()
        return (ModelWarning(error.code, str(error)),)

    return check


def _fail_hard(grammar: str | None, options: Guard, spec: JsonSchemaSpec) -> _Decoding:
    """Return the decoding of direct calls to this provider: the text must be valid as written, without repair."""
    schema = Schema.of(spec)

    def hook() -> StopHook:
        watch = EarlyStop(options, schema, _AS_WRITTEN)

        def stop(piece: str) -> bool:
            is_finished = watch.feed(piece)
            if watch.error is not None:
                raise as_invalid_format(watch.error)
            return is_finished

        return stop

    def check(text: str) -> tuple[ModelWarning, ...]:
        verdict = judge(ModelResponse(text=text), Requirement(schema, switches=_AS_WRITTEN))
        if verdict.error is not None:
            raise as_invalid_format(verdict.error)
        if verdict.repairs:
            error = JsonEnforcementError(f"The JSON is broken: {verdict.repairs[0].kind}", hint="Retry the request.")
            raise as_invalid_format(error)
        return ()

    return _Decoding(grammar, hook=hook, check=check, may_stop=True)


def _constraint(request: ModelRequest) -> Constraint | None:
    if request.response_format is not None:
        return constrain_retry(request.response_format.json_schema.schema, _max_tokens(request), request.messages)
    if request.json_mode:
        return any_object(_max_tokens(request))
    return None


def _is_short(request: ModelRequest) -> bool:
    """Return whether the answer is short: by its limit, or as an object without lists."""
    prompt = sum(len(message.text) for message in request.messages)
    if prompt > _SHORT_PROMPT:
        return False
    if request.max_tokens is not None:
        return request.max_tokens <= _SHORT_ANSWER
    if request.response_format is None or request.tools:
        return False
    schema = json_text(request.response_format.json_schema.schema)
    return len(schema) <= _SHORT_SCHEMA and b'"array"' not in schema and b'"$ref"' not in schema


def _max_tokens(request: ModelRequest) -> int:
    return request.max_tokens or MAX_TOKENS


def _plain(text: str) -> tuple[str, tuple[ToolDelta, ...]]:
    return text, ()


def _unwrap_reader() -> ReadText:
    unwrap = Unwrap()
    return lambda text: (unwrap.feed(text), ())


def _unsupported(request: ModelRequest) -> tuple[ModelWarning, ...]:
    """Return warnings for what the embedded model ignores in a request."""
    texts: list[ModelWarning] = []
    if request.parallel_tool_calls and request.tools:
        texts.append(LossyEncode("unsupported", "The embedded model calls one tool at a time.", "parallel_tool_calls"))
    if request.reasoning is not None:
        texts.append(LossyEncode("unsupported", "The embedded model has no reasoning to switch on.", "reasoning"))
    if any(isinstance(part, Reasoning) for message in request.messages for part in message.parts):
        texts.append(LossyEncode("unsupported", "Earlier reasoning is not shown to the embedded model.", "messages"))
    for name, value in Guard.without(request.extra).items():
        if name not in _KNOWN_EXTRA and value not in (None, False):
            texts.append(LossyEncode("unsupported", f"The embedded model does not heed {name!r}.", f"extra.{name}"))
    return tuple(texts)


def _refuse_several(request: ModelRequest) -> None:
    count = request.extra.get("n")
    if count not in (None, 1):
        raise RequestError(
            f"The embedded model gives one answer at a time, and the request asks for {count!r}",
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
    """Return a message as the engine takes it; raises for parts other than text."""
    texts: list[str] = []
    for part in message.parts:
        if isinstance(part, Text):
            texts.append(part.text)
        elif isinstance(part, ToolCall):
            texts.append(encode_call(part))
        elif isinstance(part, ToolResult):
            texts.append(_result_text(part, message.role))
        elif not isinstance(part, Reasoning):
            raise _text_only_error(part, message.role)
    # Templates of small models have no tool role; the result becomes a user message.
    role = "user" if message.role == "tool" else message.role
    return {"role": role, "content": "".join(texts)}


def _result_text(result: ToolResult, role: str) -> str:
    for part in result.parts:
        if not isinstance(part, Text):
            raise _text_only_error(part, role)
    text = result.text
    opening = "The tool failed" if result.is_error else "The tool gave back"
    return f"{opening}: {text}"


def _text_only_error(part: object, role: str) -> RequestError:
    kind = part.kind if isinstance(part, Media) else type(part).__name__
    return RequestError(
        f"The embedded model reads text only, and a {role} message has other content ({kind})",
        hint="Send text, or name another provider's model.",
    )
