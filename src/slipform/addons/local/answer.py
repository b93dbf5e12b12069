"""Build the grammars of prompt-only answers and tool calls, and decode the engine's chunks.

The options of a `Guard` become a grammar, which the engine applies to its logits before each token is sampled. Tool
calls need no template of the model: every model can call tools, and every call is valid against its tool's schema.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from slipform.addons.local.decoding.constrain import (
    KEY,
    ClosingBraceFilter,
    Constraint,
    constrain_retry,
    literal,
    opening_of,
    under,
)
from slipform.addons.local.engine import raise_for_error
from slipform.addons.local.finishing import AnswerFinisher, RepetitionWatch, next_body
from slipform.addons.local.llama import Chunk
from slipform.errors import RequestError
from slipform.ir import (
    CompletionChunk,
    FinishReason,
    ModelRequest,
    ModelWarning,
    NamedTool,
    Tool,
    ToolCall,
    ToolDelta,
    Usage,
)
from slipform.ir.logprobs import LOGPROBS, cut_logprobs
from slipform.ir.request import Guard
from slipform.text.runaway import RunawayDetector

StopHook: TypeAlias = Callable[[str], bool]
"""Called with each piece of text; returning True stops generation there, an exception stops it with that error."""


@dataclass(frozen=True, slots=True)
class ForceJsonStartLogitsProcessor:
    r"""Excludes every first token except blanks and an opening bracket.

    This engine takes a grammar where others take a function over logits; a grammar can be sent to a worker process.

    >>> print(ForceJsonStartLogitsProcessor().grammar)
    %llguidance {}
    start: /[ \n]*[{\[](.|\n)*/
    """

    stop_after_json: bool = False

    @property
    def grammar(self) -> str:
        """The rule in the engine's format; with `stop_after_json`, it ends where the JSON closes."""
        return _JSON_ONLY if self.stop_after_json else _JSON_START


_ANY_JSON = '%json {"anyOf": [{"type": "object"}, {"type": "array"}]}'
_JSON_START = "%llguidance {}\nstart: /[ \\n]*[{\\[](.|\\n)*/"
_JSON_ONLY = f"%llguidance {{}}\nstart: /[ \\n]*/ json\njson: {_ANY_JSON}"
_JSON_LAST = f"%llguidance {{}}\nstart: /[^{{\\[]*/ json\njson: {_ANY_JSON}"


def prompt_grammar(options: Guard, *, hooked: bool) -> str | None:
    """Return the grammar of a prompt-only answer, if any; where a hook finds the end, the grammar does not."""
    stop = options.stop_after_json and not hooked
    if options.force_json_start:
        return ForceJsonStartLogitsProcessor(stop).grammar
    return _JSON_LAST if stop else None


ReadText = Callable[[str], tuple[str, tuple[ToolDelta, ...]]]
"""Splits the engine's text into the text of the answer and pieces of a tool call."""
_FINISH: dict[str, FinishReason] = {"stop": "stop", "length": "length"}
CheckText = Callable[[str], tuple[ModelWarning, ...]]
"""Returns the warnings about an answer, for its whole text."""


class EngineAnswerReader:
    """Decodes the chunks of one answer; `is_finished` once its hook has stopped it, or it repeats itself endlessly."""

    def __init__(
        self,
        read: ReadText,
        hook: StopHook | None,
        model: str,
        check: CheckText | None = None,
        runaway: RunawayDetector | None = None,
        finisher: AnswerFinisher | None = None,
    ) -> None:
        self.is_finished = False
        self._finisher = finisher
        self._runaway = runaway
        self._repetition = None if finisher is None else RepetitionWatch()
        self._is_cut = False
        self._is_stuck = False
        self._runs = 1
        self._postponed: ModelWarning | None = None
        """The warning if the second run is cut off too."""
        self._string_end = (0, 0)
        """Where the first run ended inside a string, and how many more characters that may have."""
        self._spent = Usage()
        """The usage of earlier runs of this answer."""
        self._usage: Usage | None = None
        self._check = check
        self._raw: list[str] = []
        self._read = read
        self._hook = hook
        self._model = model
        self._called = False

    def feed(self, chunk: Chunk) -> CompletionChunk:
        """Return the engine's chunk as a `CompletionChunk`; raises the error that the engine reports in its place."""
        raise_for_error(chunk)
        choice: Mapping[str, Any] = next(iter(chunk["choices"]), {})
        raw = choice.get("delta", {}).get("content") or ""
        text, calls = self._read(raw)
        self._called = self._called or bool(calls)
        # An answer may be stopped before the engine reports its usage: then the last timings contain it.
        usage = _usage(chunk.get("usage")) or _usage_of_timings(chunk.get("timings"))
        self._usage = usage or self._usage
        if self._check or self._finisher:
            self._raw.append(raw)
        finish = self._finish_of(choice.get("finish_reason"), raw)
        return CompletionChunk(
            text=text,
            tool_calls=calls,
            finish=self._finish(finish) if finish else None,
            raw_finish=finish,
            usage=None if usage is None else _added(self._spent, usage),
            model=self._model,
            id=chunk.get("id"),
            warnings=self._warnings() if finish else (),
            extra=_logprobs(choice, raw, text),
        )

    def _warnings(self) -> tuple[ModelWarning, ...]:
        """Return the warnings about an answer that has ended.

        A warning of the first run was postponed if the second might complete its last string. It applies if that string
        used all the characters that it was given.
        """
        text = "".join(self._raw)
        warnings = self._check(text) if self._check else ()
        start, room = self._string_end
        if self._postponed is not None and text.find('"', start) >= start + room:
            return (self._postponed, *warnings)
        return warnings

    def _finish_of(self, finish: str | None, raw: str) -> str | None:
        """Return why the answer ends here; None where it does not, or where the cut-off answer can be finished."""
        if raw and self._hook and self._hook(raw):
            self.is_finished = True
            return "stop"
        is_stuck = bool(raw) and self._repeats(raw)
        if is_stuck:
            self.is_finished = True
        if self._finisher is None or not (is_stuck or finish == "length"):
            return "length" if is_stuck else finish
        self._is_stuck = is_stuck
        self._is_cut = True
        return None

    def _repeats(self, raw: str) -> bool:
        if self._repetition and self._repetition.feed(raw):
            return True
        return self._runaway is not None and self._runaway.feed(raw) is not None

    @property
    def is_to_be_finished(self) -> bool:
        """Return whether the answer was stopped because it repeats itself, and can be continued."""
        return self.is_finished and self._is_cut

    def next_run(self, body: Mapping[str, Any]) -> tuple[CompletionChunk, dict[str, Any] | None] | None:
        """Return the text that completes a cut-off answer, and the engine's request for the rest, if it has one.

        None where the answer has ended. A second run that is cut off is closed without the model.
        """
        finisher = self._finisher
        if finisher is None or not self._is_cut:
            return None
        text = "".join(self._raw)
        spent = self._spent if self._usage is None else _added(self._spent, self._usage)
        left = finisher.max_tokens - (spent.output or 0)
        is_full = not self._is_stuck and (spent.output or body["max_tokens"]) < body["max_tokens"]
        warning = finisher.warning(text, is_stuck=self._is_stuck) if self._runs == 1 else self._postponed
        self._postponed = None
        plan = None
        if self._runs == 1 and not is_full:
            plan = finisher.continue_answer(text, left, is_stuck=self._is_stuck)
        following = None if plan is None else next_body(body, text, plan, left)
        if plan is None or following is None:
            return self._closed(text, () if warning is None else (warning,)), None
        self._begin_run(spent)
        if plan.is_shorter:
            return self._added_text(plan.text, () if warning is None else (warning,)), following
        self._postponed = warning
        self._string_end = (len(text), plan.room)
        return self._added_text(plan.text, ()), following

    def _begin_run(self, spent: Usage) -> None:
        self._runs += 1
        self._spent = spent
        self._usage = None
        self._is_cut = False
        self._is_stuck = False
        self.is_finished = False
        self._repetition = RepetitionWatch()

    def _added_text(self, added: str, warnings: tuple[ModelWarning, ...], finish: str | None = None) -> CompletionChunk:
        """Return the part of the answer that slipform itself adds."""
        self._raw.append(added)
        text, calls = self._read(added)
        self._called = self._called or bool(calls)
        further = self._check("".join(self._raw)) if finish and self._check else ()
        return CompletionChunk(
            text=text,
            tool_calls=calls,
            finish=self._finish(finish) if finish else None,
            raw_finish=finish,
            model=self._model,
            warnings=(*warnings, *further),
        )

    def _closed(self, text: str, warnings: tuple[ModelWarning, ...]) -> CompletionChunk:
        closing = self._finisher.close_answer(text) if self._finisher else None
        if closing is None:
            return self._added_text("", (), "length")
        return self._added_text(closing, warnings, "stop")

    def _finish(self, finish: str) -> FinishReason:
        if finish == "stop" and self._called:
            return "tool_calls"
        return _FINISH.get(finish, "unknown")


def _logprobs(choice: Mapping[str, Any], raw: str, text: str) -> Mapping[str, Any]:
    """Return the probabilities of a chunk's tokens, without those of the wrapper around the answer."""
    logprobs = choice.get(LOGPROBS)
    if not logprobs:
        return {}
    if text == raw:
        return {LOGPROBS: logprobs}
    at = raw.find(text) if text else -1
    remaining = None
    if at >= 0:
        remaining = cut_logprobs(logprobs, raw, at, at + len(text))
    return {} if remaining is None else {LOGPROBS: remaining}


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


def _added(one: Usage, other: Usage) -> Usage:
    """Return the usage of two runs of one answer: the prompt of the second contains all of the first."""
    if not one.output:
        return other
    output = one.output + (other.output or 0)
    return Usage(input=one.input, output=output, cached=one.cached, total=(one.input or 0) + output)


def _usage_of_timings(timings: Mapping[str, Any] | None) -> Usage | None:
    if timings is None:
        return None
    cached, read, written = (timings.get(name) or 0 for name in ("cache_n", "prompt_n", "predicted_n"))
    return Usage(input=cached + read, output=written, cached=cached, total=cached + read + written)


_CALL = re.compile(r'\s*\{\s*"tool"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"arguments"\s*:\s*')
_ANSWER = re.compile(rf'\s*\{{\s*"{KEY}"\s*:\s*')
_MUST_CALL = "Call a tool. Reply only with JSON like"
_MAY_CALL = "You can call a tool. To call one, reply only with JSON like"
_CALL_FORMAT = '{"tool": "name", "arguments": {...}}'


def callable_tools(request: ModelRequest) -> tuple[Tool, ...]:
    """Return the tools that may be called; raises `RequestError` when the required one does not exist."""
    if isinstance(request.tool_choice, NamedTool):
        named_tools = tuple(tool for tool in request.tools if tool.name == request.tool_choice.name)
        if not named_tools:
            raise RequestError(
                f"The tool {request.tool_choice.name!r} is to be called, and there is none of that name",
                where="tool_choice",
                hint=f"The tools are: {', '.join(tool.name for tool in request.tools) or 'none'}.",
            )
        return named_tools
    if request.tool_choice == "none":
        return ()
    return request.tools


def tool_grammar(
    request: ModelRequest, tools: Sequence[Tool], answer: Constraint | None, max_tokens: int
) -> tuple[AnswerFinisher, tuple[ModelWarning, ...]]:
    """Return the grammar of a call to one of these tools or, where a call is optional, of an answer or free text.

    Also return the finisher for an answer that is cut off.
    """
    rules: list[str] = []
    warnings: list[ModelWarning] = []
    calls: list[str] = []
    values: dict[str, Constraint] = {}
    for number, tool in enumerate(tools):
        constraint = constrain_retry(
            tool.parameters or {"type": "object"}, max_tokens, request.messages, tool=tool.name
        )
        warnings.extend(constraint.warnings)
        opening = f'{{"tool": {json.dumps(tool.name)}, "arguments": '
        rules.append(f'call_{number}: {literal(opening)} args_{number} "}}"')
        rules.append(f"args_{number}: {constraint.rule}")
        values[opening] = constraint
        calls.append(f"call_{number}")
    if not must_call(request):
        calls.append("other")
        if answer is not None:
            warnings.extend(answer.warnings)
            rules += [f"other: {under(KEY, 'value')}", f"value: {answer.rule}"]
            values[opening_of(KEY)] = answer
        else:
            rules.append("other: /[^{ \\n](.|\\n)*/")
    grammar = "\n".join(["%llguidance {}", f"start: {' | '.join(calls)}", *rules])
    return AnswerFinisher(grammar, values, max_tokens), tuple(warnings)


def must_call(request: ModelRequest) -> bool:
    """Return whether the answer must be a tool call."""
    return request.tool_choice == "required" or isinstance(request.tool_choice, NamedTool)


def tools_prompt(request: ModelRequest, tools: Sequence[Tool]) -> str:
    """Return the part of the system message that describes the tools."""
    rule = _MUST_CALL if must_call(request) else _MAY_CALL
    opening = f"{rule} {_CALL_FORMAT}. The tools:"
    return "\n".join([opening, *(f"- {_signature(tool)}" for tool in tools)])


def encode_call(call: ToolCall) -> str:
    """Return a call of an earlier turn, in the form in which the model wrote it."""
    return f'{{"tool": {json.dumps(call.name)}, "arguments": {call.arguments or "{}"}}}'


def _signature(tool: Tool) -> str:
    properties = tool.parameters.get("properties")
    required = tool.parameters.get("required", ())
    parameters: Mapping[str, Any] = properties if isinstance(properties, Mapping) else {}
    arguments = ", ".join(name if name in required else f"{name}?" for name in parameters)
    if tool.description:
        return f"{tool.name}({arguments}): {tool.description}"
    return f"{tool.name}({arguments})"


class ReadCall:
    """Separates tool calls from text in the pieces of one answer.

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
        """Return the text and the deltas of a call in this piece."""
        if self._head is None:
            return self._split(text)
        head = self._head + text
        if call := _CALL.match(head):
            self._head = None
            self._tail = ClosingBraceFilter()
            self._called = True
            first_delta = ToolDelta(index=0, id=f"call_{secrets.token_hex(12)}", name=json.loads(call[1]))
            return "", (first_delta, *self._split(head[call.end() :])[1])
        if answer := _ANSWER.match(head):
            self._head = None
            self._tail = ClosingBraceFilter()
            return self._split(head[answer.end() :])
        if head.strip() and not head.lstrip().startswith("{"):
            self._head = None
            return head, ()
        self._head = head
        return "", ()

    def _split(self, text: str) -> tuple[str, tuple[ToolDelta, ...]]:
        text = self._tail.feed(text) if self._tail else text
        if not self._called:
            return text, ()
        return "", (ToolDelta(index=0, arguments=text),) if text else ()
