"""Define the base class of settings blocks, and the types that their fields share."""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple, TypeAlias

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic.alias_generators import to_camel

Positive: TypeAlias = Annotated[float, Field(gt=0)]
Count: TypeAlias = Annotated[int, Field(ge=0)]
ON_OR_OFF = BeforeValidator(lambda value: ("off", "on")[value] if isinstance(value, bool) else value)
"""YAML reads a bare `on` or `off` as a boolean."""


class Into(NamedTuple):
    """Where a setting goes in the options of enforcement: a path such as `budget.attempts`."""

    path: str

    def paths(self, value: Any) -> dict[str, Any]:
        """Return the value by its path; those of a block each by its own.

        >>> Into("budget.attempts").paths(3)
        {'budget.attempts': 3}
        """
        if isinstance(value, BaseModel):
            return {f"{self.path}.{name}": getattr(value, name) for name in type(value).model_fields}
        return {self.path: value}


class SettingsBlock(BaseModel):
    """Names are snake_case; camelCase is accepted too. An unknown name is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, alias_generator=to_camel, populate_by_name=True, strict=True)
