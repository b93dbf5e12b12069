"""Re-asking for the offending parts of a large answer only, and putting them in place."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from slipform.enforce.branches import is_portable
from slipform.enforce.fixes import ABSENT, Edit, Steps, at, locate
from slipform.enforce.patch import apply
from slipform.ir import Message, ModelRequest
from slipform.schema import JsonSchemaSpec, ResponseFormat, Violation
from slipform.schema.violations import json_path

SMALL = 2_000
"""Answers under this many characters are re-asked whole: that is simpler, and costs nothing to speak of."""
_MOST_PARTS = 8
_DEFINITIONS = ("$defs", "definitions")


@dataclass(frozen=True, slots=True)
class Parts:
    """The places of a value that are to be asked for again, by the name each has in the question."""

    value: Any
    places: Mapping[str, Steps]
    schema: dict[str, Any]
    """The shape of the answer: one key per place."""

    def merged(self, answer: Any) -> Any:
        """The value with the answered parts put in place; what was not answered stays as it was."""
        if not isinstance(answer, Mapping):
            return self.value
        edits = [
            Edit("replace", steps, "asked again", value=answer[name])
            for name, steps in self.places.items()
            if name in answer
        ]
        return apply(self.value, edits)[0]

    def format(self, whole: ResponseFormat) -> ResponseFormat:
        """What is asked for in place of the whole."""
        spec = JsonSchemaSpec(f"{whole.json_schema.name[:57]}_parts", self.schema)
        return dataclasses.replace(whole, json_schema=spec)


def parts_of(value: Any, violations: Sequence[Violation], document: Mapping[str, Any]) -> Parts | None:
    """The few places that are wrong in a large value; None where the whole should be asked for again."""
    places: dict[str, Steps] = {}
    shapes: dict[str, Any] = {}
    for violation in violations:
        found = _place(violation, value, document)
        if found is None:
            return None
        steps, shape = found
        places[json_path(steps)] = steps
        shapes[json_path(steps)] = shape
    if not places or len(places) > _MOST_PARTS:
        return None
    schema = {
        **{name: document[name] for name in _DEFINITIONS if name in document},
        "type": "object",
        "properties": shapes,
        "required": list(shapes),
        "additionalProperties": False,
    }
    return Parts(value, places, schema)


def _place(violation: Violation, value: Any, document: Mapping[str, Any]) -> tuple[Steps, Any] | None:
    """Where to put a better value, and the shape it must have there."""
    steps = violation.steps
    holder = locate(document, violation.schema_path.rpartition("/")[0])
    if steps is None or not isinstance(holder, Mapping):
        return None
    if violation.keyword == "required":
        missing = [name for name in holder.get("required", ()) if f'"{name}"' in (violation.expected or "")]
        shape = (holder.get("properties") or {}).get(missing[0]) if len(missing) == 1 else None
        return ((*steps, missing[0]), shape) if shape is not None and is_portable(shape) else None
    if not steps or at(value, steps) is ABSENT or not is_portable(holder):
        return None
    return steps, holder


def parts_request(first: ModelRequest, answer: str, parts: Parts, violations: Sequence[Violation]) -> ModelRequest:
    """Ask for the offending parts only, each under its path."""
    wrong = "\n".join(f"- {violation.json_path}: {violation.message}" for violation in violations)
    names = ", ".join(f'"{name}"' for name in parts.places)
    said = (
        f"Parts of that JSON are not valid:\n{wrong}\n"
        f"Return one JSON object with only the corrected values, under the keys {names}. No prose. No code fences."
    )
    wanted = None if first.response_format is None else parts.format(first.response_format)
    return first.replace(
        messages=(*first.messages, Message.assistant(answer), Message.user(said)), response_format=wanted
    )
