"""Build the docs site into build/docs: `python -m website.build`, or `make docs`.

zensical writes the pages. Around it stands what it does not do: the version in the header, each page as Markdown beside
its HTML, `llms.txt`, and an entry in the search for every table row that has an anchor (settings, variables, options).
"""

from __future__ import annotations

import importlib
import inspect
import json
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import yaml

import slipform
from website.doctests import fenced

ROOT = Path(__file__).resolve().parent.parent
SITE = ROOT / "build" / "docs"


def main() -> int:
    """Build everything; the exit code is that of zensical."""
    environment = {**os.environ, "SLIPFORM_DOCS_VERSION": slipform.__version__}
    command = [sys.executable, "-m", "zensical", "build", "--clean", "--strict"]
    built = subprocess.run(command, cwd=ROOT, env=environment, check=False, capture_output=True, text=True)  # noqa: S603 — our own command
    if built.returncode:
        sys.stderr.write(built.stdout + built.stderr)
        return built.returncode
    pages = pages_of(load_config()["nav"])
    write_markdown(pages)
    (SITE / "llms.txt").write_text(llms_txt(pages), encoding="utf-8")
    add_rows_to_search()
    return 0


def load_config() -> dict[str, Any]:
    """Return mkdocs.yml, with its environment variables left empty."""

    class Loader(yaml.SafeLoader):
        """Reads the one tag that is not plain YAML."""

    Loader.add_constructor("!ENV", lambda _loader, _node: None)
    config: dict[str, Any] = yaml.load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"), Loader)  # noqa: S506 — a SafeLoader
    return config


def pages_of(nav: list[Any], section: str = "") -> list[tuple[str, str, str]]:
    """Return (tab, title, path) of every page of a navigation.

    >>> pages_of([{"Start": [{"Home": "index.md"}, {"More": [{"A": "a.md"}]}]}])
    [('Start', 'Home', 'index.md'), ('Start', 'A', 'a.md')]
    """
    found = []
    for entry in nav:
        for title, below in entry.items():
            if isinstance(below, str):
                found.append((section, title, below))
            else:
                found += pages_of(below, section or title)
    return found


def write_markdown(pages: list[tuple[str, str, str]]) -> None:
    """Write each page's Markdown beside its HTML; the API's with signatures and docstrings in place of their marks."""
    for _, _, path in pages:
        text = (ROOT / "docs" / path).read_text(encoding="utf-8")
        (SITE / path).write_text(re.sub(r"^::: (\S+)$", _documented, text, flags=re.MULTILINE), encoding="utf-8")


def _documented(mark: re.Match[str]) -> str:
    """Return a name's signature and docstring as Markdown."""
    module, _, name = mark[1].rpartition(".")
    value = getattr(importlib.import_module(module), name)
    try:
        signature = str(inspect.signature(value))
    except (TypeError, ValueError):
        signature = ""
    return f"## {name}\n\n```python\n{name}{signature}\n```\n\n{fenced(inspect.getdoc(value) or '')}\n"


def llms_txt(pages: list[tuple[str, str, str]]) -> str:
    """Return the list of all pages for language models, by section, in the form of llmstxt.org."""
    lines = ["# slipform", "", f"> {load_config()['site_description']}", ""]
    section = ""
    for tab, title, path in pages:
        if tab != section:
            section = tab
            lines += [f"## {tab}", ""] if lines[-1] == "" else ["", f"## {tab}", ""]
        lines.append(f"- [{title}]({path})")
    return "\n".join(lines) + "\n"


class _Rows(HTMLParser):
    """Collects (id, text) of the rows that have an anchor."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: dict[str, str] = {}
        self._row = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "tr":
            self._row = dict(attrs).get("id") or ""
            if self._row:
                self.rows[self._row] = ""

    def handle_data(self, data: str) -> None:
        if self._row:
            self.rows[self._row] += data

    def handle_endtag(self, tag: str) -> None:
        if tag == "tr":
            self._row = ""


def add_rows_to_search() -> None:
    """Make an entry of the search for every table row with an anchor on the reference and the command line."""
    file = SITE / "search.json"
    index = json.loads(file.read_text(encoding="utf-8"))
    for page in ("reference.html", "cli.html"):
        path = next(item["path"] for item in index["items"] if item["location"] == page)
        parser = _Rows()
        parser.feed((SITE / page).read_text(encoding="utf-8"))
        for name, text in parser.rows.items():
            words = " ".join(text.split())
            index["items"].append(
                {"location": f"{page}#{name}", "level": 2, "title": name, "text": words, "path": path, "tags": []}
            )
    body = json.dumps(index, ensure_ascii=False, separators=(",", ":"))
    file.write_text(body, encoding="utf-8")
    (SITE / "search.js").write_text(f"var __index = {body}", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
