"""How a small model is asked when nothing but the prompt can tell it the shape.

A small model copies a schema that it is shown, and the placeholders of an example made from it; it does follow worked
examples of other shapes, and a list of the keys with the kind of each.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from slipform.enforce.branches import settled
from slipform.enforce.parts import Parts
from slipform.ir import Message
from slipform.schema import Violation

KEYS_AND_KINDS: Final = "Reply in JSON with the keys: {keys}."
KIND_ONLY: Final = "Reply in JSON with: {kind}."
_MOST_CHARS: Final = 1_200
_DEPTH: Final = 5
_SHORTEST: Final = 4
"""Characters that the kind of a part takes at the least."""
_KINDS: Final = {"string": "text", "integer": "whole number", "number": "number", "boolean": "true or false"}

_WORKED: Final = (
    (
        "Zubin found 2 gimlets and 1 sextant.",
        'goods (list of {"what": text, "count": whole number})',
        '{"goods": [{"what": "gimlets", "count": 2}, {"what": "sextant", "count": 1}]}',
    ),
    ("I hated the trip.", 'mood ("happy" or "sad")', '{"mood": "sad"}'),
    (
        "Ottilie is 7 and she can swim.",
        "child (text), years (whole number), swims (true or false)",
        '{"child": "Ottilie", "years": 7, "swims": true}',
    ),
)
_THEIR_WORDS: Final = ("zubin", "gimlet", "sextant", "ottilie")


def worked_examples() -> tuple[Message, ...]:
    """Turns in which such questions were answered well; of shapes that nobody asks for, so that a copy is noticed.

    >>> worked_examples()[-1].text
    '{"child": "Ottilie", "years": 7, "swims": true}'
    """
    turns: list[Message] = []
    for said, keys, answer in _WORKED:
        turns += (Message.user(f"{said}\n{KEYS_AND_KINDS.format(keys=keys)}"), Message.assistant(answer))
    return tuple(turns)


def copied(value: Any, messages: Sequence[Message]) -> str | None:
    """What is wrong with an answer that took a word from the worked examples which nobody else has said; or None.

    >>> copied({"item": "gimlets"}, (Message.user("Two pens, please."),))
    'the answer copies "gimlet" from an example that was shown'
    """
    answer = json.dumps(value, ensure_ascii=False).casefold()
    words = [word for word in _THEIR_WORDS if word in answer]
    said = "".join(message.text for message in messages).casefold() if words else ""
    word = next((word for word in words if word not in said), None)
    return None if word is None else f'the answer copies "{word}" from an example that was shown'


def asked_for(schema: Mapping[str, Any]) -> str:
    """The sentence that tells a small model what to reply with.

    >>> asked_for({"type": "object", "properties": {"age": {"type": "integer"}}})
    'Reply in JSON with the keys: age (whole number).'
    """
    shape = settled(schema, schema)
    properties, room = shape.get("properties"), [_MOST_CHARS]
    if not isinstance(properties, Mapping) or not properties:
        return KIND_ONLY.format(kind=_kind(shape, schema, 0, room)[:_MOST_CHARS])
    keys = ", ".join(f"{name} ({_kind(each, schema, 0, room)})" for name, each in properties.items())
    return KEYS_AND_KINDS.format(keys=keys if len(keys) <= _MOST_CHARS else ", ".join(properties)[:_MOST_CHARS])


def _kind(node: Any, document: Mapping[str, Any], depth: int, room: list[int]) -> str:
    """What a value must be, in words that are short and read like the JSON they ask for.

    `room` holds how many characters are left: references may lead to far more parts than a schema has.
    """
    room[0] -= _SHORTEST
    if room[0] <= 0:
        return "anything"
    shape = settled(node, document)
    listed = [shape["const"]] if "const" in shape else shape.get("enum")
    if isinstance(listed, list):
        return " or ".join(json.dumps(member, ensure_ascii=False) for member in listed)
    union = shape.get("anyOf", shape.get("oneOf"))
    if isinstance(union, list) and depth < _DEPTH:
        return " or ".join(dict.fromkeys(_kind(branch, document, depth + 1, room) for branch in union))
    kind = shape.get("type")
    if isinstance(kind, list):
        return " or ".join(_KINDS.get(each, str(each)) for each in kind)
    if kind == "array" and depth < _DEPTH:
        return f"list of {_kind(shape.get('items', {}), document, depth + 1, room)}"
    properties = shape.get("properties")
    if isinstance(properties, Mapping) and depth < _DEPTH:
        inner = (f"{json.dumps(name)}: {_kind(each, document, depth + 1, room)}" for name, each in properties.items())
        return "{" + ", ".join(inner) + "}"
    return _KINDS.get(str(kind), str(kind or "anything"))


def wrong_keys(value: Any, violations: Sequence[Violation], document: Mapping[str, Any]) -> Parts | None:
    """The keys of an object that are missing or wrong, to be asked for alone; None where the whole should be.

    A shorter question is an easier one: what is right stays, and only the rest is asked for.
    """
    shape = settled(document, document)
    properties = shape.get("properties")
    if not isinstance(value, Mapping) or not isinstance(properties, Mapping):
        return None
    names = [name for name in properties if any(_concerns(violation, name) for violation in violations)]
    if not names or all(name in names for name in properties):
        return None
    if any(violation.steps == () and violation.keyword != "required" for violation in violations):
        return None
    schema = {
        **{name: document[name] for name in ("$defs", "definitions") if name in document},
        "type": "object",
        "properties": {name: properties[name] for name in names},
        "required": names,
    }
    return Parts(value, {name: (name,) for name in names}, schema)


def _concerns(violation: Violation, name: str) -> bool:
    if violation.steps:
        return violation.steps[0] == name
    return violation.keyword == "required" and f'"{name}"' in violation.message
