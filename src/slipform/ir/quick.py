"""Frozen dataclasses that are quick to make."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, fields
from typing import Any, TypeVar

T = TypeVar("T")

_FEW = 3
"""Up to so many fields it is quicker to fill each slot through its descriptor than to change the class twice."""
_set_class = vars(object)["__class__"].__set__


def quick(cls: type[T]) -> type[T]:
    """Give a frozen, slotted dataclass an `__init__` that fills its slots directly.

    The one it has looks every slot up by its name, which takes three times as long, and each call makes some twenty of
    them. While it is filled, a record is of an unfrozen twin of its class: slots of that are set at once.

    >>> from dataclasses import dataclass
    >>> @quick
    ... @dataclass(frozen=True, slots=True)
    ... class Point:
    ...     x: int
    ...     y: int = 0
    >>> Point(1), Point(1, y=2) == Point(1, 2)
    (Point(x=1, y=0), True)
    """
    old = cls.__init__
    known: dict[str, Any] = {"_MISSING": MISSING, "_own": cls, "_old": old, "_set_class": _set_class}
    given = [field for field in fields(cls) if field.init]  # type: ignore[arg-type]  # a dataclass is what it asks for
    for field in given:
        known[f"_set_{field.name}"] = getattr(cls, field.name).__set__
        known[f"_default_{field.name}"] = field.default
        known[f"_make_{field.name}"] = field.default_factory
    if len(given) <= _FEW:
        lines = [f"_set_{field.name}(self, {_value(field)})" for field in given]
    else:
        known["_open"] = _unfrozen(cls)
        passed = ", ".join(_value(field) for field in given)
        lines = [f"if self.__class__ is not _own: return _old(self, {passed})", "_set_class(self, _open)"]
        lines += [f"self.{field.name} = {_value(field)}" for field in given]
        lines.append("self.__class__ = _own")
    if hasattr(cls, "__post_init__"):
        lines.append("self.__post_init__()")
    made = _function(f"__init__(self, {', '.join(map(_parameter, given))})", lines, known)
    made.__annotations__, made.__qualname__ = old.__annotations__, old.__qualname__
    cls.__init__ = made  # type: ignore[method-assign]
    return cls


def copier(cls: type[T]) -> Callable[[T, Mapping[str, Any]], T]:
    """What copies records of a frozen, slotted dataclass with some fields changed; a name it does not have is refused.

    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True, slots=True)
    ... class Point:
    ...     x: int
    ...     y: int = 0
    >>> copier(Point)(Point(1, 2), {"x": 3})
    Point(x=3, y=2)
    """
    names = [field.name for field in fields(cls)]  # type: ignore[arg-type]
    known = {"_own": cls, "_open": _unfrozen(cls), "_new": object.__new__, "_names": frozenset(names)}
    lines = ["made = _new(_open)", *(f"made.{name} = given.{name}" for name in names)]
    lines.append("for name, value in changes.items():")
    lines.append(f"    if name not in _names: raise TypeError(f'A {cls.__name__} has no {{name}}')")
    lines.append("    setattr(made, name, value)")
    lines.append("made.__class__ = _own")
    if hasattr(cls, "__post_init__"):
        lines.append("made.__post_init__()")
    copy: Callable[[T, Mapping[str, Any]], T] = _function("copy(given, changes)", [*lines, "return made"], known)
    return copy


def _unfrozen(cls: type[T]) -> type[T]:
    """A class whose objects are laid out the same, and can be changed."""
    free = {"__slots__": (), "__setattr__": object.__setattr__, "__delattr__": object.__delattr__}
    twin: type[T] = type(f"_{cls.__name__}", (cls,), free)
    return twin


def _function(head: str, lines: list[str], known: dict[str, Any]) -> Any:
    exec(f"def {head}:\n    " + "\n    ".join(lines or ["pass"]), known)  # noqa: S102 — as `dataclass` does
    return known[head.partition("(")[0]]


def _parameter(field: Field[Any]) -> str:
    if field.default is not MISSING:
        return f"{field.name}=_default_{field.name}"
    return field.name if field.default_factory is MISSING else f"{field.name}=_MISSING"


def _value(field: Field[Any]) -> str:
    if field.default_factory is MISSING:
        return field.name
    return f"_make_{field.name}() if {field.name} is _MISSING else {field.name}"
