"""Schemas that are costly: refused by name where they are over a limit, and worked on off the event loop where not."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from typing import Any

import jsonschema_rs
import pytest

from slipform import AsyncClient, Budget, Options
from slipform.addons.server import App
from slipform.bounded import live_caches
from slipform.codecs import wire_schemas as codec_plan
from slipform.config import Settings
from slipform.providers.catalog import load_catalog
from slipform.providers.http import HttpProvider
from slipform.providers.router import Router
from slipform.schema import Schema
from slipform.schema import validator as compiled
from slipform.schema.lowering.lowered import lower
from slipform.testing import FakeModel, FakeVendor
from tests.proxy.asgi import post
from tests.proxy.proxying import chat, proxied

_MESSAGES = [{"role": "user", "content": "Hello"}]
PATHS: dict[str, Callable[[Any], dict[str, Any]]] = {
    "/v1/chat/completions": lambda schema: {"response_format": _format(schema), "messages": _MESSAGES},
    "/v1/responses": lambda schema: {
        "text": {"format": {"type": "json_schema", "name": "s", "schema": schema}}, "input": "Hello",
    },
    "/v1/messages": lambda schema: {
        "output_config": {"format": {"type": "json_schema", "schema": schema}}, "messages": _MESSAGES, "max_tokens": 9,
    },
}  # fmt: skip


def _format(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}


def tool(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "save", "parameters": schema}}


@pytest.mark.parametrize(
    ("schema", "named"),
    [
        ({"enum": ["x" * 600_000]}, "max_schema_bytes"),
        ({"enum": list(range(20_001))}, "max_schema_nodes"),
        (
            {"oneOf": [{"type": "object", "properties": {"k": {"const": at}}} for at in range(5_000)]},
            "max_schema_nodes",
        ),
        ({"properties": {f"p{at}": {"pattern": f"a{at}"} for at in range(1_000)}}, "max_schema_nodes"),
        ({"patternProperties": {f"a{at}": {} for at in range(1_000)}}, "max_schema_nodes"),
        ({"pattern": "\\w{900}"}, "max_schema_nodes"),
    ],
    ids=["long", "enum", "oneOf", "patterns", "names", "repetition"],
)
@pytest.mark.parametrize("path", PATHS)
def test_a_schema_over_a_limit_is_refused_by_the_name_of_the_limit(
    path: str, schema: dict[str, Any], named: str
) -> None:
    model = FakeModel(["{}"])
    app = App(AsyncClient(router=Router({"fake": model})), Settings())
    reply = asyncio.run(post(app, path, {"model": "fake/m", **PATHS[path](schema)}))
    assert reply.status == 413
    assert f"server.{named}" in json.dumps(json.loads(reply.body))
    assert model.requests == []


def test_the_limit_is_for_all_schemas_of_a_request_together() -> None:
    half = {"enum": list(range(11_000))}
    with proxied({"fake": FakeModel(["1"])}) as address:
        assert chat(address, response_format=_format(half)).status == 200
        assert chat(address, response_format=_format(half), tools=[tool(half)]).status == 413
        assert chat(address, response_format=None, tools=[tool(half), tool(half)]).status == 413


def test_the_limits_are_settings() -> None:
    schema = {"type": "object", "properties": {f"p{at}": {"type": "integer"} for at in range(60)}}
    with FakeVendor(["{}"] * 4) as vendor:
        row = load_catalog({"v": {"extends": "openai", "base_url": vendor.base_url}}).vendor("v")
        for limits, status in (({"max_schema_nodes": 100}, 413), ({"max_schema_bytes": 1024}, 413), ({}, 200)):
            with proxied({"v": HttpProvider(row, api_key="k-000000")}, {"server": limits}) as address:
                # Seen again, a schema may take another way through the proxy; the limit holds on each.
                replies = [chat(address, model="v/gpt-4o", response_format=_format(schema)) for _ in range(4)]
            assert [reply.status for reply in replies] == [status] * 4


LARGE: dict[str, Any] = {
    "type": "object",
    "properties": {f"p{at}": {"type": "string", "maxLength": at + 1} for at in range(200)},
    "required": ["p1"],
}


@pytest.fixture
def on_loop(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What of the costly work was done on the main thread, where the event loop runs."""
    seen: list[str] = []
    loop_thread = threading.main_thread()

    def watched(module: Any, name: str) -> None:
        work = getattr(module, name)

        def wrapped(*given: Any, **more: Any) -> Any:
            if threading.current_thread() is loop_thread:
                seen.append(name)
            return work(*given, **more)

        monkeypatch.setattr(module, name, wrapped)

    watched(jsonschema_rs, "validator_for")
    watched(codec_plan, "lower")
    watched(compiled, "examine")
    return seen


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("strategy", ["native", "tool", "prompted"])
@pytest.mark.parametrize("answer", ['{"p1":"x"}', '{"p1":12,"p2":[]}'], ids=["good", "bad"])
async def test_a_large_schema_is_made_ready_and_held_to_off_the_event_loop(
    on_loop: list[str], strategy: str, stream: bool, answer: str
) -> None:
    # A schema that no other test has left in a cache.
    schema = {**LARGE, "description": f"{strategy} {stream} {answer}"}
    with FakeVendor(lambda _: answer) as vendor:
        row = load_catalog({"v": {"extends": "openai", "base_url": vendor.base_url}}).vendor("v")
        router = Router({"v": HttpProvider(row, api_key="k-000000")})
        app = App(AsyncClient(router=router, options=Options(budget=Budget(attempts=2))), Settings())
        body = {
            "model": "v/gpt-4o", "messages": _MESSAGES, "response_format": _format(schema), "stream": stream,
            "slipform": {"strategy": strategy},
        }  # fmt: skip
        reply = await post(app, "/v1/chat/completions", body)
    assert reply.status in (200, 422)
    assert on_loop == []


async def test_the_schemas_of_tools_are_made_ready_off_the_event_loop(on_loop: list[str]) -> None:
    app = App(AsyncClient(router=Router({"fake": FakeModel(["no call"])})), Settings())
    schema = {**LARGE, "description": "of a tool"}
    body = {"model": "fake/m", "messages": _MESSAGES, "tools": [tool(schema)]}
    assert (await post(app, "/v1/chat/completions", body)).status == 200
    assert on_loop == []


async def test_a_large_schema_that_comes_again_and_again_is_learned_off_the_event_loop(on_loop: list[str]) -> None:
    schema = {**LARGE, "description": "again and again"}
    with FakeVendor(lambda _: '{"p1":"x"}') as vendor:
        row = load_catalog({"v": {"extends": "openai", "base_url": vendor.base_url}}).vendor("v")
        app = App(AsyncClient(router=Router({"v": HttpProvider(row, api_key="k-000000")})), Settings())
        body = {"model": "v/gpt-4o", "messages": _MESSAGES, "response_format": _format(schema)}
        for _ in range(6):
            assert (await post(app, "/v1/chat/completions", body)).status == 200
    assert on_loop == []


def test_a_union_of_thousands_is_refused_by_name_and_not_told_apart_pair_by_pair() -> None:
    branches = [
        {"type": "object", "properties": {"k": {"const": at}, "v": {"type": "string"}}, "required": ["k"]}
        for at in range(1_000)
    ]
    with proxied({"fake": FakeModel(['{"k": 7}'])}) as address:
        assert chat(address, response_format=_format({"anyOf": branches})).status == 200
    with FakeVendor(['{"k": 7}']) as vendor:
        row = load_catalog({"v": {"extends": "openai", "base_url": vendor.base_url}}).vendor("v")
        with proxied({"v": HttpProvider(row, api_key="k-000000")}) as address:
            reply = chat(
                address, model="v/gpt-4o", response_format=_format({"anyOf": branches}), slipform={"strategy": "native"}
            )
    assert (reply.status, reply.json["error"]["code"]) == (422, "unsupported_schema")


@pytest.mark.slow
def test_no_cache_keeps_more_alive_than_its_limit_whatever_schemas_come() -> None:
    with proxied({"fake": FakeModel(lambda _: '{"p1":12}')}) as address:
        for number in range(40):
            wide = {**LARGE, "title": f"{number}" * 400}
            web = {
                "title": f"web {number}",
                "$defs": {
                    f"d{at}": {
                        "properties": {f"p{each}": {"$ref": f"#/$defs/d{(at + each) % 30}"} for each in range(9)}
                    }
                    for at in range(30)
                },
                "$ref": "#/$defs/d0",
            }
            pattern = {"type": "object", "properties": {"p1": {"pattern": f"^\\w{{20}}{number}" + "x" * 500}}}
            for schema in (wide, web, pattern):
                lower(schema, "openai", open_objects="closed")
                Schema("s", schema).validate({"p1": 12, "p2": {"p1": [3]}})
                chat(address, response_format=_format(schema), stream=bool(number % 2))
    full = [cache.name for cache in live_caches() if cache.held_bytes > cache.max_bytes]
    assert full == []
    assert sum(cache.max_bytes for cache in live_caches() if cache.name != "answers") < 700_000_000


def test_the_parts_of_a_web_of_definitions_are_accounted_for_with_all_that_they_reach() -> None:
    web = {
        "$defs": {
            f"d{at}": {
                "type": "object",
                "properties": {f"p{each}": {"$ref": f"#/$defs/d{(at + each) % 60}"} for each in range(9)},
            }
            for at in range(60)
        },
        "$ref": "#/$defs/d0",
    }
    schema: Schema[Any] = Schema("web", web)
    parts = next(cache for cache in live_caches() if cache.name == "parts of compiled schemas")
    parts.clear()
    schema.validate({"p1": {"p2": {"p3": 12}}})
    assert len(parts) > 0
    assert parts.held_bytes >= len(parts) * len(json.dumps(web))
