"""slipform: any language model, answering in the shape of your JSON Schema.

>>> import slipform
>>> slipform.JsonSchemaSpec("person", {"type": "object"}).name
'person'
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from slipform.addons.records.api import extract as extract
    from slipform.addons.records.api import extract_async as extract_async
    from slipform.addons.records.api import extract_estimate as extract_estimate
    from slipform.addons.records.api import extract_full as extract_full
    from slipform.addons.records.api import extract_full_async as extract_full_async
    from slipform.addons.records.api import extract_stream as extract_stream
    from slipform.enforce import Budget as Budget
    from slipform.enforce import Guard as Guard
    from slipform.enforce import Report as Report
    from slipform.enforce import Switches as Switches
    from slipform.enforce import ensure_json_only as ensure_json_only
    from slipform.enforce import loads as loads
    from slipform.enforce import loads_report as loads_report
    from slipform.engine.setup import Options as Options
    from slipform.errors import ConfigError as ConfigError
    from slipform.errors import EnforcementError as EnforcementError
    from slipform.errors import IncompleteExtraction as IncompleteExtraction
    from slipform.errors import InvalidResponseFormat as InvalidResponseFormat
    from slipform.errors import JsonEnforcementError as JsonEnforcementError
    from slipform.errors import RefusalError as RefusalError
    from slipform.errors import RunawayError as RunawayError
    from slipform.errors import SchemaError as SchemaError
    from slipform.errors import SchemaViolationError as SchemaViolationError
    from slipform.errors import SlipformError as SlipformError
    from slipform.errors import StructuredOutputFailed as StructuredOutputFailed
    from slipform.errors import ToolLoopError as ToolLoopError
    from slipform.errors import TruncatedError as TruncatedError
    from slipform.errors import UpstreamError as UpstreamError
    from slipform.evidence import Evidence as Evidence
    from slipform.evidence import FieldEvidence as FieldEvidence
    from slipform.evidence import Span as Span
    from slipform.evidence import ground as ground
    from slipform.ir import Media as Media
    from slipform.ir import Message as Message
    from slipform.ir import ModelRequest as ModelRequest
    from slipform.ir import ModelResponse as ModelResponse
    from slipform.ir import Tool as Tool
    from slipform.ir import ToolCall as ToolCall
    from slipform.ir import ToolResult as ToolResult
    from slipform.ir import Usage as Usage
    from slipform.library.async_client import AsyncClient as AsyncClient
    from slipform.library.client import Client as Client
    from slipform.library.mcp_tools import McpServer as McpServer
    from slipform.library.messages import audio as audio
    from slipform.library.messages import file as file
    from slipform.library.messages import fill as fill
    from slipform.library.messages import image as image
    from slipform.library.partial import UNSET as UNSET
    from slipform.library.partial import Partial as Partial
    from slipform.library.partial import so_far as so_far
    from slipform.library.partial import still_open as still_open
    from slipform.library.shortcuts import ask as ask
    from slipform.library.shortcuts import ask_async as ask_async
    from slipform.library.shortcuts import ask_text as ask_text
    from slipform.library.shortcuts import ask_text_async as ask_text_async
    from slipform.library.shortcuts import stream as stream
    from slipform.library.shortcuts import stream_async as stream_async
    from slipform.library.stream import AsyncStream as AsyncStream
    from slipform.library.stream import Event as Event
    from slipform.library.stream import Stream as Stream
    from slipform.library.stream_session import CallDelta as CallDelta
    from slipform.library.stream_session import Delta as Delta
    from slipform.library.stream_session import Restart as Restart
    from slipform.library.stream_session import Result as Result
    from slipform.library.stream_session import TextDelta as TextDelta
    from slipform.library.tool_loop import ToolRun as ToolRun
    from slipform.library.wrap_client import report_of as report_of
    from slipform.library.wrap_client import wrap as wrap
    from slipform.prices import Price as Price
    from slipform.schema import JsonSchemaSpec as JsonSchemaSpec
    from slipform.schema import OutputStrategy as OutputStrategy
    from slipform.schema import ResponseFormat as ResponseFormat
    from slipform.schema import Schema as Schema
    from slipform.schema import Violation as Violation
    from slipform.text.fence import JsonFenceDetector as JsonFenceDetector
    from slipform.text.parser import Parser as Parser

__version__ = "0.1.0"

# Importing slipform costs nothing until a name is used; what is above says the same to type checkers.
_HOMES = {
    "library.client": ("Client",),
    "library.async_client": ("AsyncClient",),
    "enforce": ("Budget", "Guard", "Report", "Switches", "ensure_json_only", "loads", "loads_report"),
    "engine": ("Options",),
    "prices": ("Price",),
    "errors": (
        "ConfigError",
        "EnforcementError",
        "IncompleteExtraction",
        "InvalidResponseFormat",
        "JsonEnforcementError",
        "RefusalError",
        "RunawayError",
        "SchemaError",
        "SchemaViolationError",
        "SlipformError",
        "StructuredOutputFailed",
        "ToolLoopError",
        "TruncatedError",
        "UpstreamError",
    ),
    "evidence": ("Evidence", "FieldEvidence", "Span", "ground"),
    "ir": ("Media", "Message", "ModelRequest", "ModelResponse", "Tool", "ToolCall", "ToolResult", "Usage"),
    "library.mcp_tools": ("McpServer",),
    "library.messages": ("audio", "file", "fill", "image"),
    "library.partial": ("UNSET", "Partial", "so_far", "still_open"),
    "addons.records.api": (
        "extract",
        "extract_async",
        "extract_estimate",
        "extract_full",
        "extract_full_async",
        "extract_stream",
    ),
    "schema": ("JsonSchemaSpec", "OutputStrategy", "ResponseFormat", "Schema", "Violation"),
    "library.shortcuts": ("ask", "ask_async", "ask_text", "ask_text_async", "stream", "stream_async"),
    "library.stream": ("AsyncStream", "CallDelta", "Delta", "Event", "Restart", "Result", "Stream", "TextDelta"),
    "library.tool_loop": ("ToolRun",),
    "text.fence": ("JsonFenceDetector",),
    "text.parser": ("Parser",),
    "library.wrap_client": ("report_of", "wrap"),
}
_HOME_OF = {name: f"slipform.{home}" for home, names in _HOMES.items() for name in names}

__all__ = ["__version__", *sorted(_HOME_OF)]  # noqa: PLE0604 — the names are strings, from the table above


def __getattr__(name: str) -> object:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module 'slipform' has no attribute {name!r}")
    value: object = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
