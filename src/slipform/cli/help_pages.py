"""Lay out the `--help` of every command: groups of options, plain words for their values, and one example."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import typer

_FILES = ("config", "data", "failures", "file", "ledger", "out", "prompt_file")
_COUNTS = (
    "max_attempts",
    "concurrency",
    "concurrent",
    "indent",
    "limit",
    "max_calls",
    "max_tokens",
    "port",
    "rounds",
    "rpm",
    "samples",
    "workers",
)
_VALUES = {
    **dict.fromkeys(_FILES, "FILE"),
    **dict.fromkeys(_COUNTS, "N"),
    **dict.fromkeys(("budget", "soft_budget", "max_cost"), "MONEY"),
    **dict.fromkeys(("expected", "keep", "key", "source"), "COLUMN"),
    **dict.fromkeys(("model", "models"), "MODEL"),
    **dict.fromkeys(("prompt", "system", "instructions"), "TEXT"),
    **dict.fromkeys(("since", "until", "expires"), "TIME"),
    **dict.fromkeys(("tokens", "soft_tokens"), "TOKENS"),
    "by": "NAMES",
    "unique_by": "FIELDS",
    "dialect": "NAME",
    "engine": "local|ray",
    "via": "live|batch",
    "locate": "auto|values|lines",
    "deadline": "TIME",
    "fail_under": "SHARE",
    "format": "jsonl|parquet",
    "host": "ADDRESS",
    "out_dir": "FOLDER",
    "per": "PERIOD",
    "schema": "SCHEMA",
    "strategies": "NAMES",
    "timeout": "SECONDS",
}
"""The description of an option's value, by the option's name."""
_OTHER_VALUES = {
    ("ask", "source"): "FILE",
    ("ask", "attach"): "FILE",
    ("eval", "out"): "FOLDER",
    ("eval", "models"): "MODELS",
    ("eval", "against"): "FOLDER",
}
_KEY_LIMITS = {
    "Budgets": ("budget", "tokens", "per", "soft_budget", "soft_tokens"),
    "Limits": ("model", "rpm", "concurrent", "expires"),
}
_GROUPS = {
    "ask": {
        "Model": ("model", "system", "max_tokens", "max_attempts", "timeout"),
        "Output": ("json", "stream", "report", "report_json", "indent"),
        "Evidence": ("evidence", "source", "samples"),
    },
    "batch": {
        "Prompt and model": ("prompt", "prompt_file", "model", "max_tokens"),
        "Rows": ("key", "keep", "keep_all", "limit", "retry_failures", "failures", "format"),
        "Evidence": ("evidence", "source", "samples"),
        "Running": ("concurrency", "engine", "via", "deadline", "status", "dry_run"),
    },
    "eval": {
        "Models": ("models", "strategies", "max_tokens", "samples"),
        "Variants": ("schema", "prompt", "prompt_file"),
        "Rows": ("expected", "source", "key", "limit", "retry_failures"),
        "Output": ("out", "json", "fail_under", "against"),
    },
    "extract": {
        "Records": ("list", "instructions", "unique_by", "rounds", "evidence"),
        "Model and budget": (
            "model",
            "max_cost",
            "max_calls",
            "max_tokens",
            "concurrency",
            "dry_run",
            "via",
            "deadline",
        ),
    },
    "run": {"Output": ("json", "out_dir", "again", "log"), "Model": ("model", "concurrency")},
    "keys add": _KEY_LIMITS,
    "keys change": _KEY_LIMITS,
}
"""The groups of a command's options; others come first, under "Options"."""
_COMMAND_GROUPS = {
    "Answers": ("ask", "run", "batch", "extract"),
    "JSON and schemas": ("fix", "check", "schema"),
    "Server": ("serve", "console", "keys", "spend", "import"),
    "Quality": ("ground", "review", "eval"),
    "Setup": ("init", "doctor", "models"),
}
_EXAMPLES = {
    "": "slipform ask 'Who wrote Faust, and when?' --schema book.json --model openai/gpt-5-mini",
    "ask": "slipform ask 'Who wrote Faust, and when?' --schema book.json --model openai/gpt-5-mini",
    "fix": "slipform fix answer.txt --schema book.json --explain",
    "check": "slipform check answers.jsonl --jsonl --schema book.json",
    "ground": "slipform ground answer.json letter.txt",
    "schema": "slipform schema lower book.json --dialect openai --losses",
    "schema list": "slipform schema list",
    "schema show": "slipform schema show app.models:Book --summary",
    "schema lower": "slipform schema lower book.json --dialect openai --losses",
    "schema preflight": "slipform schema preflight book.json --strict",
    "models": "slipform models --all",
    "models pull": "slipform models pull",
    "models show": "slipform models show anthropic/claude-sonnet-5",
    "init": "slipform init slipform.yaml",
    "doctor": "slipform doctor --model openai/gpt-5-mini",
    "serve": "slipform serve --port 8080 --config slipform.yaml",
    "console": "slipform console --no-open",
    "keys": "slipform keys add alice --budget 20 --per month",
    "keys add": "slipform keys add alice --budget 20 --per month --model 'openai/*'",
    "keys change": "slipform keys change alice --budget 50",
    "keys list": "slipform keys list",
    "keys remove": "slipform keys remove alice",
    "keys disable": "slipform keys disable alice",
    "keys enable": "slipform keys enable alice",
    "spend": "slipform spend --by key,model --since 30d",
    "import": "slipform import litellm config.yaml --out slipform.yaml",
    "import litellm": "slipform import litellm config.yaml --out slipform.yaml",
    "run": "slipform run 'Summarize this letter.' letters/*.txt --schema summary.json --out-dir summaries",
    "batch": "slipform batch letters.csv --prompt '{text}' --schema summary.json --out summaries.jsonl",
    "extract": "slipform extract invoices/ --schema invoice.json --list -o invoices.csv --max-cost 2",
    "review": "slipform review summaries.jsonl --out review.html",
    "eval": "slipform eval labelled.jsonl --models openai/gpt-5-mini,local --schema summary.json",
}


def lay_out_help(command: Any, path: tuple[str, ...] = ()) -> None:
    """Set the `--help` text of a typer command and its subcommands."""
    for name, inner in getattr(command, "commands", {}).items():
        lay_out_help(inner, (*path, name))
        if not path:
            inner.rich_help_panel = next(
                (title for title, names in _COMMAND_GROUPS.items() if name in names), inner.rich_help_panel
            )
    full_name = " ".join(path)
    if full_name in _EXAMPLES:
        command.epilog = f"Example: {_EXAMPLES[full_name]}"
    groups = {name: title for title, names in _GROUPS.get(full_name, {}).items() for name in names}
    help_option = command.get_help_option(typer.Context(command))
    for parameter in (*command.params, help_option):
        _lay_out_parameter(parameter, full_name, groups)


def _lay_out_parameter(parameter: Any, command: str, groups: Mapping[str, str]) -> None:
    name = parameter.opts[0].lstrip("-").replace("-", "_")
    if parameter.param_type_name == "argument":
        vars(parameter)["display_type_rich"] = lambda ctx: ""  # noqa: ARG005 - typer shows `<str>` beside arguments
        return
    if name in groups:
        parameter.rich_help_panel = groups[name]
    if parameter.is_flag:
        parameter.metavar = ""
        return
    parameter.metavar = _OTHER_VALUES.get((command, name)) or _VALUES.get(name)
    # Only the display changes: values are still checked. The option's help explains its numbers.
    parameter.min = None
    parameter.max = None
