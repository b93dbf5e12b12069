"""Derive from a wanted shape what is asked of each piece: the list of records, and the scalar fields beside it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args, get_origin

from slipform.addons.records.numbered import RECORD, wrapped_item
from slipform.errors import ConfigError
from slipform.schema import Schema
from slipform.schema.document import followed, join_pointer, moved, rewritten, with_plain_references

QuestionForm: TypeAlias = Literal["parts", "whole", "lines"]
"""Whether a question is for the records of a part, for the whole value, or for records with the numbers of lines."""
RECORDS = "records"
"""The name of the list in what models are asked for."""
_DEFINITIONS = ("$defs", "definitions")


@dataclass(frozen=True, slots=True)
class RecordShape:
    """A wanted shape, taken apart: a list of records, scalar fields, or both."""

    whole: Schema[Any]
    item: Schema[Any] | None
    """The schema of one record; None for an object without a list of objects."""
    list_name: str
    """The key of the list in the value; empty where the value itself is the list."""
    question: Schema[Any]
    """What a piece is asked for."""
    answer_key: str = RECORDS
    """The key of the list in an answer."""
    scalars: tuple[str, ...] = ()
    listed: frozenset[str] = frozenset()
    """Fields of a record whose values the schema lists."""
    is_numbered: bool = False
    """Whether each record is asked for with the numbers of its lines."""

    def in_form(self, form: QuestionForm) -> RecordShape:
        """Return the shape as it is asked for."""
        if form == "whole":
            return self.as_whole()
        return self.as_numbered() if form == "lines" else self

    def as_numbered(self) -> RecordShape:
        """Return the shape in which records are asked for with the numbers of their lines."""
        if self.item is None:
            return self
        document = with_plain_references(self.whole.document)
        properties = followed(document, document).get("properties", {})
        scalars = {name: properties[name] for name in self.scalars}
        question = _question(self.answer_key, self.item.document, scalars, document, numbered=True)
        return dataclasses.replace(self, question=question, is_numbered=True)

    def as_whole(self) -> RecordShape:
        """Return the shape of a source that fits one piece: everything is asked for at once."""
        return dataclasses.replace(self, question=self.whole)


def shapes_of(shape: Any) -> list[RecordShape]:
    """Return what is asked for, one after the other: one shape for each list, scalar fields with the first.

    >>> [each.list_name for each in shapes_of(list[int])]
    ['']
    """
    whole: Schema[Any] = Schema.of(shape)
    document = with_plain_references(whole.document)
    root = followed(document, document)
    if root.get("type") == "array" or "items" in root:
        item = _typed_item(shape) or Schema("record", _part(document, root.get("items", {})))
        question = _question(RECORDS, item.document, {}, document)
        return [RecordShape(whole, item, "", question, listed=_listed_fields(item.document))]
    properties = root.get("properties")
    if not isinstance(properties, Mapping) or not properties:
        raise ConfigError(
            "Records cannot be extracted in this shape",
            hint="Give a list (`list[Invoice]`), or an object with fields.",
        )
    lists = {name: part for name, part in properties.items() if _is_record_list(part, document)}
    scalars = {name: part for name, part in properties.items() if name not in lists}
    return list(_object_shapes(whole, document, lists, scalars))


def rows_of(schema: Schema[Any]) -> list[RecordShape]:
    """Return the shape of a table: a list of what the schema describes, or the list that it is; values stay plain."""
    document = with_plain_references(schema.document)
    root = followed(document, document)
    if root.get("type") == "array" or "items" in root:
        return shapes_of(dict(document))
    whole: Schema[Any] = Schema(schema.name, {"type": "array", "items": moved(document, "items")})
    question = _question(RECORDS, document, {}, document)
    return [RecordShape(whole, schema, "", question, listed=_listed_fields(document))]


def _object_shapes(
    whole: Schema[Any], document: Mapping[str, Any], lists: Mapping[str, Any], scalars: Mapping[str, Any]
) -> Iterator[RecordShape]:
    if not lists:
        yield RecordShape(whole, None, "", _question("", None, scalars, document), "", tuple(scalars))
        return
    for name, part in lists.items():
        item: Schema[Any] = Schema("record", _part(document, followed(part, document).get("items", {})))
        question = _question(name, item.document, scalars, document)
        yield RecordShape(whole, item, name, question, name, tuple(scalars), _listed_fields(item.document))
        scalars = {}


def _typed_item(shape: Any) -> Schema[Any] | None:
    """Return the schema of the items of a Python list type, with the type's own checks."""
    arguments = get_args(shape)
    if get_origin(shape) is list and len(arguments) == 1:
        return Schema.of(arguments[0])
    return None


def _is_record_list(part: Any, document: Mapping[str, Any]) -> bool:
    """Whether a field is a list of objects."""
    node = followed(part, document)
    items = node.get("items")
    if not isinstance(items, Mapping):
        return False
    item = followed(items, document)
    return "properties" in item or item.get("type") == "object"


def _part(document: Mapping[str, Any], part: Any) -> dict[str, Any]:
    """Return a part of a document as a separate document, with the definitions it may refer to."""
    definitions = {key: document[key] for key in _DEFINITIONS if key in document}
    if not isinstance(part, Mapping):
        return {**definitions}
    return {**definitions, **part}


def _question(
    key: str,
    item: Mapping[str, Any] | None,
    scalars: Mapping[str, Any],
    document: Mapping[str, Any],
    *,
    numbered: bool = False,
) -> Schema[Any]:
    """Return the schema of an answer: a closed object with the list, and scalar fields that may be left out."""
    properties: dict[str, Any] = {}
    definitions = {name: _optional(document[name]) for name in _DEFINITIONS if scalars and name in document}
    required = []
    if item is not None:
        plain = with_plain_references(item)
        if numbered:
            items = wrapped_item(moved(plain, "properties", key, "items", "properties", RECORD))
        else:
            items = moved(plain, "properties", key, "items")
        properties[key] = {"type": "array", "items": items}
        required = [key]
    properties |= _optional(scalars)
    fields = {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
    return Schema(RECORDS, {**definitions, **fields})


def _optional(parts: Mapping[str, Any]) -> dict[str, Any]:
    """Return schemas in which nothing is required: a piece may have only some of the fields."""
    relaxed: dict[str, Any] = rewritten(dict(parts), _without_required, is_map=True)
    return relaxed


def _without_required(node: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in node.items() if key != "required"}


def _listed_fields(document: Mapping[str, Any]) -> frozenset[str]:
    """Return the fields whose values a schema lists, positions in lists as `*`."""
    return frozenset(_walk_listed(document, document, (), 0))


def _walk_listed(node: Any, document: Mapping[str, Any], path: tuple[str, ...], depth: int) -> Iterator[str]:
    if not isinstance(node, Mapping) or depth > 12:
        return
    target = followed(node, document)
    if "enum" in target or "const" in target:
        yield join_pointer(path)
    for name, part in target.get("properties", {}).items():
        yield from _walk_listed(part, document, (*path, name), depth + 1)
    for key in ("anyOf", "oneOf", "allOf"):
        for part in target.get(key, ()):
            yield from _walk_listed(part, document, path, depth + 1)
    if "items" in target:
        yield from _walk_listed(target["items"], document, (*path, "*"), depth + 1)
