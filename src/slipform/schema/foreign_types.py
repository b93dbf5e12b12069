"""Build schemas of types that pydantic refuses: attrs, msgspec, `TypedDict` before Python 3.12.

msgspec reads attrs classes, its own structs, and dataclasses and containers of both. A `TypedDict` of the standard
library is rewritten as one of `typing_extensions`, so that pydantic's own annotations in it still count.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator
from typing import Annotated, Any, Generic, NotRequired, Required, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec
import typing_extensions

from slipform.schema.violations import Violation, path_steps, violation_at

T = TypeVar("T")


class MsgspecAdapter(Generic[T]):
    """The counterpart of `pydantic.TypeAdapter` for other types: decodes JSON as a type that msgspec supports."""

    __slots__ = ("_decoder",)

    def __init__(self, shape: Any) -> None:
        """Raise `TypeError` for a type that msgspec does not support, or with annotations that it would ignore."""
        for annotation in _annotations(shape, set()):
            if not isinstance(annotation, msgspec.Meta | str):
                raise TypeError(f"msgspec does not check {annotation!r:.100}")
        self._decoder = msgspec.json.Decoder(shape)

    def validate_json(self, text: bytes) -> T:
        """Return the object; raises `msgspec.ValidationError`."""
        value: T = self._decoder.decode(text)
        return value


def has_msgspec_rules(shape: Any) -> bool:
    """Return whether a type has constraints that pydantic would silently ignore.

    >>> has_msgspec_rules(list[Annotated[int, msgspec.Meta(ge=1)]]), has_msgspec_rules(list[int])
    (True, False)
    """
    try:
        return any(isinstance(annotation, msgspec.Meta) for annotation in _annotations(shape, set()))
    except (NameError, TypeError, AttributeError, SyntaxError):  # names that only pydantic resolves
        return False


def msgspec_document(shape: Any) -> dict[str, Any]:
    """Return the JSON Schema of a type that msgspec supports, with the root inlined."""
    document = msgspec.json.schema(shape)
    if set(document) == {"$ref", "$defs"}:
        itself = document["$ref"]
        definitions = document["$defs"]
        root = definitions[itself.removeprefix("#/$defs/")]
        if not _refers_to(definitions, itself):
            definitions = {name: each for name, each in definitions.items() if each is not root}
        return {**root, "$defs": definitions} if definitions else root
    return document


def _refers_to(node: Any, target: str) -> bool:
    if isinstance(node, dict):
        return node.get("$ref") == target or any(_refers_to(each, target) for each in node.values())
    return isinstance(node, list) and any(_refers_to(each, target) for each in node)


def msgspec_violation(error: msgspec.ValidationError, value: Any) -> Violation:
    """Return msgspec's error for a value: one sentence, with the place at its end."""
    message, _, place = str(error).partition(" - at `")
    try:
        steps = path_steps(place.rstrip("`"))
    except ValueError:  # msgspec writes `[...]` for the values of a dict
        steps = ()
    return violation_at(steps, "type", message, value)


def modern_typed_dicts(shape: Any, made: dict[Any, Any] | None = None) -> Any:
    """Return the type with each `typing.TypedDict` rewritten as one of `typing_extensions`.

    >>> Movie = typing.TypedDict("Movie", {"title": str})
    >>> type(modern_typed_dicts(list[Movie]).__args__[0]).__module__
    'typing_extensions'
    """
    made = {} if made is None else made
    if isinstance(shape, type) and type(shape).__module__ == "typing" and typing.is_typeddict(shape):
        if shape not in made:
            made[shape] = shape  # a recursive one stays unchanged
            made[shape] = _modern_typed_dict(shape, made)
        return made[shape]
    arguments = get_args(shape)
    if not arguments:
        return shape
    origin: Any = get_origin(shape)
    if origin is Annotated:
        return Annotated[modern_typed_dicts(arguments[0], made), *arguments[1:]]
    if origin in (Required, NotRequired, typing_extensions.ReadOnly):
        return modern_typed_dicts(arguments[0], made)
    rebuilt = tuple(modern_typed_dicts(each, made) for each in arguments)
    if rebuilt == arguments:
        return shape
    if origin in (Union, types.UnionType):
        return Union[rebuilt]  # noqa: UP007 — of a tuple
    return origin[rebuilt]


def _modern_typed_dict(shape: Any, made: dict[Any, Any]) -> Any:
    required: frozenset[str] = shape.__required_keys__
    fields = {}
    # The class itself cannot resolve annotations that are strings.
    for name, hint in get_type_hints(shape, include_extras=True).items():
        marked: Any = get_origin(hint)
        optional = marked is NotRequired or (name not in required and marked is not Required)
        field = modern_typed_dicts(hint, made)
        fields[name] = NotRequired[field] if optional else field
    modern = typing_extensions.TypedDict(shape.__name__, fields)  # type: ignore[misc]
    modern.__doc__ = shape.__doc__
    return modern


def _annotations(shape: Any, visited: set[Any]) -> Iterator[Any]:
    """Yield the metadata of every `Annotated` within a type."""
    if get_origin(shape) is Annotated:
        yield from get_args(shape)[1:]
    for argument in get_args(shape):
        if isinstance(argument, type) or get_origin(argument) is not None:
            yield from _annotations(argument, visited)
    if isinstance(shape, type) and shape not in visited and getattr(shape, "__annotations__", None):
        visited.add(shape)
        for hint in get_type_hints(shape, include_extras=True).values():
            yield from _annotations(hint, visited)
