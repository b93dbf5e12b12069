"""The endpoint table: every path of the installed SDKs has a row, and the page and the document say what it says."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from slipform.addons.server.calls.endpoints import ROWS, Located, locate, methods_at
from slipform.addons.server.calls.pages import openapi_document

METHODS = {"get": "GET", "get_api_list": "GET", "post": "POST", "delete": "DELETE", "patch": "PATCH", "put": "PUT"}
CALL = re.compile(r'self\._(get_api_list|get|post|delete|patch|put)\(\s*(?:path_template\(\s*)?f?"(/[^"]*)"')
HEADERS = {
    "openai": {b"authorization": b"Bearer k"},
    "anthropic": {b"x-api-key": b"k", b"anthropic-version": b"2023-06-01"},
    "google.genai": {b"x-goog-api-key": b"k"},
}


def package_folder(package: str) -> Path:
    file = import_module(package).__file__
    assert file is not None
    return Path(file).parent


def stainless_calls(package: str, prefix: str) -> set[tuple[str, str]]:
    """The calls of an SDK that writes every path as a literal."""
    found = set()
    for file in package_folder(package).joinpath("resources").rglob("*.py"):
        for method, path in CALL.findall(file.read_text("utf-8")):
            path = re.sub(r"{\w+}", "id1", path.partition("?")[0])
            found.add((METHODS[method], prefix + path))
    return found


GOOGLE_NAMES = {
    "caches.py": "cachedContents/c1",
    "tunings.py": "tunedModels/t1",
    "documents.py": "fileSearchStores/f1/documents/d1",
    "file_search_stores.py": "fileSearchStores/f1",
    "operations.py": "operations/o1",
    "models.py": "models/m1",
    "batches.py": "batches/b1",
    "files.py": "files/f1",
}


def google_calls() -> set[tuple[str, str]]:
    """The calls of google-genai, which puts its paths together in each function."""
    found = set()
    for name, resource in GOOGLE_NAMES.items():
        tree = ast.parse(package_folder("google.genai").joinpath(name).read_text("utf-8"))
        for function in ast.walk(tree):
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                found |= {(method, path) for method, path in _google_function(function, resource)}
    return found


def _google_function(function: Any, resource: str) -> Iterator[tuple[str, str]]:
    source = ast.unparse(function)
    methods = set(re.findall(r"\.(?:async_)?request\(\s*'(\w+)'", source))
    for template in re.findall(r"path = (?:f)?'([^'?]+)(?:\?[^']*)?'\.format_map", source):
        path = re.sub(r"\{model\}", "models/m1", template)
        path = re.sub(r"\{(?:name|operationName|resourceName|models_url)\}", resource, path)
        path = re.sub(r"\{parent\}|\{file_search_store_name\}", "fileSearchStores/f1", path)
        path = re.sub(r"\{\w+\}", "id1", path)
        path = re.sub(r"^(files|batches|batchPredictionJobs)/\1/", r"\1/", path)
        path = path.replace("{id1}", "v1")
        for method in methods:
            yield method.upper(), f"/{path}" if path.startswith("upload/") else f"/v1/{path}"


SDK_CALLS = [
    *[("openai", *each) for each in sorted(stainless_calls("openai", "/v1"))],
    *[("anthropic", *each) for each in sorted(stainless_calls("anthropic", ""))],
    *[("google.genai", *each) for each in sorted(google_calls())],
]


def test_the_walk_finds_the_calls_of_the_installed_sdks() -> None:
    counts = {package: sum(each[0] == package for each in SDK_CALLS) for package in HEADERS}
    assert counts["openai"] > 300
    assert counts["anthropic"] > 150
    assert counts["google.genai"] > 30
    assert ("google.genai", "POST", "/v1/models/m1:countTokens") in SDK_CALLS


@pytest.mark.parametrize("package", HEADERS)
def test_every_call_of_an_sdk_is_forwarded_enforced_or_refused_by_name(package: str) -> None:
    unknown = []
    for name, method, path in SDK_CALLS:
        if name != package:
            continue
        found = locate(method, path, HEADERS[package])
        if found is None and not methods_at(path, HEADERS[package]):
            unknown.append(f"{method} {path}")
        elif found is not None and found.row.kind == "refused":
            assert found.row.instead, found
    assert unknown == []


def served(package: str, method: str, path: str) -> Located:
    found = locate(method, path, HEADERS[package])
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("package", "method", "path", "kind"),
    [
        ("openai", "POST", "/v1/embeddings", "forwarded"),
        ("openai", "POST", "/v1/chat/completions", "enforced"),
        ("openai", "DELETE", "/v1/files/file-1", "forwarded"),
        ("anthropic", "POST", "/v1/messages/count_tokens", "counted"),
        ("anthropic", "GET", "/v1/files/file_1/content", "forwarded"),
        ("google.genai", "POST", "/v1/models/m:countTokens", "counted"),
        ("google.genai", "POST", "/v1beta/models/a/b:embedContent", "forwarded"),
        ("google.genai", "GET", "/v1beta/files", "refused"),
        ("google.genai", "GET", "/v1/batches", "refused"),
        ("openai", "POST", "/v1/assistants", "refused"),
    ],
)
def test_a_shared_path_is_that_of_the_client_that_asks(package: str, method: str, path: str, kind: str) -> None:
    found = served(package, method, path)
    assert found.row.kind == kind
    assert package.rpartition(".")[2].replace("genai", "gemini") in (found.row.family, "openai")


def test_no_row_hides_another() -> None:
    for row in ROWS:
        path = re.sub(r"{\w+}", "x1", row.path).replace("*", "below")
        method = "POST" if row.method == "*" else row.method
        headers = {"anthropic": HEADERS["anthropic"], "gemini": HEADERS["google.genai"]}.get(row.family, {})
        found = locate(method, path, headers)
        assert found is not None
        assert found.row is row, (row, found.row)


def test_the_document_lists_all_rows() -> None:
    paths = openapi_document()["paths"]
    for row in ROWS:
        if row.method == "*":
            continue
        assert row.method.lower() in paths[row.path.replace("*", "{rest}")], row


def page_rows() -> list[str]:
    text = (Path(__file__).parents[2] / "docs" / "endpoints.md").read_text("utf-8")
    return [line for line in text.splitlines() if line.startswith("| `")]


def test_the_page_lists_all_rows_and_nothing_else() -> None:
    from slipform.addons.server.calls.pages import endpoint_lines

    assert page_rows() == list(endpoint_lines())
