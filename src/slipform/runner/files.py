"""Answer each of several files under the same instructions, into a file beside it: `run`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from slipform.call_options import CallOptions, RunOptions, build_call_options, retrying
from slipform.config import Settings, load_settings
from slipform.enforce import Report
from slipform.engine.setup import router_of
from slipform.errors import ConfigError, SlipformError
from slipform.ir import ModelWarning
from slipform.named_schemas import schema_named
from slipform.providers.router import Router
from slipform.runner.call import Adapter, resolved_models
from slipform.runner.journal import replacing
from slipform.runner.scheduler import run_loop
from slipform.schema.registry import Registry

_log = logging.getLogger("slipform.runner")


@dataclass(frozen=True, slots=True)
class RunReport:
    """The outcome of each file."""

    written: list[tuple[Path, str]]
    """The files written, in the order of the inputs, each with the `provider/model` that answered."""
    failures: Mapping[Path, SlipformError]
    """The inputs without an output, each with the reason."""
    warnings: Mapping[Path, tuple[ModelWarning, ...]] = field(default_factory=dict)
    """What is to be known of the answers, by input."""


def run(
    instructions: str | Path,
    files: Sequence[str | Path],
    *,
    out_dir: str | Path | None = None,
    require_json: bool | None = None,
    response_schema_id: str | None = None,
    model: str | Sequence[str] | None = None,
    concurrency: int = 4,
    settings: Settings | None = None,
    router: Router | None = None,
) -> list[tuple[Path, str]]:
    """Answer each file under the same instructions; return `[(out_path, model_name_or_id)]`, in the files' order.

    `require_json` and `response_schema_id` override the config for this run. Every file is tried; if any failed, the
    first failure is raised at the end, with all of them in `details["failures"]` and the files written in
    `details["written"]`.

    ::

        run("Summarise the letter.", ["a.txt", "b.txt"], out_dir="answers")
    """
    report = run_report(
        instructions,
        files,
        out_dir=out_dir,
        require_json=require_json,
        response_schema_id=response_schema_id,
        model=model,
        concurrency=concurrency,
        settings=settings,
        router=router,
    )
    for error in report.failures.values():
        error.details["failures"] = {str(path): str(each) for path, each in report.failures.items()}
        error.details["written"] = [str(path) for path, _ in report.written]
        raise error
    return report.written


def run_report(
    instructions: str | Path,
    files: Sequence[str | Path],
    *,
    out_dir: str | Path | None = None,
    require_json: bool | None = None,
    response_schema_id: str | None = None,
    model: str | Sequence[str] | None = None,
    concurrency: int = 4,
    settings: Settings | None = None,
    router: Router | None = None,
) -> RunReport:
    """`run`, but failures are returned with the files written, not raised."""
    effective = load_settings() if settings is None else settings
    if concurrency < 1:
        raise ConfigError("A run needs at least one call at a time", where="concurrency")
    call = _call_options(effective, RunOptions(require_json, response_schema_id))
    instructions_text = _read(instructions, "The instructions") if isinstance(instructions, Path) else instructions
    sources = [Path(file) for file in files]
    targets = _targets(sources, None if out_dir is None else Path(out_dir), call.require_json)
    router_in_use = router or router_of(effective, keyless=True)
    try:
        first, *fallbacks = resolved_models(router_in_use, model)
        adapter = Adapter(router_in_use, first, retrying(effective), tuple(fallbacks))
        reports, failures = run_loop(lambda: _answer_files(adapter, instructions_text, targets, call, concurrency))
    finally:
        if router is None:
            router_in_use.close()
    written = [(targets[path], reports[path].attempts[-1].model) for path in targets if path in reports]
    warnings = {path: reports[path].warnings for path in targets if path in reports and reports[path].warnings}
    return RunReport(written, {path: failures[path] for path in targets if path in failures}, warnings)


def _call_options(settings: Settings, options: RunOptions) -> CallOptions:
    registry = Registry.load(settings.schemas)
    schema_id = options.response_schema_id
    if schema_id is not None and schema_id not in registry.names:
        schema = schema_named(schema_id, settings)
        registry = Registry(MappingProxyType({**registry.schemas, schema_id: schema}))
    call = build_call_options(settings, options, registry)
    if schema_id is not None and call.schema is None:
        reason = "output.use_response_schema is off" if call.require_json else "require_json is off"
        _log.warning("run: schema is not used, schema=%r, reason=%s", schema_id, reason)
    return call


async def _answer_files(
    adapter: Adapter, instructions: str, targets: Mapping[Path, Path], call: CallOptions, concurrency: int
) -> tuple[dict[Path, Report], dict[Path, SlipformError]]:
    """Return the report of each answer, and the errors of the others."""
    remaining = iter(targets.items())
    reports: dict[Path, Report] = {}
    failures: dict[Path, SlipformError] = {}

    async def work() -> None:
        for source, target in remaining:
            try:
                reports[source] = await _answer_file(adapter, instructions, source, target, call)
            except SlipformError as error:
                error.details.setdefault("file", str(source))
                failures[source] = error

    async with asyncio.TaskGroup() as group:
        for _ in range(min(concurrency, len(targets))):
            group.create_task(work())
    return reports, failures


async def _answer_file(adapter: Adapter, instructions: str, source: Path, target: Path, call: CallOptions) -> Report:
    payload = await asyncio.to_thread(_read, source, "This file")
    outcome = await adapter.answer(instructions, payload, call)
    await asyncio.to_thread(_write, target, outcome.text)
    return outcome.report


def _write(target: Path, text: str) -> None:
    with replacing(target) as file:
        file.write(text.encode("utf-8", "backslashreplace"))


def _read(path: Path, what: str) -> str:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{what} cannot be read: {error.strerror}", where=str(path)) from error
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise ConfigError(
            f"{what} is not UTF-8 text",
            where=str(path),
            hint="Convert it to text first; images and the like are not read.",
        )
    return text


def _targets(sources: Sequence[Path], folder: Path | None, json: bool) -> dict[Path, Path]:
    """Return the output of each file: beside it, or in the folder, under its name and another suffix."""
    targets: dict[Path, Path] = {}
    sources_by_target: dict[Path, Path] = {}
    ending = ".json" if json else ".txt"
    for source in sources:
        if source in targets:
            raise ConfigError("The same file is given twice", where=str(source))
        target = (folder or source.parent) / f"{source.name}.out{ending}"
        if target in sources_by_target:
            raise ConfigError(
                f"Two files would have the same output: {sources_by_target[target]} and {source}",
                where=str(target),
                hint="Rename one of them, or run them apart.",
            )
        sources_by_target[target] = source
        targets[source] = target
    return targets
