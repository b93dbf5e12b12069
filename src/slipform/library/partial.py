"""Show the value that a growing JSON document has so far, read like an object of the wanted type."""

# ruff: noqa: SLF001 — the functions here are the methods that `Partial` must not have, lest they hide fields

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import Any, Final, Generic, TypeAlias, TypeVar, overload

from slipform.enforce.patching import patch
from slipform.errors import SchemaError, SchemaViolationError
from slipform.library.partial_types import Kind, PathStep

T_co = TypeVar("T_co", covariant=True)
X = TypeVar("X")

ValuePath: TypeAlias = tuple[PathStep, ...]


class Unset(Enum):
    """The type of `UNSET`, so that type checkers can tell it from a value."""

    UNSET = "UNSET"

    def __repr__(self) -> str:
        return "UNSET"

    __str__ = __repr__

    def __bool__(self) -> bool:
        return False


UNSET: Final = Unset.UNSET
"""The value of a field that has not arrived yet. It is false, and distinct from a None the model wrote."""


class Memory:
    """The finished parts of one growing container, shared by its partials: each is built once and stays the same."""

    __slots__ = ("finished", "inner", "parts")

    def __init__(self, finished: Any = None) -> None:
        self.finished = finished
        """The container itself once it is finished, for a reader of an older partial after a newer one."""
        self.parts: dict[PathStep, tuple[Any, Any]] = {}
        """The JSON and the object of each finished part that was read."""
        self.inner: dict[PathStep, Memory] = {}
        """The memories of containers that were read while they grew."""


class Partial(Generic[T_co]):
    """The beginning of a `T`: read it like a `T`; what has not arrived is `UNSET`.

    A finished part is an object of its exact type, built and validated once, and the same object in every later
    partial. A container still growing is a `Partial` too, a growing string is a string. A finished part that does not
    fit its type is `UNSET`, or a `Partial` with the fields that do fit.

    Fields are attributes; keys and positions work as in dicts and lists. It has no methods of its own, so that no field
    is hidden: see `so_far` and `still_open`. A partial never changes; the stream yields new ones.

    >>> from slipform.library.partial_types import kind_of
    >>> partial = Partial({"a": [1, 2]}, kind_of(dict[str, list[int]]), Memory(), ("a",))
    >>> partial["a"][0], partial["b"]
    (1, UNSET)
    """

    __slots__ = ("_kind", "_memory", "_open", "_raw")

    def __init__(self, raw: Any, kind: Kind, memory: Memory, open_path: ValuePath | None) -> None:
        self._raw = raw
        self._kind = kind.narrowed(raw, open_path[0] if open_path else None)
        self._memory = memory
        self._open = open_path

    def __getattr__(self, name: str) -> Any:
        keys = self._kind.keys
        if name.startswith("_") or (keys and name not in keys) or not isinstance(self._raw, dict):
            raise AttributeError(f"This partial has no field {name!r}; it has {', '.join(keys) or 'none'}")
        return _part(self, keys.get(name, name))

    @overload
    def __getitem__(self: Partial[list[X]], key: int) -> X | Partial[X] | Unset: ...
    @overload
    def __getitem__(self: Partial[dict[str, X]], key: str) -> X | Partial[X] | Unset: ...
    @overload
    def __getitem__(self, key: PathStep) -> Any: ...
    def __getitem__(self, key: PathStep) -> Any:
        if isinstance(self._raw, list) and isinstance(key, int):
            return _part(self, range(len(self._raw))[key])
        if isinstance(self._raw, dict) and isinstance(key, str):
            if self._kind.keys and key not in self._kind.keys.values() and key not in self._raw:
                raise KeyError(key)
            return _part(self, key)
        raise TypeError(f"A partial {type(self._raw).__name__} has no [{key!r}]")

    def __len__(self) -> int:
        return len(self._raw)

    def __bool__(self) -> bool:
        return True

    @overload
    def __iter__(self: Partial[list[X]]) -> Iterator[X | Partial[X] | Unset]: ...
    @overload
    def __iter__(self: Partial[dict[str, X]]) -> Iterator[str]: ...
    @overload
    def __iter__(self) -> Iterator[Any]: ...
    def __iter__(self) -> Iterator[Any]:
        if isinstance(self._raw, list):
            return (_part(self, position) for position in range(len(self._raw)))
        return iter(self._raw)

    def __contains__(self, key: object) -> bool:
        if isinstance(self._raw, list):
            return any(key == each for each in self)
        return key in self._raw

    def __dir__(self) -> list[str]:
        return [*object.__dir__(self), *self._kind.keys]

    def __str__(self) -> str:
        if isinstance(self._raw, str):
            return self._raw
        return repr(self)

    def __repr__(self) -> str:
        return f"Partial({self._raw!r})"


def so_far(partial: Partial[Any]) -> Any:
    """Return the plain JSON behind a partial: dicts, lists and scalars. Treat it as read-only.

    >>> so_far(Partial([1], Kind(), Memory(), ()))
    [1]
    """
    return partial._raw


def still_open(partial: Partial[Any]) -> ValuePath | None:
    """Return the path at which a partial grows, from its own root: `()` is itself, None says that it is finished.

    >>> still_open(Partial({"name": "Ad"}, Kind(grows=True), Memory(), ("name",)))
    ('name',)
    """
    return partial._open


def finished_items(partial: Partial[Any], start: int) -> Iterator[Any]:
    """Yield the finished, valid items of a partial array from `start` on, up to the first that is not."""
    raw = partial._raw
    open_path = partial._open
    if not isinstance(raw, list):
        return
    growing = open_path[0] if open_path else len(raw)
    for position in range(start, len(raw)):
        item = _part(partial, position)
        if position == growing or item is UNSET or isinstance(item, Partial):
            return
        yield item


def _part(partial: Partial[Any], key: PathStep) -> Any:
    """Return the part under a key: its object when finished, its partial value when not, UNSET when absent."""
    raw = partial._raw
    memory = partial._memory
    open_path = partial._open
    if isinstance(raw, dict) and key not in raw:
        return UNSET
    value = raw[key]
    kind = partial._kind.child(key)
    if open_path and open_path[0] == key:
        return _growing(partial, value, kind, key, open_path[1:])
    finished = memory.parts.get(key)
    if finished is not None and finished[0] is value:
        return finished[1]
    inner = memory.inner.get(key)
    built = build_part(value, kind, inner)
    if built is INVALID:
        return _growing(partial, value, kind, key, None)
    built = _reuse_equal(_finished_part(partial, key) if finished is None else finished[1], built)
    if not kind.unsure:
        memory.parts[key] = (value, built)
        if isinstance(value, dict | list):
            memory.inner.setdefault(key, Memory()).finished = built
    return built


def _finished_part(partial: Partial[Any], key: PathStep) -> Any:
    """Return the part of the finished container, when that one was returned to the caller already."""
    finished_container = partial._memory.finished
    if finished_container is None:
        return None
    return _get_part(finished_container, key, _attributes(partial._kind))


def _growing(partial: Partial[Any], value: Any, kind: Kind, key: PathStep, open_path: ValuePath | None) -> Any:
    if isinstance(value, dict | list) and kind.form != "scalar":
        memories = partial._memory.inner
        inner = memories.get(key)
        if inner is None:
            inner = memories[key] = Memory(_finished_part(partial, key))
        return Partial(value, kind, inner, open_path)
    if kind.grows and open_path is not None and isinstance(value, str):
        return value
    return UNSET


INVALID: Final = object()
"""Returned for a finished value that does not fit its type."""


def _build_items(value: list[Any], kind: Kind, memory: Memory | None) -> Any:
    items = [_build_child(each, kind.child(step), memory, step) for step, each in enumerate(value)]
    if any(each is INVALID for each in items):
        return INVALID
    return items


def _build_members(value: dict[str, Any], kind: Kind, memory: Memory | None) -> Any:
    members = {key: _build_child(each, kind.child(key), memory, key) for key, each in value.items()}
    if any(each is INVALID for each in members.values()):
        return INVALID
    return members


def build_part(value: Any, kind: Kind, memory: Memory | None) -> Any:
    """Return the object for finished JSON, holding the parts that callers already have; or INVALID."""
    shape = kind.shape
    if kind.unsure:
        if isinstance(value, dict | list):
            return INVALID
        return value
    if shape is None or (type(value) is shape and shape in _PLAIN):
        return value
    if kind.loose and isinstance(value, list) and kind.form == "array":
        return _build_items(value, kind, memory)
    if kind.loose and isinstance(value, dict) and kind.form == "object":
        return _build_members(value, kind, memory)
    built = _validated(value, kind)
    if memory is not None and built is not INVALID:
        restore_parts(built, kind.narrowed(value, None), memory)
    return built


_PLAIN: Final = (str, int, bool, float)


def _build_child(value: Any, kind: Kind, memory: Memory | None, step: PathStep) -> Any:
    finished = memory.parts.get(step) if memory is not None else None
    if finished is not None and finished[0] is value:
        return finished[1]
    built = build_part(value, kind, memory.inner.get(step) if memory is not None else None)
    if finished is None:
        return built
    return _reuse_equal(finished[1], built)


def _validated(value: Any, kind: Kind) -> Any:
    """Return an object of this type, patched as the whole answer would be; or INVALID."""
    try:
        schema = kind.schema
        if not schema.validate(value):
            return schema.to_python(value)
        patched = patch(value, schema)
        if patched.violations:
            return INVALID
        return schema.to_python(patched.value)
    except (SchemaError, SchemaViolationError):
        return INVALID


def restore_parts(built: Any, kind: Kind, memory: Memory) -> None:
    """Put the parts that callers already have into a new object, where they equal its own.

    Parts that are read of older partials from now on are those of the new object.
    """
    memory.finished = built
    attributes = _attributes(kind)
    for step, (_, old) in memory.parts.items():
        new = _get_part(built, step, attributes)
        if new is not old and _reuse_equal(old, new) is old:
            _set_part(built, step, attributes, old)
    for step, inner in memory.inner.items():
        restore_parts(_get_part(built, step, attributes), kind.child(step), inner)


def _attributes(kind: Kind) -> dict[str, str]:
    return {key: name for name, key in kind.keys.items()}


def _reuse_equal(old: Any, new: Any) -> Any:
    if type(old) is type(new) and old == new:
        return old
    return new


def _get_part(built: Any, step: PathStep, attributes: dict[str, str]) -> Any:
    if isinstance(built, list | dict | tuple):
        exists = isinstance(step, int) and step < len(built) if not isinstance(built, dict) else step in built
        return built[step] if exists else None  # type: ignore[index]  # an int for lists, checked above
    if attributes:
        return getattr(built, attributes.get(str(step), ""), None)
    return None


def _set_part(built: Any, step: PathStep, attributes: dict[str, str], old: Any) -> None:
    if isinstance(built, list | dict):
        built[step] = old  # type: ignore[index]  # `_get_part` found it there
    elif not isinstance(built, tuple):
        # Bypasses the class's own setter: the value is equal, so frozen objects and validators need not see it.
        object.__setattr__(built, attributes[str(step)], old)
