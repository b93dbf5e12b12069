"""What shape is wanted."""

from slipform.schema.python_types import Schema
from slipform.schema.spec import JsonSchemaSpec, OutputStrategy, ResponseFormat
from slipform.schema.strict import strict_preflight
from slipform.schema.validator import Violation

__all__ = ["JsonSchemaSpec", "OutputStrategy", "ResponseFormat", "Schema", "Violation", "strict_preflight"]
