"""A batch whose requests have schemas: its results are enforced when they are fetched, for the key that made it."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

from slipform.addons.server.admission.keys import add_key
from slipform.ir import ModelResponse
from slipform.testing import FakeVendor
from slipform.testing.wire_formats import SHAPES
from tests.conftest import PERSON
from tests.proxy.account import Account
from tests.proxy.proxying import proxied
from tests.proxy.test_endpoints import upstream

SHAPE = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON, "strict": True}}
ADA = {"name": "Ada", "age": 36}
ANSWERS = {
    "valid": json.dumps(ADA),
    "fenced": f"Here it is:\n```json\n{json.dumps(ADA)}\n```",
    "patched": '{"name": "Ada", "age": "36"}',
    "invalid": '{"name": "Ada", "age": "old"}',
    "free": "no JSON at all",
}


@contextlib.contextmanager
def served(folder: Path, kind: str = "openai", **key: Any) -> Iterator[tuple[Account, str, str]]:
    """An account at a vendor, the address of the proxy before it, and a key."""
    account = Account()
    keys = folder / "keys.json"
    _, secret = add_key(keys, "ada", **key)
    settings = {"server": {"keys_file": str(keys)}, "model_aliases": {"small": "up/m"}}
    with account.vendor as vendor, proxied({"up": upstream(vendor, kind)}, settings) as address:
        yield account, address, secret


def line(name: str, **body: Any) -> dict[str, Any]:
    fields = {"model": "small", "messages": [{"role": "user", "content": "Who?"}], **body}
    return {"custom_id": name, "method": "POST", "url": "/v1/chat/completions", "body": fields}


def lines_of(*lines: Any) -> bytes:
    return b"\n".join(json.dumps(each).encode() for each in lines)


def answer_line(name: str, text: str) -> dict[str, Any]:
    response = {"status_code": 200, "request_id": "r", "body": SHAPES["openai"].whole(ModelResponse(text=text))}
    return {"id": f"b-{name}", "custom_id": name, "response": response, "error": None}


def results(content: bytes) -> dict[str, Any]:
    return {each["custom_id"]: each["response"] for each in map(json.loads, content.splitlines())}


@pytest.mark.parametrize("deletes_input", [False, True])
def test_results_are_repaired_patched_and_validated(tmp_path: Path, deletes_input: bool) -> None:
    with (
        served(tmp_path) as (account, address, secret),
        openai.OpenAI(base_url=f"{address}/v1", api_key=secret, max_retries=0) as client,
    ):
        shaped = [line(name, response_format=SHAPE) for name in ANSWERS if name != "free"]
        uploaded = client.files.create(file=("b.jsonl", lines_of(*shaped, line("free"))), purpose="batch")
        sent = [json.loads(each)["body"] for each in account.contents[uploaded.id].splitlines()]
        assert [each["model"] for each in sent] == ["m"] * 5
        assert ["response_format" in each for each in sent] == [True] * 4 + [False]
        batch = client.batches.create(
            input_file_id=uploaded.id, endpoint="/v1/chat/completions", completion_window="24h"
        )
        if deletes_input:
            client.files.delete(uploaded.id)
        output = client.batches.retrieve(batch.id).output_file_id
        assert output is not None
        account.contents[output] = lines_of(*(answer_line(name, text) for name, text in ANSWERS.items()))
        content = client.files.content(output).read()
    by_id = results(content)
    for name in ("valid", "fenced", "patched"):
        assert by_id[name]["status_code"] == 200
        assert json.loads(by_id[name]["body"]["choices"][0]["message"]["content"]) == ADA
    assert by_id["free"]["body"]["choices"][0]["message"]["content"] == ANSWERS["free"]
    assert by_id["invalid"]["status_code"] == 422
    assert by_id["invalid"]["body"]["error"]["type"] == "structured_output_failed"
    assert "slipform batch" in json.dumps(by_id["invalid"])


def test_errors_and_cut_lines_of_the_vendor_stay_errors(tmp_path: Path) -> None:
    with (
        served(tmp_path) as (account, address, secret),
        openai.OpenAI(base_url=f"{address}/v1", api_key=secret, max_retries=0) as client,
    ):
        uploaded = client.files.create(file=("b.jsonl", lines_of(line("a", response_format=SHAPE))), purpose="batch")
        batch = client.batches.create(
            input_file_id=uploaded.id, endpoint="/v1/chat/completions", completion_window="24h"
        )
        failed = {"id": "b", "custom_id": "a", "response": None, "error": {"code": "batch_expired", "message": "late"}}
        assert batch.output_file_id is not None
        account.contents[batch.output_file_id] = lines_of(failed) + b'\n{"custom_id": "a", "resp'
        content = client.files.content(batch.output_file_id).read()
    assert [json.loads(each) for each in content.splitlines()] == [failed]


def test_anthropics_results_are_enforced(tmp_path: Path) -> None:
    with (
        served(tmp_path, "anthropic") as (account, address, secret),
        anthropic.Anthropic(base_url=address, api_key=secret, max_retries=0) as client,
    ):
        config: Any = {"format": {"type": "json_schema", "schema": PERSON}}
        params: Any = {"model": "small", "max_tokens": 50, "messages": [{"role": "user", "content": "Who?"}]}
        shaped: Any = {**params, "output_config": config}
        made = client.messages.batches.create(
            requests=[{"custom_id": name, "params": shaped} for name in ("patched", "invalid")]
        )
        account.contents[made.id] = lines_of(
            *(
                {
                    "custom_id": name,
                    "result": {
                        "type": "succeeded",
                        "message": SHAPES["anthropic"].whole(ModelResponse(text=ANSWERS[name])),
                    },
                }
                for name in ("patched", "invalid")
            )
        )
        patched, invalid = client.messages.batches.results(made.id)
    assert patched.result.type == "succeeded"
    assert json.loads(patched.result.message.content[0].text) == ADA  # type: ignore[union-attr]
    assert invalid.result.type == "errored"


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "several answers": ({"n": 2, "response_format": SHAPE}, "cannot be enforced"),
    "a stream": ({"stream": True, "response_format": SHAPE}, "cannot stream"),
    "a schema that is none": (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "p", "schema": {"type": "what"}}}},
        "line 1",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_enforced_is_refused_with_its_line(tmp_path: Path, name: str) -> None:
    body, words = REFUSED[name]
    with (
        served(tmp_path) as (account, address, secret),
        openai.OpenAI(base_url=f"{address}/v1", api_key=secret, max_retries=0) as client,
        pytest.raises(openai.APIStatusError, match=words) as refused,
    ):
        client.files.create(file=("b.jsonl", lines_of(line("a", **body))), purpose="batch")
    assert "line 1" in str(refused.value)
    assert account.contents == {}


def test_a_key_may_only_name_its_own_models(tmp_path: Path) -> None:
    with (
        served(tmp_path, models=["up/other"]) as (account, address, secret),
        openai.OpenAI(base_url=f"{address}/v1", api_key=secret, max_retries=0) as client,
        pytest.raises(openai.PermissionDeniedError),
    ):
        client.files.create(file=("b.jsonl", lines_of(line("a", response_format=SHAPE))), purpose="batch")
    assert account.contents == {}


def test_a_batch_goes_to_the_provider_that_keeps_its_file(tmp_path: Path) -> None:
    account = Account()
    keys = tmp_path / "keys.json"
    _, secret = add_key(keys, "ada")
    settings = {"server": {"keys_file": str(keys)}, "model_aliases": {"small": "up/m"}}
    with (
        account.vendor as vendor,
        FakeVendor(["unused"]) as other,
        proxied({"other": upstream(other), "up": upstream(vendor)}, settings) as address,
        openai.OpenAI(base_url=f"{address}/v1", api_key=secret, max_retries=0) as client,
    ):
        uploaded = client.files.create(file=("b.jsonl", lines_of(line("a", response_format=SHAPE))), purpose="batch")
        batch = client.batches.create(
            input_file_id=uploaded.id, endpoint="/v1/chat/completions", completion_window="24h"
        )
        assert client.batches.retrieve(batch.id).id == batch.id
        with pytest.raises(openai.BadRequestError, match="Several providers"):
            client.batches.create(
                input_file_id="file-unknown", endpoint="/v1/chat/completions", completion_window="24h"
            )
        assert other.requests == []
