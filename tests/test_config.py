"""Settings, and mistakes in them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import get_args, get_origin

import pytest
from pydantic import BaseModel

from slipform.config import Settings, load_settings, read_settings
from slipform.errors import ConfigError

DOCUMENT_001 = """
output:
  require_json: true
  use_response_schema: true
  response_mime_type: application/json
runtime:
  streaming: false
  timeout_seconds: 120
retries:
  attempts: 1
  backoff_seconds: 2
model_aliases: { glm: zai/glm-4.5 }
providers:
  zai:
    api_key_env: ZAI_KEY
    headers: { x-team: a }
"""


@pytest.mark.covers("S1-04", "S1-05", "S1-07", "S1-08", "S1-09", "S1-10", "S1-11", "S1-12", "S2-29", "S2-30", "S2-31")
def test_the_blocks_of_the_design_are_read() -> None:
    settings = read_settings(DOCUMENT_001)
    assert settings.output.require_json
    assert settings.runtime.timeout_seconds == 120
    assert (settings.retries.attempts, settings.retries.backoff_seconds) == (1, 2)
    assert settings.model_aliases == {"glm": "zai/glm-4.5"}
    assert settings.providers["zai"].headers == {"x-team": "a"}


@pytest.mark.covers("S1-06", "S2-52", "C02", "C03", "C11")
def test_the_defaults_are_the_designs() -> None:
    settings = Settings()
    assert settings.output.require_json is False
    assert settings.output.response_mime_type == "application/json"
    assert settings.enforcement.max_attempts == 3
    assert settings.enforcement.stream_mode == "auto"
    assert settings.retries.backoff_seconds == 2


@pytest.mark.covers("C33")
def test_camel_case_names_are_taken() -> None:
    assert read_settings("output: {requireJson: true}\ndefaultModel: a/b").output.require_json


@pytest.mark.parametrize(
    ("text", "where", "said"),
    [
        ("output:\n  require_json: 'yes'\n", "slipform.yaml:2", "output.require_json"),
        ("output:\n  require_jsn: true\n", "slipform.yaml:2", "unknown setting"),
        ("retries:\n  attempts: -1\n", "slipform.yaml:2", "greater than or equal to 0"),
        ("runtime:\n  timeout_seconds: 0\n", "slipform.yaml:2", "greater than 0"),
        ("a: [\n", "slipform.yaml:2", "not YAML"),
        ("- a\n", "slipform.yaml:1", "the file"),
        ("output:\n  require_json: true\n  require_json: false\n", "slipform.yaml:3", "set twice"),
        ("enforcement:\n  on_failure: explode\n", "slipform.yaml:2", "'raise' or 'raw'"),
    ],
)
def test_a_mistake_is_named_with_its_line(text: str, where: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_settings(text)
    assert where in str(caught.value)
    assert said in str(caught.value)


def test_all_mistakes_are_named_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        read_settings("output: {a: 1}\nretries: {b: 2}\n")
    assert caught.value.details["mistakes"] == [
        "slipform.yaml:1: `output.a`: unknown setting",
        "slipform.yaml:2: `retries.b`: unknown setting",
    ]


def test_an_empty_file_and_no_file_mean_the_defaults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert read_settings("# nothing\n") == Settings()
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SLIPFORM_CONFIG", raising=False)
    assert load_settings() == Settings()


def test_the_file_is_found_here_or_by_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "slipform.yaml").write_text("default_model: here/m")
    (tmp_path / "other.yaml").write_text("default_model: there/m")
    monkeypatch.delenv("SLIPFORM_CONFIG", raising=False)
    assert load_settings().default_model == "here/m"
    monkeypatch.setenv("SLIPFORM_CONFIG", "other.yaml")
    assert load_settings().default_model == "there/m"
    with pytest.raises(ConfigError, match="missing"):
        load_settings(tmp_path / "missing.yaml")


def test_variables_of_the_environment_come_before_the_file() -> None:
    environment = {
        "SLIPFORM_SERVER__PORT": "9000",
        "SLIPFORM_SERVER__MAX_BODY_BYTES": "5000",
        "SLIPFORM_DEFAULT_MODEL": "mine/1",
        "SLIPFORM_ENFORCEMENT__MAX_ATTEMPTS": "2",
        "SLIPFORM_SERVER__CORS_ORIGINS": "[http://a, http://b]",
        "SLIPFORM_MODEL_ALIASES__FAST": "[a/b, c/d]",
        "SLIPFORM_PROVIDERS": "{mine: {base_url: 'http://x'}}",
        "SLIPFORM_REDIS__URL": "redis://x",
        "SLIPFORM_REDIS__PREFIX": "us:",
        "SLIPFORM_CONFIG": "no setting",
        "SLIPFORM_CACHE": "no setting",
        "SLIPFORM_PURE": "1",
        "SLIPFORM_PEERS": "no setting",
        "HOME": "/",
    }
    settings = read_settings("server: {host: h, port: 1, maxBodyBytes: 2000}", environment=environment)
    assert (settings.server.host, settings.server.port, settings.server.max_body_bytes) == ("h", 9000, 5000)
    assert settings.server.cors_origins == ["http://a", "http://b"]
    assert (settings.default_model, settings.enforcement.max_attempts) == ("mine/1", 2)
    assert settings.model_aliases == {"fast": ["a/b", "c/d"]}
    assert settings.providers["mine"].base_url == "http://x"
    assert settings.redis is not None
    assert settings.redis.prefix == "us:"


@pytest.mark.parametrize(
    ("text", "environment", "said"),
    [
        (
            "",
            {"SLIPFORM_SERVER__PORT": "many"},
            "SLIPFORM_SERVER__PORT: `server.port`: Input should be a valid integer",
        ),
        ("", {"SLIPFORM_SERVR__PORT": "1"}, "SLIPFORM_SERVR__PORT: `servr`: unknown setting"),
        ("", {"SLIPFORM_OUTPUT": "{require_json: 3"}, "not YAML"),
        ("server: 3", {"SLIPFORM_SERVER__PORT": "1"}, "SLIPFORM_SERVER__PORT"),
        ("runtime:\n  timeout_seconds: ${SECONDS}\n", {"SECONDS": "-1"}, "slipform.yaml:2"),
        ("output: {require_json: true}\ndefault_model: a/${NAME}\n", {}, "NAME is not set, at slipform.yaml:2"),
    ],
)
def test_a_mistake_in_the_environment_names_the_variable(text: str, environment: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_settings(text, environment=environment)
    assert said in str(caught.value)


def test_the_files_texts_may_name_variables() -> None:
    text = """
server: { port: "${PORT}" }
providers:
  mine: { base_url: "http://${HOST}:${PORT}/v1", headers: { x-team: "$${PORT}" }, models: ["${MODEL}"] }
"""
    settings = read_settings(text, environment={"PORT": "81", "HOST": "gpu", "MODEL": "7"})
    assert settings.server.port == 81
    mine = settings.providers["mine"]
    assert (mine.base_url, mine.headers, mine.models) == ("http://gpu:81/v1", {"x-team": "${PORT}"}, ["7"])


def test_without_a_file_the_environment_counts_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SLIPFORM_CONFIG", raising=False)
    monkeypatch.setenv("SLIPFORM_RUNTIME__STREAMING", "true")
    assert load_settings().runtime.streaming


def names_of(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    for name, field in model.model_fields.items():
        kinds = [field.annotation, *get_args(field.annotation)]
        blocks = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)]
        by_name = ".NAME" if get_origin(field.annotation) is dict and blocks else ""
        if blocks:
            yield from names_of(blocks[0], f"{prefix}{name}{by_name}.")
        else:
            yield f"{prefix}{name}"


def test_every_setting_is_in_the_reference() -> None:
    page = (Path(__file__).resolve().parent.parent / "docs" / "reference.md").read_text(encoding="utf-8")
    assert [name for name in names_of(Settings) if f"| `{name}` |" not in page] == []


def test_a_reference_may_say_what_stands_there_when_the_variable_is_not_set() -> None:
    text = "redis: {url: 'redis://${HOST:-127.0.0.1}:${PORT:-6379}/0', prefix: '$${X:-y}'}\nserver: {port: '${P:-81}'}"
    found = read_settings(text, environment={"HOST": "cache"})
    assert found.redis is not None
    assert (found.redis.url, found.redis.prefix, found.server.port) == ("redis://cache:6379/0", "${X:-y}", 81)


@pytest.mark.parametrize(
    ("text", "suggested"),
    [
        ("default_modle: local\n", "default_model"),
        ("server:\n  prot: 1\n", "port"),
        ("providers:\n  x: {kind: openai, api_key: secret}\n", "api_key_env"),
    ],
)
def test_a_misspelled_setting_is_answered_with_the_nearest_one(text: str, suggested: str) -> None:
    with pytest.raises(ConfigError, match=f"unknown setting; did you mean `{suggested}`"):
        read_settings(text)
