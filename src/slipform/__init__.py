"""slipform: any language model, answering in the shape of your JSON Schema.

>>> import slipform
>>> slipform.JsonSchemaSpec("person", {"type": "object"}).name
'person'
"""

from slipform.client import AsyncClient, Client, ask
from slipform.errors import (
    ConfigError,
    EnforcementError,
    JsonEnforcementError,
    RefusalError,
    SchemaError,
    SchemaViolationError,
    SlipformError,
    TruncatedError,
    UpstreamError,
)
from slipform.ir import Message, ModelRequest, ModelResponse, Usage
from slipform.schema import JsonSchemaSpec, OutputStrategy, ResponseFormat, Schema, Violation

__version__ = "0.1.0"

__all__ = [
    "AsyncClient",
    "Client",
    "ConfigError",
    "EnforcementError",
    "JsonEnforcementError",
    "JsonSchemaSpec",
    "Message",
    "ModelRequest",
    "ModelResponse",
    "OutputStrategy",
    "RefusalError",
    "ResponseFormat",
    "Schema",
    "SchemaError",
    "SchemaViolationError",
    "SlipformError",
    "TruncatedError",
    "UpstreamError",
    "Usage",
    "Violation",
    "__version__",
    "ask",
]
