"""Represent messages and their parts.

The `extra` of a part, a message, a tool or a call is keyed by the name of a codec
(`{"anthropic": {"cache_control": …}}`): that codec sends it unchanged, the others drop it with a warning.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from operator import attrgetter
from typing import Annotated, Any, Final, Literal, TypeAlias, overload

import msgspec

Role: TypeAlias = Literal["system", "user", "assistant", "tool"]


def record_repr(kind: str, names: Iterable[str], values: Iterable[object]) -> str:
    """Return the `repr` of a record with some of its fields.

    >>> record_repr("Point", ("x",), (1,))
    'Point(x=1)'
    """
    return f"{kind}({', '.join(f'{name}={value!r}' for name, value in zip(names, values, strict=True))})"


class Unresolved(Enum):
    """The type of `UNRESOLVED`: no value yet, which differs from the value null."""

    UNRESOLVED = "unresolved"


UNRESOLVED = Unresolved.UNRESOLVED


class Text(msgspec.Struct, frozen=True):
    """Plain text."""

    text: str
    extra: Mapping[str, Any] = msgspec.field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Media:
    """An image, a sound or a file: bytes or a URL, never inspected."""

    kind: Literal["image", "audio", "video", "file"]
    mime_type: str | None = None
    data: bytes | None = None
    url: str | None = None
    file_id: str | None = None
    name: str | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool call of the model; `arguments` is the raw JSON text, `arguments_resolved` its value where it is known."""

    id: str
    name: str
    arguments: str
    extra: Mapping[str, Any] = field(default_factory=dict)
    arguments_resolved: Any = field(default=UNRESOLVED, compare=False, repr=False)

    @property
    def view(self) -> Any:
        """The value of the arguments where it is known, else their text."""
        if self.arguments_resolved is UNRESOLVED:
            return self.arguments
        return self.arguments_resolved


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The result of the tool call `call_id`: text, media, and data that only its vendor understands."""

    call_id: str
    parts: tuple[Text | Media | Opaque, ...]
    is_error: bool = False
    name: str | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """All text parts, joined."""
        return "".join(part.text for part in self.parts if isinstance(part, Text))


@dataclass(frozen=True, slots=True)
class Reasoning:
    """The model's reasoning.

    `opaque` holds what a vendor wants back unchanged (signatures, encrypted blocks), keyed by the codec's name.
    """

    text: str = ""
    opaque: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Opaque:
    """A part of an unknown kind; only the codec `vendor`, which decoded it, sends it back unchanged."""

    vendor: str
    data: Mapping[str, Any]


Part: TypeAlias = Text | Media | ToolCall | ToolResult | Reasoning | Opaque


class Message(msgspec.Struct, frozen=True):
    """One message of a conversation; `content_resolved` is the value of its text, where that was parsed as JSON.

    >>> Message.user("Ada is 36").text
    'Ada is 36'
    """

    role: Role
    parts: tuple[Part, ...]
    name: str | None = None
    extra: Mapping[str, Any] = msgspec.field(default_factory=dict)
    content_resolved: Any = UNRESOLVED

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Message):
            return _compared_values(self) == _compared_values(other)
        return NotImplemented

    __hash__ = None  # type: ignore[assignment]  # it holds mappings

    def __repr__(self) -> str:
        return record_repr("Message", _COMPARED, _compared_values(self))

    def __post_init__(self) -> None:
        if type(self.parts) is not tuple:  # a list is accepted, too
            msgspec.structs.force_setattr(self, "parts", tuple(self.parts))

    def replace(self, **changes: Any) -> Message:
        """Return a copy with these fields changed."""
        return msgspec.structs.replace(self, **changes)

    @classmethod
    def system(cls, text: str) -> Message:
        """Return a system message of plain text."""
        return cls("system", (Text(text),))

    @classmethod
    def user(cls, text: str) -> Message:
        """Return a user message of plain text."""
        return cls("user", (Text(text),))

    @classmethod
    def assistant(cls, text: str) -> Message:
        """Return an assistant message of plain text."""
        return cls("assistant", (Text(text),))

    @property
    def text(self) -> str:
        """All text parts, joined."""
        return "".join(part.text for part in self.parts if isinstance(part, Text))

    @property
    def view(self) -> Any:
        """The value of the text where it is known, else the text."""
        if self.content_resolved is UNRESOLVED:
            return self.text
        return self.content_resolved

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        """The tool calls among the parts, in order."""
        return tuple(part for part in self.parts if isinstance(part, ToolCall))

    @property
    def tool_results(self) -> tuple[ToolResult, ...]:
        """The results of tools among the parts, in order."""
        return tuple(part for part in self.parts if isinstance(part, ToolResult))


class PlainTurn(msgspec.Struct, forbid_unknown_fields=True):
    """A turn of plain text, like most turns."""

    role: Literal["system", "user", "assistant"]
    content: Annotated[str, msgspec.Meta(min_length=1)]


class PlainTurns(Sequence[Message]):
    """A conversation of plain text; its messages are built when the first of them is accessed.

    >>> turns = PlainTurns([PlainTurn("user", "Ada is 36")])
    >>> len(turns), turns[0].text, turns == (Message.user("Ada is 36"),)
    (1, 'Ada is 36', True)
    """

    __slots__ = ("_messages", "size", "turns")

    def __init__(self, turns: Sequence[PlainTurn], size: int | None = None) -> None:
        self.turns: Final = turns
        self.size: Final = size
        """The size of its JSON, where that is known."""
        self._messages: tuple[Message, ...] | None = None

    @property
    def messages(self) -> tuple[Message, ...]:
        """The conversation as messages."""
        if self._messages is None:
            self._messages = tuple([Message(turn.role, (Text(turn.content),)) for turn in self.turns])
        return self._messages

    def __len__(self) -> int:
        return len(self.turns)

    @overload
    def __getitem__(self, index: int) -> Message: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[Message, ...]: ...

    def __getitem__(self, index: int | slice) -> Message | tuple[Message, ...]:
        return self.messages[index]

    def __iter__(self) -> Iterator[Message]:
        return iter(self.messages)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, PlainTurns):
            return self.turns == other.turns
        return self.messages == other

    __hash__ = None  # type: ignore[assignment]  # messages hold mappings

    def __repr__(self) -> str:
        return repr(self.messages)


_COMPARED: Final = ("role", "parts", "name", "extra")
"""The fields that are compared and shown; `content_resolved` follows from the text."""
_compared_values: Final = attrgetter(*_COMPARED)
