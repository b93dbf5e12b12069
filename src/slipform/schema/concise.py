"""Read a schema written as a list of fields: `name, age int, tags [str]`."""

from __future__ import annotations

import re
from typing import Any, Final

from slipform.errors import ConfigError

_TYPES: Final[dict[str, dict[str, str]]] = {
    "str": {"type": "string"},
    "string": {"type": "string"},
    "int": {"type": "integer"},
    "integer": {"type": "integer"},
    "float": {"type": "number"},
    "number": {"type": "number"},
    "bool": {"type": "boolean"},
    "boolean": {"type": "boolean"},
    "date": {"type": "string", "format": "date"},
    "datetime": {"type": "string", "format": "date-time"},
}
_FIELD: Final = re.compile(
    r"""\s* (?P<name> [^\W\d] [\w-]* ) (?P<optional> \? )?
        (?: \s+ (?P<type> [^\s:?]+ ) (?P<optional_type> \? )? )?
        \s* (?: : \s* (?P<description> .* ) )? \Z""",
    re.VERBOSE | re.DOTALL,
)
_CONCISE: Final = re.compile(r"[,\s?\[]")
_HINT: Final = "Write fields as `name, age int, tags [str], nickname? str: what others say`."


def is_concise(text: str) -> bool:
    """Return whether a text is a list of fields rather than a name: it has a comma, a blank, `?` or `[`.

    >>> is_concise("name, age int"), is_concise("person")
    (True, False)
    """
    return _CONCISE.search(text.strip()) is not None


def concise_schema(text: str) -> dict[str, Any]:
    """Return the JSON Schema of a list of fields; raises `ConfigError` with the field that is wrong.

    Commas separate fields, or line breaks if there are any. A field is a name, its type (`str` by default, `[type]`
    for a list), `?` after either if the field may be missing, and a description after a colon.

    >>> concise_schema("name, age? int")["properties"]
    {'name': {'type': 'string'}, 'age': {'type': 'integer'}}
    >>> concise_schema("name, age? int")["required"]
    ['name']
    """
    written = text.strip().removesuffix(",")
    fields = re.split(r",?\s*\n", written) if "\n" in written else written.split(",")
    properties: dict[str, Any] = {}
    required = []
    for field in fields:
        match = _FIELD.match(field)
        if match is None:
            raise ConfigError(f"This is not a field of a schema: {field.strip()!r}", where="--schema", hint=_HINT)
        name = match["name"]
        if name in properties:
            raise ConfigError(f"The field {name!r} is listed twice", where="--schema", hint="Remove one of them.")
        properties[name] = _schema_of(match["type"] or "str", name)
        if match["description"]:
            properties[name]["description"] = match["description"].strip()
        if not (match["optional"] or match["optional_type"]):
            required.append(name)
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def _schema_of(type_name: str, field: str) -> dict[str, Any]:
    if type_name.startswith("[") and type_name.endswith("]"):
        return {"type": "array", "items": _schema_of(type_name[1:-1] or "str", field)}
    if type_name not in _TYPES:
        raise ConfigError(
            f"The type {type_name!r} of the field {field!r} is not known",
            where="--schema",
            hint=f"Use {', '.join(_TYPES)}, or a list such as [str].",
        )
    return dict(_TYPES[type_name])
