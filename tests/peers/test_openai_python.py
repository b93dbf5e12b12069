"""openai-python's own tests of structured output see what they expect when the proxy is between them and the vendor."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from slipform.providers.http import HttpProvider
from tests.peers.test_peers import HERE
from tests.proxy.proxying import proxied

COST = "`usage.cost`: slipform adds the price of a call"
CHOICES = "each of several choices is asked for by itself, and this vendor answers every request alike"
SPELLING = "arguments of calls that slipform validates are written without blanks"
DIFFERENCES: dict[tuple[str, str], dict[str, str]] = {
    ("openai", "tests/lib/chat/test_completions.py"): {
        "test_parse_pydantic_model": COST,
        "test_parse_pydantic_model_optional_default": COST,
        "test_parse_pydantic_dataclass": COST,
        "test_parse_pydantic_raw_response": COST,
        "test_async_parse_pydantic_raw_response": COST,
        "test_parse_pydantic_model_multiple_choices": CHOICES,
        "test_parse_multiple_pydantic_tools": SPELLING,
    },
    ("openai-responses", "tests/lib/responses/test_responses.py"): {},
}
"""By the kind of vendor and the file of tests: those that see something else, and why."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "path"), DIFFERENCES)
def test_the_sdks_own_tests_pass_behind_the_proxy(kind: str, path: str) -> None:
    folder = Path(os.environ.get("SLIPFORM_OPENAI_TESTS") or Path(sys.prefix) / "openai-tests")
    if not (folder / "source" / path).exists():
        pytest.skip("openai-python's tests are not here: `make test-all` downloads them")
    port = free_port()
    provider = HttpProvider(kind, base_url=f"http://127.0.0.1:{port}/v1", api_key="k")
    options = ["-o", "addopts=", "-p", "openai_python_middle", "-p", "no:cacheprovider", "-q", "-rf", "--tb=no"]
    with proxied({"openai": provider}) as address:
        environment = {
            **os.environ,
            "SLIPFORM_ADDRESS": f"{address}/p/openai",
            "SLIPFORM_VENDOR_PORT": str(port),
            "PYTHONPATH": str(HERE),
        }
        run = subprocess.run(
            [str(folder / "bin" / "python"), "-m", "pytest", *options, path],
            cwd=folder / "source",
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
    passed = re.search(r"\b(\d+) passed", run.stdout)
    assert passed is not None, run.stdout + run.stderr
    assert int(passed[1]) >= 10
    assert set(re.findall(r"^FAILED \S+::(\w+)", run.stdout, re.MULTILINE)) == set(DIFFERENCES[kind, path])
