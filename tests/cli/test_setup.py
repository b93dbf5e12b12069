"""`slipform init`, `doctor`, `models`, `serve --check`: setting up."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from slipform import config
from slipform.addons.server.console.access import console_secret, link_token
from slipform.build_info import build_in_use
from slipform.cli.settings import settings_template
from slipform.config import Settings, read_settings
from slipform.library.client import Client
from slipform.providers.downgrade_file import downgrade_file, remembered_downgrades
from slipform.providers.http import HttpProvider
from slipform.providers.router import Router
from slipform.testing import Answer, FakeVendor, Received, Step, calling, rejected
from tests.cli.conftest import Cli
from tests.conftest import PERSON
from tests.providers.conftest import QUICK

Fake = Callable[..., FakeVendor]


def words(text: str) -> str:
    """A text without line breaks and comment marks."""
    return " ".join(re.sub(r"^[\s#]+", "", line) for line in text.splitlines())


@pytest.mark.covers("S1-04", "S1-08", "S1-64")
def test_the_file_that_init_writes_holds_every_setting_with_its_default(cli: Cli, folder: Path) -> None:
    done = cli("init")
    assert done.code == 0
    assert "slipform.yaml" in done.err
    text = (folder / "slipform.yaml").read_text()
    assert read_settings(text) == Settings()
    assert cli("init", "-").out == text


@pytest.mark.covers("S1-06", "S1-64")
def test_everything_the_settings_say_of_themselves_is_in_the_file() -> None:
    source, _, _ = Path(config.__file__).read_text().partition("def load_settings")
    said = re.findall(r'^    """(.+)"""$', source, re.MULTILINE)
    assert len(said) > 20
    missing = [text for text in said if text not in words(settings_template()) and not text.startswith("Names are")]
    assert missing == []
    for name in Settings.model_fields:
        assert f"\n{name}:" in settings_template()


def test_a_file_that_is_there_is_not_written_over_unless_asked(cli: Cli, folder: Path) -> None:
    (folder / "slipform.yaml").write_text("default_model: local\n")
    done = cli("init")
    assert done.code == 3
    assert "--force" in done.err
    assert (folder / "slipform.yaml").read_text() == "default_model: local\n"
    assert cli("init", "--force").code == 0
    assert "enforcement:" in (folder / "slipform.yaml").read_text()


def test_a_folder_that_cannot_be_written_is_told(cli: Cli, folder: Path) -> None:
    done = cli("init", "missing/slipform.yaml")
    assert done.code == 3
    assert "cannot be written" in done.err
    assert "missing/slipform.yaml" in done.err
    assert "cannot be written" in cli("init", "--force", ".").err


def test_what_init_writes_pleases_the_doctor(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slipform.addons.local.LocalProvider.warm", lambda _: None)
    cli("init")
    done = cli("doctor", "--offline")
    assert done.code == 0
    assert f" {build_in_use()}\n" in done.out
    assert "slipform.yaml is valid" in done.out
    assert "no vendor's key is set" in done.out
    assert "local/smollm2-135m: native" in done.out
    assert done.out.endswith("Everything looks good.\n")


@pytest.mark.local
@pytest.mark.xdist_group("local")
def test_the_doctor_loads_the_embedded_model(cli: Cli) -> None:
    done = cli("doctor")
    assert done.code == 0
    assert "smollm2-135m is here and loads" in done.out
    assert "nothing to reach" in done.out
    assert "no slipform.yaml here" in done.out


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The embedded model is not looked for."""
    monkeypatch.setattr("slipform.cli.doctor.embedded", lambda _: [])


@pytest.mark.usefixtures("quick")
def test_keys_are_named_and_never_shown(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GROQ_API_KEY", "gsk-very-secret")
    done = cli("doctor", "--offline", "--model", "groq/llama-9", "--model", "local")
    assert "GROQ_API_KEY is set, for groq" in done.out
    assert "very-secret" not in done.out + done.err
    assert "groq/llama-9: " in done.out
    assert "smollm2" not in done.out


@pytest.mark.usefixtures("quick")
def test_a_configured_provider_without_its_key_is_a_fault(
    cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "slipform.yaml").write_text(
        "providers:\n  openai: {}\n  mine: {base_url: 'http://h/v1', api_key_env: MY_KEY}\n"
    )
    done = cli("doctor", "--offline")
    assert done.code == 1
    assert "the provider openai has no key: set OPENAI_API_KEY" in done.out
    assert "the provider mine has no key: set MY_KEY" in done.out
    assert "2 problems found." in done.out
    monkeypatch.setenv("OPENAI_API_KEY", "a")
    monkeypatch.setenv("MY_KEY", "b")
    assert cli("doctor", "--offline").code == 0


@pytest.mark.usefixtures("quick")
def test_a_provider_is_reached_without_its_key(cli: Cli, fake: Fake) -> None:
    vendor = fake(["Hello"])
    done = cli("doctor")
    assert done.code == 0
    assert f"fake: {vendor.base_url} answers" in done.out
    assert vendor.requests[0].method == "GET"
    assert "authorization" not in vendor.requests[0].headers


@pytest.mark.usefixtures("quick")
def test_a_provider_that_cannot_be_reached_is_a_fault_only_if_the_config_names_it(
    cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret-1")
    monkeypatch.setenv("OPENAI_BASE_URL", "http://me:hunter22@127.0.0.1:9/v1")
    done = cli("doctor")
    assert done.code == 0
    assert "openai: http://me:[redacted]@127.0.0.1:9/v1 cannot be reached: Connection refused" in done.out
    assert "is this machine offline?" in done.out
    (folder / "slipform.yaml").write_text("providers: {openai: {}}\n")
    assert cli("doctor").code == 1


@pytest.mark.usefixtures("quick")
def test_a_mistake_in_the_config_is_told_with_its_line_and_the_rest_is_checked(cli: Cli, folder: Path) -> None:
    (folder / "slipform.yaml").write_text("output:\n  require_jsn: true\n")
    done = cli("doctor", "--offline")
    assert done.code == 1
    assert "slipform.yaml:2: `output.require_jsn`: unknown setting" in done.out
    assert "keys" in done.out


def test_a_broken_embedded_engine_is_a_fault_when_it_is_the_default(
    cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from slipform.errors import LocalModelError

    def fail(_: object) -> None:
        raise LocalModelError("The engine is ill")

    monkeypatch.setattr("slipform.addons.local.LocalProvider.warm", fail)
    assert cli("doctor", "--offline").code == 1
    (folder / "slipform.yaml").write_text("default_model: m/x\nproviders: {m: {base_url: 'http://h/v1'}}\n")
    done = cli("doctor", "--offline")
    assert done.code == 0
    assert "The engine is ill" in done.out


def test_weights_that_are_not_here_are_worth_knowing(cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLIPFORM_CACHE", str(folder / "empty"))
    monkeypatch.setattr("slipform.addons.local.weights.find_installed", lambda _: None)
    done = cli("doctor", "--offline")
    assert done.code == 0
    assert "not fetched" in done.out
    assert "not fetched (93 MB): slipform models pull smollm2-135m" in cli("models").out


def test_models_lists_aliases_embedded_models_and_the_providers_lists(
    cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GROQ_API_KEY", "x")
    (folder / "slipform.yaml").write_text(
        "model_aliases: {fast: mine/a, safe: [mine/a, local]}\n"
        "providers: {mine: {base_url: 'http://h/v1', models: [a, b]}}\n"
    )
    done = cli("models")
    rows = dict(line.split("\t") for line in done.out.splitlines())
    assert rows["fast"] == "= mine/a"
    assert rows["safe"] == "= mine/a, then local"
    assert "local/smollm2-135m" in rows
    assert rows["mine/b"] == "native"
    assert rows["groq/MODEL"] == "any model of this provider"
    assert "anthropic/MODEL" not in rows
    everything = cli("models", "--all").out
    assert "anthropic/MODEL\tAnthropic: set ANTHROPIC_API_KEY" in everything
    assert "ollama" in everything


def test_an_unknown_embedded_model_is_met_with_the_known_ones(cli: Cli) -> None:
    done = cli("models", "pull", "smolm")
    assert done.code == 3
    assert "smollm2-135m" in done.err


@pytest.mark.local
@pytest.mark.xdist_group("local")
def test_pulling_what_is_here_tells_where(cli: Cli) -> None:
    assert cli("models", "pull").out.strip().endswith(".gguf")
    assert cli("models", "pull", "local/smollm2-135m").code == 0


def test_serve_check_prints_the_settings_in_force_without_secrets(cli: Cli, folder: Path) -> None:
    (folder / "slipform.yaml").write_text(
        "redis: {url: 'redis://me:hunter22@host/0'}\n"
        "providers:\n"
        "  mine:\n"
        "    base_url: 'http://u:hunter33@h/v1?key=hunter44'\n"
        "    api_key_env: MY_KEY\n"
        "    headers: {x-api-key: hunter55, x-team: blue}\n"
    )
    done = cli("serve", "--check", "--port", "9000")
    assert done.code == 0
    assert "hunter" not in done.out
    shown = read_settings(done.out)
    assert shown.server.port == 9000
    assert shown.providers["mine"].headers == {"x-api-key": "[redacted]", "x-team": "blue"}
    assert shown.providers["mine"].api_key_env == "MY_KEY"
    assert shown.server.model_dump(exclude={"port"}) == Settings().server.model_dump(exclude={"port"})
    assert cli("serve", "--check", "--config", "nowhere.yaml").code == 3


def _no_native_and_no_deep_schema(received: Received) -> Step:
    body = received.body.decode()
    if "json_schema" in body and '"stubborn"' in body:
        return rejected("This model does not support response format json_schema")
    if "json_schema" in body and '"picky"' in body:
        return rejected("Invalid schema: the schema is too complex")
    return Answer(calling(("output", {"name": "Ada", "age": 36})))


@pytest.mark.usefixtures("quick")
def test_what_refusals_taught_is_shown_for_a_model_and_by_the_doctor(
    cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(folder))
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret-1")
    with FakeVendor(_no_native_and_no_deep_schema) as vendor:
        (folder / "slipform.yaml").write_text(f"providers: {{openai: {{base_url: '{vendor.base_url}'}}}}\n")
        before = cli("models", "show", "openai/stubborn").out.splitlines()
        assert {"strategy\tnative", "learned\tnothing"} <= set(before)
        assert "nothing: every model is asked as the catalogue says" in cli("doctor", "--offline").out
        lessons = remembered_downgrades(downgrade_file())
        provider = HttpProvider("openai", base_url=vendor.base_url, api_key="k", retries=QUICK, downgrades=lessons)
        for name in ("openai/stubborn", "openai/picky"):
            Client(name, router=Router({"openai": provider})).ask(PERSON, "Who?")
    stubborn, picky = (cli("models", "show", f"openai/{name}").out for name in ("stubborn", "picky"))
    assert {"strategy\ttool", "steps down\ttool → json_mode → prompt"} <= set(stubborn.splitlines())
    assert "learned\tstubborn does not take a schema on its native channel" in stubborn
    assert "strategy\tnative" in picky.splitlines()  # only that schema was at fault
    assert "learned\tpicky does not take this schema on its native channel (the schema " in picky
    doctor = cli("doctor", "--offline").out
    assert "openai/stubborn does not take a schema on its native channel" in doctor
    assert "openai/picky does not take this schema on its native channel" in doctor
    assert "secret" not in stubborn + picky + doctor


def test_console_prints_a_link_that_signs_in_and_opens_it(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    done = cli("console", "--port", "8123")
    assert done.code == 0
    assert done.out.strip() == f"http://127.0.0.1:8123/console/#t={link_token(console_secret())}"
    assert opened == [done.out.strip()]
    assert cli("console", "--no-open").code == 0
    assert len(opened) == 1


@pytest.mark.parametrize(
    ("server", "said"),
    [
        ("console: 'off'", ("The console is switched off", "server.console", "Set it to `auto` or `on`")),
        ("keys_file: keys.json", ("takes an operator's key", "server.keys_file", "slipform keys add NAME --operator")),
    ],
)
def test_console_says_why_there_is_no_link(cli: Cli, folder: Path, server: str, said: tuple[str, ...]) -> None:
    (folder / "slipform.yaml").write_text(f"server: {{{server}}}\n")
    done = cli("console")
    assert (done.code, done.out) == (3, "")
    assert [each for each in said if each not in " ".join(done.err.split())] == []
