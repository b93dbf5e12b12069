r"""The prompt-only path: what holds a model to JSON when its schema is told to it in words alone.

The options are plain data, so that they cross to a worker; what they switch on is spelled as a grammar, which the
engine applies to its logits before each token is drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, TypeAlias

from slipform.errors import RequestError

StopHook: TypeAlias = Callable[[str], bool]
"""Given each piece of text as it comes; True stops generation there. May raise, which stops it with that error."""


@dataclass(frozen=True, slots=True)
class PromptOptions:
    """How a prompt-only answer is decoded; also read from a request's `extra`, under these names.

    >>> PromptOptions.of({"force_json_start": True})
    PromptOptions(force_json_start=True, stop_after_json=False, response_format_fail_hard=False)
    """

    force_json_start: bool = False
    """The first character that is not blank is `{` or `[`."""
    stop_after_json: bool = False
    """Generation ends where the JSON closes, before any trailing prose."""
    response_format_fail_hard: bool = False
    """Whether an answer without valid JSON is an error; for those who judge the answer."""

    @classmethod
    def of(cls, extra: Mapping[str, Any], default: PromptOptions | None = None) -> PromptOptions:
        """The options that a request's `extra` gives, over the default ones."""
        default = default or cls()
        given: dict[str, bool] = {}
        for field in fields(cls):
            value = extra.get(field.name, getattr(default, field.name))
            if not isinstance(value, bool):
                raise RequestError(f"It must be true or false, not {value!r}", where=field.name)
            given[field.name] = value
        return cls(**given)


@dataclass(frozen=True, slots=True)
class ForceJsonStartLogitsProcessor:
    r"""Rules out every first token but blanks and an opening bracket.

    This engine takes a grammar where others take a function over logits: the same rule, ready to cross to a worker.

    >>> print(ForceJsonStartLogitsProcessor().grammar)
    %llguidance {}
    start: /[ \n]*[{\[](.|\n)*/
    """

    stop_after_json: bool = False

    @property
    def grammar(self) -> str:
        """The rule as the engine reads it; with `stop_after_json`, what has closed cannot go on."""
        return _JSON_ONLY if self.stop_after_json else _JSON_START


_ANY_JSON = '%json {"anyOf": [{"type": "object"}, {"type": "array"}]}'
_JSON_START = "%llguidance {}\nstart: /[ \\n]*[{\\[](.|\\n)*/"
_JSON_ONLY = f"%llguidance {{}}\nstart: /[ \\n]*/ json\njson: {_ANY_JSON}"
_JSON_LAST = f"%llguidance {{}}\nstart: /[^{{\\[]*/ json\njson: {_ANY_JSON}"


def prompt_grammar(options: PromptOptions, *, hooked: bool) -> str | None:
    """The grammar of a prompt-only answer, if any; where a hook watches for the end, the grammar need not."""
    stop = options.stop_after_json and not hooked
    if options.force_json_start:
        return ForceJsonStartLogitsProcessor(stop).grammar
    return _JSON_LAST if stop else None
