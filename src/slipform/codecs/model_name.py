"""Check a model's name, and write it into the path of a URL.

Names come from callers. In a request's body they are data; in a URL a `..`, `?` or `#` would select another resource of
the vendor's, with the operator's key. Every codec that puts a name into its path calls `url_path`, so that library and
proxy behave alike; the proxy also calls `check_name` before it stores, counts or logs a name.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Final
from urllib.parse import quote

from slipform.errors import RequestError

MOST: Final = 256
"""The maximum length. The longest names in use, Bedrock's inference profiles, have about 150 characters."""

_SHOWN: Final = 40
_CONTROL: Final = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
"""Control characters, line separators, and halves of surrogate pairs, which UTF-8 cannot encode."""
_NOT_IN_URL: Final = re.compile(r"[?#%;\\]")
_HINT: Final = "Name the model as its provider does, e.g. `gemini-3-flash`."


def check_name(name: str, where: str = "model") -> str:
    """Return the name if it has at most 256 characters and no control characters; else raise a `RequestError`.

    >>> check_name("openai/gpt-6-luna")
    'openai/gpt-6-luna'
    """
    if len(name) > MOST:
        raise RequestError(
            f"The model's name has {len(name)} characters, more than {MOST}: {excerpt_of(name)}",
            where=where,
            hint=_HINT,
        )
    control = _CONTROL.search(name)
    if control is not None:
        raise RequestError(
            f"The model's name holds the control character U+{ord(control[0]):04X}: {excerpt_of(name)}",
            where=where,
            hint=_HINT,
        )
    return name


def url_path(name: str, *, one_segment: bool = False) -> str:
    """Return the name as part of a URL's path: each segment percent-encoded, with `one_segment` also its slashes.

    Raises `RequestError` for whatever could make the path refer to another resource, after one or two rounds of
    decoding.

    >>> url_path("publishers/meta/models/llama:free"), url_path("a/b", one_segment=True)
    ('publishers/meta/models/llama%3Afree', 'a%2Fb')
    """
    check_name(name)
    # Some servers normalise similar characters, such as the full-width full stop, before they read a path.
    folded = name if name.isascii() else unicodedata.normalize("NFKC", name)
    forbidden = _NOT_IN_URL.search(folded)
    if forbidden is not None:
        raise _unfit(name, f"holds `{forbidden[0]}`")
    for segment in folded.split("/"):
        if (bare := segment.strip()) in ("", ".", ".."):
            raise _unfit(name, f"has the segment `{bare}`" if bare else "has an empty segment")
    return quote(name, safe="@" if one_segment else "@/")


def excerpt_of(value: object) -> str:
    """Return the beginning of a caller's text, quoted, with unprintable characters escaped: for messages.

    >>> excerpt_of("a" * 50)[-5:], excerpt_of(7)
    ("aaa…'", '7')
    """
    if isinstance(value, str):
        return repr(value if len(value) <= _SHOWN else f"{value[:_SHOWN]}…")
    text = repr(value)
    if len(text) <= _SHOWN:
        return text
    return f"{text[:_SHOWN]}…"


def _unfit(name: str, why: str) -> RequestError:
    return RequestError(
        f"The model's name becomes part of a URL here, and it {why}: {excerpt_of(name)}", where="model", hint=_HINT
    )
