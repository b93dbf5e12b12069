"""What shape is wanted."""

from slipform.schema.limits import is_large
from slipform.schema.python_types import Schema
from slipform.schema.spec import JsonSchemaSpec, OutputStrategy, ResponseFormat
from slipform.schema.strict import strict_findings, strict_preflight
from slipform.schema.validator import fingerprint
from slipform.schema.violations import Violation

__all__ = [
    "JsonSchemaSpec",
    "OutputStrategy",
    "ResponseFormat",
    "Schema",
    "Violation",
    "fingerprint",
    "is_large",
    "strict_findings",
    "strict_preflight",
]
