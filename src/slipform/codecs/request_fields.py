"""The fields of a request: read from a client with the place of each mistake, written to a vendor with each loss named.

Whatever a client sends is carried, renamed by a table, named in a `LossyEncode` or refused; the functions here are the
only ways to do each: `encode_sampling` renames, `own_extra`, `own_part` and `add_extra` carry what one vendor alone
understands, `lose` names what the wire cannot carry, and the readers refuse.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from binascii import Error as BadBase64
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

import orjson

from slipform.errors import ConfigError, RequestError, UpstreamError
from slipform.ir import LossyEncode, Media, ModelRequest, ModelWarning, Opaque, Reasoning, Tool
from slipform.ir.request import USUAL
from slipform.schema import ResponseFormat
from slipform.schema.python_types import cached_format

_LARGEST = 2**63


def read_body(body: bytes | Mapping[str, Any]) -> dict[str, Any]:
    """The request's body as a JSON object."""
    if isinstance(body, dict):
        return body
    if isinstance(body, Mapping):
        return dict(body)
    try:
        data = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise RequestError(f"The body is not JSON: {error}", hint="Send a JSON object.") from error
    if not isinstance(data, dict):
        raise RequestError("The body is not a JSON object", hint="Send a JSON object.")
    return data


def wrong(where: str, expected: str, found: Any) -> RequestError:
    """The error for a field of the wrong kind."""
    return RequestError(f"Expected {expected}, found {type(found).__name__}", where=where)


def text(value: Any, where: str) -> str:
    """A string."""
    if not isinstance(value, str):
        raise wrong(where, "a string", value)
    return value


def optional_text(value: Any, where: str) -> str | None:
    """A string, or nothing."""
    return None if value is None else text(value, where)


def items(value: Any, where: str) -> list[Any]:
    """An array; nothing counts as an empty one."""
    if value is None:
        return []
    if not isinstance(value, list):
        raise wrong(where, "an array", value)
    return value


def mapping(value: Any, where: str) -> dict[str, Any]:
    """An object; nothing counts as an empty one."""
    if value is None:
        return {}
    if isinstance(value, dict):  # the quick one
        return value
    if not isinstance(value, Mapping):
        raise wrong(where, "an object", value)
    return dict(value)


def number(value: Any, where: str) -> float | None:
    """A number, or nothing."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise wrong(where, "a number", value)
    return value


def whole(value: Any, where: str) -> int | None:
    """A whole number of at most 64 bits, which is what JSON writers can write, or nothing."""
    if value is None:
        return None
    # Not through `number`: compiled, what is said to be a float is one, and loses the last digits of a large integer.
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise wrong(where, "a number", value)
    if isinstance(value, float) and not value.is_integer():
        raise wrong(where, "a whole number", value)
    found = int(value)
    if not -_LARGEST <= found < _LARGEST:
        raise RequestError("The number is too large", where=where)
    return found


def flag(value: Any, where: str) -> bool | None:
    """True, false, or nothing."""
    if value is not None and not isinstance(value, bool):
        raise wrong(where, "true or false", value)
    return value


def stops(value: Any, where: str) -> tuple[str, ...]:
    """Stop sequences: one string or an array of them."""
    if isinstance(value, str):
        return (value,)
    return tuple(text(item, f"{where}[{index}]") for index, item in enumerate(items(value, where)))


def response_format(name: Any, schema: Any, *, strict: Any, where: str, description: Any = None) -> ResponseFormat:
    """The wanted shape; a description outside the schema goes into it."""
    document = mapping(schema, f"{where}.schema")
    if schema is None:
        raise RequestError("The schema is missing", where=f"{where}.schema", hint="Give the JSON Schema of the answer.")
    if isinstance(description, str) and "description" not in document:
        document = {**document, "description": description}
    try:
        return cached_format(
            name if isinstance(name, str) else "", document, strict=flag(strict, f"{where}.strict") is True
        )
    except ConfigError as error:
        raise RequestError(error.message, where=where) from error


def media_from_url(url: str, kind: Literal["image", "audio", "video", "file"], name: str | None = None) -> Media:
    """A media part from an address, which may hold the bytes itself.

    >>> media_from_url("data:image/png;base64,aGk=", "image").data
    b'hi'
    """
    if not url.startswith("data:"):
        return Media(kind, url=url, name=name)
    head, _, payload = url[5:].partition(",")
    mime, _, encoding = head.partition(";")
    if encoding != "base64":
        return Media(kind, url=url, name=name)
    return Media(kind, mime_type=mime or None, data=base64_bytes(payload, "url"), name=name)


def base64_bytes(value: Any, where: str) -> bytes:
    """Bytes written as base64."""
    try:
        return b64decode(text(value, where), validate=True)
    except (BadBase64, ValueError) as error:
        raise RequestError("Not valid base64", where=where) from error


def data_url(media: Media) -> str:
    """The bytes of a media part as a `data:` address, or its own address."""
    if media.data is None:
        return media.url or ""
    return f"data:{media.mime_type or 'application/octet-stream'};base64,{b64encode(media.data).decode()}"


Losses = list[ModelWarning]
"""What a request loses on its way to a vendor, in the order it was found out."""


def lose(losses: Losses, path: str, message: str, action: str = "dropped") -> None:
    """Name a field that the wire cannot carry, and what was done about it.

    >>> losses = []
    >>> lose(losses, "sampling.seed", "This API has no seed.")
    >>> losses[0].action
    'dropped'
    """
    losses.append(LossyEncode("lossy_encode", message, path, action))


def encode_sampling(request: ModelRequest, names: Mapping[str, str], losses: Losses, allowed: bool) -> dict[str, Any]:
    """The sampling fields renamed by `names` (IR name → wire name); what cannot be sent is named."""
    values: dict[str, Any] = {}
    sampling = request.sampling
    if sampling is USUAL or sampling == USUAL:
        return values
    for name in ("temperature", "top_p", "top_k", "seed", "frequency_penalty", "presence_penalty", "stop"):
        value = getattr(sampling, name)
        if value is None or value == ():
            continue
        if name not in names:
            lose(losses, f"sampling.{name}", f"This API has no {name}.")
        elif not allowed and name != "stop":
            lose(losses, f"sampling.{name}", "This model takes no sampling parameters.")
        else:
            values[names[name]] = list(value) if name == "stop" else value
    return values


def encode_tools(
    tools: Iterable[Tool], codec: str, encode: Callable[[Tool, Mapping[str, Any]], dict[str, Any]], losses: Losses
) -> list[dict[str, Any]]:
    """The tools as `encode` writes them, given the fields meant for this codec; a vendor's own tools as they came."""
    encoded: list[dict[str, Any]] = []
    for tool in tools:
        own = own_extra(tool.extra, codec, f"tools.{tool.name}", losses)
        if tool.vendor is None:
            encoded.append(encode(tool, own))
        elif tool.vendor == codec:
            encoded.append(dict(own))
        else:
            lose(losses, f"tools.{tool.name}", f"A tool of {tool.vendor}'s own.")
    return encoded


def encode_function(tool: Tool, parameters: str = "parameters") -> dict[str, Any]:
    """The name, description and schema of a function tool, as most APIs write them."""
    function: dict[str, Any] = {"name": tool.name}
    if tool.description is not None:
        function["description"] = tool.description
    function[parameters] = tool.parameters
    return function


def own_part(part: Reasoning | Opaque, codec: str, path: str, losses: Losses) -> dict[str, Any] | None:
    """What a vendor wants back untouched, if it is this codec's; else None, and it is named as lost."""
    own = part.opaque.get(codec) if isinstance(part, Reasoning) else part.data if part.vendor == codec else None
    if own is None:
        kind = "Reasoning" if isinstance(part, Reasoning) else "A part"
        lose(losses, path, f"{kind} of another API cannot be sent back here.")
        return None
    return dict(own)


def own_extra(extra: Mapping[str, Any], codec: str, path: str, losses: Losses) -> Mapping[str, Any]:
    """The part of a nested `extra` that is meant for this codec; the rest is named as lost."""
    if not extra:
        return extra
    for other in extra:
        if other != codec:
            lose(losses, path, f"Fields meant for {other} are left out.")
    own = extra.get(codec, {})
    return own if isinstance(own, Mapping) else {}


def add_extra(body: dict[str, Any], request: ModelRequest, codec: str, losses: Losses) -> None:
    """Pass vendor fields through untouched, or say that they were meant for another API."""
    if request.extra_for in (None, codec):
        _merge(body, request.extra)
        return
    for key in request.extra:
        lose(losses, key, f"A field of {request.extra_for} that {codec} does not have.")


def _merge(into: dict[str, Any], extra: Mapping[str, Any]) -> None:
    for key, value in extra.items():
        old = into.get(key)
        if isinstance(old, dict) and isinstance(value, Mapping):
            into[key] = dict(old)
            _merge(into[key], value)
        else:
            into[key] = value


def dumps(value: Any) -> bytes:
    """JSON as compact bytes; keys keep their order."""
    try:
        return orjson.dumps(value, default=_plain_mapping)
    except TypeError:
        return _dumps_unusual(value)


def _dumps_unusual(value: Any) -> bytes:
    """The same for what `orjson` does not write: arguments that a model has nested more than 254 levels deep."""
    try:
        return json.dumps(value, default=_plain_mapping, separators=(",", ":")).encode()
    except RecursionError:
        raise UpstreamError(
            "The answer is nested too deeply to be written", details={"category": "unreadable"}
        ) from None


def _plain_mapping(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, (set, frozenset, tuple)):
        return list(value)
    raise TypeError(f"{type(value).__name__} is not JSON")
