"""`model: [a, b]` in a request: no vendor's API has it, so it is read before the API's own reader."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import orjson

from slipform.codecs.serving import ServedRequest, Serving
from slipform.errors import RequestError

_LISTED = "models"
_MOST = 8


def decode(api: Serving, body: bytes | Mapping[str, Any], path: str) -> ServedRequest:
    """The request; where its `model` is a list, the first of them stands for all, and `asked_models` knows the rest."""
    try:
        return api.decode_request(body, path=path)
    except RequestError as error:
        # Looked at only now, so that the usual request, with one model, is read once.
        if error.where != "model":
            raise
        fields: Mapping[str, Any] = orjson.loads(body) if isinstance(body, bytes) else body
        names = fields.get("model")
        if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
            raise
    if len(names) > _MOST:
        raise RequestError(f"More than {_MOST} models are listed", where="model", hint="List fewer.")
    served = api.decode_request({**fields, "model": names[0]}, path=path)
    return dataclasses.replace(served, options={**served.options, _LISTED: tuple(dict.fromkeys(names))})


def asked_models(served: ServedRequest) -> tuple[str, ...]:
    """The models a request names, as the caller wrote them."""
    listed: tuple[str, ...] | None = served.options.get(_LISTED)
    return listed if listed is not None else (served.request.model,)
