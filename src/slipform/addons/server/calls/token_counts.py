"""Count a request's tokens for a provider of another API, by that provider's own counter if it has one.

Claude Code requests counts frequently. A provider without a counter gets an estimate from the request's size, which a
header of the answer says.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import orjson

from slipform.addons.server.calls.endpoints import Family
from slipform.codecs import find_api, make_codec
from slipform.codecs.request_fields import dumps
from slipform.errors import RequestError, SlipformError
from slipform.ir import ModelRequest
from slipform.ir.request import CallCount
from slipform.providers import Provider
from slipform.providers.forward import Route
from slipform.providers.http import HttpProvider

_BYTES_PER_TOKEN: Final = 3.6
"""Bytes of a request's JSON per token, measured over requests of coding agents."""
_APIS: Final[Mapping[Family, str]] = {"anthropic": "anthropic", "gemini": "gemini", "openai": "openai-responses"}
_CALL: Final = ":generateContent"


class TokenCount(NamedTuple):
    """The number of tokens of a request, and whether it is an estimate."""

    tokens: int
    is_estimate: bool

    def answer(self, family: Family) -> dict[str, Any]:
        """Return the answer in an API's format.

        >>> TokenCount(7, True).answer("anthropic")
        {'input_tokens': 7}
        """
        if family == "gemini":
            return {"totalTokens": self.tokens}
        counted = {"input_tokens": self.tokens}
        if family == "openai":
            return {"object": "response.input_tokens", **counted}
        return counted


async def count_tokens(
    family: Family, data: Mapping[str, Any], model: str, provider: Provider, calls: CallCount
) -> TokenCount:
    """Count a request's tokens with the provider's counter, else estimate them from its size."""
    if family == "gemini":
        inner = data.get("generateContentRequest")
        data = inner if isinstance(inner, Mapping) else data
    request = _read(family, data, model)
    counted = None
    if isinstance(provider, HttpProvider):
        counted = await _count_at_provider(request, provider, calls)
    if counted is None:
        return TokenCount(estimate(dumps(data)), True)
    return TokenCount(counted, False)


def estimate(body: bytes) -> int:
    """Estimate the tokens of a request from its size.

    >>> estimate(b"x" * 36)
    10
    """
    return math.ceil(len(body) / _BYTES_PER_TOKEN)


def _read(family: Family, data: Mapping[str, Any], model: str) -> ModelRequest:
    api = find_api(_APIS[family])
    body = {key: value for key, value in data.items() if key != "model"}
    if family != "gemini":
        body["model"] = model
    request = api.decode_request(body, path=f"/v1beta/models/{model}{_CALL}").request
    if not request.messages:
        raise RequestError("The request has no messages", where="messages", hint="Send at least one.")
    return request.replace(model=model)


async def _count_at_provider(request: ModelRequest, provider: HttpProvider, calls: CallCount) -> int | None:
    """Return the count of a provider that has a counter; None for any other, and when its counter fails."""
    model_route = provider.route(request.model, streamed=False)
    if model_route is None or provider.api not in ("anthropic", "gemini"):
        return None
    codec = make_codec(provider.api, provider.capabilities(request.model))
    try:
        body = orjson.loads(codec.encode_request(request, stream=False).body)
        if provider.api == "gemini":
            path = model_route.path.removesuffix(_CALL) + ":countTokens"
            body = {"generateContentRequest": {"model": f"models/{request.model}", **body}}
            field = "totalTokens"
        else:
            path = f"{model_route.path}/count_tokens"
            field = "input_tokens"
            body = {key: value for key, value in body.items() if key not in ("max_tokens", "stream")}
        route = Route(request.model, path, model_route.headers, model_route.in_body, False)
        answer = await provider.forward_async(route, dumps(body), {}, calls)
        try:
            reply = None
            if answer.status == 200:
                reply = orjson.loads(await answer.read_whole())
        finally:
            await answer.close()
    except (SlipformError, orjson.JSONDecodeError):
        return None
    counted = reply.get(field) if isinstance(reply, dict) else None
    return counted if isinstance(counted, int) else None
