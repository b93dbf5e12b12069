"""The caller's schema as a document: places in it, what references point at, and which draft it speaks."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from slipform.errors import SchemaError
from slipform.schema.document import (
    REFERENCES,
    draft_of,
    join_pointer,
    lookup,
    reference_steps,
    with_plain_references,
)

_METASCHEMAS = ("http://json-schema.org/", "https://json-schema.org/")

_BESIDE = frozenset({*REFERENCES, "allOf", "title", "description", "default"})


@dataclass(frozen=True, slots=True, eq=False)
class SourceNode:
    """One subschema at one place. `skip` names keywords of it that are dealt with elsewhere."""

    schema: Mapping[str, Any] | bool
    pointer: str
    skip: frozenset[str] = frozenset()

    def get(self, keyword: str) -> Any:
        """The keyword's value, or None when it is absent or dealt with elsewhere."""
        if isinstance(self.schema, bool) or keyword in self.skip:
            return None
        return self.schema.get(keyword)


@dataclass(slots=True)
class SchemaSource:
    """A schema document, read once; parts are interned, so that one place is one object."""

    document: Mapping[str, Any]
    draft: int
    _parts: dict[tuple[str, frozenset[str]], SourceNode] = field(default_factory=dict)

    @classmethod
    def read(cls, text: bytes) -> SchemaSource:
        """Take a schema's JSON text."""
        document = with_plain_references(json.loads(text))
        return cls(document, draft_of(document))

    @property
    def root(self) -> SourceNode:
        """The whole document."""
        return self.part(self.document, "")

    def part(self, schema: Any, pointer: str, skip: frozenset[str] = frozenset()) -> SourceNode:
        """The part at a place; what is neither an object nor a boolean there is an error."""
        found = self._parts.get((pointer, skip))
        if found is None:
            if not isinstance(schema, Mapping | bool):
                raise SchemaError(
                    f"A schema must be an object or a boolean, not {type(schema).__name__}", where=f"#{pointer}"
                )
            found = self._parts[pointer, skip] = SourceNode(schema, pointer, skip)
        return found

    def child(self, part: SourceNode, *steps: str) -> SourceNode:
        """The part under one or more keys of another."""
        value: Any = part.schema
        for step in steps:
            value = value[int(step)] if isinstance(value, list) else value[step]
        return self.part(value, part.pointer + join_pointer(steps))

    def alone(self, part: SourceNode, *keywords: str) -> SourceNode:
        """The same place without what it refers to or merges, without its notes, and without the keywords named."""
        skip = part.skip | _BESIDE | frozenset(keywords)
        return self.part(part.schema, part.pointer, skip)

    def resolve(self, part: SourceNode, ref: Any, keyword: str) -> SourceNode | None:
        """What a reference points at; None for one of the meta-schemas, which every schema validator knows."""
        if not isinstance(ref, str):
            raise SchemaError(f"{keyword} must be a string", where=f"#{part.pointer}{join_pointer([keyword])}")
        steps = reference_steps(ref)
        if steps is not None and isinstance(found := lookup(self.document, ref), Mapping | bool):
            return self.part(found, join_pointer(steps))
        if ref.startswith(_METASCHEMAS) and "/draft" in ref:
            return None
        raise SchemaError(
            f"{keyword} {ref!r} points at nothing in this document",
            where=f"#{part.pointer}",
            hint="Put what it names under $defs: references outside the document are never fetched.",
        )
