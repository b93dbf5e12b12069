"""The docs site: its sources are complete, its links lead somewhere, and a person can read it in a browser."""

from __future__ import annotations

import importlib
import json
import os
import pkgutil
import re
import shutil
import subprocess
import sys
import threading
import urllib.request
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urljoin, urlsplit

import pytest

import slipform
from slipform import testing
from slipform.addons.server import App
from slipform.config import Settings
from slipform.engine.setup import options_of
from slipform.errors import SlipformError
from slipform.library.async_client import AsyncClient
from slipform.providers.catalog import load_catalog
from slipform.providers.router import Router
from slipform.testing import FakeModel
from tests.conftest import in_browser, serving

website = pytest.importorskip("website.build", reason="the docs extra is not installed here: `make test` installs it")

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
SITE = ROOT / "build" / "docs"
DRIVER = Path(__file__).with_name("site_browser.mjs")
PAGES = [path for _, _, path in website.pages_of(website.load_config()["nav"])]
ALL = [
    f"{page.removesuffix('.md')}.html {width} {scheme}"
    for page in PAGES
    for width in (1280, 390)
    for scheme in ("light", "dark")
]
pytestmark = pytest.mark.xdist_group("browser")


def test_every_page_is_in_the_navigation() -> None:
    assert sorted(PAGES) == sorted(path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md"))


def test_every_error_code_has_an_entry_in_troubleshooting() -> None:
    for module in pkgutil.walk_packages(slipform.__path__, "slipform."):
        if ".proxy" in module.name or module.name == "slipform.addons.local.worker":
            importlib.import_module(module.name)
    expected = {(kind.code, str(kind.http_status)) for kind in kinds_of(SlipformError)}
    page = (DOCS / "troubleshooting.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^### `(\w+)`\n\n\*\*(\d+)\.\*\*", page, re.MULTILINE)) == expected


def kinds_of(kind: type[SlipformError]) -> Iterator[type[SlipformError]]:
    """An error class of slipform's own, and all below it."""
    yield kind
    for below in kind.__subclasses__():
        if below.__module__.startswith("slipform."):
            yield from kinds_of(below)


def test_what_the_table_of_vendors_says_is_in_the_catalogue() -> None:
    page = (DOCS / "providers.md").read_text(encoding="utf-8").partition("## Known vendors")[2].partition("\n## ")[0]
    shown = re.findall(r"^\| `([\w-]+)/…` \| (.*?) \| (.*?) \| (\w+) \|$", page, re.MULTILINE)
    known = {
        each.name: (each.title, " or ".join(f"`{name}`" for name in each.api_key_env), each.capabilities("any"))
        for each in load_catalog({}).vendors.values()
    }
    assert {name for name, *_ in shown} == known.keys()
    for name, title, keys, strategy in shown:
        assert (title, keys) == known[name][:2]
        assert strategy == known[name][2].auto_strategy.value


def test_the_api_reference_has_every_public_name() -> None:
    text = "\n".join(path.read_text(encoding="utf-8") for path in (DOCS / "api").glob("*.md"))
    shown = {name.rpartition(".")[2] for name in re.findall(r"^::: (\S+)$", text, re.MULTILINE)}
    assert set(slipform.__all__) - {"__version__"} | set(testing.__all__) <= shown


def test_doctests_in_a_docstring_become_code() -> None:
    fenced = importlib.import_module("website.doctests").fenced
    assert fenced("Adds.\n\n>>> 1 + 1\n2\n\nMore.") == "Adds.\n\n```pycon\n>>> 1 + 1\n2\n```\n\nMore."
    assert fenced("Adds:\n>>> 1\n1") == "Adds:\n\n```pycon\n>>> 1\n1\n```"
    assert fenced("No example.") == "No example."


@pytest.fixture(scope="module")
def site() -> Path:
    """The site, built as `make docs` does."""
    built = subprocess.run(
        [sys.executable, "-m", "website.build"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert built.returncode == 0, built.stderr
    return SITE


@pytest.mark.slow
def test_every_link_leads_to_a_page_and_an_anchor(site: Path) -> None:
    texts = {path.relative_to(site).as_posix(): path.read_text(encoding="utf-8") for path in site.rglob("*.html")}
    anchors = {name: set(re.findall(r'\bid="?([^"\s>]+)', text)) for name, text in texts.items()}
    broken = []
    for name, text in texts.items():
        for link in re.findall(r'\b(?:href|src)="?([^"\s>]+)', text):
            if urlsplit(link).scheme or link.startswith("//"):
                continue
            target = urlsplit(urljoin(name, link))
            path = unquote(target.path or name).lstrip("/")  # the page for what is not found may stand anywhere
            anchor = unquote(target.fragment)
            known = anchors.get(path, {anchor})
            if not (site / path).exists() or (anchor and anchor not in known and not anchor.startswith("__")):
                broken.append(f"{name}: {link}")
    assert broken == []


@pytest.mark.slow
def test_nothing_is_loaded_from_another_host(site: Path) -> None:
    foreign = re.compile(r'<(?:script|img|link|iframe|source)\b[^>]*\b(?:src|href|srcset)="?(?:https?:)?//')
    assert [path.name for path in site.rglob("*.html") if foreign.search(path.read_text(encoding="utf-8"))] == []


@pytest.mark.slow
def test_each_page_is_there_as_markdown_and_listed_for_language_models(site: Path) -> None:
    listed = re.findall(r"\]\((\S+)\)$", (site / "llms.txt").read_text(encoding="utf-8"), re.MULTILINE)
    assert listed == PAGES
    assert all((site / page).read_text(encoding="utf-8").strip() for page in PAGES)
    assert "ask(shape" in (site / "api" / "calls.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_other_sites_find_a_card_to_show_beside_a_link(site: Path) -> None:
    for page, card in (("index.html", "./assets/card.png"), ("integrations/openai.html", "../assets/card.png")):
        head = (site / page).read_text(encoding="utf-8").partition("</head>")[0]
        assert f'<meta property="og:image" content="{card}">' in head
        assert '<meta name="twitter:card" content="summary_large_image">' in head
    picture = (site / "assets" / "card.png").read_bytes()
    assert picture[:8] == b"\x89PNG\r\n\x1a\n"
    assert (int.from_bytes(picture[16:20]), int.from_bytes(picture[20:24])) == (1200, 630)


@pytest.mark.slow
def test_the_header_has_the_version(site: Path) -> None:
    assert f'--version: "{slipform.__version__}"' in (site / "index.html").read_text(encoding="utf-8")


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 — the name is the base class's
        pass


def looked_at(site: Path) -> dict[str, str]:
    """What is wrong with the pages, as the driver sees them in a browser."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(site)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        found = in_browser(DRIVER, f"http://127.0.0.1:{server.server_port}", str(site), *ALL, timeout=1700)
    finally:
        server.shutdown()
        server.server_close()
    return {name: wrong for name, wrong in found.items() if wrong}


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.slow
def test_all_pages_and_the_search_in_a_browser(site: Path) -> None:
    assert looked_at(site) == {}


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.slow
def test_material_for_mkdocs_builds_the_same_pages(site: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(tmp_path)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    built = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    pages = {path.relative_to(site).as_posix() for path in site.rglob("*.html")}
    assert pages == {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.html")}
    shutil.rmtree(tmp_path)


@pytest.mark.parametrize("name", ["pour.svg", "pour-narrow.svg"])
def test_the_picture_shows_what_the_proxy_does(name: str) -> None:
    drawn = ET.parse(DOCS / "assets" / name).iter("{http://www.w3.org/2000/svg}text")
    words = [(str(each.get("class")), "".join(each.itertext())) for each in drawn]
    first, second = [text for kind, text in words if "released" in kind]
    answer = "".join(text for kind, text in words if re.search("dropped|held|fault", kind)).replace(",", first + ",", 1)
    model = FakeModel([f'{answer} "x": 1}}', second])
    settings = Settings.model_validate({"default_model": "fake/any", "server": {"traces": "on"}})
    app = App(AsyncClient(router=Router({"fake": model}), options=options_of(settings)), settings)
    schema = {"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer", "maximum": 150}}}
    body = {
        "model": "fake/any",
        "stream": True,
        "slipform": {"stream_mode": "live"},
        "messages": [{"role": "user", "content": "Ada is 36"}],
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "person", "schema": {**schema, "required": ["name", "age"]}},
        },
    }
    with serving(app) as address:
        headers = {"content-type": "application/json"}
        request = urllib.request.Request(f"{address}/v1/chat/completions", json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request) as response:
            events = [json.loads(line[6:]) for line in response if line.startswith(b"data: {")]
    pieces = [event["choices"][0]["delta"].get("content") or "" for event in events]
    assert "".join(pieces) == "".join(text for kind, text in words if "strong" in kind and "✓" not in text)
    detail = next(iter(app.console.history.rows(newest_first=True)))["detail"]
    assert detail["attempts"][0]["stream"]["fault"]["at"] == len(answer) - 1
    assert next(text for kind, text in words if "quote" in kind) in model.requests[1].messages[-1].text
