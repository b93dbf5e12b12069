"""Names for shapes that vendors accept: letters, digits, `_` and `-`, at most 64."""

from __future__ import annotations

import hashlib
import re
import types
from typing import Annotated, Any, Literal, Union, get_args, get_origin

_STRANGE = re.compile(r"[^a-zA-Z0-9_-]+")
_LONGEST = 64


def fit_name(name: str) -> str:
    """The nearest name that vendors accept; a long one keeps its beginning and gets a mark of its own.

    >>> fit_name("My answer!"), fit_name("")
    ('My_answer', 'answer')
    """
    plain = _STRANGE.sub("_", name).strip("_") or "answer"
    if len(plain) <= _LONGEST:
        return plain
    mark = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{plain[: _LONGEST - 9]}_{mark}"


def name_of(shape: Any) -> str:
    """A name for a Python type.

    >>> name_of(list[int]), name_of(int | None), name_of(Literal["a", "b"])
    ('list_of_int', 'int_or_None', 'a_or_b')
    """
    return fit_name(_spoken(shape))


def _spoken(shape: Any) -> str:
    origin, arguments = get_origin(shape), get_args(shape)
    if origin is Annotated:
        return _spoken(arguments[0])
    if origin in {Union, types.UnionType}:
        return "_or_".join(map(_spoken, arguments))
    if origin is Literal:
        return "_or_".join(str(getattr(value, "value", value)) for value in arguments)
    if origin is dict:
        return f"dict_of_{_spoken(arguments[1])}"
    if isinstance(origin, type) and arguments:
        members = "_".join(_spoken(argument) for argument in arguments if argument is not Ellipsis)
        return f"{origin.__name__}_of_{members}"
    if shape is None or shape is type(None):
        return "None"
    return str(getattr(shape, "__name__", "answer"))
