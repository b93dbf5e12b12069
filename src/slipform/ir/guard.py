"""What is done about an answer while it is written: plain data, so that it crosses to a worker."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from slipform.errors import RequestError
from slipform.text.fence import DEFAULT_MAX_PREFIX_CHARS, JsonFenceDetector

_FORCED_PREFIX_CHARS = 50
"""How much may stand before the JSON where its first character is forced."""


@dataclass(frozen=True, slots=True)
class Guard:
    """What is done about an answer while it is written; also read from a request's `extra`, under these names.

    >>> Guard.of({"stop_after_json": True}).watches
    True
    """

    force_json_start: bool = False
    """The first character that is not blank is `{` or `[`; only the embedded model can be held to it."""
    stop_after_json: bool = False
    """Reading ends, and the model is stopped, where the JSON closes."""
    response_format_fail_hard: bool = False
    """An answer that is certain to be wrong is stopped at once, and failure is `InvalidResponseFormat`."""

    @classmethod
    def of(cls, extra: Mapping[str, Any], default: Guard | None = None) -> Guard:
        """The guard that a request's `extra` asks for, over the default one."""
        default = default or cls()
        if _OPTIONS.isdisjoint(extra):
            return default
        given: dict[str, bool] = {}
        for field in fields(cls):
            value = extra.get(field.name, getattr(default, field.name))
            if not isinstance(value, bool):
                raise RequestError(f"It must be true or false, not {value!r}", where=field.name)
            given[field.name] = value
        return cls(**given)

    @property
    def watches(self) -> bool:
        """Whether answers have to be read piece by piece."""
        return self.stop_after_json or self.response_format_fail_hard

    def detector(self) -> JsonFenceDetector:
        """What finds the JSON in an answer's pieces, and says so if none has begun in time."""
        most = _FORCED_PREFIX_CHARS if self.force_json_start else DEFAULT_MAX_PREFIX_CHARS
        return JsonFenceDetector(most, fail_hard=True)

    def to_extra(self) -> dict[str, bool]:
        """What a provider that knows these options is told."""
        return {name: True for name in sorted(_OPTIONS) if getattr(self, name)}

    @classmethod
    def without(cls, extra: Mapping[str, Any]) -> dict[str, Any]:
        """A request's `extra` without these options, which no vendor's API has."""
        return {name: value for name, value in extra.items() if name not in _OPTIONS}


_OPTIONS = frozenset(field.name for field in fields(Guard))
