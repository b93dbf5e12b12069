"""`slipform import litellm`: what is taken, what is named as left out, and what is never copied."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner, Result

from slipform.cli.import_config import app, convert_litellm
from slipform.cli.litellm_config import TAKEN, convert
from slipform.cli.litellm_providers import known_providers
from slipform.cli.litellm_values import KIND_OF, LEFT_OUT, NOTES, LiteLlmImport
from slipform.config import Settings, read_settings
from slipform.engine.setup import router_of
from tests.codecs.recorded import SHARED
from tests.conftest import examples

CONFIGS = SHARED / "litellm-configs"
FILES = sorted(path.name for path in CONFIGS.glob("*.y*ml*")) if CONFIGS.is_dir() else []
TEMPLATE = "D0wn10ad+ai-gateway__kubernetes~ai-gateway~templates~configmap-litellm.yaml"
GOLDEN = Path(__file__).parent / "litellm"
SECRET = "sk-proj-Zx81mnbvcxzlkjhgfdsapoiuytrewq"


NOTHING_ASKED = "model_list: [{model_name: a, litellm_params: {model: openai/gpt}}]"
ONLY_WITH_ANOTHER = {"maximum_spend_logs_retention_interval", "default_params", "default_litellm_params"}
SAYS_NOTHING = {("litellm_params", "0"): ["order"], ("litellm_params", "soon"): ["api_key"]}
"""What a field without effect may hold: the first order, a word where a key would stand."""


def imported(text: str, tmp_path: Path, environment: dict[str, str] | None = None) -> tuple[Settings, list[str], bool]:
    (tmp_path / "config.yaml").write_text(text)
    written, report, complete = convert_litellm(tmp_path / "config.yaml", environment or {})
    return loaded(written), report, complete


def loaded(written: str) -> Settings:
    """The settings, with every alias leading to a provider, and no variable of the environment set."""
    found = read_settings(written, environment={})
    router = router_of(found, {})
    for alias in found.model_aliases:
        assert router.targets(alias)
        router.resolve(alias)
    router.close()
    return found


def run(*words: str) -> Result:
    return CliRunner().invoke(app, ["litellm", *words])


@pytest.mark.parametrize("name", [name for name in FILES if name != TEMPLATE])
def test_every_configuration_found_in_the_wild_gives_settings_that_load(name: str) -> None:
    written, report, _ = convert_litellm(CONFIGS / name, {})
    found = loaded(written)
    listed = (yaml.safe_load((CONFIGS / name).read_text()) or {}).get("model_list") or []
    taken = {str(each["model_name"]) for each in listed}
    router = router_of(found, {})
    for alias in taken:
        if "*" not in alias and not any("set it and import again" in line for line in report):
            router.resolve(alias)  # what callers write still works
    router.close()


@pytest.mark.skipif(not FILES, reason="the configurations are not beside this repository")
@pytest.mark.parametrize("path", sorted(GOLDEN.glob("*.txt")), ids=lambda path: path.stem)
def test_the_report_of_a_configuration_is_as_it_was(path: Path) -> None:
    name = next(each for each in FILES if each.startswith(path.stem))
    _, report, _ = convert_litellm(CONFIGS / name, {})
    assert [line.partition(".yaml:")[2] or line for line in report] == path.read_text().splitlines()


@pytest.mark.skipif(not FILES, reason="the configurations are not beside this repository")
def test_every_configuration_gives_the_settings_and_remarks_it_gave_before() -> None:
    expected = json.loads((GOLDEN / "digests.json").read_text())
    differing = []
    for name in (name for name in FILES if name != TEMPLATE):
        written, report, complete = convert_litellm(CONFIGS / name, {})
        whole = json.dumps([yaml.safe_load(written), sorted(report), complete], sort_keys=True)
        if hashlib.sha256(whole.encode()).hexdigest() != expected.get(name):
            differing.append(name)
    assert not differing


@pytest.mark.skipif(not FILES, reason="the configurations are not beside this repository")
def test_a_helm_template_ends_with_its_line(tmp_path: Path) -> None:
    done = run(str(CONFIGS / TEMPLATE), "--out", str(tmp_path / "slipform.yaml"))
    assert "configmap-litellm.yaml:1" in str(done.exception)
    assert not (tmp_path / "slipform.yaml").exists()


WHOLE = f"""
model_list:
  - model_name: gpt
    litellm_params: {{model: azure/prod-gpt, api_base: "https://acme.openai.azure.com/", api_key: os.environ/AZURE_KEY,
                      api_version: "2025-01-01", rpm: 60, timeout: 30}}
  - model_name: gpt
    litellm_params: {{model: openai/gpt-6-luna, api_key: {SECRET}, weight: 3, temperature: 0.2,
                      max_parallel_requests: 4}}
    model_info: {{input_cost_per_token: 0.000001, output_cost_per_token: 0.00001, mode: chat}}
  - model_name: backup
    litellm_params: {{model: anthropic/claude-opus-5, extra_headers: {{X-Team: a, Authorization: "Bearer {SECRET}"}}}}
  - model_name: mine
    litellm_params: {{model: openai/qwen, api_base: "http://user:{SECRET}@gpu:8000/v1", api_key: none,
                      extra_body: {{chat_template_kwargs: {{x: 1}}, api_key: {SECRET}}}, reasoning_effort: low}}
  - model_name: llama
    litellm_params: {{model: ollama_chat/llama3, api_base: os.environ/OLLAMA, num_ctx: 8192, keep_alive: 5m}}
  - model_name: claude-vertex
    litellm_params: {{model: vertex_ai/claude-sonnet-5, vertex_project: acme, vertex_location: europe-west1}}
  - model_name: nova
    litellm_params: {{model: bedrock/us-west-2/amazon.nova-pro-v1, aws_secret_access_key: {SECRET}}}
  - model_name: shared
    litellm_params: {{model: openai/gpt-6-luna, litellm_credential_name: one}}
  - model_name: groq/*
    litellm_params: {{model: groq/*, api_key: os.environ/GROQ_API_KEY}}
credential_list:
  - {{credential_name: one, credential_values: {{api_key: os.environ/SHARED_KEY}}}}
environment_variables: {{REDIS_PASSWORD: {SECRET}}}
litellm_settings:
  fallbacks: [{{gpt: [backup]}}, {{backup: [gpt]}}]
  default_fallbacks: [mine]
  request_timeout: 45
  cache: true
  cache_params: {{type: redis, host: os.environ/REDIS_HOST, port: 6379, password: {SECRET}, ttl: 60}}
  callbacks: [prometheus, langfuse_otel, datadog, my.handler]
  drop_params: true
  num_workers: 4
general_settings: {{master_key: {SECRET}, database_url: "postgresql://a:{SECRET}@b/c", max_request_size_mb: 20}}
router_settings: {{routing_strategy: least-busy, num_retries: 3, model_group_alias: {{best: gpt}}}}
"""


def test_a_whole_configuration_is_taken_over(tmp_path: Path) -> None:
    found, report, complete = imported(WHOLE, tmp_path)
    aliases: Any = found.model_dump()["model_aliases"]
    assert found.providers["azure"].settings == {"resource": "acme"}
    assert found.providers["azure"].requests_per_minute == 60
    assert found.providers["azure"].timeout_seconds == 30
    assert found.providers["azure"].api_key_env == "AZURE_KEY"
    assert [(each["model"], each["weight"]) for each in aliases["gpt"][:2]] == [
        ("azure/prod-gpt", 3.0), ("openai/gpt-6-luna", 3.0),
    ]  # fmt: skip
    assert aliases["gpt"][1]["defaults"] == {"temperature": 0.2}
    assert aliases["gpt"][2:] == ["anthropic/claude-opus-5", {"model": "gpu/qwen", "weight": None, "defaults": MINE}]
    assert aliases["best"] == aliases["gpt"]
    assert found.prices["openai/gpt-6-luna"].output == 10
    assert found.providers["openai"].max_concurrent == 4
    assert found.providers["anthropic"].headers == {"X-Team": "a"}
    assert found.providers["gpu"].base_url == "http://gpu:8000/v1"
    assert aliases["llama"][0]["defaults"] == {"extra_body": {"keep_alive": "5m", "options": {"num_ctx": 8192}}}
    assert found.providers["vertex-ai"].settings == {"project": "acme", "location": "europe-west1"}
    assert found.providers["bedrock"].settings == {"region": "us-west-2"}
    assert found.providers["openai-2"].api_key_env == "SHARED_KEY"
    assert found.providers["groq"].api_key_env == "GROQ_API_KEY"
    assert (found.runtime.timeout_seconds, found.cache.enabled, found.cache.ttl_seconds) == (45, True, 60)
    assert found.redis is not None
    assert found.redis.url == "redis://:@127.0.0.1:6379/0"
    assert (found.server.keys_file, found.server.workers, found.server.port) == ("keys.json", 4, 4000)
    assert found.server.max_body_bytes == 20 * 1024 * 1024
    assert not complete
    text = "\n".join(report)
    for word in ("api_key", "extra_headers", "api_base", "aws_secret_access_key", "environment_variables", "master_key",
                 "database_url", "datadog", "my.handler", "least-busy", "num_retries", "cache_params"):  # fmt: skip
        assert word in text
    assert all("config.yaml:" in line for line in report)


MINE = {"extra_body": {"chat_template_kwargs": {"x": 1}}, "reasoning_effort": "low"}


def test_no_secret_is_copied_or_printed(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(WHOLE)
    written, report, _ = convert_litellm(tmp_path / "config.yaml", {})
    assert SECRET not in written + "\n".join(report)


def test_the_exit_code_says_whether_all_was_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("config.yaml").write_text("model_list: [{model_name: a, litellm_params: {model: openai/b}}]\n")
    assert run("config.yaml", "--check").exit_code == 0
    assert not Path("slipform.yaml").exists()
    assert run("config.yaml").exit_code == 0
    assert read_settings(Path("slipform.yaml").read_text()).model_aliases == {"a": "openai/b"}
    assert "already" in str(run("config.yaml").exception)
    assert run("config.yaml", "--force").exit_code == 0
    Path("config.yaml").write_text(
        "model_list: [{model_name: a, litellm_params: {model: openai/b, stream_timeout: 5}}]\n"
    )
    left = run("config.yaml", "--force")
    assert left.exit_code == 1
    assert left.stdout.startswith("config.yaml:1: left out: litellm_params.stream_timeout: ")
    assert run("config.yaml", "--out", "-").stdout.count("openai/b") == 1


def test_a_section_of_the_wrong_kind_is_named(tmp_path: Path) -> None:
    _, report, _ = imported("model_list: {a: {model: openai/b}}\nlitellm_settings: [1]\n", tmp_path)
    assert report == [
        "config.yaml:1: left out: model_list: it is not a list",
        "config.yaml:2: left out: litellm_settings: it is not a map",
    ]


@pytest.mark.parametrize("value", ["0", "-1", "soon", "[1]", "{a: 1}", "true"])
@pytest.mark.parametrize("section", ["litellm_params", "litellm_settings", "router_settings", "general_settings"])
def test_whatever_a_field_holds_it_is_taken_or_gets_its_line(section: str, value: str, tmp_path: Path) -> None:
    """Zero is a value: `timeout: 0` was taken for `timeout: false`, which asks for nothing."""
    fields = {*LEFT_OUT, *NOTES, *KIND_OF, *TAKEN, "a_field_nobody_knows"} - {"include", "environment_variables"}
    silent = []
    for name in sorted(fields - ONLY_WITH_ANOTHER):
        entry = f"{{model: openai/gpt, {name}: {value}}}" if section == "litellm_params" else "{model: openai/gpt}"
        text = f"model_list: [{{model_name: a, litellm_params: {entry}}}]\n"
        more = "" if section == "litellm_params" else f"{section}: {{{name}: {value}}}\n"
        found = LiteLlmImport({})
        written = convert(found, yaml.safe_load(text + more))
        if not found.remarks and written == convert(LiteLlmImport({}), yaml.safe_load(NOTHING_ASKED)):
            silent.append(name)
    assert silent == SAYS_NOTHING.get((section, value), [])


def test_included_files_are_read_and_missing_ones_named(tmp_path: Path) -> None:
    (tmp_path / "more.yaml").write_text(
        "model_list: [{model_name: b, litellm_params: {model: openai/c, stream_timeout: 5}}]\n"
    )
    text = "include: [more.yaml, gone.yaml]\nmodel_list: [{model_name: a, litellm_params: {model: openai/b}}]\n"
    found, report, _ = imported(text, tmp_path)
    assert found.model_aliases == {"a": "openai/b", "b": "openai/c"}
    assert report[0] == "config.yaml:1: left out: include: the file gone.yaml is not there"
    assert report[1].startswith("more.yaml:1: left out: litellm_params.stream_timeout")


def test_models_that_fall_back_on_each_other_do_not_go_in_circles(tmp_path: Path) -> None:
    entries = [{"model_name": name, "litellm_params": {"model": f"openai/{name}"}} for name in "abc"]
    config = {"model_list": entries, "litellm_settings": {"fallbacks": [{"a": ["b"]}, {"b": ["a", "c"]}, {"*": ["c"]}]}}
    found, _, _ = imported(yaml.safe_dump(config), tmp_path)
    assert found.alias_models == {
        "a": ["openai/a", "openai/b", "openai/c"], "b": ["openai/b", "openai/a", "openai/c"], "c": "openai/c",
    }  # fmt: skip


def test_an_alias_that_looks_like_another_models_name_does_not_take_its_calls(tmp_path: Path) -> None:
    text = """
model_list:
  - {model_name: openai/gpt, litellm_params: {model: groq/llama}}
  - {model_name: real, litellm_params: {model: openai/gpt}}
"""
    found, _, _ = imported(text, tmp_path)
    router = router_of(found, {})
    assert [router.resolve(name)[1] for name in ("openai/gpt", "real")] == ["llama", "gpt"]
    router.close()


@pytest.mark.parametrize("provider", sorted(known_providers()))
def test_every_provider_that_is_known_gives_settings_that_load(provider: str, tmp_path: Path) -> None:
    entry = {"model_name": "m", "litellm_params": {"model": f"{provider}/x", "api_key": f"os.environ/{provider}_KEY"}}
    for more in (
        {},
        {"api_base": "http://host:1/v1"},
        {"api_base": "os.environ/BASE"},
        {"api_base": "http://${H}:${P}/v1"},
    ):
        config = {"model_list": [{**entry, "litellm_params": {**entry["litellm_params"], **more}}]}  # type: ignore[dict-item]
        found, report, _ = imported(yaml.safe_dump(config), tmp_path)
        assert found.model_aliases or any("address" in line for line in report)


def test_what_only_litellms_router_knows_is_not_sent_to_a_vendor_and_other_apis_are_named(tmp_path: Path) -> None:
    text = """
model_list:
  - {model_name: a, litellm_params: {model: openai/b, region_name: eu, request_timeout: 9, new_field: 3}}
  - {model_name: w, litellm_params: {model: watsonx/granite, api_base: os.environ/URL}}
  - {model_name: u, litellm_params: {model: nowhere/x, api_base: os.environ/URL}}
"""
    found, report, _ = imported(text, tmp_path)
    aliases: Any = found.model_dump()["model_aliases"]
    assert aliases["a"] == {"model": "openai/b", "defaults": {"extra_body": {"new_field": 3}}, "response_schema": None}
    assert aliases["u"] == "custom-openai/nowhere/x"
    assert found.providers["openai"].timeout_seconds == 9
    assert any("the API of 'watsonx'" in line for line in report)
    assert any("region_name: only LiteLLM's own router" in line for line in report)


def test_the_name_of_a_model_in_the_environment_is_looked_up(tmp_path: Path) -> None:
    text = "model_list: [{model_name: a, litellm_params: {model: os.environ/MODEL}}]\n"
    found, report, _ = imported(text, tmp_path, {"MODEL": "groq/llama"})
    assert found.model_aliases == {"a": "groq/llama"}
    found, report, _ = imported(text, tmp_path)
    assert "MODEL, which is not set" in report[0]


NAMES = st.sampled_from(sorted({
    *NOTES, *LEFT_OUT,
    "model", "api_key", "api_base", "base_url", "temperature", "max_tokens", "rpm", "weight", "order",
    "timeout", "extra_body", "extra_headers", "custom_llm_provider", "num_ctx", "stop", "organization", "made_up",
    "cache", "fallbacks", "default_fallbacks", "cache_params", "callbacks", "request_timeout", "redis_host",
    "redis_url",
    "master_key", "model_group_alias", "default_params", "completion_model", "max_parallel_requests", "headers",
    "input_cost_per_token", "aws_region_name", "vertex_project", "reasoning_effort", "thinking",
}))  # fmt: skip
SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(-5, 10**6), st.floats(allow_nan=True), st.text(max_size=12),
    st.sampled_from(["os.environ/X", "${X}", "openai/gpt", "ollama/x", "a", "b", "http://h:1/v1", "http://[", "redis",
                     "*", "azure/x", "bedrock/y", "nowhere/z", "groq/*", SECRET, f"https://u:{SECRET}@h/"]),
)  # fmt: skip
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES | st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
FIELDS = st.dictionaries(NAMES, VALUES, max_size=6)
ENTRY = st.fixed_dictionaries(
    {"model_name": SCALARS, "litellm_params": FIELDS.map(lambda fields: {"model": "openai/x", **fields})},
    optional={"model_info": FIELDS | SCALARS, "other": VALUES},
)


@pytest.mark.parametrize(
    "redis",
    [
        {"host": {"a": None}},
        {"host": "[::"},
        {"url": "localhost:6379"},
        {"url": "redis://[x]/"},
        {"url": "redis://h:p"},
    ],
)
def test_an_address_of_redis_that_no_client_can_use_is_left_out_and_named(
    tmp_path: Path, redis: dict[str, Any]
) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump({"litellm_settings": {"cache": True, "cache_params": {"type": "redis", **redis}}}))
    written, report, _ = convert_litellm(path, {})
    loaded(written)
    assert "redis:" not in written
    assert "cannot be addressed" in str(report)


@settings(max_examples=examples(120), deadline=None)
@given(
    st.fixed_dictionaries(
        {"model_list": st.lists(ENTRY | SCALARS, max_size=4)},
        optional={
            "litellm_settings": FIELDS | SCALARS,
            "router_settings": FIELDS,
            "general_settings": FIELDS,
            "environment_variables": FIELDS,
            "guardrails": VALUES,
        },
    )
)
def test_whatever_a_configuration_holds_the_result_loads_and_has_no_secret(
    tmp_path_factory: pytest.TempPathFactory, config: Any
) -> None:
    path = tmp_path_factory.getbasetemp() / f"{os.getpid()}.yaml"
    path.write_text(yaml.safe_dump(config))
    written, report, _ = convert_litellm(path, {})
    loaded(written)
    assert SECRET not in written + "\n".join(report)


def test_how_credentials_of_a_cloud_are_found_is_taken_over(tmp_path: Path) -> None:
    text = f"""
model_list:
  - model_name: nova
    litellm_params:
      model: bedrock/amazon.nova-pro-v1
      aws_profile_name: work
      aws_role_name: arn:aws:iam::1:role/r
      aws_session_name: os.environ/WHO
      aws_web_identity_token: {SECRET}
  - model_name: flash
    litellm_params: {{model: vertex_ai/gemini-4-flash, vertex_project: p, vertex_credentials: /etc/account.json}}
  - model_name: pro
    litellm_params:
      model: vertex_ai/gemini-4-pro
      vertex_project: p
      vertex_credentials: '{{"type": "service_account", "private_key": "{SECRET}"}}'
"""
    settings, report, complete = imported(text, tmp_path)
    by_kind = {(each.kind or name): each.settings for name, each in settings.providers.items() if each.settings}
    whole = "\n".join(report)
    assert by_kind["bedrock"] == {"profile": "work", "role_arn": "arn:aws:iam::1:role/r", "session_name": ""}
    assert {"project": "p", "credentials_file": "/etc/account.json"} in [
        each.settings for each in settings.providers.values()
    ]
    for word in ("aws_profile_name", "aws_role_name", "aws_web_identity_token", "vertex_credentials", "slipform[aws]"):
        assert word in whole
    assert SECRET not in whole
    assert not complete
