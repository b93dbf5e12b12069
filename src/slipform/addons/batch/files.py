"""Answer each of several files under the same instructions, into a file beside it: `run`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from slipform.addons.batch.call import Adapter, FileRowCaller, FinishedRow, resolved_models, runner_router
from slipform.addons.batch.file_rows import is_output, is_pattern, list_files
from slipform.addons.batch.finished_files import FinishedFiles
from slipform.addons.batch.jobs import Task
from slipform.addons.batch.journal import JournalEntry
from slipform.addons.batch.scheduler import answer_rows, run_loop
from slipform.call_options import CallOptions, RunOptions, build_call_options, retrying
from slipform.config import Settings, load_settings
from slipform.enforce import Report
from slipform.errors import ConfigError, EnforcementError, SlipformError, UpstreamError
from slipform.files.reading import decode_text
from slipform.files.replacing import replacing
from slipform.ir import ModelWarning
from slipform.named_schemas import schema_named
from slipform.providers.router import Router
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
    skipped: tuple[Path, ...] = ()
    """The inputs whose output was up to date; `written` has their outputs as well."""


def run(
    instructions: str | Path,
    files: Sequence[str | Path],
    *,
    out_dir: str | Path | None = None,
    require_json: bool | None = None,
    response_schema_id: str | None = None,
    model: str | Sequence[str] | None = None,
    concurrency: int = 4,
    skip_up_to_date: bool = False,
    settings: Settings | None = None,
    router: Router | None = None,
) -> list[tuple[Path, str]]:
    """Answer each file under the same instructions; return `[(out_path, model_name_or_id)]`, in the files' order.

    Files are text, PDF, DOCX, HTML or spreadsheets; a folder is all of its files. `skip_up_to_date` leaves out files
    whose output was made from the same file, instructions, schema and model. `require_json` and `response_schema_id`
    override the config for this run. Every file is tried; if any failed, the first failure is raised at the end, with
    all of them in `details["failures"]` and the files written in `details["written"]`.

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
        skip_up_to_date=skip_up_to_date,
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
    skip_up_to_date: bool = False,
    settings: Settings | None = None,
    router: Router | None = None,
) -> RunReport:
    """`run`, but failures are returned with the files written, not raised."""
    effective = load_settings() if settings is None else settings
    if concurrency < 1:
        raise ConfigError("A run needs at least one call at a time", where="concurrency")
    call = _call_options(effective, RunOptions(require_json, response_schema_id))
    instructions_text = _read(instructions, "The instructions") if isinstance(instructions, Path) else instructions
    sources = _listed([Path(file) for file in files])
    targets = _targets(sources, None if out_dir is None else Path(out_dir), call.require_json)
    router_in_use = router or runner_router(effective)
    try:
        first, *fallbacks = resolved_models(router_in_use, model)
        adapter = Adapter(router_in_use, first, retrying(effective), tuple(fallbacks))
        finished = FinishedFiles(_fingerprint(instructions_text, call, (first, *fallbacks)))
        models = finished.up_to_date(targets) if skip_up_to_date else {}
        pending = {source: target for source, target in targets.items() if source not in models}
        writer = _FileWriter(adapter, instructions_text, call, pending, finished if skip_up_to_date else None)
        if pending:
            run_loop(lambda: writer.answer(concurrency))
    finally:
        if router is None:
            router_in_use.close()
    return _report(targets, models, writer.reports, writer.failures)


def _report(
    targets: Mapping[Path, Path],
    skipped: Mapping[Path, str],
    reports: Mapping[Path, Report],
    failures: Mapping[Path, SlipformError],
) -> RunReport:
    """Return the outcomes in the order of the inputs; `skipped` has the model of each output that is up to date."""
    models = {**skipped, **{path: report.attempts[-1].model for path, report in reports.items()}}
    written = [(targets[path], models[path]) for path in targets if path in models]
    warnings = {path: reports[path].warnings for path in targets if path in reports and reports[path].warnings}
    return RunReport(written, {path: failures[path] for path in targets if path in failures}, warnings, tuple(skipped))


def _listed(sources: Sequence[Path]) -> list[Path]:
    """Return the files, those of folders and patterns one by one; what an earlier run wrote is not read."""
    files: list[Path] = []
    for source in sources:
        if source.is_dir() or is_pattern(source):
            files += list_files([source])
        elif not is_output(source):
            files.append(source)
    return files


def _fingerprint(instructions: str, call: CallOptions, models: Sequence[str]) -> str:
    """Return what an answer depends on beside its file."""
    schema = None if call.schema is None else call.schema.fingerprint
    return repr((instructions, schema, call.require_json, call.response_mime_type, tuple(models)))


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


@dataclass(frozen=True, slots=True)
class _FileWriter:
    """Answers the rows of files as `batch` does, and writes each answer into a file."""

    adapter: Adapter
    instructions: str
    call: CallOptions
    targets: Mapping[Path, Path]
    finished: FinishedFiles | None
    """Where outputs are recorded, if they are."""
    reports: dict[Path, Report] = field(default_factory=dict)
    failures: dict[Path, SlipformError] = field(default_factory=dict)

    async def ask(self, task: Task) -> FinishedRow:
        """Return the finished row of a file; raises `UpstreamError` when the vendor fails."""
        source = Path(task.key)
        target = self.targets[source]
        try:
            outcome = await self.adapter.answer(self.instructions, task.row["text"], self.call)
            await asyncio.to_thread(_write, target, outcome.text)
            if self.finished is not None:
                await asyncio.to_thread(self.finished.record, source, target, outcome.report.attempts[-1].model)
        except (EnforcementError, ConfigError) as error:
            return self.failed(task, error)
        self.reports[source] = outcome.report
        return FinishedRow(JournalEntry(task.number, task.key, True, b""))

    def failed(self, task: Task, error: SlipformError) -> FinishedRow:
        """Note why a file has no answer."""
        error.details.setdefault("file", task.key)
        self.failures[Path(task.key)] = error
        return FinishedRow(JournalEntry(task.number, task.key, False, b""))

    async def answer(self, concurrency: int) -> None:
        """Answer all files; one that no answer can be had for fails, and so do all others after a wrong key."""
        tasks = [Task(number, str(source), {"file": str(source)}) for number, source in enumerate(self.targets, 1)]
        try:
            await answer_rows(
                iter(tasks), FileRowCaller(self), lambda _row: None, concurrency=concurrency, window=len(tasks)
            )
        except UpstreamError as error:
            for task in tasks:
                if Path(task.key) not in self.reports and Path(task.key) not in self.failures:
                    self.failed(task, error)


def _write(target: Path, text: str) -> None:
    with replacing(target) as file:
        file.write(text.encode("utf-8", "backslashreplace"))


def _read(path: Path, what: str) -> str:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{what} cannot be read: {error.strerror}", where=str(path)) from error
    try:
        return decode_text(data)
    except ConfigError as error:
        raise ConfigError(f"{what} cannot be read: it is not UTF-8 text", where=str(path)) from error


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
