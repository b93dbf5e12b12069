"""Ask a model from the command line: `slipform ask`."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from slipform.cli.models import model_names
from slipform.cli.terminal import (
    STDIN,
    ConfigOption,
    IndentOption,
    evidence_lines,
    json_text,
    print_data,
    print_message,
    read_text,
)
from slipform.named_schemas import HELP, schema_named

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from rich.console import Console
    from rich.text import Text

    from slipform.config import Settings
    from slipform.enforce import Report
    from slipform.engine.setup import Options
    from slipform.ir import CompletionChunk, Message
    from slipform.library.async_client import AsyncClient
    from slipform.library.stream import AsyncStream
    from slipform.library.stream_session import Result
    from slipform.schema import Schema
    from slipform.text.runaway import RunawayDetector


_MAX_REPETITION: Final = 1_024
"""Characters of one repeated phrase at the end of a text for a person."""


@dataclass(frozen=True, slots=True)
class _Question:
    messages: Sequence[Message]
    schema: Schema[Any] | None
    require_json: bool
    max_tokens: int | None
    stream: bool
    timeout: float | None


def ask(
    prompt: Annotated[str | None, typer.Argument(help="The prompt; - reads standard input.")] = None,
    schema: Annotated[str | None, typer.Option("--schema", "-s", help=f"{HELP} Without one: plain text.")] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(
            "--model",
            "-m",
            help="provider/model or an alias; repeat it for fallback models.",
            autocompletion=model_names,
        ),
    ] = None,
    system: Annotated[str | None, typer.Option(help="The system prompt.")] = None,
    attach: Annotated[
        list[str] | None,
        typer.Option("--attach", "-a", help="A file or address to ask about: image, PDF, audio, text; repeatable."),
    ] = None,
    require_json: Annotated[
        bool | None,
        typer.Option(
            "--json/--no-json",
            help="JSON, or text, where no schema is given; output.require_json by default.",
        ),
    ] = None,
    stream: Annotated[
        bool,
        typer.Option("--stream", help="Show the answer while the model writes it; in a terminal, text always is."),
    ] = False,
    report: Annotated[
        bool, typer.Option("--report", help="Show what was repaired, patched and retried, on standard error.")
    ] = False,
    report_json: Annotated[bool, typer.Option("--report-json", help="Show the report as JSON.")] = False,
    evidence: Annotated[
        bool, typer.Option("--evidence", help="Show where each value appears in the prompt, and its score.")
    ] = False,
    source: Annotated[
        str | None, typer.Option(help="With --evidence: the file with the text that the values are taken from.")
    ] = None,
    samples: Annotated[int, typer.Option(min=0, max=20, help="With --evidence: extra samples to compare with.")] = 0,
    max_attempts: Annotated[
        int | None,
        typer.Option(
            "--max-attempts",
            "--attempts",
            min=1,
            help="Model calls for the answer in all; enforcement.max_attempts (3) by default.",
        ),
    ] = None,
    timeout: Annotated[float | None, typer.Option(min=0.001, help="Timeout in seconds, over all attempts.")] = None,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Maximum output tokens.")] = None,
    indent: IndentOption = None,
    config: ConfigOption = None,
) -> None:
    """Ask a model. With a schema the answer is JSON that validates against it, or an error says why not."""
    import asyncio
    import dataclasses

    from slipform.call_options import RunOptions, build_call_options
    from slipform.config import load_settings
    from slipform.errors import SlipformError
    from slipform.ir import Message
    from slipform.ir.evidence import Evidence
    from slipform.schema import Registry

    settings = load_settings(config)
    shape = None if schema is None else schema_named(schema, settings)
    options = build_call_options(settings, RunOptions(require_json), Registry.load(settings.schemas))
    user_message = _user_message(_prompt(prompt), attach)
    enforcement = _enforcement(settings, max_attempts)
    if not evidence and (source is not None or samples):
        raise typer.BadParameter("--source and --samples are for --evidence.")
    if evidence:
        if shape is None:
            raise typer.BadParameter("--evidence needs a --schema.")
        text = user_message.text if source is None else read_text(source)
        evidence_options = Evidence(text, confidence="logprobs", samples=samples)
        enforcement = dataclasses.replace(enforcement, evidence=evidence_options)
    question = _Question(
        messages=(user_message,) if system is None else (Message.system(system), user_message),
        schema=shape,
        require_json=options.require_json,
        max_tokens=max_tokens,
        stream=(stream or options.streaming) and not evidence,
        timeout=timeout,
    )
    try:
        text, outcome_report = asyncio.run(_answer(question, model or settings.default_model, settings, enforcement))
    except SlipformError as error:
        if error.report is not None:
            _print_report(error.report, report, report_json)
        raise
    _print_answer(text, indent, is_json=shape is not None or question.require_json)
    if evidence and enforcement.evidence is not None:
        _print_evidence(outcome_report, enforcement.evidence.source or "")
    _print_report(outcome_report, report, report_json)


def _print_evidence(report: Report | None, source: str) -> None:
    fields = None if report is None else report.evidence
    for line in evidence_lines(fields or {}, source):
        print_message(line)


def _print_answer(text: str, indent: int | None, *, is_json: bool) -> None:
    from slipform.text.strict import parse

    if is_json:
        print_data(json_text(parse(text), indent))
    elif text:
        print_data(text, end="" if text.endswith("\n") else "\n")


def _prompt(argument: str | None) -> str:
    if argument is None and sys.stdin.isatty():
        raise typer.BadParameter("There is nothing to ask. Give the question, or - for standard input.")
    text = read_text(STDIN) if argument is None or argument == STDIN else argument
    if not text.strip():
        raise typer.BadParameter("The question is empty.")
    return text


def _user_message(text: str, attachments: Sequence[str] | None) -> Message:
    from slipform.ir import Message, Text
    from slipform.library.messages import attachment

    return Message("user", (Text(text), *[attachment(each) for each in attachments or ()]))


def _enforcement(settings: Settings, max_attempts: int | None) -> Options:
    """Return the config's options; on the command line, a failure is always an error."""
    from slipform.call_options import retrying
    from slipform.enforce.options import override

    return override(retrying(settings), {"budget.attempts": max_attempts, "on_failure": "raise"})


async def _answer(
    question: _Question, model: str | Sequence[str], settings: Settings, options: Options
) -> tuple[str, Report | None]:
    """Return the answer's text and its report; raises `UpstreamTimeout` after the question's time limit."""
    import asyncio

    from slipform.errors import UpstreamTimeout
    from slipform.library.async_client import AsyncClient

    async with AsyncClient(model, options=options, config=settings) as client:
        try:
            async with asyncio.timeout(question.timeout):
                if question.schema is not None:
                    return await _ask_schema(client, question, question.schema)
                return await _ask_text(client, question)
        except TimeoutError:
            raise UpstreamTimeout(
                f"There was no answer within {question.timeout:g} seconds", hint="Allow more with --timeout."
            ) from None


async def _ask_schema(client: AsyncClient, question: _Question, schema: Any) -> tuple[str, Report]:
    if question.stream and sys.stdout.isatty():
        async with client.stream(schema, question.messages, max_tokens=question.max_tokens) as stream:
            result = await watch(stream)
    else:
        result = await client.ask_full(schema, question.messages, max_tokens=question.max_tokens)
    return result.text, result.report


async def _ask_text(client: AsyncClient, question: _Question) -> tuple[str, Report | None]:
    """Return the model's plain text, or any JSON where that is required."""
    from contextlib import aclosing

    from slipform.enforce.judging import runaway_error
    from slipform.enforce.prompts import Wording, first_request
    from slipform.engine.fallback import FallbackList, respond_async, stream_first
    from slipform.ir import ModelRequest
    from slipform.ir.request import CallCount
    from slipform.ir.response import PassThroughSink
    from slipform.library.request import first_of
    from slipform.schema import OutputStrategy
    from slipform.text.runaway import RunawayDetector

    models = client.model or ""
    request = ModelRequest(first_of(models), tuple(question.messages), max_tokens=question.max_tokens)
    if question.require_json:
        # Vendors refuse their JSON mode unless the prompt says "JSON".
        json_request = first_request(request.replace(json_mode=True), OutputStrategy.PROMPTED, Wording()).request
        outcome = await respond_async(client.router, models, json_request, client.options)
        return outcome.text, outcome.report
    detector = RunawayDetector(prose=True, max_prose=_MAX_REPETITION)
    is_embedded = first_of(models) == "local"
    if is_embedded:
        print_message("The embedded model is for trying schemas; name another with --model.", dim=True)
    if not (question.stream or is_embedded or sys.stdout.isatty()):
        text = await client.text(question.messages, max_tokens=question.max_tokens)
        if runaway := detector.feed(text):
            print_data(text)
            raise runaway_error(runaway)
        return text, None
    fallback = FallbackList(client.router, models, CallCount(client.options.budget.calls))
    sink = PassThroughSink()
    stream = stream_first(fallback, lambda route: route.batches_async(fallback.for_model(request, route), sink))
    async with aclosing(stream) as batches:  # closing the stream stops the model
        await _print_stream(batches, detector)
    return "", None


async def _print_stream(batches: AsyncIterator[Sequence[CompletionChunk]], detector: RunawayDetector) -> None:
    """Print text as it arrives; raises `RunawayError` where it begins to repeat itself endlessly."""
    from slipform.enforce.judging import runaway_error

    last = "\n"
    async for batch in batches:
        printed = ""
        runaway = None
        for chunk in batch:
            if chunk.choice == 0 and runaway is None:
                printed += chunk.text
                runaway = detector.feed(chunk.text)
        if printed:
            print_data(printed, end="")
            last = printed[-1]
        if runaway is not None:
            print_data("")
            raise runaway_error(runaway)
    if last != "\n":
        print_data("")


def _print_report(report: object, as_text: bool, as_json: bool) -> None:
    from slipform.enforce import Report

    if not isinstance(report, Report):
        if as_text or as_json:
            print_message("Plain text has no report: it is printed as the model wrote it.")
        return
    if as_json:
        print_message(json_text(report.to_dict(), 0))
    elif as_text:
        from slipform.cli.terminal import report_lines

        for line in report_lines(report):
            print_message(line)


_FRAMES_PER_SECOND: Final = 15


async def watch(stream: AsyncStream[Any], console: Console | None = None) -> Result[Any]:
    """Show the answer on the terminal as it arrives, clear it at the end, and return the result."""
    from rich.console import Console
    from rich.live import Live

    from slipform.library.partial import so_far

    screen = console or Console()
    last_frame = 0.0
    with Live(console=screen, auto_refresh=False, transient=True) as live:
        async for partial in stream:
            now = time.monotonic()
            if now - last_frame >= 1 / _FRAMES_PER_SECOND:  # the cost of a frame grows with the value
                last_frame = now
                live.update(frame(so_far(partial), stream.attempt, screen.height), refresh=True)
        return await stream.result()


def frame(value: Any, attempt: int, height: int) -> Text:
    """Return the end of the value that fits on the terminal, in colours, and the number of a repeated attempt.

    >>> frame({"a": 1}, 2, 24).plain.splitlines()[-1]
    'attempt 2 …'
    """
    from rich.json import JSON
    from rich.text import Text

    lines = JSON.from_data(value, indent=2).text.split("\n")
    rows = max(height - 2, 1)
    visible = Text("\n").join(lines[-rows:])
    if attempt < 2:
        return visible
    return Text("\n").join([visible, Text(f"attempt {attempt} …", style="dim")])
