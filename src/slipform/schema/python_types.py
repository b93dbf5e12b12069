"""Python types ↔ JSON Schema."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Generic, TypeVar, cast

from pydantic import BaseModel, TypeAdapter

from slipform.schema.spec import JsonSchemaSpec
from slipform.schema.validator import Violation, fingerprint, violations

T = TypeVar("T")


class Schema(Generic[T]):
    """A wanted shape: its name, its JSON Schema, and the way back to a Python object.

    >>> Schema.of(list[int]).validate([1, "2"])[0].json_path
    '$[1]'
    """

    __slots__ = ("_adapter", "document", "fingerprint", "name")

    def __init__(self, name: str, document: Mapping[str, Any], adapter: TypeAdapter[T] | None = None) -> None:
        self.name = name
        self.document = document
        self.fingerprint = fingerprint(document)
        self._adapter = adapter

    @classmethod
    def of(cls, shape: type[T] | Mapping[str, Any] | JsonSchemaSpec | Schema[T]) -> Schema[T]:
        """The schema of a Python type, of a raw JSON Schema, or of a spec."""
        if isinstance(shape, Schema):
            return shape
        if isinstance(shape, JsonSchemaSpec):
            return cls(shape.name, shape.schema)
        if isinstance(shape, Mapping):
            return cls(str(shape.get("title", "answer")), shape)
        adapter: TypeAdapter[T] = TypeAdapter(shape)
        name = shape.__name__ if isinstance(shape, type) and issubclass(shape, BaseModel) else "answer"
        return cls(name, adapter.json_schema(), adapter)

    @property
    def spec(self) -> JsonSchemaSpec:
        """Name and document, as the IR carries them."""
        return JsonSchemaSpec(self.name, self.document)

    def validate(self, value: Any) -> list[Violation]:
        """Every way in which a JSON value does not fit."""
        return violations(self.document, value)

    def to_python(self, value: Any) -> T:
        """The typed object that a valid JSON value stands for."""
        if self._adapter is None:
            return cast("T", value)
        return self._adapter.validate_python(value)
