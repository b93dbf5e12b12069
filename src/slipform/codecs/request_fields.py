"""How a client's request is read, with the place of each mistake."""

from __future__ import annotations

from base64 import b64decode
from binascii import Error as BadBase64
from collections.abc import Mapping
from typing import Any, Literal

import orjson

from slipform.errors import ConfigError, RequestError
from slipform.ir import Media
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
