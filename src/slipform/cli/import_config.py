"""Convert the configuration of another gateway: `slipform import litellm`."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slipform.cli.terminal import Exit, print_data, print_message

if TYPE_CHECKING:
    from slipform.cli.litellm_values import LiteLlmImport
    from slipform.config.load import SettingPath

app = typer.Typer(help="Take over the configuration of another gateway.", no_args_is_help=True)
_HEAD = """\
# Written by `slipform import litellm {name}`. `slipform serve --check` shows the settings in force.
# ${{NAME:-text}} is the environment variable NAME, or the text where it is not set.
"""


@app.callback()
def _group() -> None:
    """Take over the configuration of another gateway."""


@app.command()
def litellm(
    config: Annotated[Path, typer.Argument(help="LiteLLM's config.yaml.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The file to write; - is standard output.")] = Path(
        "slipform.yaml"
    ),
    check: Annotated[bool, typer.Option("--check", help="Only report; write nothing.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
) -> None:
    """Write a slipform.yaml that does what a LiteLLM configuration says, and print a line for each thing it cannot.

    Exits with 0 when all was taken, with 1 when something was left out, with 3 when the file cannot be read.
    """
    from slipform.errors import RequestError

    text, report, complete = convert_litellm(config, os.environ)
    to_stdout = str(out) == "-"
    if not check and to_stdout:
        print_data(text, end="")
    elif not check:
        if out.exists() and not force:
            hint = "Write over it with --force, or name another with --out."
            raise RequestError("The file is there already; nothing was written", where=str(out), hint=hint)
        out.write_text(text, encoding="utf-8")
    for line in report:
        (print_message if to_stdout else print_data)(line)
    if not check and not to_stdout:
        print_message(f"Wrote {out}. Check it: slipform serve --check --config {out}", fg="green")
    if not complete:
        raise typer.Exit(Exit.OTHER)


def convert_litellm(config: Path, environment: Mapping[str, str]) -> tuple[str, list[str], bool]:
    """Return a slipform.yaml for a LiteLLM configuration, the lines of its report, and whether it is complete."""
    import yaml

    from slipform.cli.litellm_config import convert
    from slipform.cli.litellm_values import LiteLlmImport, mask
    from slipform.config import read_settings

    state = LiteLlmImport(environment)
    data, lines = _read(state, config, ())
    body = yaml.safe_dump(convert(state, data), sort_keys=False, allow_unicode=True, width=120)
    text, secrets = mask(_HEAD.format(name=config.name) + body)
    if secrets:
        state.note("left out", (), "it stood where no secret belongs, and is not copied", "a secret")
    read_settings(text, "slipform.yaml")  # an unreadable configuration is never written
    report = []
    counts = Counter(remark[:3] for remark in state.remarks)
    first = {remark[:3]: remark.place for remark in reversed(state.remarks)}
    for key, times in counts.items():
        place = first[key]
        prefixes = [place[:size] for size in range(len(place), 0, -1)]
        where = next((lines[each] for each in prefixes if each in lines), config.name)
        kind, name, remark = key
        report.append(mask(f"{where}: {kind}: {name}{f' ({times} times)' if times > 1 else ''}: {remark}")[0])
    return text, report, all(remark.kind == "note" for remark in state.remarks)


def _read(
    state: LiteLlmImport, path: Path, including: tuple[Path, ...]
) -> tuple[dict[str, Any], dict[SettingPath, str]]:
    """Return the content of a file and its includes, and the line of each part."""
    from slipform.cli.litellm_values import as_list
    from slipform.config.load import node_lines
    from slipform.errors import ConfigError
    from slipform.yaml_reader import YamlError, read_yaml

    if path.resolve() in including:
        raise ConfigError("The files include each other", where=str(path))
    try:
        text = path.read_text(encoding="utf-8-sig")
        data, node = read_yaml(text)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigError(f"The file cannot be read: {reason}", where=str(path)) from error
    except YamlError as error:
        hint = "A Helm or Jinja template has to be rendered first." if "{{" in text else None
        raise ConfigError(f"The file is not YAML: {error}", where=f"{path}:{error.line}", hint=hint) from error
    if not isinstance(data, dict):
        raise ConfigError("The file is not a LiteLLM configuration: it has no settings", where=f"{path}:1")
    lines = {place: f"{path.name}:{line}" for place, line in node_lines(node, ())}
    includes = data.get("include")
    for name in [includes] if isinstance(includes, str) else as_list(includes):
        if (path.parent / str(name)).is_file():
            _merge(data, lines, *_read(state, path.parent / str(name), (*including, path.resolve())))
        else:
            state.note("left out", ("include",), f"the file {name} is not there")
    return data, lines


def _merge(
    data: dict[str, Any], lines: dict[SettingPath, str], more: Mapping[str, Any], others: Mapping[SettingPath, str]
) -> None:
    """Add the content of an included file: lists are appended, fields are merged."""
    from slipform.cli.litellm_values import as_list

    offset = len(as_list(data.get("model_list")))
    for place, line in others.items():
        if len(place) > 1 and place[0] == "model_list" and isinstance(place[1], int):
            lines[("model_list", place[1] + offset, *place[2:])] = line
        else:
            lines.setdefault(place, line)
    for name, value in more.items():
        existing = data.get(name)
        if isinstance(existing, list) and isinstance(value, list):
            data[name] = [*existing, *value]
        elif isinstance(existing, dict) and isinstance(value, dict):
            data[name] = {**value, **existing}
        elif existing is None:
            data[name] = value
