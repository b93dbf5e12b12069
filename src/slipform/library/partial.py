"""Show the value of a growing JSON document as a partial object of the requested type.

The type is described part by part (`Kind`), so that a growing value can be typed before it is whole.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from enum import Enum
from functools import cache, lru_cache
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Final,
    Generic,
    Literal,
    TypeAlias,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    overload,
)

import msgspec
import typing_extensions
from typing_extensions import TypeAliasType, is_typeddict

from slipform.enforce.patching import patch
from slipform.errors import SchemaError, SchemaViolationError
from slipform.schema import Schema

PathStep: TypeAlias = str | int

_SCALARS: Final = (str, int, bool, float)
_ARRAYS: Final = (list, set, frozenset, tuple, Sequence, Iterable, AbstractSet)
_WRAPPERS: Final = (Annotated, typing_extensions.Required, typing_extensions.NotRequired, typing_extensions.ReadOnly)


@dataclass(frozen=True, slots=True)
class Kind:
    """The type of one part of a value.

    `shape` is the type of the finished part; None means plain JSON. `grows` says that a string may be shown while it
    grows, because it stays a string. `loose` containers have no rules beyond those of their children.
    """

    shape: Any = None
    form: Literal["scalar", "array", "object", "any"] = "any"
    grows: bool = False
    loose: bool = False
    keys: Mapping[str, str] = field(default_factory=dict)
    """For objects with named fields: attribute → JSON key."""
    child: Callable[[PathStep], Kind] = field(default=lambda _: ANY, compare=False)
    constants: Callable[[], Mapping[str, tuple[Any, ...]]] = field(default=dict, compare=False)
    """For objects: the keys with a fixed set of values, which distinguish the members of a union."""
    options: tuple[Kind, ...] = ()
    """For unions: the members."""
    schemas: list[Schema[Any]] = field(default_factory=list, compare=False, repr=False)

    @property
    def schema(self) -> Schema[Any]:
        """The schema of the type, built on first use."""
        if not self.schemas:
            self.schemas.append(Schema.of(self.shape))
        return self.schemas[0]

    @property
    def unsure(self) -> bool:
        """Whether the type is not known yet: the parts below it are not typed."""
        return self is UNSURE

    def narrowed(self, value: Any, open_key: PathStep | None) -> Kind:
        """Return the only member of a union that matches the value so far; UNSURE while several do."""
        if not self.options:
            return self
        form = _form_of(value)
        fitting = [kind for kind in self.options if kind.form in (form, "any")]
        if form == "object" and len(fitting) > 1:
            fitting = [kind for kind in fitting if _constants_match(kind, value, open_key)]
        if len(fitting) == 1:
            return fitting[0].narrowed(value, open_key)
        return UNSURE


ANY: Final[Kind] = Kind(grows=True)
UNSURE: Final[Kind] = Kind(grows=False, child=lambda _: UNSURE)


def kind_of(shape: Any) -> Kind:
    """Return the parts of a type; a type with unknown parts is only built as a whole.

    >>> kind_of(list[int]).child(0).shape
    <class 'int'>
    """
    try:
        return _kind(shape)
    except TypeError:  # an Annotated type may contain unhashable metadata
        return _kind.__wrapped__(shape)


def _is_unconstrained(bare: Any) -> bool:
    return bare is Any or bare is object or isinstance(bare, TypeVar)


def _is_scalar(bare: Any) -> bool:
    return bare is NoneType or (isinstance(bare, type) and bare in _SCALARS)


@lru_cache(maxsize=512)
def _kind(shape: Any) -> Kind:
    """Return how partial values of a Python type are shown."""
    bare = _bare(shape)
    origin = get_origin(bare)
    arguments = get_args(bare)
    plain = bare is shape
    if _is_unconstrained(bare):
        return ANY
    if origin in (Union, UnionType):
        return _union(shape, [kind_of(each) for each in arguments])
    if _is_scalar(bare):
        return Kind(bare if plain else shape, "scalar", grows=bare is str)
    if bare is list or bare is dict:
        return Kind(shape, "array" if bare is list else "object", loose=plain)
    if origin in _ARRAYS and arguments:
        return _array(shape, origin, arguments, plain)
    if origin in (dict, Mapping) and len(arguments) == 2:
        loose = plain and origin is dict and arguments[0] is str
        return Kind(shape, "object", loose=loose, child=_uniform_child(arguments[1]))
    return _record(shape, bare)


def _bare(shape: Any) -> Any:
    """Return the type without annotations and aliases."""
    while True:
        if get_origin(shape) in _WRAPPERS:
            shape = get_args(shape)[0]
        elif isinstance(shape, TypeAliasType):
            shape = shape.__value__
        elif hasattr(shape, "__supertype__"):
            shape = shape.__supertype__
        else:
            return shape


def _union(shape: Any, members: list[Kind]) -> Kind:
    grows = any(kind.grows for kind in members) and all(kind.grows or not _accepts_strings(kind) for kind in members)
    rest = tuple(kind for kind in members if kind.shape is not NoneType)
    return Kind(shape, grows=grows, options=rest)


def _accepts_strings(kind: Kind) -> bool:
    """Return whether a string may become a value of this type: a date, an enum, a literal."""
    return kind.form in ("scalar", "any") and kind.shape not in (NoneType, int, bool, float)


def _array(shape: Any, origin: Any, arguments: tuple[Any, ...], plain: bool) -> Kind:
    if origin is tuple and arguments[-1] is not Ellipsis:

        def place(step: PathStep) -> Kind:
            if isinstance(step, int) and step < len(arguments):
                return kind_of(arguments[step])
            return ANY

        return Kind(shape, "array", child=place)
    return Kind(shape, "array", loose=plain and origin is list, child=_uniform_child(arguments[0]))


def _uniform_child(shape: Any) -> Callable[[PathStep], Kind]:
    """Return the type of uniform children, resolved lazily because a type may contain itself."""
    kind = cache(lambda: kind_of(shape))
    return lambda _: kind()


def _record(shape: Any, bare: Any) -> Kind:
    """Return the parts of a model, dataclass, struct, attrs class or TypedDict; other types are built as a whole."""
    if getattr(bare, "__pydantic_root_model__", False):
        inner = kind_of(bare.__pydantic_fields__["root"].annotation)
        return dataclasses.replace(inner, shape=shape, grows=False, loose=False)
    try:
        fields = _fields(bare)
    except (NameError, TypeError, AttributeError):  # unreadable hints, and unresolvable forward references
        fields = None
    if fields is None:
        return Kind(shape, "scalar")

    kind = cache(lambda key: kind_of(fields[key][1]))

    def child(step: PathStep) -> Kind:
        return kind(step) if step in fields else ANY

    def constants() -> dict[str, tuple[Any, ...]]:
        literal = {key: _bare(annotation) for key, (_, annotation) in fields.items()}
        return {key: get_args(each) for key, each in literal.items() if get_origin(each) is Literal}

    names = {name: key for key, (name, _) in fields.items()}
    return Kind(shape, "object", keys=names, child=child, constants=constants)


def _fields(shape: Any) -> dict[str, tuple[str, Any]] | None:
    """Return the attribute and type of each field by its JSON key; None for a type without fields."""
    if not isinstance(shape, type):
        return None
    model_fields = shape.__dict__.get("__pydantic_fields__")
    if model_fields is not None:
        return {_key(name, each): (name, _annotated(each)) for name, each in model_fields.items()}
    if dataclasses.is_dataclass(shape):
        hints = get_type_hints(shape, vars(sys.modules[shape.__module__]), include_extras=True)
        return {each.name: (each.name, hints[each.name]) for each in dataclasses.fields(shape) if each.init}
    if issubclass(shape, msgspec.Struct):
        return {each.encode_name: (each.name, each.type) for each in msgspec.structs.fields(shape)}
    if "__attrs_attrs__" in shape.__dict__:
        hints = get_type_hints(shape, include_extras=True)
        return {each.name: (each.name, hints.get(each.name, Any)) for each in shape.__dict__["__attrs_attrs__"]}
    if is_typeddict(shape):
        return {name: (name, hint) for name, hint in get_type_hints(shape, include_extras=True).items()}
    return None


def _key(name: str, info: Any) -> str:
    """Return the JSON key of a pydantic field, as in its schema."""
    alias = info.validation_alias or info.alias or name
    choices = getattr(alias, "choices", None)
    alias = choices[0] if choices else alias
    return alias if isinstance(alias, str) else name


def _annotated(info: Any) -> Any:
    if info.discriminator is not None:
        return Annotated[info.annotation, info]
    if info.metadata:
        return Annotated[info.annotation, *info.metadata]
    return info.annotation


def _form_of(value: Any) -> str:
    if isinstance(value, dict):
        return "object"
    return "array" if isinstance(value, list) else "scalar"


def _constants_match(kind: Kind, value: Mapping[str, Any], open_key: PathStep | None) -> bool:
    return all(value[key] in allowed for key, allowed in kind.constants().items() if key in value and key != open_key)


# ruff: noqa: SLF001 — these functions would be methods, but a method of `Partial` would hide a field of that name


T_co = TypeVar("T_co", covariant=True)
X = TypeVar("X")

ValuePath: TypeAlias = tuple[PathStep, ...]


class Unset(Enum):
    """The type of `UNSET`, so that type checkers can distinguish it from a value."""

    UNSET = "UNSET"

    def __repr__(self) -> str:
        return "UNSET"

    __str__ = __repr__

    def __bool__(self) -> bool:
        return False


UNSET: Final = Unset.UNSET
"""The value of a field that has not arrived yet. It is false, and distinct from a None the model wrote."""


class Memory:
    """The finished parts of one growing container, shared by its partials: each is built only once."""

    __slots__ = ("finished", "inner", "parts")

    def __init__(self, finished: Any = None) -> None:
        self.finished = finished
        """The container itself once it is finished, for readers of an older partial."""
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

    >>> from slipform.library.partial import kind_of
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
    """Return the part under a key: its object if finished, its partial value if not, UNSET if absent."""
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
    """Return the part of the finished container, if the caller has received that container already."""
    finished_container = partial._memory.finished
    if finished_container is None:
        return None
    return _get_part(finished_container, key, _attributes(partial._kind))


def _growing(partial: Partial[Any], value: Any, kind: Kind, key: PathStep, open_path: ValuePath | None) -> Any:
    """Return an unfinished part: a partial container, the text so far, or UNSET."""
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
"""Returned for a finished value that does not match its type."""


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
    """Return the object for finished JSON, reusing the parts that callers already have; or INVALID."""
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
    """Put the parts that callers already have into a new object, if they are equal.

    Parts that are read from older partials after this are those of the new object.
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
        # Bypasses the class's own setter: the value is equal, so frozen objects and validators are not affected.
        object.__setattr__(built, attributes[str(step)], old)
