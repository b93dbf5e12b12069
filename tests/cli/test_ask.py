"""`slipform ask`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from slipform.ir import RESERVED_TOOL, ModelResponse, ToolCall
from slipform.testing import Answer, Api, FakeVendor, Received, Step, hang, rate_limited, refusal, rejected, truncated
from tests.cli.conftest import Cli, run_program

Fake = Callable[..., FakeVendor]
ADA = '{"name":"Ada","age":36}'
QUICK = "retries: {attempts: 1, backoff_seconds: 0}\n"


@pytest.mark.local
@pytest.mark.xdist_group("local")
def test_ask_prints_valid_json_and_nothing_else(folder: Path) -> None:
    done = run_program("ask", "--schema", "person.json", "Ada is 36", cwd=folder)
    assert (done.returncode, done.stdout) == (0, ADA + "\n")


@pytest.mark.local
@pytest.mark.xdist_group("local")
def test_ask_reads_standard_input_and_takes_a_class(folder: Path) -> None:
    done = run_program("ask", "--schema", "shapes:Person", "-", cwd=folder, stdin="Ada is 36")
    assert (done.returncode, done.stdout) == (0, ADA + "\n")


@pytest.mark.parametrize("schema", ["person.json", "shapes:Person", "person", '{"type": "object"}'])
@pytest.mark.covers("S1-16")
def test_a_schema_is_a_file_a_class_a_registered_name_or_json(cli: Cli, fake: Fake, folder: Path, schema: str) -> None:
    fake([ADA], "schemas: named\n")
    (folder / "named").mkdir()
    (folder / "named" / "person.json").write_text((folder / "person.json").read_text())
    done = cli("ask", "Ada is 36", "--schema", schema)
    assert (done.code, done.out, done.err) == (0, ADA + "\n", "")


def test_the_question_may_come_from_a_pipe_without_a_dash(cli: Cli, fake: Fake) -> None:
    vendor = fake(["Hello"])
    assert cli("ask", stdin="Gr\u00fc\u00dfe").out == "Hello\n"
    assert vendor.requests[0].json()["messages"][-1]["content"] == "Gr\u00fc\u00dfe"


@pytest.mark.covers("S1-03", "S1-06", "S1-63")
def test_without_a_schema_the_answer_is_the_text_as_the_model_gave_it(cli: Cli, fake: Fake) -> None:
    vendor = fake(["Sure! {'a': 1,}\n"])
    done = cli("ask", "Hi")
    assert (done.code, done.out) == (0, "Sure! {'a': 1,}\n")
    assert "response_format" not in vendor.requests[0].json()


@pytest.mark.covers("S1-01", "S1-04", "S1-05", "S1-17", "S1-61")
def test_one_switch_of_the_config_makes_the_answer_json(cli: Cli, fake: Fake) -> None:
    vendor = fake(["Sure! {'a': 1,}"], "output: {require_json: true}\n")
    assert cli("ask", "Hi").out == '{"a":1}\n'
    asked = vendor.requests[0].json()
    assert asked["response_format"] == {"type": "json_object"}
    assert "JSON" in str(asked["messages"])  # or the vendor refuses its JSON mode


@pytest.mark.covers("S1-14", "S1-15", "S1-56")
def test_an_option_overrides_the_config_for_one_run_and_does_not_change_it(cli: Cli, fake: Fake, folder: Path) -> None:
    fake(["Sure! {'a': 1,}"], "output: {require_json: true}\n")
    before = (folder / "slipform.yaml").read_text()
    assert cli("ask", "Hi", "--no-json").out == "Sure! {'a': 1,}\n"
    assert cli("ask", "Hi", "--json").out == '{"a":1}\n'
    assert (folder / "slipform.yaml").read_text() == before


@pytest.mark.parametrize(("attempts", "calls", "code"), [(0, 1, 5), (1, 2, 0)])
@pytest.mark.covers("S1-11", "S1-12", "S1-13", "S1-62")
def test_the_configs_retries_are_asked_only_for_answers_that_do_not_fit(
    cli: Cli, fake: Fake, attempts: int, calls: int, code: int
) -> None:
    vendor = fake(['{"name":"Ada"}', ADA], f"retries: {{attempts: {attempts}, backoff_seconds: 0}}\n")
    done = cli("ask", "Ada is 36", "-s", "person.json")
    assert (done.code, len(vendor.requests)) == (code, calls)
    vendor = fake([ADA], f"retries: {{attempts: {attempts}, backoff_seconds: 0}}\n")
    assert cli("ask", "Ada is 36", "-s", "person.json").code == 0
    assert len(vendor.requests) == 1


def test_attempts_on_the_command_line_beat_the_configs(cli: Cli, fake: Fake) -> None:
    vendor = fake(['{"name":"Ada"}', ADA], QUICK)
    assert cli("ask", "Ada is 36", "-s", "person.json", "--attempts", "1").code == 5
    assert len(vendor.requests) == 1


def test_what_is_given_reaches_the_model(cli: Cli, fake: Fake) -> None:
    vendor = fake(["Hello"])
    cli("ask", "Hi", "--system", "Be brief.", "--max-tokens", "7", "--model", "fake/other")
    body = vendor.requests[0].json()
    assert body["model"] == "other"
    assert body["messages"][0] == {"role": "system", "content": "Be brief."}
    assert 7 in (body.get("max_tokens"), body.get("max_completion_tokens"))


@pytest.mark.parametrize(
    "more", [("-s", "person.json"), ("--json",), (), ("--stream",), ("-s", "person.json", "--stream")]
)
def test_the_next_model_is_asked_when_one_cannot_answer(cli: Cli, fake: Fake, more: tuple[str, ...]) -> None:
    def script(asked: Received) -> Step:
        return rejected("no such model", 404, "model_not_found") if asked.json()["model"] == "gone" else ADA

    vendor = fake(script)
    assert cli("ask", "Ada is 36", "-m", "fake/gone", "-m", "fake/here", *more).out == ADA + "\n"
    assert [each.json()["model"] for each in vendor.requests] == ["gone", "here"]


@pytest.mark.covers("S1-09")
def test_a_stream_into_a_pipe_gives_the_final_json_only(cli: Cli, fake: Fake) -> None:
    fake([ADA])
    done = cli("ask", "Ada is 36", "-s", "person.json", "--stream")
    assert (done.out, done.err) == (ADA + "\n", "")


def test_plain_text_streams_as_it_is(cli: Cli, fake: Fake) -> None:
    vendor = fake(["one two three"])
    assert cli("ask", "Count", "--stream").out == "one two three\n"
    assert vendor.requests[0].json()["stream"] is True


def test_the_report_tells_what_was_repaired_patched_and_asked_again(cli: Cli, fake: Fake) -> None:
    fake(['{"name":"Ada"}', "{'name': 'Ada', age: '36',}"], QUICK)
    done = cli("ask", "Ada is 36", "-s", "person.json", "--report")
    assert done.out == ADA + "\n"
    for said in ("1. fake/model", "schema violation", "not valid: $", "2. fake/model", "wrong quote ×3", "$.age → 36"):
        assert said in done.err
    assert "2 calls" in done.err


def test_the_report_is_json_when_asked_for_and_also_after_a_failure(cli: Cli, fake: Fake) -> None:
    fake(['{"name":"Ada"}'])
    done = cli("ask", "Ada is 36", "-s", "person.json", "--report-json", "--attempts", "1")
    assert (done.code, done.out) == (5, "")
    report = json.loads(done.err.splitlines()[0])
    assert report["attempts"][0]["violations"][0]["keyword"] == "required"


def test_indent_is_obeyed(cli: Cli, fake: Fake) -> None:
    fake([ADA])
    done = cli("ask", "Ada is 36", "-s", "person.json", "--indent", "3")
    assert done.out == '{\n   "name": "Ada",\n   "age": 36\n}\n'


@pytest.mark.parametrize(
    ("step", "code", "said"),
    [
        (rejected("That is no model of ours", status=404), 4, "no model of ours"),
        (rejected("Bad key", status=401), 4, "Bad key"),
        (rate_limited(), 4, ""),
        ("no JSON at all", 5, "no JSON"),
        (refusal("I will not"), 6, "I will not"),
        (truncated('{"name": "Ad'), 6, "cut off"),
    ],
)
def test_each_way_to_fail_has_its_exit_code(
    cli: Cli, fake: Fake, step: object, code: int, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.sleep", lambda _: None)
    fake([step], "runtime: {timeout_seconds: 3}\nretries: {attempts: 0}\n")
    done = cli("ask", "Ada is 36", "-s", "person.json", "--timeout", "3")
    assert (done.code, done.out) == (code, "")
    assert said in done.err
    assert "Traceback" not in done.err


@pytest.mark.covers("S1-10", "S1-55")
def test_a_time_limit_ends_the_wait_and_says_what_to_do(cli: Cli, fake: Fake) -> None:
    fake([hang()])
    done = cli("ask", "Ada is 36", "-s", "person.json", "--timeout", "0.3")
    assert (done.code, done.out) == (4, "")
    assert "within 0.3 seconds" in done.err
    assert "--timeout" in done.err


@pytest.mark.parametrize("api", ["openai", "anthropic", "gemini"])
@pytest.mark.parametrize("schema", [[], ["--schema", "person.json"]])
@pytest.mark.covers("S1-02", "S1-61")
def test_json_is_required_alike_of_several_vendors(
    cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch, api: Api, schema: list[str]
) -> None:
    def answer(asked: Received) -> Step:
        forced = "tool_choice" in asked.json()
        call = ToolCall("call_1", RESERVED_TOOL, ADA)
        return ModelResponse(tool_calls=(call,), finish="tool_calls") if forced else f"Here you are: {ADA}"

    monkeypatch.setenv("FAKE_KEY", "k")
    with FakeVendor(answer, api=api) as vendor:
        (folder / "slipform.yaml").write_text(
            "output: {require_json: true}\ndefault_model: fake/model\n"
            f"providers: {{fake: {{kind: {api}, base_url: '{vendor.base_url}', api_key_env: FAKE_KEY}}}}\n"
        )
        done = cli("ask", "Ada is 36", *schema)
    assert (done.code, done.out) == (0, ADA + "\n")


REPETITIVE = "A moment of beauty, a fleeting sight,\n" * 1_000


@pytest.mark.parametrize("more", [(), ("--stream",)])
def test_text_that_repeats_itself_without_end_is_an_error(cli: Cli, fake: Fake, more: tuple[str, ...]) -> None:
    fake([REPETITIVE])
    done = cli("ask", "Write a haiku", *more)
    assert done.code == 5
    assert done.out.startswith("A moment of beauty")
    assert "without end" in done.err


def test_a_stream_that_repeats_itself_is_stopped(cli: Cli, fake: Fake) -> None:
    vendor = fake([Answer(REPETITIVE, chunk_size=100)])
    done = cli("ask", "Write a haiku", "--stream")
    assert done.code == 5
    assert len(done.out) < len(REPETITIVE) / 4
    assert len(vendor.requests) == 1


def test_text_that_repeats_a_refrain_is_left_alone(cli: Cli, fake: Fake) -> None:
    song = "".join(f"{count} bottles of beer on the wall\n" for count in range(99, 0, -1)) + "la " * 200
    fake([song])
    assert cli("ask", "Sing", "--stream").code == 0


def test_files_are_attached_to_the_question(cli: Cli, fake: Fake, folder: Path) -> None:
    (folder / "cat.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    (folder / "bill.pdf").write_bytes(b"%PDF-1.7 \xff")
    (folder / "note.md").write_text("Ada is 36")
    vendor = fake([ADA])
    done = cli("ask", "Who?", "-s", "person.json", "-a", "cat.png", "-a", "bill.pdf", "--attach", "note.md")
    assert (done.code, done.out) == (0, ADA + "\n")
    parts = vendor.requests[0].json()["messages"][-1]["content"]
    assert [part["type"] for part in parts] == ["text", "image_url", "file", "text"]
    assert parts[1]["image_url"]["url"].startswith("data:image/png;base64,")
    assert parts[2]["file"]["filename"] == "bill.pdf"
    assert parts[3]["text"] == "note.md:\n\nAda is 36"


def test_an_attachment_that_cannot_be_read_is_named(cli: Cli, fake: Fake) -> None:
    vendor = fake([ADA])
    done = cli("ask", "Who?", "-a", "none.png")
    assert (done.code, "none.png" in done.err, vendor.requests) == (3, True, [])


def test_a_schema_may_be_a_list_of_fields(cli: Cli, fake: Fake) -> None:
    vendor = fake([ADA])
    done = cli("ask", "Ada is 36", "-s", "name, age int")
    assert (done.code, done.out) == (0, ADA + "\n")
    assert '"integer"' in vendor.requests[0].body.decode()
    assert "is not known" in cli("ask", "Ada is 36", "-s", "name, age whole").err


def test_a_file_whose_name_looks_like_fields_is_read(cli: Cli, fake: Fake, folder: Path) -> None:
    fake([ADA])
    (folder / "name, age").write_text((folder / "person.json").read_text())
    assert cli("ask", "Ada is 36", "-s", "name, age").out == ADA + "\n"
    missing = cli("ask", "Ada is 36", "-s", "my person.json")
    assert (missing.code, "does not exist" in missing.err) == (3, True)


def test_evidence_is_shown_on_standard_error(cli: Cli, fake: Fake, folder: Path) -> None:
    fake([ADA, ADA, '{"name": "Eve", "age": 36}'])
    (folder / "source.txt").write_text("It is Ada")
    done = cli("ask", "Ada is 36", "-s", "person.json", "--evidence", "--source", "source.txt", "--samples", "2")
    assert done.out == ADA + "\n"
    assert "/name: 6-9 exact: It is [Ada]" in done.err
    assert "/age: not found" in done.err
    assert "no score: the model's vendor gave no token probabilities; 1 of 2 further answers agree" in done.err
    assert cli("ask", "hi", "-s", "person.json", "--samples", "2").code == 2
