"""The caller's schema as a document: places in it, what references point at, and which draft it speaks."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote, urldefrag, urljoin

import orjson

from slipform.errors import SchemaError

_DATA = frozenset({"enum", "const", "default", "examples", "example"})
_METASCHEMAS = ("http://json-schema.org/", "https://json-schema.org/")

_BESIDE = frozenset({"$ref", "$dynamicRef", "$recursiveRef", "allOf", "title", "description", "default"})


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
    _nested: bool
    _parts: dict[tuple[str, frozenset[str]], SourceNode] = field(default_factory=dict)
    _names: dict[str, str] | None = None
    _bases: dict[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, text: bytes) -> SchemaSource:
        """Take a schema's JSON text."""
        document = json.loads(text)
        draft = _draft(document.get("$schema"))
        # Only then can a local reference mean something else than a place counted from the root.
        nested = text.count(b'"$id"') > 1 or b'nchor"' in text or (draft == 4 and b'"id":' in text)
        return cls(document, draft, nested)

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
        return self.part(value, part.pointer + "".join("/" + escape(step) for step in steps))

    def alone(self, part: SourceNode, *keywords: str) -> SourceNode:
        """The same place without what it refers to or merges, without its notes, and without the keywords named."""
        skip = part.skip | _BESIDE | frozenset(keywords)
        return self.part(part.schema, part.pointer, skip)

    def resolve(self, part: SourceNode, ref: Any, keyword: str = "$ref") -> SourceNode | None:
        """What a reference points at; None for one of the meta-schemas, which every schema validator knows."""
        if not isinstance(ref, str):
            raise SchemaError(f"{keyword} must be a string", where=f"#{part.pointer}/{escape(keyword)}")
        if ref == "#" and not self._nested:
            return self.root
        if ref.startswith("#/") and (found := self._at("", ref[1:])) and not self._nested:
            return found
        return self._resolve_named(part, ref, keyword)

    def _resolve_named(self, part: SourceNode, ref: str, keyword: str) -> SourceNode | None:
        names = self._index()
        uri, fragment = urldefrag(urljoin(self._base(part.pointer), ref))
        fragment = unquote(fragment)
        if fragment and not fragment.startswith("/"):
            place = names.get(f"{uri}#{fragment}", names.get(f"#{fragment}"))
            found = None if place is None else self._at("", place)
        else:
            place = names.get(uri, "" if ref.startswith("#") else None)
            found = None if place is None else self._at(place, fragment)
            if found is None and ref.startswith("#"):
                found = self._at("", unquote(ref[1:]))
        if found is not None:
            return found
        if uri.startswith(_METASCHEMAS) and "/draft" in uri:
            return None
        raise SchemaError(
            f"{keyword} {ref!r} points at nothing in this document",
            where=f"#{part.pointer}",
            hint="Put what it names under $defs: references outside the document are never fetched.",
        )

    def _at(self, start: str, pointer: str) -> SourceNode | None:
        value: Any = self.document
        steps = (start + pointer).split("/")[1:]
        plain = [unquote(step).replace("~1", "/").replace("~0", "~") for step in steps]
        for step in plain:
            if isinstance(value, Mapping) and step in value:
                value = value[step]
            elif isinstance(value, list) and step.isdigit() and int(step) < len(value):
                value = value[int(step)]
            else:
                return None
        if not isinstance(value, Mapping | bool):
            return None
        return self.part(value, "".join("/" + escape(step) for step in plain))

    def _base(self, pointer: str) -> str:
        while pointer not in self._bases and pointer:
            pointer = pointer.rpartition("/")[0]
        return self._bases.get(pointer, "")

    def _index(self) -> dict[str, str]:
        if self._names is None:
            self._names = {}
            word = "id" if self.draft == 4 else "$id"
            for pointer, base, schema in _walk(self.document, word):
                if isinstance(schema.get(word), str):
                    self._name(pointer, urljoin(base, schema[word]))
                for keyword in ("$anchor", "$dynamicAnchor"):
                    if isinstance(schema.get(keyword), str):
                        self._names.setdefault(f"{self._base(pointer)}#{schema[keyword]}", pointer)
                        self._names.setdefault(f"#{schema[keyword]}", pointer)
        return self._names

    def _name(self, pointer: str, uri: str) -> None:
        names = self._names if self._names is not None else {}
        plain, fragment = urldefrag(uri)
        if fragment:
            names.setdefault(uri, pointer)
            names.setdefault(f"#{fragment}", pointer)
        else:
            names.setdefault(plain, pointer)
            self._bases[pointer] = plain


def _walk(document: Mapping[str, Any], word: str) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """Every object of the document that may be a schema, outer ones first, with its base URI."""
    stack: list[tuple[str, str, Any]] = [("", "", document)]
    while stack:
        pointer, base, value = stack.pop()
        if isinstance(value, Mapping):
            yield pointer, base, value
            own = value.get(word)
            inner = urljoin(base, own) if isinstance(own, str) else base
            stack += [(f"{pointer}/{escape(key)}", inner, value[key]) for key in reversed(value) if key not in _DATA]
        elif isinstance(value, list):
            stack.extend((f"{pointer}/{index}", base, item) for index, item in enumerate(value))


def _draft(uri: Any) -> int:
    """4, 6, 7, 2019 or 2020; a document that does not say is taken as the newest."""
    text = uri if isinstance(uri, str) else ""
    for mark, number in (("draft-04", 4), ("draft-03", 4), ("draft-06", 6), ("draft-07", 7), ("2019-09", 2019)):
        if mark in text:
            return number
    return 2020


def escape(step: str) -> str:
    """One step of a JSON Pointer."""
    return step.replace("~", "~0").replace("/", "~1") if "~" in step or "/" in step else step


def to_text(schema: Mapping[str, Any]) -> bytes:
    """The schema as JSON text, keys in their order; what JSON cannot hold is an error."""
    try:
        return orjson.dumps(schema if type(schema) is dict else dict(schema))
    except (TypeError, ValueError, RecursionError):
        pass
    try:
        return json.dumps(schema, allow_nan=False, default=_plain).encode("utf-8", "strict")
    except (TypeError, ValueError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise SchemaError(f"This schema cannot be written as JSON: {reason}", hint="Give plain JSON values.") from error


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} is no JSON value")
