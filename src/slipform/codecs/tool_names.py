"""Encode tool names in the characters a vendor allows, and restore the caller's names.

A name may come from another API, or from a library that allows more (`files.read`, `über`): a vendor answers it with a
400. The tools, the choice among them and the calls and results of earlier turns are renamed alike; the names in the
answer, streamed or not, are the caller's.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache

from slipform.codecs.request_fields import Encoding
from slipform.ir import RESERVED_TOOL, CompletionChunk, Message, ModelRequest, ModelResponse, NamedTool
from slipform.ir.messages import Part, ToolCall, ToolResult

_NO_NAMES: Mapping[str, str] = {}
_SPEAK_OF_TOOLS = frozenset({"assistant", "tool"})
_MARK = 7
"""The suffix that distinguishes two names with the same encoding."""


@dataclass(frozen=True, slots=True)
class Alphabet:
    """The characters that a vendor allows in a tool's name, those allowed at its beginning, and the maximum length.

    >>> Alphabet("A-Za-z0-9_-", "A-Za-z_", 10).encode("2 get.weather!", set())
    '_2__3ee2f7'
    """

    letters: str = "A-Za-z0-9_-"
    first: str = ""
    most: int = 64
    _fits: Callable[[str], object] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        whole = re.compile(rf"[{self.first or self.letters}][{self.letters}]{{0,{self.most - 1}}}")
        # The same few names occur in every request. Long ones are never cached here, so the cache stays small.
        object.__setattr__(self, "_fits", lru_cache(maxsize=1024)(whole.fullmatch))

    def allows(self, name: str) -> bool:
        """Return whether a name can be sent unchanged."""
        return len(name) <= self.most and self._fits(name) is not None

    def encode(self, name: str, taken: set[str]) -> str:
        """Return the name in these characters, unlike all those taken; the same for the same name in every turn."""
        clean = re.sub(rf"[^{self.letters}]", "_", name)
        if not self.allows(clean[:1]):
            clean = f"_{clean}"
        if len(clean) <= self.most and clean not in taken:
            return clean
        salt = name
        while True:
            digest = hashlib.sha256(salt.encode("utf-8", "surrogatepass")).hexdigest()
            marked = f"{clean[: self.most - _MARK]}_{digest[: _MARK - 1]}"
            if marked not in taken:
                return marked
            salt += name


LETTERS = Alphabet()
"""The characters that most vendors allow."""


def respell_tools(
    request: ModelRequest, alphabet: Alphabet | None, out: Encoding
) -> tuple[ModelRequest, Mapping[str, str]]:
    """Return the request with names that the vendor allows, and the caller's name of each changed one."""
    if alphabet is None or not _is_needed(request, alphabet):
        return request, _NO_NAMES
    names = dict.fromkeys(_names(request))
    odd = [name for name in names if name and not alphabet.allows(name)]
    taken = {name for name in names if name not in odd} | {RESERVED_TOOL}
    spelling: dict[str, str] = {}
    for name in odd:
        spelling[name] = alphabet.encode(name, taken)
        taken.add(spelling[name])
        message = f"It is spelled {spelling[name]!r} here; calls come back as {name!r}."
        out.lose(f"tools.{name}.name", message, "renamed")
    tools = tuple(
        tool if tool.vendor is not None else replace(tool, name=spelling.get(tool.name, tool.name))
        for tool in request.tools
    )
    choice = request.tool_choice
    if isinstance(choice, NamedTool):
        choice = NamedTool(spelling.get(choice.name, choice.name))
    messages = tuple(_turn(message, spelling) for message in request.messages)
    changed = request.replace(tools=tools, tool_choice=choice, messages=messages)
    return changed, {wire: name for name, wire in spelling.items()}


def restore_tool_names(response: ModelResponse, names: Mapping[str, str]) -> ModelResponse:
    """Return the answer with the caller's own names of tools."""
    calls = tuple(replace(call, name=names.get(call.name, call.name)) for call in response.tool_calls)
    back = {id(old): new for old, new in zip(response.tool_calls, calls, strict=True)}  # the parts contain them, too
    return response.replace(
        tool_calls=calls,
        parts=tuple(back.get(id(part), part) for part in response.parts),
        others=tuple(restore_tool_names(other, names) for other in response.others),
    )


def restore_chunk_names(chunks: list[CompletionChunk], names: Mapping[str, str]) -> list[CompletionChunk]:
    """Yield the chunks of a streamed answer with the caller's own names of tools."""
    return [
        chunk._replace(tool_calls=tuple(replace(each, name=names.get(each.name or "", each.name)) for each in calls))
        if (calls := chunk.tool_calls)
        else chunk
        for chunk in chunks
    ]


def _is_needed(request: ModelRequest, alphabet: Alphabet) -> bool:
    """Return whether some name is not allowed by the vendor; runs for every request, hence the plain loops."""
    names = {tool.name for tool in request.tools if tool.vendor is None} if request.tools else set()
    for message in request.messages:
        if message.role not in _SPEAK_OF_TOOLS:
            continue
        for part in message.parts:
            kind = type(part)
            if (kind is ToolCall or kind is ToolResult) and part.name is not None:  # type: ignore[union-attr]
                names.add(part.name)  # type: ignore[union-attr]
    if isinstance(request.tool_choice, NamedTool):
        names.add(request.tool_choice.name)
    if names:
        return any(name and not alphabet.allows(name) for name in names)
    return False


def _names(request: ModelRequest) -> Iterator[str]:
    for tool in request.tools:
        if tool.vendor is None:
            yield tool.name
    if isinstance(request.tool_choice, NamedTool):
        yield request.tool_choice.name
    for message in request.messages:
        for part in message.parts:
            if isinstance(part, ToolCall | ToolResult) and part.name is not None:
                yield part.name


def _turn(message: Message, spelling: Mapping[str, str]) -> Message:
    parts = tuple(_renamed(part, spelling) for part in message.parts)
    name = spelling.get(message.name or "", message.name) if message.role == "tool" else message.name
    return message.replace(parts=parts, name=name)


def _renamed(part: Part, names: Mapping[str, str]) -> Part:
    if not isinstance(part, ToolCall | ToolResult) or part.name is None or part.name not in names:
        return part
    return replace(part, name=names[part.name])
