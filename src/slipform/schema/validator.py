"""Compiled validators and what they find."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import jsonschema_rs
import orjson

from slipform.errors import SchemaError


@dataclass(frozen=True, slots=True)
class Violation:
    """One way in which a value does not fit: where, which keyword, and a sentence.

    >>> Violation("/age", "/properties/age/type", "type", '"x" is not of type "integer"').json_path
    '$.age'
    """

    instance_path: str
    """JSON Pointer into the value; the empty string is the root."""
    schema_path: str
    keyword: str
    message: str

    @property
    def json_path(self) -> str:
        """The same place as `$.a[0]`."""
        steps = (step.replace("~1", "/").replace("~0", "~") for step in self.instance_path.split("/")[1:])
        return "$" + "".join(f"[{step}]" if step.isdigit() else f".{step}" for step in steps)

    def to_dict(self) -> dict[str, str]:
        """Ready for JSON."""
        return {"path": self.json_path, "keyword": self.keyword, "message": self.message}


def fingerprint(document: Mapping[str, Any]) -> str:
    """A stable name for what a schema says, whatever the order of its keys."""
    return hashlib.sha256(orjson.dumps(document, option=orjson.OPT_SORT_KEYS)).hexdigest()


def violations(document: Mapping[str, Any], value: Any) -> list[Violation]:
    """Every way in which `value` does not fit `document`."""
    compiled = _compile(orjson.dumps(document, option=orjson.OPT_SORT_KEYS))
    return [
        Violation(_pointer(error.instance_path), _pointer(error.schema_path), error.kind.name, error.message)
        for error in compiled.iter_errors(value)
    ]


def check_schema(document: Mapping[str, Any]) -> None:
    """Raise a `SchemaError` if the document is not a usable JSON Schema."""
    _compile(orjson.dumps(document, option=orjson.OPT_SORT_KEYS))


@lru_cache(maxsize=256)
def _compile(source: bytes) -> jsonschema_rs.Validator:
    try:
        return jsonschema_rs.validator_for(orjson.loads(source), validate_formats=True, offline=True)
    except (jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError, ValueError) as error:
        raise SchemaError(
            f"This is not a usable JSON Schema: {error}", hint="Correct the schema and send it again."
        ) from error


def _pointer(steps: list[str | int]) -> str:
    return "".join("/" + str(step).replace("~", "~0").replace("/", "~1") for step in steps)
