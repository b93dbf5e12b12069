"""The catalogue's rows and what they say of models."""

from __future__ import annotations

import json
from datetime import date
from typing import Any

import pytest

from slipform.codecs import CODECS, find_codec, make_codec
from slipform.config import read_settings
from slipform.engine.setup import router_of
from slipform.errors import ConfigError
from slipform.ir import Message, ModelRequest
from slipform.providers.catalog import bare_name, load_catalog
from slipform.providers.http import HttpProvider
from slipform.schema import JsonSchemaSpec, OutputStrategy, ResponseFormat
from slipform.schema.lowering.dialects import dialect_names

NATIVE, TOOL, PROMPTED = OutputStrategy.NATIVE, OutputStrategy.TOOL, OutputStrategy.PROMPTED

ASKED_FOR = (
    "openai azure anthropic gemini vertex bedrock openrouter deepseek zai moonshot mistral groq together fireworks xai"
    " cerebras cohere huggingface ollama vllm sglang llamacpp lmstudio openai-compatible"
)


@pytest.mark.covers("S1-02", "S2-05", "S2-06")
def test_every_vendor_has_a_row_with_its_source() -> None:
    vendors = load_catalog().vendors
    assert set(ASKED_FOR.split()) <= set(vendors)
    for vendor in vendors.values():
        assert vendor.source
        assert date.fromisoformat(vendor.checked) >= date(2026, 11, 15)
        assert vendor.codec in CODECS
        assert vendor.capabilities("any").dialect in dialect_names(aliases=True)
        assert vendor.key == "optional" or vendor.api_key_env


def test_it_is_read_once() -> None:
    assert load_catalog() is load_catalog({})


@pytest.mark.parametrize(
    ("vendor", "model", "strategy"),
    [
        ("openai", "gpt-6-sol", NATIVE),
        ("openai", "gpt-4.1-mini", NATIVE),
        ("openai", "gpt-4-0613", TOOL),
        ("openai", "gpt-3.5-turbo", TOOL),
        ("openai", "o1-mini", PROMPTED),
        ("anthropic", "claude-opus-5-5", NATIVE),
        ("anthropic", "claude-sonnet-4-5-20250929", NATIVE),
        ("anthropic", "claude-3-7-sonnet-latest", TOOL),
        ("anthropic", "claude-sonnet-4-20250514", TOOL),
        ("anthropic", "claude-opus-4-1-20250805", NATIVE),
        ("gemini", "gemini-3.5-flash", NATIVE),
        ("gemini", "gemma-3-27b-it", PROMPTED),
        ("bedrock", "us.anthropic.claude-sonnet-4-5-20250929-v1:0", NATIVE),
        ("bedrock", "anthropic.claude-3-5-sonnet-20240620-v1:0", TOOL),
        ("bedrock", "amazon.nova-pro-v1:0", TOOL),
        ("openrouter", "anthropic/claude-3.5-sonnet", TOOL),
        ("openrouter", "deepseek/deepseek-v4-pro", PROMPTED),
        ("openrouter", "meta-llama/llama-4-maverick", NATIVE),
        ("deepseek", "deepseek-v4-flash", PROMPTED),
        ("zai", "glm-5.3", PROMPTED),
        ("mistral", "mistral-large-latest", NATIVE),
        ("groq", "openai/gpt-oss-120b", NATIVE),
        ("groq", "llama-3.3-70b-versatile", TOOL),
        ("ollama", "qwen3:8b", NATIVE),
        ("cohere", "command-a", NATIVE),
    ],
)
@pytest.mark.covers("S4-12", "S4-17", "S4-18", "C16", "C17", "S1-26", "S1-35")
def test_what_auto_means(vendor: str, model: str, strategy: OutputStrategy) -> None:
    assert load_catalog().vendor(vendor).capabilities(model).auto_strategy is strategy


@pytest.mark.parametrize(
    ("vendor", "model", "allowed"),
    [
        ("openai", "o3", False),
        ("openai", "gpt-5-mini", False),
        ("openai", "gpt-5.2", True),
        ("azure", "o4-mini", False),
        ("anthropic", "claude-opus-4-7", False),
        ("anthropic", "claude-sonnet-4-6", True),
        ("openrouter", "anthropic/claude-opus-4.8", False),
        ("openrouter", "openai/gpt-5", False),
        ("bedrock", "eu.anthropic.claude-opus-5-v1:0", False),
    ],
)
def test_where_sampling_is_refused(vendor: str, model: str, allowed: bool) -> None:
    assert load_catalog().vendor(vendor).capabilities(model).sampling is allowed


@pytest.mark.covers("C17")
def test_the_newest_claude_models_refuse_forced_tools_wherever_they_are_sold() -> None:
    catalog = load_catalog()
    for vendor, model in (
        ("anthropic", "claude-fable-5-1"),
        ("bedrock", "global.anthropic.claude-opus-5-5-v1:0"),
        ("openrouter", "anthropic/claude-sonnet-5.5"),
    ):
        assert not catalog.vendor(vendor).capabilities(model).forced_tool


@pytest.mark.covers("S2-35", "S1-25", "S1-27")
def test_json_mode_where_there_is_one() -> None:
    modes = {name: vendor.capabilities("any").json_mode for name, vendor in load_catalog().vendors.items()}
    assert modes["deepseek"]
    assert modes["zai"]
    assert modes["openrouter"]
    assert not modes["anthropic"]
    assert not modes["bedrock"]
    assert not modes["lmstudio"]


def test_a_pattern_that_spells_out_more_wins() -> None:
    row = {
        "base_url": "http://h",
        "capabilities": {"native": True},
        "patterns": [
            {"match": "big-model-2*", "json_mode": False},
            {"match": "big-*", "native": False, "json_mode": True},
            {"match": ["x", "BIG-model*"], "sampling": False},
        ],
    }
    vendor = load_catalog({"mine": row}).vendor("mine")
    made = vendor.capabilities("Big-Model-22")
    assert (made.native, made.json_mode, made.sampling) == (False, False, False)
    assert vendor.capabilities("small").native


def test_of_two_equal_patterns_the_later_wins() -> None:
    rows = {"openai": {"patterns": [{"match": "gpt-4", "native": True, "quirks": []}]}}
    assert load_catalog(rows).vendor("openai").capabilities("gpt-4").native
    assert not load_catalog().vendor("openai").capabilities("gpt-4").native


def test_quirks_of_a_pattern_add_to_those_of_the_row_and_take_some_away() -> None:
    row = {
        "base_url": "http://gpu/v1",
        "capabilities": {"quirks": ["top_k", "no_strict"]},
        "patterns": [{"match": "new*", "quirks": ["usage_always", "-no_strict"]}],
    }
    vendor = load_catalog({"mine": row}).vendor("mine")
    assert vendor.capabilities("old").quirks == {"top_k", "no_strict"}
    assert vendor.capabilities("new-1").quirks == {"top_k", "usage_always"}


def test_a_row_names_any_header_for_its_key() -> None:
    row = {"base_url": "http://gpu/v1", "auth": "Ocp-Apim-Subscription-Key"}
    vendor = load_catalog({"mine": row}).vendor("mine")
    endpoint = HttpProvider(vendor, api_key="k-123")._endpoint
    sent = endpoint.authorise("http://gpu/v1/chat", {}, b"")
    assert sent.headers["ocp-apim-subscription-key"] == "k-123"
    assert "authorization" not in sent.headers
    with pytest.raises(ConfigError, match="or the name of a header"):
        load_catalog({"mine": {**row, "auth": "baerer"}})


def test_a_new_row_starts_from_the_template_or_the_row_it_names() -> None:
    catalog = load_catalog(
        {"plain": {"base_url": "http://a/v1"}, "gpu": {"base_url": "http://b/v1", "extends": "vllm", "key": "required"}}
    )
    assert catalog.vendor("plain").codec == "openai-chat"
    assert catalog.vendor("plain").api_key_env == ()
    assert catalog.vendor("gpu").capabilities("m").quirks >= {"schema_in_prompt"}
    assert catalog.vendor("gpu").api_key_env == ("VLLM_API_KEY",)


def test_an_address_in_the_settings_beats_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", "http://env/v1/")
    assert load_catalog().vendor("openai").url() == "http://env/v1"
    assert load_catalog().vendor("openai").url("http://given") == "http://given"
    assert load_catalog({"openai": {"base_url": "http://row/v1"}}).vendor("openai").url() == "http://row/v1"


def test_blanks_in_the_address(monkeypatch: pytest.MonkeyPatch) -> None:
    catalog = load_catalog()
    for name in ("AZURE_OPENAI_RESOURCE", "AWS_REGION", "AWS_DEFAULT_REGION", "GOOGLE_CLOUD_PROJECT", "OLLAMA_HOST"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ConfigError, match="AZURE_OPENAI_RESOURCE") as caught:
        catalog.vendor("azure").url()
    assert caught.value.where == "providers.azure.resource"
    monkeypatch.setenv("AZURE_OPENAI_RESOURCE", "acme")
    assert catalog.vendor("azure").url() == "https://acme.openai.azure.com/openai/v1"
    assert catalog.vendor("bedrock").url() == "https://bedrock-runtime.us-east-1.amazonaws.com"
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-3")
    assert catalog.vendor("bedrock").url() == "https://bedrock-runtime.eu-west-3.amazonaws.com"
    assert catalog.vendor("bedrock").url(settings={"region": "ap-south-1"}).endswith("ap-south-1.amazonaws.com")
    monkeypatch.setenv("OLLAMA_HOST", "0.0.0.0:9")
    assert catalog.vendor("ollama").url() == "http://0.0.0.0:9"


def test_addresses_on_google_cloud(monkeypatch: pytest.MonkeyPatch) -> None:
    catalog = load_catalog()
    monkeypatch.delenv("GOOGLE_GEMINI_BASE_URL", raising=False)
    place = {"project": "p", "location": "us-central1"}
    assert catalog.vendor("vertex").url(settings=place) == (
        "https://us-central1-aiplatform.googleapis.com/v1beta1/projects/p/locations/us-central1/publishers/google"
    )
    assert catalog.vendor("vertex-anthropic").url(settings=place) == (
        "https://us-central1-aiplatform.googleapis.com/v1/projects/p/locations/us-central1"
    )
    assert catalog.vendor("gemini").url() == "https://generativelanguage.googleapis.com/v1"
    monkeypatch.setenv("GOOGLE_GEMINI_BASE_URL", "http://proxy/")
    assert catalog.vendor("gemini").url() == "http://proxy/v1"
    claude = catalog.vendor("vertex-anthropic").capabilities("claude-opus-5-5")
    assert (claude.native, claude.forced_tool, claude.sampling) == (False, False, False)
    assert "body_version" in catalog.vendor("vertex-anthropic").capabilities("claude-3-7-sonnet").quirks


@pytest.mark.parametrize(
    ("row", "where", "message"),
    [
        ({"base_url": 3}, "providers.x.base_url", "Expected a text"),
        ({"base_url": "http://h", "auth": "magic"}, "providers.x.auth", "one of bearer"),
        ({"base_url": "http://h", "codec": "nope"}, "providers.x.codec", "Known are: anthropic"),
        ({"base_url": "http://h", "codec": "openai"}, "providers.x.codec", "Did you mean openai-chat"),
        ({"base_urll": "http://h"}, "providers.x.base_urll", "Did you mean base_url"),
        ({"base_url": "http://h", "headers": ["a"]}, "providers.x.headers", "a table"),
        ({"base_url": "http://h", "headers": {"a": 1}}, "providers.x.headers.a", "Expected a text"),
        ({"base_url": "http://h", "extends": "vlm"}, "providers.x.kind", "Did you mean vllm"),
        ({"capabilities": {"native": "yes"}}, "providers.x.capabilities.native", "true or false"),
        ({"capabilities": {"natve": True}}, "providers.x.capabilities.natve", "Did you mean native"),
        ({"capabilities": {"dialect": "openia"}}, "providers.x.capabilities.dialect", "Did you mean openai"),
        ({"capabilities": {"quirks": ["no_stict"]}}, "providers.x.capabilities.quirks", "Did you mean no_strict"),
        ({"patterns": [{"native": True}]}, "providers.x.patterns[0]", "needs `match`"),
        ({"patterns": [{"match": "a", "like": "antropic"}]}, "providers.x.patterns[0].like", "anthropic"),
        ({"patterns": {"match": "a"}}, "providers.x.patterns", "a list of patterns"),
        ({"fields": {"region": {"envs": "A"}}}, "providers.x.fields.region.envs", "env"),
        ({"api_key_env": [1]}, "providers.x.api_key_env[0]", "Expected a text"),
        ("not a row", "providers.x", "a table"),
    ],
)
def test_mistakes_in_a_row_are_named(row: Any, where: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        load_catalog({"x": row})
    assert caught.value.where == where


def test_a_value_in_the_wrong_place_is_not_shown() -> None:
    with pytest.raises(ConfigError) as caught:
        load_catalog({"x": {"base_url": "http://h", "headers": "sk-my-secret-key"}})
    assert "sk-my-secret-key" not in str(caught.value)


def test_a_name_with_a_slash_is_refused() -> None:
    with pytest.raises(ConfigError, match="without `/`"):
        load_catalog({"a/b": {"base_url": "http://h"}})


def test_an_unknown_vendor_lists_the_nearest() -> None:
    with pytest.raises(ConfigError, match="openai"):
        load_catalog().vendor("opnai")
    with pytest.raises(ConfigError, match="codecs are"):
        find_codec("nope")


@pytest.mark.parametrize(
    ("model", "bare"),
    [
        ("us.anthropic.claude-opus-4-5-20251101-v1:0", "claude-opus-4-5-20251101"),
        ("anthropic/claude-opus-4.5:thinking", "claude-opus-4.5"),
        ("claude-sonnet-4@20250514", "claude-sonnet-4"),
        ("gpt-5.1", "gpt-5.1"),
        ("zai.glm-4.7", "glm-4.7"),
    ],
)
def test_the_bare_name_of_a_model(model: str, bare: str) -> None:
    assert bare_name(model) == bare


@pytest.mark.covers("S1-32", "C18")
def test_geminis_own_vocabulary_is_a_setting() -> None:
    """`responseSchema`, converted, instead of `responseJsonSchema`."""
    text = "providers: {g: {kind: gemini, base_url: 'http://127.0.0.1:9', capabilities: {dialect: gemini-openapi}}}"
    router = router_of(read_settings(text), {"GEMINI_API_KEY": "k"})
    provider, model = router.resolve("g/gemini-3-pro")
    capabilities = provider.capabilities(model)
    wanted = ResponseFormat.strict(JsonSchemaSpec("x", {"type": "object", "properties": {"a": {"type": "integer"}}}))
    request = ModelRequest(model, (Message.user("Hi"),), wanted)
    body = json.loads(make_codec("gemini", capabilities).encode_request(request, stream=False).body)
    assert "responseSchema" in body["generationConfig"]
    assert "responseJsonSchema" not in body["generationConfig"]
