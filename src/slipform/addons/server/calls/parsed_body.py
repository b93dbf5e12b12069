"""Parse a request's body once, with bytes that a vendor parses into exactly the same data.

All decisions about a request are based on the parsed data. The vendor receives those bytes, or bytes that were
encoded from the data: a duplicate key, of which one parser takes the first and another the last, is then removed
from both.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import orjson

from slipform.addons.server.calls.model_names import check_named_once
from slipform.addons.server.calls.references import MAX_DEPTH, Reference, find_references
from slipform.addons.server.calls.resources import MARK
from slipform.codecs.request_fields import dumps, read_body
from slipform.errors import RequestError, UpstreamError
from slipform.schema.limits import LARGE_BYTES
from slipform.text.strict import has_unique_keys

_WRITABLE: Final = 254
"""Levels of nesting that `orjson` can encode; it can parse four times as many."""


class ParsedBody(NamedTuple):
    """A body as data and as bytes, both with the vendor's own ids, and the resources that it refers to."""

    data: dict[str, Any]
    body: bytes
    references: Sequence[Reference] = ()


class BodyChecks(NamedTuple):
    """The checks of a body beyond its JSON."""

    names_model: bool
    """Whether the field `model` counts, so that it may occur only once."""
    has_keys: bool
    """Whether callers have keys, so that references and model names must be checked."""
    has_state: bool = False
    """Whether it may continue a stored response, whose id is marked for callers without keys too."""


def parse_body(body: bytes, checks: BodyChecks) -> ParsedBody:
    """Parse a body; raises `RequestError` for one that is not a JSON object, or is nested too deeply.

    >>> parse_body(b'{"a": 1, "a": 2}', BodyChecks(names_model=True, has_keys=True)).body
    b'{"a":2}'
    """
    data = read_body(body)
    if checks.names_model:
        check_named_once(body)
    if not checks.has_keys and not (checks.has_state and MARK.encode() in body):
        return ParsedBody(data, body)
    references = find_references(data)
    if any(each.marked for each in references):
        body = write_body(data)
    elif checks.has_keys:
        body = checked_body(body, data)
    return ParsedBody(data, body, references)


async def parse_body_async(body: bytes, checks: BodyChecks) -> ParsedBody:
    """Parse a body; a large one off the event loop."""
    if len(body) >= LARGE_BYTES:
        return await asyncio.to_thread(partial(parse_body, body, checks))
    return parse_body(body, checks)


def write_body(data: Mapping[str, Any]) -> bytes:
    """Encode a request as JSON; raises `RequestError` for one that is nested too deeply.

    >>> write_body({"model": "m"})
    b'{"model":"m"}'
    """
    try:
        return dumps(data)
    except UpstreamError:
        raise RequestError("The request is nested too deeply", hint="Send it with fewer levels.") from None


def checked_body(body: bytes, data: Mapping[str, Any]) -> bytes:
    """Return a body that every parser reads as `data`: the same bytes, unless a key occurs twice.

    >>> checked_body(b'{"a": 1, "b": 2}', {"a": 1, "b": 2})
    b'{"a": 1, "b": 2}'
    """
    written = write_body(data)
    if has_unique_keys(data, body.decode(), written):
        return body
    return written


def check_depth(data: Mapping[str, Any], body: bytes) -> None:
    """Raise `RequestError` for data that can be parsed but is nested too deeply to be encoded again."""
    if body.count(b"{") + body.count(b"[") <= MAX_DEPTH:
        return
    wrapped: Any = data
    for _ in range(_WRITABLE - MAX_DEPTH):
        wrapped = [wrapped]
    try:
        orjson.dumps(wrapped)
    except TypeError:
        raise RequestError(f"The request is nested more than {MAX_DEPTH} levels deep") from None
