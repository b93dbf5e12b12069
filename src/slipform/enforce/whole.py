"""Whether an answer that the token limit cut off had said all it could say."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from slipform.enforce.branches import settled
from slipform.text.loads import Loaded

_DEPTH = 50


def is_whole(text: str, loaded: Loaded, document: Mapping[str, Any], lift: Callable[[Any], Any] | None = None) -> bool:
    """Whether only closing brackets are missing, and the schema leaves nothing that could have stood before them.

    Then closing the brackets loses nothing. An open array may have had more items to come, and an object keys that it
    lacks: those were cut off.

    >>> from slipform.text.loads import load
    >>> shape = {"type": "object", "properties": {"a": {"type": "string"}}}
    >>> is_whole('{"a": "b"', load('{"a": "b"'), shape)
    True
    >>> is_whole('[1, 2', load('[1, 2'), {"type": "array"})
    False
    """
    if lift is not None or {edit.kind for edit in loaded.edits} != {"missing_bracket"} or not _ends_closed(text):
        return False
    value, node = loaded.value, settled(document, document)
    for _ in range(_DEPTH):  # down the last branch: the brackets that are missing are among these
        if isinstance(value, dict):
            properties = node.get("properties")
            open_ended = node.get("additionalProperties", False) is not False or "patternProperties" in node
            if not isinstance(properties, Mapping) or open_ended or any(name not in value for name in properties):
                return False
            last: Any = next(reversed(value)) if value else None
            value, node = (value[last], settled(properties.get(last), document)) if value else (None, node)
        elif isinstance(value, list):
            if not isinstance(node.get("maxItems"), int) or len(value) < node["maxItems"]:
                return False
            value, node = (value[-1], settled(node.get("items"), document)) if value else (None, node)
        else:
            return True
    return False


def _ends_closed(text: str) -> bool:
    """Whether the text ends with a value that is over: digits, and letters, might have gone on."""
    return text.rstrip()[-1:] in ('"', "}", "]")
