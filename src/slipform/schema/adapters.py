"""Make a JSON Schema of a Python type with pydantic; imported when the first type is asked for."""

from __future__ import annotations

from typing import Any

from pydantic import TypeAdapter
from pydantic.errors import PydanticInvalidForJsonSchema, PydanticSchemaGenerationError, PydanticUserError
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import PydanticSerializationError
from pydantic_core import SchemaError as CoreSchemaError

from slipform.errors import SchemaError
from slipform.schema.limits import not_json

_NO_SCHEMA = (
    PydanticUserError, PydanticInvalidForJsonSchema, PydanticSchemaGenerationError, CoreSchemaError, NameError,
)  # fmt: skip


class _Generator(GenerateJsonSchema):
    """Pydantic's own schemas, less its warnings and less defaults that JSON cannot write."""

    ignored_warning_kinds = {"skipped-choice", "non-serializable-default"}  # noqa: RUF012 — pydantic's name and type

    def encode_default(self, dft: Any) -> Any:
        encoded = super().encode_default(dft)
        if any(not_json(encoded)):
            raise PydanticSerializationError("not JSON")
        return encoded


def adapter_of(shape: Any) -> tuple[TypeAdapter[Any], dict[str, Any]]:
    """What reads values of a type, and the type's JSON Schema; a `SchemaError` when it has none."""
    try:
        adapter: TypeAdapter[Any] = TypeAdapter(shape)
        return adapter, adapter.json_schema(schema_generator=_Generator)
    except _NO_SCHEMA as error:
        said = " ".join(str(error).split())[:200]
        raise SchemaError(
            f"No JSON Schema can be made of {shape!r:.200}: {said}",
            hint="Use a pydantic model, dataclass, TypedDict, enum, Literal, list, dict, tuple or scalar type.",
        ) from error
