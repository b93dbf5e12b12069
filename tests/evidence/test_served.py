"""Evidence on the proxy: asked for beside the fields of any API, told beside the answer."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from slipform.addons.server import App
from slipform.codecs import Capabilities
from slipform.config import Settings
from slipform.library.async_client import AsyncClient
from slipform.providers.router import Router
from slipform.testing import FakeModel
from tests.conftest import PERSON
from tests.evidence.test_logprobs import REQUESTS, said
from tests.proxy.asgi import Reply, post

MESSAGES = {
    "anthropic": (
        "/v1/messages",
        {
            "max_tokens": 50,
            "messages": [{"role": "user", "content": "hi"}],
            "output_config": {"format": {"type": "json_schema", "schema": PERSON}},
        },
    )
}
APIS: dict[str, tuple[str, dict[str, Any]]] = {**REQUESTS, **MESSAGES}


async def answered(api: str, evidence: Any, *, body: dict[str, Any] | None = None) -> tuple[Reply, FakeModel]:
    model = FakeModel([said('{"name":"Ada","age":36}')], capabilities=Capabilities(native=True))
    app = App(AsyncClient(router=Router({"fake": model}, default="fake/m")), Settings())
    path, given = APIS[api]
    named = {} if api == "gemini" else {"model": "fake/m"}
    return await post(app, path, {**(body or given), **named, "slipform": {"evidence": evidence}}), model


@pytest.mark.parametrize("api", APIS)
def test_every_api_tells_where_values_stand_and_how_sure_they_are(api: str) -> None:
    reply, model = asyncio.run(answered(api, {"source": "Ada is 36", "confidence": "logprobs"}))
    assert reply.status == 200
    told = reply.json()["slipform"]
    assert told["evidence"]["/name"]["spans"] == [{"start": 0, "end": 3, "how": "exact"}]
    assert 0 < told["evidence"]["/age"]["confidence"] < 1
    assert set(told) == {"evidence", "warnings"}
    assert model.requests[0].logprobs is not None


def test_what_only_the_evidence_needed_is_not_in_the_answer() -> None:
    body = {name: value for name, value in REQUESTS["openai-chat"][1].items() if "logprobs" not in name}
    reply, _ = asyncio.run(answered("openai-chat", {"source": "Ada", "confidence": "logprobs"}, body=body))
    answer = reply.json()
    assert answer["slipform"]["evidence"]["/name"]["confidence"] is not None
    assert answer["choices"][0]["logprobs"] is None


@pytest.mark.parametrize("evidence", [3, {"samples": -1}, {"colour": 1}, {"require_grounded": ["name"]}])
def test_a_wrong_option_is_refused_with_its_place(evidence: Any) -> None:
    reply, model = asyncio.run(answered("openai-chat", evidence))
    assert reply.status == 400
    assert "evidence" in json.dumps(reply.json())
    assert not model.requests


def test_evidence_without_a_shape_is_refused() -> None:
    body = {"messages": [{"role": "user", "content": "hi"}]}
    reply, model = asyncio.run(answered("openai-chat", True, body=body))
    assert reply.status == 400
    assert "schema" in reply.json()["error"]["message"]
    assert not model.requests
