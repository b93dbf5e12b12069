"""What a model is told of a Python function, and which types the function gets."""

from __future__ import annotations

import dataclasses
import functools
import typing
from typing import Annotated, Any, Literal

import attrs
import msgspec
import pytest
from pydantic import BaseModel, Field

from slipform.errors import SchemaError
from slipform.schema.signature import read_docstring, signature_of


class Point(BaseModel):
    x: int


class Size(msgspec.Struct):
    width: int


@attrs.define
class Colour:
    name: str


GOOGLE = """Do it.

More of it.

Args:
    a: The first,
        over two lines.
    b (int): The second: with a colon.

Returns:
    a: nothing of it.
"""
NUMPY = """Do it.

More of it.

Parameters
----------
a : str
    The first,
    over two lines.
b
    The second: with a colon.

Returns
-------
a : str
    Nothing of it.
"""
SPHINX = """Do it.

More of it.

:param a: The first,
    over two lines.
:param int b: The second: with a colon.
:returns: nothing
:rtype: str
"""


@pytest.mark.parametrize("text", [GOOGLE, NUMPY, SPHINX], ids=["google", "numpy", "sphinx"])
def test_docstrings_of_three_formats_are_read_alike(text: str) -> None:
    described = {"a": "The first, over two lines.", "b": "The second: with a colon."}
    assert read_docstring(text) == ("Do it.\n\nMore of it.", described)


def test_a_docstring_without_parameters_is_the_description() -> None:
    assert read_docstring("Look: a colon.\n\nNote that it ends.") == ("Look: a colon.\n\nNote that it ends.", {})
    assert read_docstring(None) == (None, {})


def search(
    text: str,
    limit: Annotated[int, Field(ge=1, le=5)] = 3,
    *,
    kind: Annotated[Literal["web", "news"], "Where to look."] = "web",
    near: Point | None = None,
) -> list[str]:
    """Search.

    Args:
        text: What to look for.
    """
    return [text, str(limit), kind, repr(near)]


def test_the_schema_has_types_bounds_descriptions_and_defaults_and_is_closed() -> None:
    document = signature_of(search).arguments.document
    assert document["properties"]["text"] == {"type": "string", "description": "What to look for."}
    assert document["properties"]["limit"] == {"type": "integer", "minimum": 1, "maximum": 5, "default": 3}
    assert document["properties"]["kind"] == {
        "type": "string", "enum": ["web", "news"], "description": "Where to look.", "default": "web",
    }  # fmt: skip
    assert document["required"] == ["text"]
    assert document["additionalProperties"] is False
    assert "title" not in document


def test_a_function_gets_typed_arguments_and_keeps_its_defaults() -> None:
    assert signature_of(search).call(search, {"text": "a", "near": {"x": 1}}) == ["a", "3", "web", "Point(x=1)"]


def positional(a: int, b: int = 2, /, c: int = 3) -> tuple[int, int, int]:
    return a, b, c


class Shop:
    def buy(self, what: str, size: Size | None = None) -> str:
        """Buy it."""
        return f"{what} {size}"

    def __call__(self, what: str) -> str:
        """Call it."""
        return what


def paint(colour: Colour) -> str:
    """Paint."""
    return colour.name


@dataclasses.dataclass
class Order:
    """Order it."""

    number: int


@pytest.mark.parametrize(
    ("function", "arguments", "value", "name"),
    [
        (positional, {"a": 1, "c": 5}, (1, 2, 5), "positional"),
        (Shop().buy, {"what": "a", "size": {"width": 3}}, "a Size(width=3)", "buy"),
        (Shop(), {"what": "a"}, "a", "Shop"),
        (functools.partial(positional, 1), {}, (1, 2, 3), "positional"),
        (paint, {"colour": {"name": "red"}}, "red", "paint"),
        (Order, {"number": 3}, Order(3), "Order"),
    ],
)
def test_whatever_can_be_called_is_a_tool(function: Any, arguments: dict[str, Any], value: Any, name: str) -> None:
    read = signature_of(function)
    assert read.name == name
    assert read.arguments.check(arguments) == []
    assert read.call(function, arguments) == value


def test_the_name_can_be_given() -> None:
    assert signature_of(lambda: None, name="nothing").name == "nothing"


class Place(typing.TypedDict):
    city: str


class Guest(BaseModel):
    name: str


def test_a_typed_dict_of_the_standard_library_stands_beside_a_pydantic_model() -> None:
    def book(place: Place, guests: list[Guest]) -> None: ...

    arguments = signature_of(book).arguments
    assert arguments.to_python({"place": {"city": "Rome"}, "guests": [{"name": "Ada"}]}) == {
        "place": {"city": "Rome"},
        "guests": [Guest(name="Ada")],
    }


def pack(size: Size, colour: Annotated[str, msgspec.Meta(min_length=2)] = "red") -> str:
    """Pack it.

    Args:
        size: How large.
        colour: Of the box.
    """
    return f"{size} {colour}"


def test_descriptions_and_defaults_stay_beside_a_struct_and_nothing_is_written_twice() -> None:
    read = signature_of(pack)
    assert read.arguments.document["properties"] == {
        "size": {"$ref": "#/$defs/Size", "description": "How large."},
        "colour": {"type": "string", "minLength": 2, "description": "Of the box.", "default": "red"},
    }
    assert list(read.arguments.document["$defs"]) == ["Size"]
    assert read.call(pack, {"size": {"width": 3}}) == "Size(width=3) red"


def test_a_section_ends_where_the_text_is_no_longer_indented() -> None:
    text = "Do it.\n\nArgs:\n    a: The first.\nMore of it."
    assert read_docstring(text) == ("Do it.\n\nMore of it.", {"a": "The first."})


def described_by_its_type(a: Annotated[int, Field(description="Its own.")]) -> int:
    """Do it.

    Args:
        a: Another one.
    """
    return a


def test_a_description_in_the_type_counts_before_the_docstring() -> None:
    document = signature_of(described_by_its_type).arguments.document
    assert document["properties"]["a"]["description"] == "Its own."


def unreadable(a: Nowhere) -> None: ...  # type: ignore[name-defined]  # noqa: F821


def untyped(a) -> None: ...  # type: ignore[no-untyped-def]


def many(*words: str) -> None: ...


@pytest.mark.parametrize(
    ("function", "message", "hint"),
    [
        (unreadable, "annotations of the tool 'unreadable' cannot be read: name 'Nowhere'", "top of the module"),
        (untyped, "parameter 'a' of the tool 'untyped' has no type", "`a: str`"),
        (many, "takes `*words: 'str'`", "wrap it in a function"),
        (lambda: None, "'<lambda>' is not a name for a tool", "name=…"),
        (3, "A tool is made of a function, not of 3", "Give a function"),
    ],
)
def test_what_is_no_tool_says_why_and_what_to_do(function: Any, message: str, hint: str) -> None:
    with pytest.raises(SchemaError) as raised:
        signature_of(function)
    assert message in str(raised.value)
    assert hint in (raised.value.hint or "")


def many_times(times: Annotated[int, msgspec.Meta(ge=1)] = 3) -> int:
    """Do it.

    Args:
        times: How often.
    """
    return times


def test_rules_for_msgspec_count_in_a_tools_parameters() -> None:
    document = signature_of(many_times).arguments.document
    assert document["properties"]["times"] == {
        "type": "integer", "minimum": 1, "description": "How often.", "default": 3,
    }  # fmt: skip
