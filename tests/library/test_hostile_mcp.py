"""MCP servers that hang, page for ever or send too much are cut off with a clear error."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mcp")

from mcp.server import MCPServer

from slipform import McpServer, UpstreamError
from slipform.errors import UpstreamTimeout

HOSTILE = """
import json, sys

def reply(request, **outcome):
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": request["id"], **outcome}) + "\\n")
    sys.stdout.flush()

mode = sys.argv[1]
padding = "x" * (2_000_000 if mode == "large list" else 0)
pages = 0
for line in sys.stdin:
    request = json.loads(line)
    method = request.get("method")
    if "id" not in request or mode == "silent":
        continue
    if method == "initialize":
        version = request["params"]["protocolVersion"]
        info = {"name": "hostile", "version": "1"}
        reply(request, result={"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info})
    elif method == "tools/list":
        if mode == "no list":
            continue
        pages += 1
        tool = {"name": f"t{pages}", "inputSchema": {"type": "object"}, "description": padding}
        more = {} if mode == "no call" else {"nextCursor": str(pages)}
        reply(request, result={"tools": [tool], **more})
    elif method != "tools/call":
        reply(request, error={"code": -32601, "message": "Method not found"})
"""


def hostile(folder: Path, mode: str) -> list[str]:
    program = folder / "hostile.py"
    program.write_text(HOSTILE)
    return [sys.executable, str(program), mode]


@pytest.mark.parametrize(
    ("mode", "problem"),
    [
        ("silent", "did not connect and list its tools within 2 s"),
        ("no list", "did not connect and list its tools within 2 s"),
        ("endless pages", "lists over 100 pages"),
        ("large list", "10,000,000 bytes of tools"),
    ],
)
def test_a_server_that_does_not_list_its_tools_is_cut_off(mode: str, problem: str, tmp_path: Path) -> None:
    timeout = 2 if "within" in problem else 60
    with pytest.raises(UpstreamError, match=problem), McpServer(hostile(tmp_path, mode), timeout=timeout):
        pass


def test_a_call_that_is_not_answered_ends(tmp_path: Path) -> None:
    problem = "did not answer a call of the tool 't1' within 2 s"
    server = McpServer(hostile(tmp_path, "no call"), timeout=2)
    with server as connected, pytest.raises(UpstreamTimeout, match=problem):
        asyncio.run(connected.tools[0].call({}))


def test_a_result_of_fifty_megabytes_is_an_error() -> None:
    made: MCPServer[Any] = MCPServer("large")

    @made.tool()
    def large() -> str:
        """Return too much."""
        return "x" * 50_000_000

    with McpServer(made) as connected, pytest.raises(UpstreamError, match="at most 10,000,000 are read"):
        asyncio.run(connected.tools[0].call({}))
