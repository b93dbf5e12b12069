"""Define the base class of settings blocks, and the types that their fields share."""

from __future__ import annotations

from typing import Annotated, TypeAlias

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic.alias_generators import to_camel

Positive: TypeAlias = Annotated[float, Field(gt=0)]
Count: TypeAlias = Annotated[int, Field(ge=0)]
ON_OR_OFF = BeforeValidator(lambda value: ("off", "on")[value] if isinstance(value, bool) else value)
"""YAML reads a bare `on` or `off` as a boolean."""


class Block(BaseModel):
    """Names are snake_case; camelCase is accepted too. An unknown name is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, alias_generator=to_camel, populate_by_name=True, strict=True)
