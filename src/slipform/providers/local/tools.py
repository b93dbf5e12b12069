"""Tool calls by constraint: the grammar is a union of the tools' schemas, and text where the model may choose.

No template of the model's is needed, so every model calls tools, and every call fits its tool's schema.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from slipform.errors import RequestError
from slipform.ir import ModelRequest, ModelWarning, NamedTool, Tool, ToolCall, ToolDelta
from slipform.providers.local.again import constrain_next
from slipform.providers.local.constraint import Constraint, literal, under
from slipform.providers.local.wrap import KEY, Tail

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
        held = constrain_next(tool.parameters or {"type": "object"}, max_tokens, request.messages, tool=tool.name)
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
        self._tail: Tail | None = None
        self._called = False

    def __call__(self, text: str) -> tuple[str, tuple[ToolDelta, ...]]:
        """The text, and the pieces of a call, in this piece of the answer."""
        if self._head is None:
            return self._pass_on(text)
        head = self._head + text
        if call := _CALL.match(head):
            self._head, self._tail, self._called = None, Tail(), True
            begun = ToolDelta(index=0, id=f"call_{secrets.token_hex(12)}", name=json.loads(call[1]))
            return "", (begun, *self._pass_on(head[call.end() :])[1])
        if answer := _ANSWER.match(head):
            self._head, self._tail = None, Tail()
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
