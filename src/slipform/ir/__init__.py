"""Represent requests to models and their responses in no vendor's format."""

from slipform.ir.messages import UNRESOLVED, Media, Message, Opaque, Part, Reasoning, Role, Text, ToolCall, ToolResult
from slipform.ir.request import (
    RESERVED_TOOL,
    DowngradeWarning,
    LossyEncode,
    ModelNote,
    ModelRequest,
    ModelWarning,
    NamedTool,
    Sampling,
    Tool,
    ToolChoice,
)
from slipform.ir.response import CompletionChunk, FinishReason, Lift, ModelResponse, ToolDelta, Usage

__all__ = [
    "RESERVED_TOOL",
    "UNRESOLVED",
    "CompletionChunk",
    "DowngradeWarning",
    "FinishReason",
    "Lift",
    "LossyEncode",
    "Media",
    "Message",
    "ModelNote",
    "ModelRequest",
    "ModelResponse",
    "ModelWarning",
    "NamedTool",
    "Opaque",
    "Part",
    "Reasoning",
    "Role",
    "Sampling",
    "Text",
    "Tool",
    "ToolCall",
    "ToolChoice",
    "ToolDelta",
    "ToolResult",
    "Usage",
]
