"""Read, validate and explain JSON Schemas, and lower them to a vendor's dialect."""

from slipform.schema.examples import Example, example
from slipform.schema.limits import is_large
from slipform.schema.python_types import Schema
from slipform.schema.registry import Registry
from slipform.schema.spec import JsonSchemaSpec, OutputStrategy, ResponseFormat
from slipform.schema.strict import strict_findings, strict_preflight
from slipform.schema.summary import SchemaSummary, summarize
from slipform.schema.validator import fingerprint
from slipform.schema.violations import Violation

__all__ = [
    "Example",
    "JsonSchemaSpec",
    "OutputStrategy",
    "Registry",
    "ResponseFormat",
    "Schema",
    "SchemaSummary",
    "Violation",
    "example",
    "fingerprint",
    "is_large",
    "strict_findings",
    "strict_preflight",
    "summarize",
]
