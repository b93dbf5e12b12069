"""`slipform ask`."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from slipform.cli.models import model_names
from slipform.cli.terminal import STDIN, json_text, read_text, say, write
from slipform.named_schemas import HELP, schema_named

if TYPE_CHECKING:
    from collections.abc import Container, Sequence

    from rich.console import Console
    from rich.text import Text

    from slipform.config import Settings
    from slipform.enforce import Report
    from slipform.engine.setup import Options
    from slipform.errors import UnknownModelError
    from slipform.ir import Message
    from slipform.library.async_client import AsyncClient
    from slipform.library.stream import AsyncStream
    from slipform.library.stream_session import Result
    from slipform.schema import Schema


@dataclass(frozen=True, slots=True)
class _Question:
    messages: Sequence[Message]
    schema: Schema[Any] | None
    require_json: bool
    max_tokens: int | None
    stream: bool
    timeout: float | None


def ask(
    prompt: Annotated[str | None, typer.Argument(help="What to ask; - reads standard input.")] = None,
    schema: Annotated[str | None, typer.Option("--schema", "-s", help=f"{HELP} Without one: plain text.")] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(
            "--model",
            "-m",
            help="provider/model or an alias; given again, who is asked when that one cannot answer.",
            autocompletion=model_names,
        ),
    ] = None,
    system: Annotated[str | None, typer.Option(help="What the model is told before the question.")] = None,
    require_json: Annotated[
        bool | None,
        typer.Option("--json/--no-json", help="JSON or text without a schema; output.require_json by default."),
    ] = None,
    stream: Annotated[bool, typer.Option("--stream", help="Show the answer while it is written.")] = False,
    report: Annotated[bool, typer.Option("--report", help="Tell what was repaired, patched and asked again.")] = False,
    report_json: Annotated[bool, typer.Option("--report-json", help="The same as JSON, on standard error.")] = False,
    attempts: Annotated[
        int | None, typer.Option(min=1, help="Model calls in all, at most; retries.attempts + 1 by default.")
    ] = None,
    timeout: Annotated[float | None, typer.Option(min=0.001, help="Seconds in all.")] = None,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="How long the answer may be.")] = None,
    indent: Annotated[int | None, typer.Option(min=0, max=16, help="Spaces; 0 is compact.")] = None,
    config: Annotated[Path | None, typer.Option(help="The settings; slipform.yaml here by default.")] = None,
) -> None:
    """Ask a model; with a schema the answer is JSON that is valid against it, or an error says why not."""
    import asyncio

    from slipform.call_options import RunOptions, build_call_options
    from slipform.config import load_settings
    from slipform.errors import SlipformError
    from slipform.ir import Message
    from slipform.schema import Registry

    settings = load_settings(config)
    shape = None if schema is None else schema_named(schema, settings)
    options = build_call_options(settings, RunOptions(require_json), Registry.load(settings.schemas))
    words = Message.user(_prompt(prompt))
    question = _Question(
        messages=(words,) if system is None else (Message.system(system), words),
        schema=shape,
        require_json=options.require_json,
        max_tokens=max_tokens,
        stream=stream or options.streaming,
        timeout=timeout,
    )
    try:
        text, told = asyncio.run(
            _answer(question, model or settings.default_model, settings, _enforcement(settings, attempts))
        )
    except SlipformError as error:
        if error.report is not None:
            _tell(error.report, report, report_json)
        raise
    if shape is not None or question.require_json:
        from slipform.text.strict import parse

        write(json_text(parse(text), indent))
    elif text:
        write(text, end="" if text.endswith("\n") else "\n")
    _tell(told, report, report_json)


def _prompt(given: str | None) -> str:
    if given is None and sys.stdin.isatty():
        raise typer.BadParameter("There is nothing to ask. Give the question, or - for standard input.")
    text = read_text(STDIN) if given is None or given == STDIN else given
    if not text.strip():
        raise typer.BadParameter("The question is empty.")
    return text


def _enforcement(settings: Settings, attempts: int | None) -> Options:
    """What the config's `retries` and patches ask for; on the command line a failure is always an error."""
    import dataclasses

    from slipform.call_options import retrying
    from slipform.enforce import Budget
    from slipform.engine.setup import options_of

    asked = retrying(settings)
    budget = asked.budget if attempts is None else Budget(attempts)
    options = dataclasses.replace(options_of(settings), budget=budget, backoff_seconds=asked.backoff_seconds)
    return dataclasses.replace(options, on_failure="raise")


async def _answer(
    question: _Question, model: str | Sequence[str], settings: Settings, options: Options
) -> tuple[str, Report | None]:
    """The answer's text and the way to it."""
    import asyncio

    from slipform.errors import UnknownModelError, UpstreamTimeout
    from slipform.library.async_client import AsyncClient
    from slipform.library.request import first_of

    async with AsyncClient(model, options=options, config=settings) as client:
        try:
            async with asyncio.timeout(question.timeout):
                if question.schema is not None:
                    return await _shaped(client, question, question.schema)
                return await _worded(client, question)
        except UnknownModelError as error:
            raise _keyless(error, error.details.get("model") or first_of(model), client.router.providers) from None
        except TimeoutError:
            raise UpstreamTimeout(
                f"There was no answer within {question.timeout:g} seconds", hint="Allow more with --timeout."
            ) from None


def _keyless(error: UnknownModelError, model: str, providers: Container[str]) -> UnknownModelError:
    """The same error; a vendor that only lacks its key is not called unknown."""
    from slipform.errors import UnknownModelError
    from slipform.providers.catalog import load_catalog

    name = model.partition("/")[0]
    vendor = load_catalog().vendors.get(name)
    if vendor is None or name in providers:
        return error
    ways = [*vendor.api_key_env, f"`providers.{name}` in slipform.yaml"]
    return UnknownModelError(
        f"The vendor {name!r} is known but not in use",
        where=model,
        hint=f"Set {' or '.join(ways)}.",
        details=error.details,
    )


async def _shaped(client: AsyncClient, question: _Question, schema: Any) -> tuple[str, Report]:
    if question.stream and sys.stdout.isatty():
        async with client.stream(schema, question.messages, max_tokens=question.max_tokens) as stream:
            result = await watch(stream)
    else:
        result = await client.ask_full(schema, question.messages, max_tokens=question.max_tokens)
    return result.text, result.report


async def _worded(client: AsyncClient, question: _Question) -> tuple[str, Report | None]:
    """Plain text as the model gave it, or JSON of any kind where that is required."""
    from slipform.enforce.prompts import Wording, first_request
    from slipform.engine.fallback import FallbackList, respond_async, stream_first
    from slipform.ir import ModelRequest
    from slipform.ir.request import CallCount
    from slipform.ir.response import PassOn
    from slipform.library.request import first_of
    from slipform.schema import OutputStrategy

    models = client.model or ""
    request = ModelRequest(first_of(models), tuple(question.messages), max_tokens=question.max_tokens)
    if question.require_json:
        # Vendors refuse their JSON mode unless the prompt says "JSON".
        worded = first_request(request.replace(json_mode=True), OutputStrategy.PROMPTED, Wording()).request
        outcome = await respond_async(client.router, models, worded, client.options)
        return outcome.text, outcome.report
    if not question.stream:
        return await client.text(question.messages, max_tokens=question.max_tokens), None
    last = "\n"
    listed = FallbackList(client.router, models, CallCount(client.options.budget.calls))
    async for batch in stream_first(listed, lambda route: route.batches_async(listed.aimed(request, route), PassOn())):
        if text := "".join([chunk.text for chunk in batch if chunk.choice == 0]):
            write(text, end="")
            last = text[-1]
    if last != "\n":
        write("")
    return "", None


def _tell(report: object, wanted: bool, as_json: bool) -> None:
    from slipform.enforce import Report

    if not isinstance(report, Report):
        if wanted or as_json:
            say("There is no report: plain text is given as the model wrote it.")
        return
    if as_json:
        say(json_text(report.to_dict(), 0))
    elif wanted:
        from slipform.cli.terminal import report_lines

        for line in report_lines(report):
            say(line)


_PER_SECOND: Final = 15


async def watch(stream: AsyncStream[Any], console: Console | None = None) -> Result[Any]:
    """Show what there is of the answer while it comes; the view is gone when it is over, and the answer given back."""
    from rich.console import Console
    from rich.live import Live

    from slipform.library.partial import so_far

    screen = console or Console()
    drawn = 0.0
    with Live(console=screen, auto_refresh=False, transient=True) as live:
        async for partial in stream:
            now = time.monotonic()
            if now - drawn >= 1 / _PER_SECOND:  # a frame costs as much as the value is long, however fast it comes
                drawn = now
                live.update(frame(so_far(partial), stream.attempt, screen.height), refresh=True)
        return await stream.result()


def frame(value: Any, attempt: int, height: int) -> Text:
    """The end of what there is, as much as fits, in colours; and which attempt it is, after the first.

    >>> frame({"a": 1}, 2, 24).plain.splitlines()[-1]
    'attempt 2 …'
    """
    from rich.json import JSON
    from rich.text import Text

    whole = JSON.from_data(value, indent=2).text
    lines = whole.split("\n")
    room = max(height - 2, 1)
    shown = Text("\n").join(lines[-room:])
    return shown if attempt < 2 else Text("\n").join([shown, Text(f"attempt {attempt} …", style="dim")])
