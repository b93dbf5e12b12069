"""One switch in the config, and what a run may override."""

from __future__ import annotations

import pytest

from slipform.call_options import RunOptions, build_call_options, retrying
from slipform.config import Settings, read_settings
from slipform.errors import RequestError
from slipform.schema.registry import Registry

REGISTRY = Registry.load()
ON = read_settings("output: {require_json: true, use_response_schema: true}\nruntime: {streaming: true}")


@pytest.mark.covers("S1-03", "S1-15", "S1-56", "S1-68")
def test_the_run_overrides_the_config_for_itself() -> None:
    assert not build_call_options(Settings(), RunOptions(), REGISTRY).require_json
    assert build_call_options(Settings(), RunOptions(require_json=True), REGISTRY).require_json
    assert not build_call_options(ON, RunOptions(require_json=False), REGISTRY).require_json
    assert ON.output.require_json


@pytest.mark.covers("S1-16", "S1-17", "S1-69", "S1-72")
def test_a_schema_needs_the_switch_the_flag_and_an_id() -> None:
    named = RunOptions(response_schema_id="generic_list")
    assert build_call_options(ON, named, REGISTRY).schema is REGISTRY.get("generic_list")
    assert build_call_options(ON, RunOptions(), REGISTRY).schema is None
    only_json = read_settings("output: {require_json: true}")
    assert build_call_options(only_json, named, REGISTRY).schema is None
    off = build_call_options(ON, RunOptions(False, "generic_list"), REGISTRY)
    assert (off.use_schema, off.schema) == (False, None)


@pytest.mark.covers("S1-28", "S1-33", "S1-36")
@pytest.mark.covers("S1-70", "S1-71", "S1-73", "C11")
def test_structured_output_does_not_stream_on_this_path() -> None:
    assert build_call_options(ON, RunOptions(), REGISTRY).streaming is False
    assert build_call_options(ON, RunOptions(require_json=False), REGISTRY).streaming is True
    assert build_call_options(ON, RunOptions(), REGISTRY).response_mime_type == "application/json"
    assert build_call_options(ON, RunOptions(), REGISTRY).timeout_seconds == 120


def test_an_unknown_schema_names_the_known_ones() -> None:
    with pytest.raises(RequestError, match="generic_list"):
        build_call_options(ON, RunOptions(response_schema_id="nope"), REGISTRY)


@pytest.mark.covers("S1-11", "S1-42", "C02")
def test_n_retries_mean_n_plus_one_calls() -> None:
    assert retrying(Settings()).backoff_seconds == 2
    assert retrying(read_settings("retries: {attempts: 1}")).budget.attempts == 2
    assert retrying(read_settings("retries: {attempts: 0}")).budget.attempts == 1
