"""Read the engine's chunks, tool calls included, and write the grammars of prompt-only answers and tool calls.

What a `Guard` switches on is spelled as a grammar, which the engine applies to its logits before each token is drawn.

No template of the model's is needed, so every model calls tools, and every call fits its tool's schema.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from slipform.errors import RequestError
from slipform.ir import (
    CompletionChunk,
    FinishReason,
    ModelRequest,
    ModelResponse,
    ModelWarning,
    NamedTool,
    Tool,
    ToolCall,
    ToolDelta,
    Usage,
)
from slipform.ir.reducer import Reducer, Snapshot
from slipform.ir.request import Guard
from slipform.providers.embedded.decoding.constrain import (
    KEY,
    ClosingBraceFilter,
    Constraint,
    constrain_retry,
    literal,
    under,
)
from slipform.providers.embedded.engine import raise_for_error
from slipform.providers.embedded.llama import Chunk

StopHook: TypeAlias = Callable[[str], bool]
"""Given each piece of text as it comes; True stops generation there. May raise, which stops it with that error."""


@dataclass(frozen=True, slots=True)
class ForceJsonStartLogitsProcessor:
    r"""Rules out every first token but blanks and an opening bracket.

    This engine takes a grammar where others take a function over logits: the same rule, ready to cross to a worker.

    >>> print(ForceJsonStartLogitsProcessor().grammar)
    %llguidance {}
    start: /[ \n]*[{\[](.|\n)*/
    """

    stop_after_json: bool = False

    @property
    def grammar(self) -> str:
        """The rule as the engine reads it; with `stop_after_json`, what has closed cannot go on."""
        return _JSON_ONLY if self.stop_after_json else _JSON_START


_ANY_JSON = '%json {"anyOf": [{"type": "object"}, {"type": "array"}]}'
_JSON_START = "%llguidance {}\nstart: /[ \\n]*[{\\[](.|\\n)*/"
_JSON_ONLY = f"%llguidance {{}}\nstart: /[ \\n]*/ json\njson: {_ANY_JSON}"
_JSON_LAST = f"%llguidance {{}}\nstart: /[^{{\\[]*/ json\njson: {_ANY_JSON}"


def prompt_grammar(options: Guard, *, hooked: bool) -> str | None:
    """The grammar of a prompt-only answer, if any; where a hook watches for the end, the grammar need not."""
    stop = options.stop_after_json and not hooked
    if options.force_json_start:
        return ForceJsonStartLogitsProcessor(stop).grammar
    return _JSON_LAST if stop else None


Read = Callable[[str], tuple[str, tuple[ToolDelta, ...]]]
"""Takes what belongs to the answer, text or pieces of a tool call, out of the engine's text."""
_FINISH: dict[str, FinishReason] = {"stop": "stop", "length": "length"}
Check = Callable[[str], tuple[ModelWarning, ...]]
"""What is to be said of a finished answer's text, as the engine wrote it."""


class EngineAnswerReader:
    """Reads one answer; `over` once its hook has stopped it."""

    def __init__(self, read: Read, hook: StopHook | None, model: str, check: Check | None = None) -> None:
        self.over = False
        self._check = check
        self._raw: list[str] = []
        self._read = read
        self._hook = hook
        self._model = model
        self._called = False

    def feed(self, chunk: Chunk) -> CompletionChunk:
        """Our chunk for the engine's; raises what the engine says in its place."""
        raise_for_error(chunk)
        choice: Mapping[str, Any] = next(iter(chunk["choices"]), {})
        raw = choice.get("delta", {}).get("content") or ""
        text, calls = self._read(raw)
        self._called = self._called or bool(calls)
        # An answer may be left before the engine says what was spent: then the last timings tell.
        finish, usage = choice.get("finish_reason"), _usage(chunk.get("usage")) or _spent(chunk.get("timings"))
        if raw and self._hook and self._hook(raw):
            self.over, finish = True, "stop"
        if self._check:
            self._raw.append(raw)
        return CompletionChunk(
            text=text,
            tool_calls=calls,
            finish=self._finish(finish) if finish else None,
            raw_finish=finish,
            usage=usage,
            model=self._model,
            id=chunk.get("id"),
            warnings=self._check("".join(self._raw)) if finish and self._check else (),
        )

    def _finish(self, finish: str) -> FinishReason:
        if finish == "stop" and self._called:
            return "tool_calls"
        return _FINISH.get(finish, "unknown")


def whole(chunks: Iterable[CompletionChunk], warnings: tuple[ModelWarning, ...]) -> ModelResponse:
    """The response that the chunks of one answer add up to."""
    reducer = Reducer()
    reducer.start(Snapshot())
    for chunk in (CompletionChunk(warnings=warnings), *chunks):
        reducer.push(chunk)
    return reducer.finish()


def _usage(usage: Mapping[str, Any] | None) -> Usage | None:
    if usage is None:
        return None
    details = usage.get("prompt_tokens_details") or {}
    return Usage(
        input=usage.get("prompt_tokens"),
        output=usage.get("completion_tokens"),
        cached=details.get("cached_tokens"),
        total=usage.get("total_tokens"),
    )


def _spent(timings: Mapping[str, Any] | None) -> Usage | None:
    if timings is None:
        return None
    cached, read, written = (timings.get(name) or 0 for name in ("cache_n", "prompt_n", "predicted_n"))
    return Usage(input=cached + read, output=written, cached=cached, total=cached + read + written)


_CALL = re.compile(r'\s*\{\s*"tool"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"arguments"\s*:\s*')
_ANSWER = re.compile(rf'\s*\{{\s*"{KEY}"\s*:\s*')
_MUST = "Call a tool. Reply only with JSON like"
_MAY = "You can call a tool. To call one, reply only with JSON like"
_SHAPE = '{"tool": "name", "arguments": {...}}'


def offered(request: ModelRequest) -> tuple[Tool, ...]:
    """The tools that may be called in answer to this request."""
    if isinstance(request.tool_choice, NamedTool):
        chosen = tuple(tool for tool in request.tools if tool.name == request.tool_choice.name)
        if not chosen:
            raise RequestError(
                f"The tool {request.tool_choice.name!r} is to be called, and there is none of that name",
                where="tool_choice",
                hint=f"The tools are: {', '.join(tool.name for tool in request.tools) or 'none'}.",
            )
        return chosen
    return () if request.tool_choice == "none" else request.tools


def tool_grammar(
    request: ModelRequest, tools: Sequence[Tool], answer: Constraint | None, max_tokens: int
) -> tuple[str, tuple[ModelWarning, ...]]:
    """The grammar of a call to one of these tools or, unless one must be called, of an answer or free text."""
    rules: list[str] = []
    warnings: list[ModelWarning] = []
    calls: list[str] = []
    for number, tool in enumerate(tools):
        held = constrain_retry(tool.parameters or {"type": "object"}, max_tokens, request.messages, tool=tool.name)
        warnings.extend(held.warnings)
        opening = f'{{"tool": {json.dumps(tool.name)}, "arguments": '
        rules.append(f'call_{number}: {literal(opening)} args_{number} "}}"')
        rules.append(f"args_{number}: {held.rule}")
        calls.append(f"call_{number}")
    if not must_call(request):
        calls.append("other")
        if answer is not None:
            warnings.extend(answer.warnings)
            rules += [f"other: {under(KEY, 'value')}", f"value: {answer.rule}"]
        else:
            rules.append("other: /[^{ \\n](.|\\n)*/")
    return "\n".join(["%llguidance {}", f"start: {' | '.join(calls)}", *rules]), tuple(warnings)


def must_call(request: ModelRequest) -> bool:
    """Whether text is no answer to this request."""
    return request.tool_choice == "required" or isinstance(request.tool_choice, NamedTool)


def described(request: ModelRequest, tools: Sequence[Tool]) -> str:
    """What the model is told about its tools."""
    opening = f"{_MUST if must_call(request) else _MAY} {_SHAPE}. The tools:"
    return "\n".join([opening, *(f"- {_signature(tool)}" for tool in tools)])


def spelled(call: ToolCall) -> str:
    """A call of an earlier turn, as the model wrote it."""
    return f'{{"tool": {json.dumps(call.name)}, "arguments": {call.arguments or "{}"}}}'


def _signature(tool: Tool) -> str:
    properties = tool.parameters.get("properties")
    required = tool.parameters.get("required", ())
    named: Mapping[str, Any] = properties if isinstance(properties, Mapping) else {}
    arguments = ", ".join(name if name in required else f"{name}?" for name in named)
    return f"{tool.name}({arguments}): {tool.description}" if tool.description else f"{tool.name}({arguments})"


class ReadCall:
    """Tells calls from text in an answer, piece by piece.

    >>> read = ReadCall()
    >>> read('{"tool": "f", "argu')
    ('', ())
    >>> read('ments": {"a": 1}}')[1][-1].arguments
    '{"a": 1}'
    """

    def __init__(self) -> None:
        self._head: str | None = ""
        self._tail: ClosingBraceFilter | None = None
        self._called = False

    def __call__(self, text: str) -> tuple[str, tuple[ToolDelta, ...]]:
        """The text, and the pieces of a call, in this piece of the answer."""
        if self._head is None:
            return self._pass_on(text)
        head = self._head + text
        if call := _CALL.match(head):
            self._head, self._tail, self._called = None, ClosingBraceFilter(), True
            begun = ToolDelta(index=0, id=f"call_{secrets.token_hex(12)}", name=json.loads(call[1]))
            return "", (begun, *self._pass_on(head[call.end() :])[1])
        if answer := _ANSWER.match(head):
            self._head, self._tail = None, ClosingBraceFilter()
            return self._pass_on(head[answer.end() :])
        if head.strip() and not head.lstrip().startswith("{"):
            self._head = None
            return head, ()
        self._head = head
        return "", ()

    def _pass_on(self, text: str) -> tuple[str, tuple[ToolDelta, ...]]:
        text = self._tail.feed(text) if self._tail else text
        if not self._called:
            return text, ()
        return "", (ToolDelta(index=0, arguments=text),) if text else ()
