"""Failing hard on the prompt-only path: an answer without valid JSON ends in an error, while it streams if need be."""

from __future__ import annotations

import json

from slipform.errors import InvalidResponseFormat
from slipform.ir import ModelWarning
from slipform.ir.request import Guard
from slipform.schema import JsonSchemaSpec, Schema

_HINT = "Ask again, set force_json_start, or use a strategy that holds the model to the schema."


class Watch:
    """Follows the JSON in one answer's pieces; `judge` has the last word on the whole of it."""

    def __init__(self, guard: Guard, spec: JsonSchemaSpec) -> None:
        self._detector = guard.detector()
        self._stop = guard.stop_after_json
        self._spec = spec
        self._found: list[str] = []

    def __call__(self, piece: str) -> bool:
        """Whether to stop here; raises where no JSON has begun in time."""
        self._detector.add_chunk(piece)
        result = self._detector.process()
        self._found.append(result.delta)
        if result.failed:
            raise InvalidResponseFormat("The answer holds no JSON", hint=_HINT)
        return result.complete and self._stop

    def judge(self, _: str) -> tuple[ModelWarning, ...]:
        """Raises unless the JSON that was found is whole and valid."""
        result = self._detector.finish()
        if result.failed:
            raise InvalidResponseFormat("The answer holds no JSON", hint=_HINT)
        try:
            value = json.loads("".join([*self._found, result.delta]))
        except ValueError as error:
            raise InvalidResponseFormat(f"The answer's JSON does not parse: {error}", hint=_HINT) from error
        if wrong := Schema[object](self._spec.name, self._spec.schema).validate(value):
            raise InvalidResponseFormat(f"The answer's JSON is not valid: {wrong[0].message}", hint=_HINT)
        return ()
