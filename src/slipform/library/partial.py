"""Partial, UNSET, so_far, still_open."""

# ruff: noqa: SLF001 — the functions here are the methods that `Partial` must not have, lest they hide fields

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import Any, Final, Generic, TypeAlias, TypeVar

from slipform.enforce.patching import patch
from slipform.errors import SchemaError, SchemaViolationError
from slipform.library.partial_types import Kind, Step

T_co = TypeVar("T_co", covariant=True)

Path: TypeAlias = tuple[Step, ...]


class Unset(Enum):
    """The type of `UNSET`, so that type checkers can tell it from a value."""

    UNSET = "UNSET"

    def __repr__(self) -> str:
        return "UNSET"

    __str__ = __repr__

    def __bool__(self) -> bool:
        return False


UNSET: Final = Unset.UNSET
"""Stands where nothing has come yet. It is false, and never mistaken for a None the model wrote."""


class Memory:
    """The finished parts of one growing container: each is made once and stays the same object."""

    __slots__ = ("done", "inner", "whole")

    def __init__(self, whole: Any = None) -> None:
        self.whole = whole
        """The container itself once it is finished, for those who look at an older partial after a newer one."""
        self.done: dict[Step, tuple[Any, Any]] = {}
        """The JSON and the object of each finished part that somebody has looked at."""
        self.inner: dict[Step, Memory] = {}
        """The memories of parts that somebody has looked at while they grew."""


class Partial(Generic[T_co]):
    """What has come of a `T`: read it like a `T`; what has not come is `UNSET`.

    A finished part is the real thing: an object of its exact type, made and checked once, and the same object in every
    later partial. A part still growing is a `Partial` too, a string so far is a string. A finished part that does not
    fit its type is left as it came: `UNSET`, or a `Partial` with what does fit.

    Fields are attributes; keys and positions work as in dicts and lists. It has no methods of its own, so that no field
    is hidden: see `so_far` and `still_open`. A partial never changes; the stream gives new ones.

    >>> from slipform.library.partial_types import kind_of
    >>> partial = Partial({"a": [1, 2]}, kind_of(dict[str, list[int]]), Memory(), ("a",))
    >>> partial["a"][0], partial["b"]
    (1, UNSET)
    """

    __slots__ = ("_kind", "_memory", "_open", "_raw")

    def __init__(self, raw: Any, kind: Kind, memory: Memory, open_path: Path | None) -> None:
        self._raw = raw
        self._kind = kind.narrowed(raw, open_path[0] if open_path else None)
        self._memory = memory
        self._open = open_path

    def __getattr__(self, name: str) -> Any:
        keys = self._kind.keys
        if name.startswith("_") or (keys and name not in keys) or not isinstance(self._raw, dict):
            raise AttributeError(f"This partial has no field {name!r}; it has {', '.join(keys) or 'none'}")
        return _part(self, keys.get(name, name))

    def __getitem__(self, key: Step) -> Any:
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

    def __iter__(self) -> Iterator[Any]:
        if isinstance(self._raw, list):
            return (_part(self, position) for position in range(len(self._raw)))
        return iter(self._raw)

    def __contains__(self, key: object) -> bool:
        return key in self._raw if isinstance(self._raw, dict) else any(key == each for each in self)

    def __dir__(self) -> list[str]:
        return [*object.__dir__(self), *self._kind.keys]

    def __str__(self) -> str:
        return self._raw if isinstance(self._raw, str) else repr(self)

    def __repr__(self) -> str:
        return f"Partial({self._raw!r})"


def so_far(partial: Partial[Any]) -> Any:
    """The plain JSON behind a partial: dicts, lists and scalars. Treat it as read-only.

    >>> so_far(Partial([1], Kind(), Memory(), ()))
    [1]
    """
    return partial._raw


def still_open(partial: Partial[Any]) -> Path | None:
    """Where a partial grows now, from its own root: `()` is itself, None is nowhere, it is finished.

    >>> still_open(Partial({"name": "Ad"}, Kind(grows=True), Memory(), ("name",)))
    ('name',)
    """
    return partial._open


def finished_items(partial: Partial[Any], start: int) -> Iterator[Any]:
    """The finished and valid items of a partial array from `start` on, up to the first that is not."""
    raw, open_path = partial._raw, partial._open
    if not isinstance(raw, list):
        return
    growing = open_path[0] if open_path else len(raw)
    for position in range(start, len(raw)):
        found = _part(partial, position)
        if position == growing or found is UNSET or isinstance(found, Partial):
            return
        yield found


def _part(partial: Partial[Any], key: Step) -> Any:
    """The part under a key: what it is when finished, what there is of it when not."""
    raw, memory, open_path = partial._raw, partial._memory, partial._open
    if isinstance(raw, dict) and key not in raw:
        return UNSET
    value = raw[key]
    kind = partial._kind.child(key)
    if open_path and open_path[0] == key:
        return _growing(partial, value, kind, key, open_path[1:])
    known = memory.done.get(key)
    if known is not None and known[0] is value:
        return known[1]
    inner = memory.inner.get(key)
    made = made_of(value, kind, inner)
    if made is _MISFIT:
        return _growing(partial, value, kind, key, None)
    made = _kept(_whole_part(partial, key) if known is None else known[1], made)
    if not kind.unsure:
        memory.done[key] = (value, made)
        if isinstance(value, dict | list):
            memory.inner.setdefault(key, Memory()).whole = made
    return made


def _whole_part(partial: Partial[Any], key: Step) -> Any:
    """The part in the finished container, when that has been given out already."""
    whole = partial._memory.whole
    return None if whole is None else _look(whole, key, _attributes(partial._kind))


def _growing(partial: Partial[Any], value: Any, kind: Kind, key: Step, open_path: Path | None) -> Any:
    if isinstance(value, dict | list) and kind.form != "scalar":
        memories = partial._memory.inner
        inner = memories.get(key)
        if inner is None:
            inner = memories[key] = Memory(_whole_part(partial, key))
        return Partial(value, kind, inner, open_path)
    return value if kind.grows and open_path is not None and isinstance(value, str) else UNSET


_MISFIT: Final = object()
"""A finished value that its type does not take."""


def made_of(value: Any, kind: Kind, memory: Memory | None) -> Any:
    """The object that finished JSON stands for, with the parts that have been given out already; or _MISFIT."""
    shape = kind.shape
    if kind.unsure:
        return _MISFIT if isinstance(value, dict | list) else value
    if shape is None or (type(value) is shape and shape in _PLAIN):
        return value
    if kind.loose and isinstance(value, list) and kind.form == "array":
        items = [_child_of(each, kind.child(step), memory, step) for step, each in enumerate(value)]
        return _MISFIT if any(each is _MISFIT for each in items) else items
    if kind.loose and isinstance(value, dict) and kind.form == "object":
        pairs = {key: _child_of(each, kind.child(key), memory, key) for key, each in value.items()}
        return _MISFIT if any(each is _MISFIT for each in pairs.values()) else pairs
    made = _checked(value, kind)
    if memory is not None and made is not _MISFIT:
        _put_back(made, kind.narrowed(value, None), memory)
    return made


_PLAIN: Final = (str, int, bool, float)


def _child_of(value: Any, kind: Kind, memory: Memory | None, step: Step) -> Any:
    known = memory.done.get(step) if memory is not None else None
    if known is not None and known[0] is value:
        return known[1]
    made = made_of(value, kind, memory.inner.get(step) if memory is not None else None)
    return made if known is None else _kept(known[1], made)


def _checked(value: Any, kind: Kind) -> Any:
    """An object of this type, patched as the whole answer would be; or _MISFIT."""
    try:
        schema = kind.schema
        if not schema.validate(value):
            return schema.to_python(value)
        patched = patch(value, schema)
        return _MISFIT if patched.violations else schema.to_python(patched.value)
    except (SchemaError, SchemaViolationError):
        return _MISFIT


def _put_back(made: Any, kind: Kind, memory: Memory) -> None:
    """Let a new object have the parts that were given out before, where they are equal to its own."""
    attributes = _attributes(kind)
    for step, (_, old) in memory.done.items():
        new = _look(made, step, attributes)
        if new is not old and _kept(old, new) is old:
            _set(made, step, attributes, old)
    for step, inner in memory.inner.items():
        _put_back(_look(made, step, attributes), kind.child(step), inner)


def _attributes(kind: Kind) -> dict[str, str]:
    return {key: name for name, key in kind.keys.items()}


def _kept(old: Any, new: Any) -> Any:
    return old if type(old) is type(new) and old == new else new


def _look(made: Any, step: Step, attributes: dict[str, str]) -> Any:
    if isinstance(made, list | dict | tuple):
        found = isinstance(step, int) and step < len(made) if not isinstance(made, dict) else step in made
        return made[step] if found else None  # type: ignore[index]  # an int for lists, checked above
    return getattr(made, attributes.get(str(step), ""), None) if attributes else None


def _set(made: Any, step: Step, attributes: dict[str, str], old: Any) -> None:
    if isinstance(made, list | dict):
        made[step] = old  # type: ignore[index]  # `_look` found it there
    elif not isinstance(made, tuple):
        # Past the class's own setter: the value is equal, so frozen objects and validators have nothing to say.
        object.__setattr__(made, attributes[str(step)], old)
