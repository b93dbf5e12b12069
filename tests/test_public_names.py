"""What users build on stays: public names with their signatures, documented paths, settings, commands, error codes.

And what the docs lead to is there: imports, links, files.

A change here is a change for users. When it is meant, write the snapshot anew: `python -m tests.test_public_names`.
"""

from __future__ import annotations

import enum
import importlib
import inspect
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main
from pydantic import BaseModel

import slipform
from slipform import errors
from slipform.cli.program import app
from slipform.config import Settings

ROOT = Path(__file__).resolve().parent.parent
SNAPSHOT = Path(__file__).with_name("public_names.json")
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
DOCUMENTED = (
    "slipform.call_options", "slipform.config", "slipform.enforce", "slipform.engine", "slipform.errors", "slipform.ir",
    "slipform.providers.catalog", "slipform.providers.http", "slipform.providers.router", "slipform.runner",
    "slipform.schema", "slipform.schema.lowering", "slipform.testing", "slipform.text.parser", "slipform.text.resolve",
)  # fmt: skip


def parameters(thing: Any) -> str:
    """The names and kinds of what a callable takes; annotations are for type checkers and left out."""
    if isinstance(thing, enum.EnumMeta):
        return " | ".join(thing.__members__)
    try:
        signature = inspect.signature(thing)
    except (TypeError, ValueError):
        return type(thing).__name__
    bare = [each.replace(annotation=inspect.Parameter.empty) for each in signature.parameters.values()]
    shown = str(signature.replace(parameters=bare, return_annotation=inspect.Signature.empty))
    return re.sub(r"<[^<>]*>", "…", shown)


def settings_of(block: type[BaseModel], before: str = "") -> Iterator[str]:
    for name, field in block.model_fields.items():
        kinds = [field.annotation, *getattr(field.annotation, "__args__", ())]
        inner = [each for each in kinds if isinstance(each, type) and issubclass(each, BaseModel)]
        yield from settings_of(inner[0], f"{before}{name}.") if inner else [f"{before}{name}"]


def commands_of(command: Any, before: str = "") -> Iterator[str]:
    for name, inner in getattr(command, "commands", {}).items():
        yield from commands_of(inner, f"{before}{name} ")
    for each in command.params:
        yield f"{before}{' '.join(sorted(each.opts))}"


def error_classes(of: type[errors.SlipformError]) -> Iterator[type[errors.SlipformError]]:
    yield of
    for each in of.__subclasses__():
        if each.__module__ == errors.__name__:
            yield from error_classes(each)


def what_users_see() -> dict[str, Any]:
    return {
        "names": {name: parameters(getattr(slipform, name)) for name in slipform.__all__},
        "settings": sorted(settings_of(Settings)),
        "commands": sorted(set(commands_of(typer.main.get_command(app())))),
        "errors": {each.__name__: f"{each.code} {each.http_status}" for each in error_classes(errors.SlipformError)},
    }


@pytest.mark.parametrize("part", ["names", "settings", "commands", "errors"])
def test_nothing_that_users_build_on_has_gone(part: str) -> None:
    before, now = json.loads(SNAPSHOT.read_text(encoding="utf-8"))[part], what_users_see()[part]
    if isinstance(before, dict):
        assert {name: now.get(name) for name in before} == before
    else:
        assert [each for each in before if each not in now] == []


def test_the_snapshot_holds_everything_new() -> None:
    assert json.loads(SNAPSHOT.read_text(encoding="utf-8")) == what_users_see()


@pytest.mark.parametrize("module", DOCUMENTED)
def test_a_documented_path_can_be_imported(module: str) -> None:
    found = importlib.import_module(module)
    for name in getattr(found, "__all__", ()):
        assert hasattr(found, name)


def prose(page: Path) -> str:
    """A page without its blocks of code."""
    return re.sub(r"^ *```.*?^ *```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


def anchors(page: Path) -> set[str]:
    """The headings of a page as links name them."""
    plain = (
        re.sub(r"[^\w\s-]", "", heading).strip().lower()
        for heading in re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE)
    )
    return {re.sub(r"\s+", "-", each) for each in plain}


@pytest.mark.parametrize("page", PAGES, ids=[page.name for page in PAGES])
def test_every_link_in_the_docs_leads_somewhere(page: Path) -> None:
    links = [link for link in re.findall(r"\]\(([^)\s]+)\)", prose(page)) if not link.startswith("http")]
    targets = [(link, page.parent / link.partition("#")[0] if link[0] != "#" else page) for link in links]
    assert [link for link, target in targets if not target.is_file()] == []
    marked = [(link, target) for link, target in targets if "#" in link and target.suffix == ".md"]
    assert [link for link, target in marked if link.partition("#")[2] not in anchors(target)] == []


@pytest.mark.parametrize("name", ["docs/architecture.md", "CONTRIBUTING.md"])
def test_every_file_that_the_map_names_is_there(name: str) -> None:
    folders = [ROOT / folder for folder in ("src", "tests", "docs", "bench")]
    files = [*ROOT.glob("*.*"), *(path for folder in folders for path in folder.rglob("*.*"))]
    named = set(re.findall(r"`([\w./]+\.(?:py|toml|md|yaml))`", prose(ROOT / name)))
    assert len(named) > 10
    assert [each for each in sorted(named) if not any(path.as_posix().endswith(f"/{each}") for path in files)] == []


def test_the_reference_lists_every_public_name() -> None:
    page = (ROOT / "docs" / "reference.md").read_text(encoding="utf-8")
    table = page.partition("## Python names")[2].partition("```")[0]
    assert sorted(set(re.findall(r"`(\w+)`", table)) & set(slipform.__all__)) == sorted(slipform.__all__)


def test_every_import_in_the_docs_works() -> None:
    found = {
        (module, name.strip())
        for page in PAGES
        for module, names in re.findall(r"from (slipform[\w.]*) import ([\w, ]+)", page.read_text(encoding="utf-8"))
        for name in names.split(",")
    }
    assert len(found) > 20
    assert [f"{module}.{name}" for module, name in found if not hasattr(importlib.import_module(module), name)] == []


if __name__ == "__main__":
    SNAPSHOT.write_text(json.dumps(what_users_see(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
