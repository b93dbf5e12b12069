"""Find the resources that a request refers to, remove slipform's marks from their ids, and check their owners.

One walk over the parsed request, driven by two tables, serves every endpoint: `FIELDS` lists the fields that name
resources, at any place of a request; `POSITIONS` lists the places of the caller's own data (schemas, arguments of
tools), where a field of the same name has no such meaning. A position counts only in its exact spelling, a field in any
spelling that a vendor might read: everything that is not known to be data is checked.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import product
from typing import Any, Final, NamedTuple, TypeAlias

from slipform.addons.server.calls.model_names import folded
from slipform.addons.server.calls.resources import NoPreviousResponseError, NoSuchResourceError, ResourceStore, unmark
from slipform.addons.server.calls.unsupported_fields import UnsupportedFieldError
from slipform.codecs.openai_responses.encode import MADE_REASONING
from slipform.errors import RequestError

MAX_DEPTH: Final = 230
"""Levels of a request; what is sent is a few levels deeper, and `orjson` writes 254."""
_LONGEST_ID: Final = 256
_MOST_REFERENCES: Final = 10_000
_LONGEST_NAME: Final = 40


class Field(NamedTuple):
    """A field that names resources of a kind: by an id, a list of ids, or an object with an `id`.

    Where `must_own` is False the field is not known to make a vendor look something up. It may then contain any id
    except one that is known to belong to another key.
    """

    kind: str
    must_own: bool = True


FIELDS: Final = {
    "fileid": Field("file"),
    "fileids": Field("file"),
    "inputfileid": Field("file"),
    "inputfileids": Field("file"),
    "previousresponseid": Field("response"),
    "conversation": Field("conversation"),
    "container": Field("container"),
    "containerid": Field("container"),
    "containerids": Field("container"),
    # No served API has these, or they do not name resources in it. Other servers may read them.
    "approvalrequestid": Field("item", must_own=False),
    "audio": Field("audio", must_own=False),
    "batchid": Field("batch", must_own=False),
    "conversationid": Field("conversation", must_own=False),
    "errorfileid": Field("file", must_own=False),
    "file": Field("file", must_own=False),
    "files": Field("file", must_own=False),
    "inputfile": Field("file", must_own=False),
    "inputfiles": Field("file", must_own=False),
    "itemid": Field("item", must_own=False),
    "outputfileid": Field("file", must_own=False),
    "responseid": Field("response", must_own=False),
    "trainingfile": Field("file", must_own=False),
    "validationfile": Field("file", must_own=False),
}
"""By the field's name in lower case without `_` and `-`.

Not listed: Gemini's `fileUri` and `cachedContent`, `vector_store_ids`, `skill_id` and stored prompts. Nothing that is
served here creates such a resource, so it belongs to the operator's account and not to a key.
"""

_ITEM: Final = Field("item")
_ITEMS: Final = frozenset({"input", "items"})
"""Fields whose objects are items of a conversation, which refer to a stored one when they have an `id` and no content.

https://platform.openai.com/docs/api-reference/responses/create: `type` is optional in an `item_reference`.
"""
_TYPE: Final = Field("type")
_ID: Final = Field("id")
_CONTENT: Final = (
    "action", "arguments", "code", "content", "encrypted_content", "input", "operation", "output", "queries", "result",
    "tools",
)  # fmt: skip
"""Fields of which a complete item has at least one."""

_Position: TypeAlias = dict[str, Any]
_DATA: Final = None
"""The caller's own data, which is not searched."""
_NAMES: Final[_Position] = {}
"""An object whose keys are the caller's own names, and whose values are part of the request."""
_NOWHERE: Final[_Position] = {}


class _Answered(dict[str, Any]):
    """A part of an earlier answer that is sent back: vendors do not look up its ids, which may be of any age."""

    def get(self, _name: str, _default: Any = None) -> _Answered:
        return self


_ANSWERED: Final = _Answered()


def _spellings(path: str) -> Iterator[tuple[str, ...]]:
    """Yield the names of a dotted path of Gemini's, each in camel case and in snake case: its servers read both."""
    names = [(name, _camel_case(name)) for name in path.split(".")]
    yield from product(*[dict.fromkeys(each) for each in names])


def _camel_case(name: str) -> str:
    head, *rest = name.removeprefix("_").split("_")
    return ("_" if name.startswith("_") else "") + head + "".join(each.capitalize() for each in rest)


_DATA_PATHS: Final = (
    # In several APIs.
    "metadata", "slipform", "tools.input_schema", "tools.parameters", "tools.function.parameters",
    # Chat Completions, and what servers like vLLM add to it.
    "chat_template_kwargs", "functions.parameters", "guided_json", "json_schema", "logit_bias",
    "messages.function_call.arguments", "messages.tool_calls.function.arguments",
    "response_format.json_schema.schema", "response_format.schema", "structured_outputs.json",
    # Responses; see also `_ITEM_DATA`.
    "text.format.schema", "tools.headers", "tools.tools.parameters",
    # Messages: the arguments of a call, and examples of them.
    "messages.content.input", "output_config.format.schema", "output_format.schema", "tools.input_examples",
    # Ollama: a schema, and the settings of its engine.
    "format", "options",
    # Reranking.
    "documents",
)  # fmt: skip
_ITEM_DATA: Final = ("action", "arguments", "tools.input_schema", "tools.parameters", "tools.tools.parameters")
_ITEM_ANSWERED: Final = ("container_id", "content.annotations", "environment", "outputs", "results")
_GEMINI_DATA: Final = (
    "contents.parts.function_call.args",
    "contents.parts.function_response.response",
    "contents.parts.part_metadata",
    "contents.parts.tool_call.args",
    "contents.parts.tool_response.response",
    "generation_config._response_json_schema",
    "generation_config.response_json_schema",
    "generation_config.response_schema",
    "labels",
    "tools.function_declarations.parameters",
    "tools.function_declarations.parameters_json_schema",
    "tools.function_declarations.response",
    "tools.function_declarations.response_json_schema",
)
_ANSWERED_PATHS: Final = ("messages.content.citations", "messages.content.content.content")
"""In Messages: citations of a text, and files that a vendor's own tool has written."""


def _positions() -> _Position:
    """Return the places of a request that hold the caller's data, nested as they are in a request."""
    marked: list[tuple[tuple[str, ...], Any]] = [(tuple(path.split(".")), _DATA) for path in _DATA_PATHS]
    marked += [(names, _DATA) for path in _GEMINI_DATA for names in _spellings(path)]
    marked += [(tuple(path.split(".")), _ANSWERED) for path in _ANSWERED_PATHS]
    for items in sorted(_ITEMS):
        marked += [((items, *path.split(".")), _DATA) for path in _ITEM_DATA]
        marked += [((items, *path.split(".")), _ANSWERED) for path in _ITEM_ANSWERED]
    marked.append((("prompt", "variables"), _NAMES))
    root: _Position = {}
    for (*outer, last), meaning in marked:
        inner = root
        for name in outer:
            inner = inner.setdefault(name, {})
        inner[last] = meaning
    # Requests inside a request: batches, Gemini's counts, what OpenAI's client calls `extra_body`.
    root["requests"] = {"params": root}
    for name in ("body", "extra_body", "generateContentRequest", "generate_content_request"):
        root[name] = root
    return root


POSITIONS: Final = _positions()
"""The fields that lead to the caller's data, nested as in a request; the elements of a list share a position."""


class Reference(NamedTuple):
    """A resource that a request names."""

    kind: str
    identity: str
    """The vendor's id."""
    where: str
    """The field."""
    must_own: bool = True
    marked: str = ""
    """The id as the caller wrote it, where it had a mark."""
    provider: str | None = None
    """The provider that the mark names."""


_MAX_CACHED: Final = 4096


class _FieldsByName(dict[str, Field | None]):
    """The fields by their names in requests, cached because folding every name would take most of a walk's time."""

    def __missing__(self, name: str) -> Field | None:
        if len(name) > _LONGEST_NAME:
            return None
        plain = folded(name)
        field = {"id": _ID, "type": _TYPE}.get(plain) or (_ITEM if plain in _ITEMS else FIELDS.get(plain))
        if len(self) >= _MAX_CACHED:
            self.clear()
        self[name] = field
        return field


_fields: Final = _FieldsByName()


class _Walk:
    """Collects the references of one request, level by level, and replaces marked ids by the vendor's own."""

    def __init__(self) -> None:
        self.references: list[Reference] = []
        self._below: list[tuple[Any, _Position, Field | None]] = []
        """The objects and lists of the next level, with their positions and the field whose value they are."""

    def run(self, data: Any) -> None:
        level: list[tuple[Any, _Position, Field | None]] = [(data, POSITIONS, None)]
        for _ in range(MAX_DEPTH):
            self._below = []
            for value, position, field in level:
                if type(value) is dict:
                    self._object(value, position, field)
                else:
                    self._list(value, position, field)
            level = self._below
            if not level:
                return
        raise RequestError(f"The request is nested more than {MAX_DEPTH} levels deep")

    def _list(self, values: list[Any], position: _Position, field: Field | None) -> None:
        self._below += [(each, position, field) for each in values if type(each) is dict or type(each) is list]
        if field is not None and field is not _ITEM:
            for at, each in enumerate(values):
                if type(each) is not dict and type(each) is not list:
                    self._name(values, at, field, position)

    def _object(self, value: dict[str, Any], position: _Position, outer: Field | None) -> None:
        """Collect the references in an object: fields that name resources, and items without content."""
        ids: list[str] = []
        is_reference = False
        for name, inner in value.items():
            field = _fields[name]
            kind = type(inner)
            is_nested = kind is dict or kind is list
            if field is None and not is_nested:
                continue
            child = position.get(name, _NOWHERE)
            if child is _DATA:
                continue
            if field is _ID:
                ids.append(name)
            elif field is _TYPE:
                is_reference = is_reference or _is_reference_type(inner)
            elif field is not None and field is not _ITEM:
                self._name(value, name, field, child)
                continue
            if is_nested:
                self._go_below(inner, child, field if field is _ITEM else None)
        if is_reference or outer is _ITEM:
            self._item(value, ids, must_own=is_reference or not _is_whole(value))
        elif outer is not None:
            self._name_all(value, ids, outer, position)

    def _go_below(self, inner: Any, position: _Position, field: Field | None) -> None:
        values = list(inner.values()) if position is _NAMES and type(inner) is dict else inner
        self._below.append((values, position, field))

    def _name_all(self, value: dict[str, Any], names: list[str], field: Field, position: _Position) -> None:
        for name in names:
            self._name(value, name, field, position)

    def _name(self, holder: Any, at: Any, field: Field, child: _Position) -> None:
        """Read the value of a field that names resources."""
        value = holder[at]
        must_own = field.must_own and not isinstance(child, _Answered)
        if type(value) is str:
            self._add(holder, at, field.kind, must_own=must_own)
        elif type(value) is dict or type(value) is list:
            self._below.append((value, child, Field(field.kind, must_own)))
        elif value is not None and must_own:
            raise RequestError("Expected the id of a resource", where=_field_label(at, field.kind))

    def _item(self, item: dict[str, Any], ids: Sequence[str], *, must_own: bool) -> None:
        for name in ids:
            value = item[name]
            if type(value) is not str:
                if value is not None and must_own:
                    raise RequestError("Expected the id of an item", where=name)
            elif not value.startswith(MADE_REASONING):
                self._add(item, name, "item", must_own=must_own)

    def _add(self, holder: Any, at: Any, kind: str, *, must_own: bool) -> None:
        written: str = holder[at]
        if not written or (not must_own and len(written) > _LONGEST_ID):
            return
        if len(self.references) >= _MOST_REFERENCES:
            raise RequestError(f"The request names more than {_MOST_REFERENCES:,} resources", hint="Send several.")
        provider, identity = unmark(written) if kind == "response" else (None, written)
        marked = ""
        if provider is not None:
            holder[at] = identity
            marked = written
        self.references.append(Reference(kind, identity, _field_label(at, kind), must_own, marked, provider))


def _field_label(at: Any, kind: str) -> str:
    return at if isinstance(at, str) else kind


def _is_reference_type(value: Any) -> bool:
    return type(value) is str and len(value) <= _LONGEST_NAME and folded(value) == "itemreference"


def _is_whole(item: dict[str, Any]) -> bool:
    """Return whether an item contains its content, so that a vendor need not look it up by its id."""
    kind = item.get("type")
    if type(kind) is not str:
        return type(item.get("role")) is str and bool(item.get("content"))
    if kind == "reasoning":
        return bool(item.get("encrypted_content"))
    return any(item.get(name) for name in _CONTENT)


def find_references(data: Any) -> list[Reference]:
    """Return the resources that a parsed request refers to; in place, replace marked ids by the vendor's.

    Raises `RequestError` for a request that is nested too deeply to be walked.

    >>> find_references({"input": [{"content": [{"type": "input_file", "file_id": "file-1"}]}]})[0].identity
    'file-1'
    >>> find_references({"tools": [{"parameters": {"properties": {"file_id": {"type": "string"}}}}]})
    []
    """
    walk = _Walk()
    walk.run(data)
    return walk.references


class Ownership(NamedTuple):
    """Checks references: has the key of the call, and the providers that may answer it."""

    store: ResourceStore | None
    """None without keys: callers cannot be distinguished."""
    key: str
    providers: Collection[str]
    keepers: Collection[str]
    """The providers that store items, and would look one up by its id."""

    async def check(self, references: Sequence[Reference]) -> None:
        """Raise `NoSuchResourceError` for the first reference to a resource that does not belong to this key.

        A resource must belong to the key at each provider that may answer.
        """
        for each in references:
            if each.provider is not None and set(self.providers) != {each.provider}:
                raise UnsupportedFieldError(
                    f"The {each.kind} {each.marked[:100]!r} is stored by the provider {each.provider!r}, "
                    "which is not asked here",
                    where=each.where,
                    hint=f"Go on with a model of {each.provider!r}, or send the whole conversation in `input`.",
                )
        if self.store is None or not references:
            return
        owners = await self.store.owners({(each.kind, each.identity) for each in references})
        for each in references:
            resource_owners = owners.get((each.kind, each.identity), ())
            if not self._is_allowed(each, resource_owners):
                is_previous = each.where == "previous_response_id"
                error = NoPreviousResponseError if is_previous else NoSuchResourceError
                raise error(f"Unknown {each.kind} {each.identity[:100]!r}", where=each.where)

    def _is_allowed(self, reference: Reference, resource_owners: Collection[tuple[str, str]]) -> bool:
        """Return whether the caller may name the resource, which these pairs of provider and key own.

        A field by which a vendor looks something up must name a resource of the caller's at every provider that may
        answer. Any other field may also name a resource without an owner: a key of this server did not create it.
        """
        own_providers = {provider for provider, key in resource_owners if key == self.key}
        must_own = reference.must_own
        needed = self.providers
        if reference.kind == "item":
            needed = self.keepers
            must_own = must_own and bool(needed)  # where no provider keeps items, none looks one up
        if must_own:
            return bool(own_providers) and own_providers.issuperset(needed)
        return bool(own_providers) or not resource_owners


def marks_of(references: Sequence[Reference]) -> dict[str, str]:
    """Return the ids in the caller's spelling, by the vendor's ids."""
    return {each.identity: each.marked for each in references if each.marked}
