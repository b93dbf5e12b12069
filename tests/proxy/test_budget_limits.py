"""No field of a request makes a key with a budget reserve less than its vendor is allowed to write."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from slipform.addons.server.admission.output_limits import OutputRequest, requested_output
from slipform.testing import Api, FakeVendor
from tests.proxy.budgeted import APIS, ServedApi, generous, proxy, sizes_in
from tests.proxy.test_budgets import key, settled, together
from tests.proxy.wire import post

LIMIT = 1_000
ASSUMED = 1_024
"""`ledger.assumed_output_tokens`, unless set."""
BUDGET = 3_000
"""Tokens: room for two calls of `LIMIT`, not for three."""
AT_ONCE = 4
HUGE = 10**8


def tricks(api: ServedApi) -> dict[str, Any]:
    """Requests, as values or as the text of JSON, that are sent with the limit that they ask for, or with none."""
    plain = api.request(**{api.field: LIMIT})
    raw = json.dumps(plain)
    field = f'"{api.field}": {LIMIT}'
    return {
        "plain": plain,
        "no limit": api.request(),
        "null": api.request(**{api.field: None}),
        "options": {**plain, "options": {**plain.get("options", {}), "max_tokens": 1, "n_predict": HUGE}},
        "generationConfig": {
            **plain, "generationConfig": {**plain.get("generationConfig", {}), "max_tokens": 1, "num_predict": HUGE},
        },
        "other APIs' fields": {
            **plain, "maxOutputTokens": 1, "num_predict": HUGE, "n_predict": HUGE, "max_new_tokens": HUGE,
        },
        "extra_body": {**plain, "extra_body": {"max_tokens": HUGE, "n": 100}},
        "in capitals": api.request(**{api.field: LIMIT, api.field.upper(): HUGE}),
        "its object in capitals": {**plain, "OPTIONS": {"num_predict": HUGE}, "GenerationConfig": {"n": 100}},
        "twice, the larger first": raw.replace(field, f'"{api.field}": {HUGE}, {field}'),
        "twice, the larger last": raw.replace(field, f'"{api.field}": 1, {field}'),
        "escaped": raw.replace(api.field, "\\u006" + f"{ord(api.field[0]) - 0x60:x}" + api.field[1:]),
    }  # fmt: skip


NOT_LIMITS = [1000.0, 1.5, "1000", "", True, False, 0, -1, -5, 2**63, 10**30, 1e300, [], {}, [5]]
"""Values of a limit that nobody can reserve."""


@pytest.mark.parametrize("enforced", [False, True], ids=["passed through", "enforced"])
@pytest.mark.parametrize("name", APIS)
def test_a_vendor_gets_the_limit_that_was_reserved_whatever_else_a_request_says(
    name: str, enforced: bool, tmp_path: Path
) -> None:
    api = APIS[name]
    keys = {trick: key(tmp_path, trick, max_tokens=BUDGET) for trick in tricks(api)}
    failures: list[Any] = []
    with FakeVendor(generous(), api=api.vendor) as vendor, proxy(vendor, api.vendor, tmp_path) as address:
        for trick, request in tricks(api).items():
            body = request if isinstance(request, str) else json.dumps(api.enforced(request) if enforced else request)
            if enforced and isinstance(request, str) and api.inside not in api.shape:
                body = body[:-1] + ", " + json.dumps(api.shape)[1:]
            seen = len(vendor.requests)
            send = partial(post, address, api.path, body.encode(), keys[trick])
            replies = together(lambda _: send(), AT_ONCE)  # noqa: B023 — it is waited for
            limits = {sizes_in(received.body) for received in vendor.requests[seen:]}
            spent = settled(address, keys[trick])["spent"]["tokens"]
            if not limits <= {(LIMIT, 1), (ASSUMED, 1)} or not 0 < spent <= BUDGET:
                failures.append((trick, limits, spent, [reply.body[:100] for reply in replies]))
    assert not failures


VENDORS: Sequence[Api] = ("openai", "openai-responses", "anthropic", "gemini", "ollama", "cohere")


@pytest.mark.parametrize("kind", VENDORS)
def test_a_vendor_of_any_api_gets_the_limit_in_its_own_field(kind: Api, tmp_path: Path) -> None:
    headers = key(tmp_path, max_tokens=100_000)
    failures: list[Any] = []
    with FakeVendor(generous(), api=kind) as vendor, proxy(vendor, kind, tmp_path) as address:
        for name, api in APIS.items():
            for limit, expected in ((None, ASSUMED), (LIMIT, LIMIT)):
                for request in (api.request(**{api.field: limit}), api.enforced(api.request(**{api.field: limit}))):
                    reply = post(address, api.path, request, headers)
                    sent = sizes_in(vendor.requests[-1].body)
                    if reply.status != 200 or sent != (expected, 1):
                        failures.append((name, request, sent, reply.body[:200]))
    assert not failures


@pytest.mark.parametrize("name", APIS)
def test_a_limit_that_is_not_a_whole_number_is_refused_in_the_apis_shape(name: str, tmp_path: Path) -> None:
    api = APIS[name]
    headers = key(tmp_path, max_tokens=BUDGET)
    fields = [api.field, *([api.count] if api.count else [])]
    failures: list[Any] = []
    with FakeVendor(generous(), api=api.vendor) as vendor, proxy(vendor, api.vendor, tmp_path) as address:
        for field in fields:
            for value in NOT_LIMITS:
                reply = post(address, api.path, api.request(**{field: value}), headers)
                if reply.status != 400 or "error" not in reply.json() or field not in reply.body.decode():
                    failures.append((field, value, reply.status, reply.body[:200]))
        assert not failures
        assert not vendor.requests
        assert settled(address, headers)["spent"]["tokens"] == 0


def test_several_answers_are_reserved_for(tmp_path: Path) -> None:
    failures: list[Any] = []
    rows = [(name, api.count, api) for name, api in APIS.items() if api.count]
    rows.append(("completions", "n", APIS["completions"]))
    for name, count, api in rows:
        headers = key(tmp_path, f"{name} {count}", max_tokens=BUDGET)
        with FakeVendor(generous(), api=api.vendor) as vendor, proxy(vendor, api.vendor, tmp_path) as address:
            request = api.request(**{api.field: 500, count: 3})
            together(lambda _: post(address, api.path, request, headers), AT_ONCE)  # noqa: B023 — it is waited for
            spent = settled(address, headers)["spent"]["tokens"]
            if spent != len(vendor.requests) * 1_510 or not 0 < spent <= BUDGET:
                failures.append((name, count, spent, len(vendor.requests)))
    assert not failures


def test_every_prompt_of_a_list_is_reserved_for(tmp_path: Path) -> None:
    assert requested_output("openai-completions", {"prompt": ["a", "b", "c"], "n": 2}) == OutputRequest(None, 6)
    assert requested_output("openai-completions", {"prompt": [[1, 2], [3]], "max_tokens": 5}) == OutputRequest(5, 2)
    assert requested_output("openai-completions", {"prompt": [1, 2, 3]}) == OutputRequest()
    headers = key(tmp_path, max_tokens=BUDGET)
    with FakeVendor(generous()) as vendor, proxy(vendor, "openai", tmp_path) as address:
        request = {"model": "up/m", "prompt": ["hi"] * 10, "max_tokens": 500}
        assert post(address, "/v1/completions", request, headers).status == 429
        assert not vendor.requests


@pytest.mark.parametrize(
    ("kind", "sent", "received"),
    [
        ("openai", {"max_tokens": 7, "max_completion_tokens": 9}, {"max_completion_tokens": 9}),
        ("openai", {"max_tokens": 9, "max_completion_tokens": 7}, {"max_completion_tokens": 9}),
        ("openai", {"max_tokens": 7}, {"max_tokens": 7}),
        ("openai", {}, {"max_completion_tokens": ASSUMED}),
        ("mistral", {"max_tokens": 7, "max_completion_tokens": 9}, {"max_tokens": 9}),
        ("mistral", {"max_completion_tokens": 9}, {"max_tokens": 9}),
        ("mistral", {}, {"max_tokens": ASSUMED}),
    ],
    ids=str,
)
def test_of_two_spellings_the_vendor_gets_the_one_it_knows_with_the_larger_limit(
    kind: str, sent: dict[str, int], received: dict[str, int], tmp_path: Path
) -> None:
    api = APIS["chat"]
    headers = key(tmp_path, max_tokens=BUDGET)
    with FakeVendor(generous()) as vendor, proxy(vendor, kind, tmp_path) as address:
        assert post(address, api.path, api.request(**sent), headers).status == 200
        asked = vendor.requests[-1].json()
    assert {name: value for name, value in asked.items() if name.startswith("max")} == received


def test_both_spellings_of_geminis_settings_say_the_same(tmp_path: Path) -> None:
    api = APIS["gemini"]
    headers = key(tmp_path, max_tokens=BUDGET)
    request = {
        **api.body, "generationConfig": {"max_output_tokens": 7}, "generation_config": {"maxOutputTokens": 9, "topK": 3}
    }  # fmt: skip
    with FakeVendor(generous(), api="gemini") as vendor, proxy(vendor, "gemini", tmp_path) as address:
        assert post(address, api.path, request, headers).status == 200
        asked = vendor.requests[-1].json()
    assert asked["generationConfig"] == {"maxOutputTokens": 9}
    assert asked["generation_config"] == {"maxOutputTokens": 9, "topK": 3}


@pytest.mark.parametrize("limits", [{"max_concurrent": 2}, {"soft_tokens": 10}], ids=str)
@pytest.mark.parametrize("value", [2**63, 10**30, 1e300, -(2**63), "many", True])
def test_a_key_that_cannot_run_out_is_not_held_to_a_limit(limits: Any, value: Any, tmp_path: Path) -> None:
    headers = key(tmp_path, **limits)
    failures: list[Any] = []
    for name, api in APIS.items():
        with FakeVendor(["hello"], api=api.vendor) as vendor, proxy(vendor, api.vendor, tmp_path) as address:
            reply = post(address, api.path, api.request(**{api.field: value}), headers)
            page = settled(address, headers)
            if reply.status not in (200, 400) or page["spent"]["tokens"] > 10_000:
                failures.append((name, reply.status, reply.body[:200], page))
    assert not failures


def test_the_number_of_images_is_reserved_for_in_json_and_in_forms(tmp_path: Path) -> None:
    headers = key(tmp_path, max_tokens=30_000)
    with FakeVendor(["never"]) as vendor, proxy(vendor, "openai", tmp_path) as address:
        for value, status in ((10, 429), ("10", 400), (10.0, 400), (-1, 400)):
            reply = post(address, "/v1/images/generations", {"model": "up/m", "prompt": "x", "n": value}, headers)
            assert reply.status == status, (value, reply.body)
        for text, status in (("10", 429), ("1e1", 400), ("-1", 400)):
            parts = {"model": "up/m", "prompt": "x", "n": text}
            form = "".join(
                f'--b\r\ncontent-disposition: form-data; name="{k}"\r\n\r\n{v}\r\n' for k, v in parts.items()
            )
            kind = {**headers, "content-type": "multipart/form-data; boundary=b"}
            reply = post(address, "/v1/images/edits", f"{form}--b--\r\n".encode(), kind)
            assert reply.status == status, (text, reply.body)
        assert not vendor.requests
