"""Bound the tokens of a prompt by its bytes, which no tokenizer exceeds.

Images, audio, video and PDF files are the exception: their size does not determine their tokens, so each counts as
an allowance. Like that for referenced files, it is an estimate and not a bound.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import orjson

_TEMPLATE_TOKENS: Final = 32
"""Tokens that a vendor's chat template adds to a conversation."""
_TOOL_TOKENS: Final[Mapping[str, int]] = {"anthropic": 600, "bedrock": 600}
"""Tokens of a vendor's own instructions for tools and schemas, by codec; Anthropic documents up to 530."""
_HAS_TOOLS: Final = (b'"tools":', b'"toolConfig":', b'"output_config":', b'"outputConfig":')
_MEDIA_TOKENS: Final = 2_000
_MEDIA_BYTES_PER_TOKEN: Final = 40
_PDF_BYTES_PER_TOKEN: Final = 4
_REFERENCE_TOKENS: Final = 5_000
_MARKS: Final = (b'"image_url":', b'"url":', b'"file_url":', b'"data":', b'"file_data":', b'"images":', b'"file_id":',
                 b'"fileUri":', b'"file_uri":')  # fmt: skip
"""A body without any of these names contains no media."""
_MEDIA_KINDS: Final = ("image/", "audio/", "video/")
_PDF: Final = "application/pdf"
_URL_FIELDS: Final = frozenset({"url", "image_url", "file_url", "file_data"})
_REFERENCES: Final = frozenset({*_URL_FIELDS, "file_id", "fileUri", "file_uri"})
_REFERRING: Final = frozenset({"image_url", "source", "file", "fileData", "file_data", "input_image", "input_file"})
"""Names and types of objects that contain or reference media."""


def estimate_input(body: bytes, media: Sequence[int] = (), codec: str = "") -> int:
    """Return how many tokens a vendor may count for a request of this JSON; `media` are sizes of files in a form.

    >>> estimate_input(b"x" * 300)
    332
    """
    tokens = _TEMPLATE_TOKENS + len(body) - sum(media) + sum(map(_media_tokens, media))
    if codec in _TOOL_TOKENS and any(name in body for name in _HAS_TOOLS):
        tokens += _TOOL_TOKENS[codec]
    if media or not any(mark in body for mark in _MARKS):
        return tokens
    try:
        data = orjson.loads(body)
    except orjson.JSONDecodeError:
        return tokens
    return tokens + sum(allowance - size for size, allowance in _media_in(data))


def _media_tokens(size: int) -> int:
    return _MEDIA_TOKENS + size // _MEDIA_BYTES_PER_TOKEN


def _media_in(data: Any) -> Iterator[tuple[int, int]]:
    """Yield the bytes and the allowance of each medium in a request, and of each reference to one."""
    left: list[tuple[str, Any]] = [("", data)]
    while left:
        name, value = left.pop()
        if isinstance(value, list):
            left += [(name, each) for each in value]
        elif isinstance(value, dict):
            left += value.items()
            yield from _media_of(name, value)
        elif name == "images" and isinstance(value, str):  # Ollama's
            yield len(value), _media_tokens(len(value))


def _media_of(name: str, fields: Mapping[str, Any]) -> Iterator[tuple[int, int]]:
    """Yield the media in the fields of one object, which is the value of `name`."""
    refers = name in _REFERRING or fields.get("type") in _REFERRING
    for field in _REFERENCES & fields.keys():
        value = fields[field]
        if not isinstance(value, str):
            continue
        kind = ""
        if value.startswith("data:"):
            kind = value[5:100].partition(";base64,")[0]
        if kind and field in _URL_FIELDS:
            yield from _inline(kind, value)
        elif refers and not kind:
            yield 0, _REFERENCE_TOKENS
    data = fields.get("data")
    if isinstance(data, str) and fields.get("type", "base64") == "base64":
        kind = fields.get("media_type") or fields.get("mimeType") or fields.get("mime_type") or ""
        if name == "input_audio":
            kind = "audio/"
        if isinstance(kind, str):
            yield from _inline(kind, data)


def _inline(kind: str, value: str) -> Iterator[tuple[int, int]]:
    """Yield a medium whose bytes are in the request; data that is neither media nor PDF counts as text."""
    if kind.startswith(_MEDIA_KINDS):
        yield len(value), _media_tokens(len(value))
    elif kind == _PDF:
        yield len(value), _MEDIA_TOKENS + len(value) // _PDF_BYTES_PER_TOKEN
