"""Read a Python function as a tool: its arguments from the signature, their descriptions from the docstring.

The arguments become a `TypedDict`, so that a parameter may have any name, and one that the model omits keeps the
function's own default.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, NotRequired, TypeAlias, get_args, get_origin, get_type_hints
from weakref import WeakKeyDictionary

import msgspec
from typing_extensions import TypedDict

from slipform.errors import SchemaError
from slipform.schema.foreign_types import has_msgspec_rules, modern_typed_dicts
from slipform.schema.limits import not_json
from slipform.schema.python_types import Schema

_SECTION: Final = re.compile(r"^\s*(args|arguments|parameters|params)\s*:?\s*$", re.IGNORECASE)
_OTHER_SECTION: Final = re.compile(
    r"^\s*(returns?|raises?|yields?|examples?|notes?|see also|warnings?|references|attributes)\s*:?\s*$", re.IGNORECASE
)
_GOOGLE: Final = re.compile(r"^\*{0,2}(\w+)\s*(?:\([^)]*\))?\s*:\s*(.*)$")
_NUMPY: Final = re.compile(r"^\*{0,2}(\w+)\s*(?::.*)?$")
_SPHINX: Final = re.compile(r"^\s*:param\s+(?:[^:]*\s)?(\w+)\s*:\s*(.*)$")
_SPHINX_FIELD: Final = re.compile(r"^\s*:\w+")
_RULE: Final = re.compile(r"^\s*-{3,}\s*$")


@dataclass(frozen=True, slots=True)
class Signature:
    """The description of a function for models, and the conversion of its arguments for a call."""

    name: str
    description: str | None
    arguments: Schema[dict[str, Any]]
    positional: tuple[str, ...] = ()
    """Parameters that cannot be passed by name, in order."""

    def call(self, function: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
        """Call the function with valid JSON arguments; raises `SchemaViolationError` when a type refuses them."""
        named = dict(self.arguments.to_python(dict(arguments)))
        positional = [named.pop(name) for name in self.positional if name in named]
        return function(*positional, **named)


_SIGNATURES: Final[WeakKeyDictionary[Any, Signature]] = WeakKeyDictionary()
"""Caches plain functions, which callers pass again with every call."""


def signature_of(function: Callable[..., Any], *, name: str | None = None) -> Signature:
    """Return the name, the description and the arguments of a function; raises `SchemaError` for an unsuitable one.

    >>> def weather(city: str, days: int = 1) -> str:
    ...     '''Forecast the weather.
    ...
    ...     Args:
    ...         city: Name of the city.
    ...     '''
    >>> found = signature_of(weather)
    >>> found.description, found.arguments.document["properties"]["city"]
    ('Forecast the weather.', {'description': 'Name of the city.', 'type': 'string'})
    """
    if not callable(function):
        raise SchemaError(f"A tool is made of a function, not of {function!r:.100}", hint="Give a function.")
    if name is not None or not inspect.isfunction(function):
        return _read(function, name)
    if function not in _SIGNATURES:
        _SIGNATURES[function] = _read(function, None)
    return _SIGNATURES[function]


def _read(function: Callable[..., Any], name: str | None) -> Signature:
    """Return a function's name, description and arguments for a tool; raises `SchemaError`."""
    bare = _unwrapped(function)
    called = name or str(getattr(bare, "__name__", type(bare).__name__))
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", called):
        raise SchemaError(
            f"{called!r} is not a name for a tool: it has to be up to 64 letters, digits, `_` or `-`",
            hint="Name it: `Tool.of(function, name=…)`.",
        )
    description, described = read_docstring(_docstring(bare))
    hints = _hints(bare, called)
    parameters = list(inspect.signature(function).parameters.values())
    for parameter in parameters:
        _check(parameter, hints, called)
    positional = tuple(each.name for each in parameters if each.kind is each.POSITIONAL_ONLY)
    notes = [_pydantic_note, _msgspec_note]
    if any(has_msgspec_rules(hint) for hint in hints.values()):
        notes.reverse()
    try:
        schema = _arguments(called, {each.name: _field(each, hints, described, notes[0]) for each in parameters})
    except SchemaError:  # attrs classes or msgspec structs among them, or pydantic models
        schema = _arguments(called, {each.name: _field(each, hints, described, notes[1]) for each in parameters})
    return Signature(called, description, schema, positional)


def read_docstring(text: str | None) -> tuple[str | None, dict[str, str]]:
    r"""Return the description of a docstring and those of its parameters, in Google's, NumPy's or Sphinx's format.

    >>> read_docstring("Add two numbers.\n\n:param a: The first.\n:param b: The second.")
    ('Add two numbers.', {'a': 'The first.', 'b': 'The second.'})
    """
    lines = inspect.cleandoc(text or "").splitlines()
    reader = _DocstringReader()
    for number, line in enumerate(lines):
        reader.read(line, "" if number + 1 == len(lines) else lines[number + 1])
    return "\n".join(reader.body).strip() or None, {
        name: description for name, description in reader.described.items() if description
    }


class _DocstringReader:
    """Reads a docstring line by line into its body and the descriptions of parameters."""

    def __init__(self) -> None:
        self.body: list[str] = []
        self.described: dict[str, str] = {}
        self._section: str | None = None
        self._current: str | None = None
        """The parameter whose description continues."""
        self._indent = 0
        """The indent of the section's entries; -1 before the first."""

    def read(self, line: str, next_line: str) -> None:
        """Read a line: a section's heading, a Sphinx field, an argument's description, or text."""
        if _SECTION.match(line):
            self._section = "numpy" if _RULE.match(next_line) else "google"
            self._current = None
            self._indent = -1
        elif _OTHER_SECTION.match(line):
            self._section = "other"
            self._current = None
        elif match := _SPHINX.match(line):
            self._section = "sphinx"
            self._current = match[1]
            self.described[self._current] = match[2].strip()
        elif self._section == "sphinx" and _SPHINX_FIELD.match(line):
            self._current = None
        elif self._section is None:
            self.body.append(line)
        elif line.strip() and not _RULE.match(line):
            self._read_entry(line)

    def _read_entry(self, line: str) -> None:
        """Read a line of a section of arguments: an argument's first line, a further one, or the section's end."""
        depth = len(line) - len(line.lstrip())
        if self._indent < 0:
            self._indent = depth
        match = None
        if self._section in ("google", "numpy") and depth == self._indent:
            match = (_GOOGLE if self._section == "google" else _NUMPY).match(line.strip())
        if match:
            self._current = match[1]
            self.described[self._current] = match[2].strip() if self._section == "google" else ""
        elif self._section == "google" and depth == 0:
            self._section = None
            self._current = None
            self.body.append(line)
        elif self._current is not None:
            self.described[self._current] = f"{self.described[self._current]} {line.strip()}".strip()


def _unwrapped(function: Callable[..., Any]) -> Any:
    """Return the object with the annotations: the function behind partials, or the `__call__` of an object."""
    while isinstance(function, functools.partial):
        function = function.func
    if inspect.isroutine(function) or inspect.isclass(function):
        return inspect.unwrap(function)
    return function


def _docstring(function: Any) -> str | None:
    if inspect.isroutine(function) or inspect.isclass(function):
        return inspect.getdoc(function)
    return type(function).__call__.__doc__ or inspect.getdoc(function)


def _hints(function: Any, name: str) -> dict[str, Any]:
    annotated = function.__init__ if inspect.isclass(function) else function
    if not inspect.isroutine(annotated):
        annotated = type(function).__call__
    try:
        return get_type_hints(annotated, include_extras=True)
    except NameError as error:
        raise SchemaError(
            f"The annotations of the tool {name!r} cannot be read: {error}",
            hint="Define its types at the top of the module.",
        ) from error


def _check(parameter: inspect.Parameter, hints: Mapping[str, Any], tool: str) -> None:
    if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
        raise SchemaError(
            f"The tool {tool!r} takes `{parameter}`, of which no schema can be made",
            hint="Give it parameters with names, or wrap it in a function that has some.",
        )
    if parameter.name not in hints:
        raise SchemaError(
            f"The parameter {parameter.name!r} of the tool {tool!r} has no type",
            hint=f"Annotate it, for example `{parameter.name}: str`.",
        )


Annotator: TypeAlias = Callable[[str | None, dict[str, Any] | None], Any]
"""Build the annotation with a description and further keywords of the schema."""


def _pydantic_note(description: str | None, extra: dict[str, Any] | None) -> Any:
    from pydantic import Field

    return Field(description=description, json_schema_extra=extra)


def _msgspec_note(description: str | None, extra: dict[str, Any] | None) -> Any:
    return msgspec.Meta(description=description, extra_json_schema=extra)


def _field(
    parameter: inspect.Parameter, hints: Mapping[str, Any], described: Mapping[str, str], note: Annotator
) -> Any:
    """Return a parameter as a key of the arguments: its type, description and default."""
    hint = hints[parameter.name]
    description = described.get(parameter.name)
    if get_origin(hint) is Annotated:
        bare, *metadata = get_args(hint)
        description = next((each for each in metadata if isinstance(each, str)), description)
        metadata = [each for each in metadata if not isinstance(each, str)]
        if any(getattr(each, "description", None) for each in metadata):
            description = None
        hint = Annotated[bare, *metadata] if metadata else bare
    hint = modern_typed_dicts(hint)
    optional = parameter.default is not parameter.empty
    shown = optional and parameter.default is not None and not any(not_json(parameter.default))
    extra = {"default": parameter.default} if shown else None
    if description or extra:
        hint = Annotated[hint, note(description, extra)]
    return NotRequired[hint] if optional else hint


def _arguments(name: str, fields: Mapping[str, Any]) -> Schema[Any]:
    """Return the closed schema of the arguments, without titles, which only cost tokens."""
    schema: Schema[Any] = Schema.of(TypedDict(name, fields))  # type: ignore[operator]  # known at run time only
    document = schema.document
    properties = {
        key: {word: value for word, value in each.items() if word != "title"}
        for key, each in document.get("properties", {}).items()
    }
    plain = {word: value for word, value in document.items() if word not in ("title", "description")}
    return schema.with_document({**plain, "properties": properties, "additionalProperties": False})
