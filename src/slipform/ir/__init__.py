"""What is said to and by a model, in no vendor's spelling."""

from slipform.ir.chunks import CompletionChunk, ToolDelta
from slipform.ir.lift import Lift
from slipform.ir.messages import UNRESOLVED, Media, Message, Opaque, Part, Reasoning, Role, Text, ToolCall, ToolResult
from slipform.ir.request import RESERVED_TOOL, ModelRequest, NamedTool, Sampling, Tool, ToolChoice
from slipform.ir.response import FinishReason, ModelResponse, Usage
from slipform.ir.warnings import LossyEncode, ModelWarning

__all__ = [
    "RESERVED_TOOL",
    "UNRESOLVED",
    "CompletionChunk",
    "FinishReason",
    "Lift",
    "LossyEncode",
    "Media",
    "Message",
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
