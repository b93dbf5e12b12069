"""Document 001's runner: instructions and files in, one file out for each."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path

import pytest

from slipform.addons.batch.call import Adapter
from slipform.config import Settings, read_settings
from slipform.engine.setup import Options
from slipform.errors import (
    AuthenticationError,
    ConfigError,
    JsonEnforcementError,
    SchemaViolationError,
    SlipformError,
    UpstreamTimeout,
)
from slipform.ir import ModelRequest, ModelResponse
from slipform.providers.http import HttpProvider
from slipform.providers.router import Router
from slipform.runner import run, run_report
from slipform.schema import Schema
from slipform.testing import Api, FakeModel, FakeVendor, Raw, hang, rate_limited, rejected
from tests.conftest import PERSON
from tests.runner.conftest import fake_router, settings_of
from tests.waiting import for_ever

ON = read_settings(
    "output: {require_json: true, use_response_schema: true}\nretries: {attempts: 1, backoff_seconds: 0}"
)
ADA = '{"name":"Ada","age":36}'


def letters(folder: Path, *names: str) -> list[Path]:
    for name in names:
        (folder / name).write_text(f"This is {name}.")
    return [folder / name for name in names]


@pytest.mark.covers("S1-18")
def test_each_file_gets_an_output_and_the_model_that_answered(tmp_path: Path) -> None:
    files = letters(tmp_path, "a.txt", "b.md")
    model = FakeModel(lambda request: f"About {request.messages[-1].text}", models=("tiny", "big"))
    written = run("Tell me.", files, router=Router({"fake": model}, {"fast": "fake/big"}), model="fast", concurrency=1)
    assert written == [(tmp_path / "a.txt.out.txt", "fake/big"), (tmp_path / "b.md.out.txt", "fake/big")]
    assert (tmp_path / "a.txt.out.txt").read_text() == "About This is a.txt."
    assert [message.role for message in model.requests[0].messages] == ["system", "user"]
    assert model.requests[0].messages[0].text == "Tell me."
    assert model.requests[0].model == "big"


@pytest.mark.covers("S1-03", "S1-63", "S1-76")
@pytest.mark.parametrize("said", ["plain words", ' {"a": 1,} ', "```json\n{}\n```", "", "ü\r\n\ttail \n"])
@pytest.mark.parametrize("streaming", [False, True])
def test_with_the_flag_off_the_text_is_as_the_model_gave_it(tmp_path: Path, said: str, streaming: bool) -> None:
    settings = read_settings(f"runtime: {{streaming: {str(streaming).lower()}}}")
    model = FakeModel([said])
    ((path, _),) = run("Tell me.", letters(tmp_path, "a.txt"), settings=settings, router=fake_router(model))
    assert path.read_bytes() == said.encode()
    assert (len(model.requests), model.requests[0].json_mode, model.requests[0].response_format) == (1, False, None)
    assert len(model.requests[0].messages) == 2


@pytest.mark.covers("S1-01", "S1-05", "S1-07", "S1-16", "S1-17", "S1-22")
def test_one_switch_makes_answers_json_and_another_holds_them_to_a_schema(tmp_path: Path) -> None:
    files = letters(tmp_path, "a.txt")
    (tmp_path / "person.json").write_text(json.dumps(PERSON))
    said = f"Sure! ```json\n{ADA}\n``` Anything else?"
    only_json = FakeModel([said])
    ((path, _),) = run("Tell me.", files, settings=ON, router=fake_router(only_json))
    assert path.read_text() == ADA
    assert path.name == "a.txt.out.json"
    assert only_json.requests[0].json_mode
    held = FakeModel(['{"name": "Ada", "age": "36", "extra": 1}'])
    named = str(tmp_path / "person.json")
    ((path, _),) = run("Tell me.", files, settings=ON, response_schema_id=named, router=fake_router(held))
    assert path.read_text() == ADA
    assert held.requests[0].response_format is not None


@pytest.mark.covers("S1-14", "S1-15", "S1-56")
def test_the_run_overrides_the_config_and_does_not_change_it(tmp_path: Path) -> None:
    files = letters(tmp_path, "a.txt")
    ((path, _),) = run("Tell me.", files, settings=ON, require_json=False, router=fake_router(FakeModel(["words"])))
    assert path.read_text() == "words"
    assert ON.output.require_json
    ((path, _),) = run("Tell me.", files, settings=Settings(), require_json=True, router=fake_router(FakeModel([ADA])))
    assert path.read_text() == ADA


@pytest.mark.covers("S1-66", "S1-25")
@pytest.mark.parametrize("said", ["{}", "[]", "[1]", '"words"', "36", "null"])
def test_json_is_an_object_or_an_array(tmp_path: Path, said: str) -> None:
    files = letters(tmp_path, "a.txt")
    settings = read_settings("output: {require_json: true}\nretries: {attempts: 0}")
    router = fake_router(FakeModel([said]))
    if said[0] in "[{":
        assert run("Tell me.", files, settings=settings, router=router)[0][0].read_text() == said
    else:
        with pytest.raises(SlipformError):
            run("Tell me.", files, settings=settings, router=router)


@pytest.mark.covers("S1-13", "S1-30", "S1-41", "S1-53", "S1-54", "S1-62", "S1-67")
def test_retries_off_and_on(tmp_path: Path) -> None:
    files = letters(tmp_path, "a.txt")
    off = read_settings("output: {require_json: true}\nretries: {attempts: 0}")
    model = FakeModel(["no JSON", ADA])
    with pytest.raises(JsonEnforcementError, match="after 1 attempt"):
        run("Tell me.", files, settings=off, router=fake_router(model))
    assert not (tmp_path / "a.txt.out.json").exists()
    model = FakeModel(["no JSON", ADA])
    assert run("Tell me.", files, settings=ON, router=fake_router(model))[0][0].read_text() == ADA
    assert model.requests[1].messages[-1].text == "Return ONLY valid compact JSON. No markdown, no prose."
    model = FakeModel(["no JSON", "still none", ADA])
    with pytest.raises(JsonEnforcementError, match="after 2 attempts"):
        run("Tell me.", files, settings=ON, router=fake_router(model))
    model = FakeModel([ADA])
    run("Tell me.", files, settings=ON, router=fake_router(model))
    assert len(model.requests) == 1


@pytest.mark.covers("S1-09", "S1-61", "S1-57", "S1-59", "S1-60", "S1-26", "S1-27", "S1-31")
@pytest.mark.usefixtures("vendor_key")
@pytest.mark.parametrize("schema", [None, "person.json"])
@pytest.mark.parametrize(
    ("api", "kind"), [("openai", "openai"), ("openai", "openrouter"), ("anthropic", "anthropic"), ("gemini", "gemini")]
)
def test_every_adapter_gives_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, api: Api, kind: str, schema: str | None
) -> None:
    monkeypatch.chdir(tmp_path)
    files = letters(tmp_path, "a.txt", "b.txt")
    (tmp_path / "person.json").write_text(json.dumps(PERSON))
    with FakeVendor([f"Here you are: {ADA}"], api=api) as vendor:
        more = "output: {require_json: true, use_response_schema: true}\nruntime: {streaming: true}"
        settings = settings_of(vendor, more, kind)
        written = run("Tell me.", files, settings=settings, response_schema_id=schema, concurrency=1)
        bodies = [request.json() for request in vendor.requests]
        paths = [request.path for request in vendor.requests]
    assert [json.loads(path.read_text()) for path, _ in written] == [{"name": "Ada", "age": 36}] * 2
    assert not any(body.get("stream") for body in bodies)
    assert not any("stream" in path for path in paths)
    if kind == "gemini":
        config = bodies[0]["generationConfig"]
        assert config["responseMimeType"] == "application/json"
        assert ("responseJsonSchema" in config or "responseSchema" in config) is (schema is not None)
    elif kind == "openai":
        assert bodies[0]["response_format"]["type"] == ("json_object" if schema is None else "json_schema")
        assert "JSON" in json.dumps(bodies[0]["messages"]) or schema is not None


@pytest.mark.covers("S1-74")
async def test_the_adapters_call_has_the_documents_signature() -> None:
    model = FakeModel([f"So: {ADA}"])
    adapter = Adapter(fake_router(model), "fake/any", Options())
    schema: Schema[object] = Schema.of(PERSON)
    text = await adapter.invoke(
        instructions="Tell me.",
        payload="Ada is 36",
        streaming=False,
        timeout=5.0,
        response_mime_type="application/json",
        schema=schema,
        json_mode=True,
    )
    assert text == ADA
    assert await adapter.invoke(instructions="Tell me.", payload="Ada is 36") == f"So: {ADA}"


@pytest.mark.covers("S1-08", "S1-23")
async def test_the_mime_type_reaches_the_vendor_that_takes_one() -> None:
    with FakeVendor([ADA], api="gemini") as vendor:
        provider = HttpProvider("gemini", base_url=vendor.base_url, api_key="any")
        adapter = Adapter(Router({"gemini": provider}), "gemini/gemini-3-pro", Options())
        await adapter.invoke(instructions="a", payload="b", json_mode=True, response_mime_type="text/x.enum")
        await adapter.invoke(instructions="a", payload="b", json_mode=True)
        sent = [request.json()["generationConfig"]["responseMimeType"] for request in vendor.requests]
        provider.close()
    assert sent == ["text/x.enum", "application/json"]


@pytest.mark.covers("S1-10", "S1-29", "S1-55")
@pytest.mark.usefixtures("vendor_key")
def test_the_timeout_is_kept_and_told(tmp_path: Path) -> None:
    with FakeVendor([hang()]) as vendor:
        settings = settings_of(vendor, "runtime: {timeout_seconds: 0.2}")
        with pytest.raises(UpstreamTimeout, match=r"within 0\.2 s"):
            run("Tell me.", letters(tmp_path, "a.txt"), settings=settings)


class Slow(FakeModel):
    """Never answers."""

    async def complete_async(self, request: ModelRequest) -> ModelResponse:
        del request
        await for_ever()


def test_a_provider_without_a_limit_of_its_own_is_held_to_it_too(tmp_path: Path) -> None:
    settings = read_settings("runtime: {timeout_seconds: 0.01}")
    with pytest.raises(UpstreamTimeout, match=r"runtime\.timeout_seconds"):
        run("Tell me.", letters(tmp_path, "a.txt"), settings=settings, router=fake_router(Slow(["x"])))


@pytest.mark.covers("S1-43", "S1-44", "S1-45", "S1-46", "S1-47", "S1-48", "S1-49", "S1-50", "S1-51")
@pytest.mark.parametrize("on", [False, True])
def test_each_call_is_one_log_line_without_the_prompt(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, on: bool
) -> None:
    with caplog.at_level(logging.INFO, "slipform.calls"):
        run(
            "Tell me a secret.",
            letters(tmp_path, "a.txt"),
            settings=ON,
            require_json=on,
            response_schema_id="minimal_object",
            router=fake_router(FakeModel(["{}"])),
        )
    (line,) = [record.getMessage() for record in caplog.records if record.name == "slipform.calls"]
    for said in (f"require_json={on}", f"use_response_schema={on}", "streaming=False", "provider=fake model=any"):
        assert said in line
    for said in ("timeout=120", "latency=", "input_tokens=", "repair_attempted=no", "outcome=ok"):
        assert said in line
    assert "secret" not in line
    assert "This is" not in line


def test_every_file_is_tried_and_the_first_failure_is_raised(tmp_path: Path) -> None:
    files = letters(tmp_path, "a.txt", "b.txt", "c.txt")
    (tmp_path / "b.txt").write_bytes(b"\xff\xfe")
    model = FakeModel(lambda request: '{"name": 1}' if "c.txt" in request.messages[-1].text else ADA)
    options = ON.model_copy(update={"retries": ON.retries.model_copy(update={"attempts": 0})})
    (tmp_path / "person.json").write_text(json.dumps(PERSON))
    schema = str(tmp_path / "person.json")
    report = run_report("Tell me.", files, settings=options, response_schema_id=schema, router=fake_router(model))
    assert [path.name for path, _ in report.written] == ["a.txt.out.json"]
    assert [type(error) for error in report.failures.values()] == [ConfigError, SchemaViolationError]
    with pytest.raises(ConfigError, match=r"not UTF-8 text.*b\.txt") as caught:
        run("Tell me.", files, settings=options, response_schema_id=schema, router=fake_router(model))
    assert list(caught.value.details["failures"]) == [str(files[1]), str(files[2])]
    assert caught.value.details["written"] == [str(tmp_path / "a.txt.out.json")]


def test_an_output_is_there_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = letters(tmp_path, "a.txt")
    (tmp_path / "a.txt.out.txt").write_text("old")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ConfigError, match="No space left on device"):
        run("Tell me.", files, router=fake_router(FakeModel(["new"])))
    assert (tmp_path / "a.txt.out.txt").read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.txt", "a.txt.out.txt"]
    monkeypatch.undo()
    run("Tell me.", files, router=fake_router(FakeModel(["new"])))
    assert (tmp_path / "a.txt.out.txt").read_text() == "new"


def test_mistakes_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    files = letters(tmp_path, "a.txt")
    router = fake_router(FakeModel(["x"]))
    with pytest.raises(ConfigError, match=r"missing\.txt"):
        run("Tell me.", [tmp_path / "missing.txt"], router=router)
    with pytest.raises(ConfigError, match=r"instructions cannot be read.*no\.md"):
        run(tmp_path / "no.md", files, router=router)
    with pytest.raises(ConfigError, match="twice"):
        run("Tell me.", [*files, *files], router=router)
    with pytest.raises(ConfigError, match="cannot be written"):
        run("Tell me.", files, out_dir=files[0], router=router)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "a.txt").write_text("x")
    with pytest.raises(ConfigError, match="same output"):
        run("Tell me.", [*files, tmp_path / "other" / "a.txt"], out_dir=tmp_path, router=router)
    run("Tell me.", files, response_schema_id="generic_list", router=router)
    assert "schema='generic_list', reason=require_json is off" in caplog.text


@pytest.mark.covers("S1-11", "S1-12")
def test_the_pause_of_the_config_is_kept_before_the_repair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr("slipform.engine.drive.asyncio.sleep", sleep)
    settings = read_settings("output: {require_json: true}")
    run("Tell me.", letters(tmp_path, "a.txt"), settings=settings, router=fake_router(FakeModel(["no JSON", ADA])))
    assert slept == [2]


@pytest.mark.covers("S1-64", "S1-65")
def test_the_documentation_tells_of_the_switch_and_its_fields() -> None:
    text = (Path(__file__).resolve().parents[2] / "docs" / "runner.md").read_text()
    for said in ("require_json", "use_response_schema", "response_mime_type", "JSON-only mode", "single config flag"):
        assert said in text


@pytest.mark.covers("S1-53", "S1-67")
@pytest.mark.parametrize("said", ["plain words", '{"a": "b', "42", "null", '"text"', "", '{"a":' + "\n" * 5_000])
def test_whatever_is_no_json_after_the_retries_is_one_kind_of_error(tmp_path: Path, said: str) -> None:
    model = FakeModel([said, said])
    with pytest.raises(JsonEnforcementError) as caught:
        run("Tell me.", letters(tmp_path, "a.txt"), settings=ON, router=fake_router(model))
    assert caught.value.report is not None
    assert len(model.requests) == 2


def test_the_report_of_a_run_has_the_warnings_of_its_answers(tmp_path: Path) -> None:
    model = FakeModel(['{"a": 1} or {"a": 2}', '{"a": 1} or {"a": 2}', '{"a": 3}'])
    files = letters(tmp_path, "a.txt", "b.txt")
    report = run_report("Tell me.", files, settings=ON, router=fake_router(model), concurrency=1)
    assert [warning.code for warning in report.warnings[files[0]]] == ["several_candidates"]
    assert list(report.warnings) == [files[0]]


@pytest.mark.covers("S1-48")
def test_a_call_that_failed_is_logged_with_its_time_and_its_attempt(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = FakeModel([UpstreamTimeout("too slow")])
    with caplog.at_level(logging.INFO, "slipform.calls"), pytest.raises(UpstreamTimeout):
        run("Tell me.", letters(tmp_path, "a.txt"), settings=ON, router=fake_router(model))
    fields = caplog.records[-1].__dict__["slipform"]
    assert (fields["attempts"], fields["outcome"]) == (1, "upstream_timeout")
    assert fields["latency"] >= 0


@pytest.mark.usefixtures("vendor_key")
def test_a_rate_limit_pauses_the_files_and_fails_none(tmp_path: Path) -> None:
    answers: list[str | Raw] = [rate_limited(retry_after_ms=1), "fine", rate_limited(retry_after_ms=1), "fine", "fine"]
    with FakeVendor(answers) as vendor:
        settings = settings_of(vendor)
        written = run("Tell me.", letters(tmp_path, "a.txt", "b.txt", "c.txt"), settings=settings, concurrency=1)
        assert len(vendor.requests) == 5
    assert [path.read_text() for path, _ in written] == ["fine"] * 3


@pytest.mark.usefixtures("vendor_key")
def test_after_a_wrong_key_no_other_file_is_asked_about(tmp_path: Path) -> None:
    files = letters(tmp_path, "a.txt", "b.txt", "c.txt")
    answers: list[str | Raw] = ["fine", rejected("wrong key", 401), rejected("wrong key", 401)]
    with FakeVendor(answers) as vendor:
        report = run_report("Tell me.", files, settings=settings_of(vendor), concurrency=1)
        assert len(vendor.requests) == 2
    assert [path.name for path, _ in report.written] == ["a.txt.out.txt"]
    assert [type(error) for error in report.failures.values()] == [AuthenticationError] * 2
