"""Read and write the limit on output tokens in a request of any served API.

The limit that a key with a budget reserves must be the one that the vendor receives. So the request has one limit, in
a field of the API: fields of other APIs, and other spellings of its own, are removed before the request is sent.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from slipform.codecs.model_name import excerpt_of
from slipform.codecs.request_fields import dumps
from slipform.errors import RequestError
from slipform.text.strict import parse

MAX_LIMIT: Final = 1_000_000_000
"""A larger limit counts as none, and is refused for a key with a budget."""
MAX_ANSWERS: Final = 10_000


class OutputRequest(NamedTuple):
    """The number of tokens that a request allows for an answer (None for no limit), and the number of answers."""

    limit: int | None = None
    answers: int = 1


class _ApiFields(NamedTuple):
    """The fields in which an API has its limit, and the number of answers."""

    limits: tuple[str, ...] = ()
    """The first is used for a request that has none."""
    counts: tuple[str, ...] = ()
    inside: tuple[str, ...] = ()
    """The path of the object that contains them; empty for the request itself."""


_OLLAMA: Final = _ApiFields(("num_predict",), inside=("options",))
_FIELDS: Final[Mapping[str, _ApiFields]] = {
    "openai-chat": _ApiFields(("max_tokens", "max_completion_tokens"), ("n",)),
    "openai-completions": _ApiFields(("max_tokens",), ("n", "best_of")),
    "openai-responses": _ApiFields(("max_output_tokens",)),
    "anthropic": _ApiFields(("max_tokens",)),
    "gemini": _ApiFields(
        ("maxOutputTokens", "max_output_tokens"),
        ("candidateCount", "candidate_count"),
        ("generationConfig", "generation_config"),
    ),
    "ollama": _OLLAMA,
    "ollama-generate": _OLLAMA,
    "images": _ApiFields(counts=("n",)),
    "gemini-predict": _ApiFields(counts=("sampleCount", "sample_count"), inside=("parameters",)),
}
_NONE: Final = _ApiFields()
_NEWER: Final = "max_completion_tokens"
_LIMIT_NAMES: Final = frozenset(
    {
        "maxtokens", "maxcompletiontokens", "maxoutputtokens", "maxnewtokens", "maxgentokens", "maxgeneratedtokens",
        "maxtokenstosample", "maxlength", "maxgenlen", "numpredict", "npredict", "outputtokenlimit",
    }
)  # fmt: skip
_COUNT_NAMES: Final = frozenset(
    {"n", "bestof", "candidatecount", "samplecount", "numreturnsequences", "numgenerations"}
)
_SIZES: Final = _LIMIT_NAMES | _COUNT_NAMES
"""The spellings of a limit or a number of answers in any API, in lower case and without `_` and `-`."""
_HOLDERS: Final = frozenset({"options", "generationconfig", "extrabody", "parameters", "samplingparams"})
"""Objects in which an API may look for these fields, folded in the same way."""


def requested_output(api: str, data: object) -> OutputRequest:
    """Read the limits of a request in an API; a value that is not a number of tokens counts as no limit.

    >>> requested_output("openai-chat", {"max_tokens": 50, "n": 2, "options": {"num_predict": 1}})
    OutputRequest(limit=50, answers=2)
    """
    if not isinstance(data, Mapping):
        return OutputRequest()
    fields = _FIELDS.get(api, _NONE)
    limits = [0]
    counts = [1]
    for holder, _ in _holders(data, fields):
        limits += _whole_numbers(holder, fields.limits, MAX_LIMIT)
        counts += _whole_numbers(holder, fields.counts, MAX_ANSWERS)
    prompts = _prompts(data) if api == "openai-completions" else 1
    return OutputRequest(max(limits) or None, max(counts) * prompts)


def with_one_limit(api: str, data: dict[str, Any]) -> dict[str, Any]:
    """Return a request with one limit, the largest it has, in the API's own field, and without other size limits.

    Raises `RequestError` for a limit or a number of answers that is not a whole number.

    >>> with_one_limit("openai-chat", {"max_tokens": 5, "max_completion_tokens": 9, "Max_Tokens": 99})
    {'max_completion_tokens': 9}
    """
    fields = _FIELDS.get(api, _NONE)
    _check_sizes(data, fields)
    trimmed = _trimmed(data, fields)
    limit = requested_output(api, trimmed).limit
    if limit is None:
        return trimmed
    limit_names = {name for holder, _ in _holders(trimmed, fields) for name in fields.limits if name in holder}
    field = limit_names.pop() if len(limit_names) == 1 else _NEWER
    return _written(trimmed, fields, field if field in fields.limits else fields.limits[0], limit)


def _check_sizes(data: Mapping[str, Any], fields: _ApiFields) -> None:
    for holder, place in _holders(data, fields):
        for names, most in ((fields.limits, MAX_LIMIT), (fields.counts, MAX_ANSWERS)):
            for name in names:
                _check(holder.get(name), place + name, most)


def _trimmed(data: dict[str, Any], fields: _ApiFields) -> dict[str, Any]:
    """Return a request without size limits in other fields than the API's own."""
    trimmed = data
    for name, value in data.items():
        if not isinstance(value, dict) or not (name in fields.inside or _folded(name) in _HOLDERS):
            continue
        inner = _without_sizes(value, fields if name in fields.inside else _NONE)
        if inner is not value:
            trimmed = {**trimmed, name: inner}
    return _without_sizes(trimmed, _NONE if fields.inside else fields)


def sent_output(api: str, body: bytes, assumed: int, vendor_field: str | None = None) -> tuple[bytes, OutputRequest]:
    """Return a request's JSON with a limit that the vendor reads, `assumed` where it has none, and the limit.

    Of the two fields of Chat Completions, a vendor may know only one: `vendor_field`.

    >>> sent_output("gemini", b'{"contents": []}', 9)[0]
    b'{"contents":[],"generationConfig":{"maxOutputTokens":9}}'
    """
    data = parse(body)
    fields = _FIELDS.get(api, _NONE)
    output = requested_output(api, data)
    sent = output._replace(limit=output.limit or assumed)
    if not fields.limits:
        return body, sent
    field = vendor_field if vendor_field in fields.limits else fields.limits[0]
    is_read = field == _NEWER or _NEWER not in data
    if output.limit is not None and is_read:
        return body, sent
    return dumps(_written(data, fields, field, sent.limit or assumed)), sent


def _holders(data: Mapping[str, Any], fields: _ApiFields) -> Iterator[tuple[Mapping[str, Any], str]]:
    """Yield the objects that contain an API's fields, each with its path as a prefix."""
    if not fields.inside:
        yield data, ""
    for name in fields.inside:
        if isinstance(inner := data.get(name), Mapping):
            yield inner, f"{name}."


def _whole_numbers(holder: Mapping[str, Any], names: Sequence[str], most: int) -> list[int]:
    return [holder[name] for name in names if _is_whole(holder.get(name), most)]


def _is_whole(value: Any, most: int) -> bool:
    return type(value) is int and 0 < value <= most


def _check(value: Any, place: str, most: int) -> None:
    if value is None or _is_whole(value, most):
        return
    raise RequestError(
        f"This API key has a budget, and {excerpt_of(value)} is not a whole number from 1 to {most}",
        where=place,
        hint="Send a whole number, or leave the field out.",
    )


def _folded(name: str) -> str:
    return name.casefold().replace("_", "").replace("-", "")


def _without_sizes(holder: dict[str, Any], fields: _ApiFields) -> dict[str, Any]:
    """Return an object without foreign fields that limit an answer, and without empty fields."""
    own = {*fields.limits, *fields.counts}
    foreign = {name for name, value in holder.items() if _folded(name) in _SIZES and (name not in own or value is None)}
    if foreign:
        return {name: value for name, value in holder.items() if name not in foreign}
    return holder


def _written(data: dict[str, Any], fields: _ApiFields, field: str, limit: int) -> dict[str, Any]:
    """Return a request with a limit in this field, and in no other of the API's."""
    if not fields.inside:
        return {**{name: value for name, value in data.items() if name not in fields.limits}, field: limit}
    names = [name for name in fields.inside if data.get(name) is not None] or [fields.inside[0]]
    made = dict(data)
    for name in names:
        holder = data.get(name) or {}
        if not isinstance(holder, Mapping):
            raise RequestError(f"Expected an object, found {type(holder).__name__}", where=name)
        made[name] = {**{key: value for key, value in holder.items() if key not in fields.limits}, field: limit}
    return made


def _prompts(data: Mapping[str, Any]) -> int:
    """Count the prompts of a Completions request: a list of texts, or of lists of tokens, is answered one by one."""
    prompt = data.get("prompt")
    if not isinstance(prompt, list) or not prompt or isinstance(prompt[0], int):
        return 1
    return len(prompt)
