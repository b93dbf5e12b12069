"""Continue an answer that was cut off by its token limit: keep the complete part and request the rest."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from slipform.ir import Message, ModelRequest
from slipform.schema import JsonSchemaSpec, ResponseFormat
from slipform.schema.document import DEFINITIONS, followed, with_plain_references
from slipform.text.parser import Parser
from slipform.text.strict import compact_json

_SHOWN: Final = 3
"""Items of a list that are shown to the model: with only one, it confuses equal rows (38 of 301 shifted in a trial)."""
_LONGEST_OVERLAP: Final = 5
_SHORTEST_OVERLAP: Final = 2
"""Fewer repeated items than this may be rows that occur twice in the source."""


@dataclass(frozen=True, slots=True)
class AnswerContinuation:
    """The complete part of an answer, and the schema of the missing part."""

    value: Any
    schema: dict[str, Any]
    size: int
    """Characters of the complete part as JSON: a continuation must add to it."""
    shown: str
    """The end of the complete part, as the model is shown it."""
    question: str
    open_text: str
    """The complete part as JSON, without the brackets that close it."""

    def merged(self, rest: Any) -> Any:
        """Return the complete part joined with the rest."""
        return _joined(self.value, rest)

    def format(self, whole: ResponseFormat) -> ResponseFormat:
        """Return the response format of the missing part."""
        spec = JsonSchemaSpec(f"{whole.json_schema.name[:58]}_rest", self.schema)
        return dataclasses.replace(whole, json_schema=spec)


def continuation_of(
    text: str,
    document: Mapping[str, Any],
    before: AnswerContinuation | None = None,
    prefill: AnswerContinuation | None = None,
) -> AnswerContinuation | None:
    """Return how to continue a text that was cut off; None if no part is complete, or the attempt added nothing.

    With `before`, the text is the answer to an earlier continuation; with `prefill`, it begins with that one's text.

    >>> rest = continuation_of('{"a": [1, 2, 3', {"properties": {"a": {"items": {"type": "integer"}}}})
    >>> rest.value, rest.merged({"a": [3, 4]})
    ({'a': [1, 2]}, {'a': [1, 2, 3, 4]})
    """
    complete = complete_part(text)
    if complete is None:
        return None
    value, names = complete
    if before is not None:
        value = _joined(before.value, value)
    size = len(compact_json(value))
    earlier = before or prefill
    if earlier is not None and size <= earlier.size:
        return None
    containers = [value]
    for name in names:
        containers.append(containers[-1][name])
    root = with_plain_references(document)
    schema = _rest_schema(root, root, containers, names)
    if schema is None:
        return None
    schema = {**{name: root[name] for name in DEFINITIONS if name in root}, **schema}
    shown = _shown(containers[-1])
    return AnswerContinuation(value, schema, size, shown, _question(names, containers[-1]), _open_text(containers))


def continuation_request(base: ModelRequest, continuation: AnswerContinuation) -> ModelRequest:
    """Return the request for the rest; it shows the end of the complete part."""
    answer = Message.assistant(continuation.shown)
    return base.replace(messages=(*base.messages, answer, Message.user(continuation.question)), continues="rest")


def prefill_request(base: ModelRequest, continuation: AnswerContinuation) -> ModelRequest:
    """Return the request for the same answer, with the complete part as the beginning of the assistant's turn."""
    return base.replace(messages=(*base.messages, Message.assistant(continuation.open_text)), continues="prefill")


def with_prefill(text: str, continuation: AnswerContinuation) -> str:
    """Return the whole text of an answer that was asked to continue this one.

    Some vendors repeat the beginning in their answer, and some models write the whole again.

    >>> rest = continuation_of('[{"n": 1}, {"n"', {"items": {"type": "object"}})
    >>> with_prefill(', {"n": 2}]', rest), with_prefill('[{"n": 1}, {"n": 2}]', rest)
    ('[{"n":1}, {"n": 2}]', '[{"n": 1}, {"n": 2}]')
    """
    begins_anew = text.lstrip().startswith((continuation.open_text[0], "```"))
    return text if begins_anew else continuation.open_text + text


def _open_text(containers: Sequence[Any]) -> str:
    """Return the JSON of nested containers, each the last item of its parent, up to where the next item follows."""
    text = compact_json(containers[0])[: -len(containers)]
    last = list(containers[-1].values())[-1] if isinstance(containers[-1], Mapping) else containers[-1][-1]
    # A number might have had further digits; its comma has been read, or the number would not be complete.
    return f"{text}," if isinstance(last, int | float) and not isinstance(last, bool) else text


def complete_part(text: str) -> tuple[Any, list[str]] | None:
    """Return the complete part of a text that was cut off, and the keys that lead to the container that continues.

    That container is the outermost open list, whose open item is dropped, else the innermost open object. None if no
    part is complete.

    >>> complete_part('{"title": "a", "rows": [{"n": 1}, {"n": 2}, {"n"')
    ({'title': 'a', 'rows': [{'n': 1}, {'n': 2}]}, ['rows'])
    """
    parser = Parser(lenient=True).feed(text)
    path = parser.open_path
    if path is None:
        return None
    return _cut_at(parser.value, path)


def _cut_at(value: Any, path: Sequence[str | int]) -> tuple[Any, list[str]] | None:
    """Return the complete part of a value cut at a path, and the keys that lead to the cut.

    None if no part is complete.

    None if nothing is complete.
    """
    if isinstance(value, list):
        complete = value[: path[0]] if path and isinstance(path[0], int) else value
        return (complete, []) if complete else None
    if not isinstance(value, dict) or not path:
        return (value, []) if value else None
    key = str(path[0])
    others = {name: member for name, member in value.items() if name != key}
    inner = _cut_at(value[key], path[1:]) if isinstance(value[key], dict | list) else None
    if inner is None:
        return (others, []) if others else None
    member, names = inner
    return {**others, key: member}, [key, *names]


def _rest_schema(
    node: Any, root: Mapping[str, Any], containers: Sequence[Any], names: Sequence[str]
) -> dict[str, Any] | None:
    """Return the schema of the missing part of a container and of the containers within it, along these names."""
    node = _only_branch(node, root, list if isinstance(containers[0], list) else dict)
    if isinstance(containers[0], list):
        return _rest_of_list(node, len(containers[0]))
    properties: Mapping[str, Any] = node.get("properties") or {}
    written = set(containers[0])
    missing = {name: each for name, each in properties.items() if name not in written}
    required = [name for name in node.get("required") or () if name in missing]
    if names:
        name = names[0]
        inner = _rest_schema(properties.get(name, node.get("additionalProperties")), root, containers[1:], names[1:])
        if inner is None:
            return None
        missing = {name: inner, **missing}
        required = [name, *required]
    additional = node.get("additionalProperties", True)
    return {"type": "object", "properties": missing, "required": required, "additionalProperties": additional}


def _rest_of_list(node: Mapping[str, Any], count: int) -> dict[str, Any] | None:
    items = node.get("items", {})
    if isinstance(items, list) or "prefixItems" in node:
        return None
    rest: dict[str, Any] = {"type": "array", "items": items}
    if isinstance(least := node.get("minItems"), int) and least > count:
        rest["minItems"] = least - count
    if isinstance(most := node.get("maxItems"), int):
        rest["maxItems"] = max(0, most - count)
    return rest


def _only_branch(node: Any, root: Mapping[str, Any], kind: type) -> Mapping[str, Any]:
    """Return the subschema for a list or an object if the only alternative to it is null; else an empty one."""
    node = followed(node, root)
    branches = node.get("anyOf") or node.get("oneOf")
    if not isinstance(branches, list):
        return {} if "allOf" in node else node
    key = "items" if kind is list else "properties"
    fitting = [each for each in (followed(branch, root) for branch in branches) if key in each]
    return fitting[0] if len(fitting) == 1 else {}


def _joined(value: Any, rest: Any) -> Any:
    """Return a value joined with its rest: lists are concatenated, objects merged."""
    if isinstance(value, list) and isinstance(rest, list):
        if _begins_anew(value, rest):
            return max(value, rest, key=len)
        return [*value, *rest[_overlap(value, rest) :]]
    if not isinstance(value, Mapping) or not isinstance(rest, Mapping):
        return value
    joined = dict(value)
    for name, member in rest.items():
        joined[name] = _joined(joined[name], member) if name in joined else member
    return joined


def _begins_anew(items: Sequence[Any], rest: Sequence[Any]) -> bool:
    """Return whether the model wrote the list again from its beginning, instead of the rest."""
    count = min(_SHOWN, len(items), len(rest))
    return count > 0 and list(items[:count]) == list(rest[:count])


def _overlap(items: Sequence[Any], rest: Sequence[Any]) -> int:
    """Return how many items at the end are repeated at the beginning of the rest."""
    most = min(_LONGEST_OVERLAP, len(items), len(rest))
    for count in range(most, _SHORTEST_OVERLAP - 1, -1):
        if list(items[-count:]) == list(rest[:count]):
            return count
    return 0


def _shown(container: Any) -> str:
    if isinstance(container, list):
        return compact_json(container[-_SHOWN:])
    return compact_json(container)


def _question(names: Sequence[str], container: Any) -> str:
    where = f' of "{names[-1]}"' if names else ""
    if isinstance(container, list):
        return (
            f"Your answer was cut off by the length limit after item {len(container)}{where}; its last items are above."
            f" Go on with item {len(container) + 1}: give only what comes after, in the same form. Repeat nothing."
        )
    return (
        f"Your answer was cut off by the length limit; the complete part{where} is above."
        " Give only the keys that are missing. Repeat nothing."
    )
