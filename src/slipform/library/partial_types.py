"""Describe a Python type part by part, so that a growing value can be typed before it is whole."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import cache, lru_cache
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Literal, TypeAlias, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec
import typing_extensions
from typing_extensions import TypeAliasType, is_typeddict

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
    """For objects: the keys that can only have certain values, which tell the members of a union apart."""
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
        """Whether the type is not known yet: nothing below it gets a type."""
        return self is UNSURE

    def narrowed(self, value: Any, open_key: PathStep | None) -> Kind:
        """Return the only member of a union that the value so far can be; UNSURE while there are several."""
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
    """Return the parts of a type; a type with unknown parts is typed only as a whole.

    >>> kind_of(list[int]).child(0).shape
    <class 'int'>
    """
    try:
        return _kind(shape)
    except TypeError:  # an Annotated type may hold what cannot be hashed
        return _kind.__wrapped__(shape)


def _is_unconstrained(bare: Any) -> bool:
    return bare is Any or bare is object or isinstance(bare, TypeVar)


def _is_scalar(bare: Any) -> bool:
    return bare is NoneType or (isinstance(bare, type) and bare in _SCALARS)


@lru_cache(maxsize=512)
def _kind(shape: Any) -> Kind:
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
    """Whether a string may become a value of this type: a date, an enum, a literal."""
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
    """Return the type of children that are all alike, resolved late because a type may contain itself."""
    kind = cache(lambda: kind_of(shape))
    return lambda _: kind()


def _record(shape: Any, bare: Any) -> Kind:
    """Return the parts of a model, dataclass, struct, attrs class or TypedDict; other types are typed as a whole."""
    if getattr(bare, "__pydantic_root_model__", False):
        inner = kind_of(bare.__pydantic_fields__["root"].annotation)
        return dataclasses.replace(inner, shape=shape, grows=False, loose=False)
    try:
        fields = _fields(bare)
    except (NameError, TypeError, AttributeError):  # hints that cannot be read, and forward references out of reach
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
