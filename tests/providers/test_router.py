"""From a model's name to who answers."""

from __future__ import annotations

import pytest

from slipform.errors import ConfigError, UnknownModelError
from slipform.providers.router import Router
from slipform.testing import FakeModel


def router(**options: object) -> Router:
    providers = {
        "openai": FakeModel(["a"], name="openai"),
        "zai": FakeModel(["b"], name="zai"),
        "local": FakeModel(["c"], name="local", models=["tiny", "small"]),
    }
    return Router(providers, **options)  # type: ignore[arg-type]


@pytest.mark.covers("S2-04", "S2-27", "S2-28")
def test_the_first_slash_splits() -> None:
    provider, model = router().resolve("openai/org/gpt-oss/20b")
    assert (provider.name, model) == ("openai", "org/gpt-oss/20b")


@pytest.mark.covers("S2-29")
def test_aliases_come_first_and_may_lead_to_aliases() -> None:
    made = router(aliases={"glm": "zai/glm-4.5", "fast": "glm", "openai/x": "local/tiny"})
    assert made.resolve("fast")[1] == "glm-4.5"
    assert made.resolve("openai/x")[0].name == "local"
    assert made.aliases["fast"] == "zai/glm-4.5"


def test_a_provider_alone_stands_for_its_first_model() -> None:
    assert router().resolve("local")[1] == "tiny"
    alone = Router({"local": FakeModel(["c"], models=["tiny", "small"])})
    assert alone.resolve()[1] == "tiny"
    with pytest.raises(UnknownModelError, match="without a model"):
        router().resolve("openai")


def test_the_default_is_used_when_no_model_is_named() -> None:
    made = router(aliases={"glm": "zai/glm-4.5"}, default="glm")
    assert made.resolve()[1] == "glm-4.5"
    assert made.resolve("")[1] == "glm-4.5"
    with pytest.raises(UnknownModelError, match="no default model"):
        router().resolve(None)


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("opnai/gpt-6", "openai/gpt-6"),
        ("local/tinny", "local/tiny"),
        ("tiny", "local/tiny"),
        ("glmm", "glm"),
        ("openai", "openai/<model>"),
        ("openai/", "openai/<model>"),
    ],
)
def test_an_unknown_name_lists_the_nearest(name: str, nearest: str) -> None:
    with pytest.raises(UnknownModelError) as caught:
        router(aliases={"glm": "zai/glm-4.5"}).resolve(name)
    assert nearest in caught.value.details["nearest"]
    assert nearest in str(caught.value)
    assert caught.value.http_status == 404


def test_a_name_like_no_other_lists_the_providers() -> None:
    with pytest.raises(UnknownModelError, match="local, openai, zai"):
        router().resolve("qqqqqqqq/y")


def test_mistakes_in_aliases_are_found_when_it_is_made() -> None:
    with pytest.raises(ConfigError, match="circle: a → b → a") as caught:
        router(aliases={"a": "b", "b": "a"})
    assert caught.value.where == "model_aliases.a"
    with pytest.raises(ConfigError, match="providers are: local, openai, zai"):
        router(aliases={"a": "nobody/x"})
    with pytest.raises(ConfigError, match="default"):
        router(default="gpt-6")


def test_it_lists_what_it_knows_and_closes_its_providers() -> None:
    made = router(aliases={"glm": "zai/glm-4.5"})
    assert made.names() == ["glm", "local/tiny", "local/small"]
    made.close()
    assert all(provider.closed for provider in made.providers.values())  # type: ignore[attr-defined]


@pytest.mark.covers("S2-29")
def test_an_alias_may_stand_for_several_models() -> None:
    made = router(aliases={"fast": ["openai/a", "glm", "local/tiny"], "glm": "zai/glm-4.5", "all": ["fast", "zai/x"]})
    assert made.candidates("fast") == ("openai/a", "zai/glm-4.5", "local/tiny")
    assert made.candidates("all") == ("openai/a", "zai/glm-4.5", "local/tiny", "zai/x")
    assert made.candidates("glm") == ("glm",)
    assert made.candidates("openai/x") == ("openai/x",)
    assert made.candidates(["glm", "fast"]) == ("glm", "openai/a", "zai/glm-4.5", "local/tiny")
    assert made.resolve("fast")[1] == "a"
    assert made.aliases["fast"] == "openai/a"
    with pytest.raises(UnknownModelError):
        made.candidates(["fast", "nowhere/x"])
    assert router(aliases={"fast": ["openai/a", "zai/b"]}, default="fast").candidates("") == ("openai/a", "zai/b")


@pytest.mark.parametrize(
    ("aliases", "said"),
    [
        ({"a": ["openai/x", "b"], "b": ["a"]}, "circle"),
        ({"a": []}, "no model"),
        ({"a": ["openai/x", "nowhere/y"]}, "nowhere/y"),
    ],
)
def test_lists_that_lead_nowhere_are_refused(aliases: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        router(aliases=aliases)


def test_the_full_name_of_a_model_whatever_it_is_called() -> None:
    made = router(aliases={"glm": "zai/glm-4.5", "openai/x": "local/tiny"}, default="glm")
    names = {
        "glm": "zai/glm-4.5",
        "": "zai/glm-4.5",
        "local": "local/tiny",
        "openai/x": "local/tiny",
        "zai/a/b": "zai/a/b",
    }
    assert {name: made.full_name(name) for name in names} == names


def test_the_default_may_be_a_list() -> None:
    made = router(aliases={"fast": ["zai/b", "zai/c"]}, default=["openai/a", "fast"])
    assert made.candidates("") == ("openai/a", "zai/b", "zai/c")
    assert made.resolve()[1] == "a"
    assert made.for_callers().candidates("") == made.candidates("")
    with pytest.raises(ConfigError, match="nowhere/x"):
        router(default=["openai/a", "nowhere/x"])


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("openai/gpt-4o", "No key is set for 'openai'.*openai is known; set OPENAI_API_KEY"),
        ("gpt-4o", "Did you mean openai/gpt-4o\\? openai is known; set OPENAI_API_KEY"),
        ("claude-opus-5-5", "Did you mean anthropic/claude-opus-5-5\\? anthropic is known"),
        ("o3-mini", "Did you mean openai/o3-mini"),
        ("opnai/gpt-4o", "Did you mean openai/gpt-4o"),
        ("ollama/llama3.2", "'ollama' is not in use.*it needs no key: add `providers: {ollama: {}}`"),
        ("nonsense", "Name it as `provider/model`; the providers are: zai"),
    ],
)
def test_an_unknown_name_is_answered_with_what_to_do(name: str, says: str) -> None:
    with pytest.raises(UnknownModelError, match=says):
        Router({"zai": FakeModel(["x"])}).resolve(name)


def test_the_vendor_of_a_bare_name_is_suggested_alone_when_it_is_there() -> None:
    with pytest.raises(UnknownModelError, match=r"Did you mean openai/gpt-4o\?$"):
        Router({"openai": FakeModel(["x"]), "zai": FakeModel(["x"])}).resolve("gpt-4o")


def test_names_without_a_provider_go_to_the_endpoint() -> None:
    router = Router({"mine": FakeModel(["x"])}, endpoint="mine")
    assert router.resolve("org/model")[1] == "org/model"
    assert router.resolve("mine/model")[1] == "model"
    assert router.full_name("org/model") == "fake/org/model"
