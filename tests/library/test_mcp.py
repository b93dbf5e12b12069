"""Tools of MCP servers: real servers of the `mcp` package, in the process and behind a command."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mcp")

from mcp.server import MCPServer
from mcp.types import CallToolResult, TextContent

from slipform import AsyncClient, Client, McpServer, Result, SchemaViolationError, UpstreamError
from slipform.library.mcp_tools import read_result
from slipform.providers.router import Router
from slipform.schema import Schema
from slipform.testing import FakeModel, Turn, calling

SCRIPT: list[Turn] = [calling(("add", {"a": 1, "b": 2}), ("fail", {})), "3"]


def server() -> MCPServer[Any]:
    made: MCPServer[Any] = MCPServer("sums")

    @made.tool()
    def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    @made.tool()
    def fail() -> str:
        """Fail."""
        raise ValueError("out of order")

    return made


def test_a_blocking_call_uses_a_servers_tools() -> None:
    model = FakeModel(SCRIPT)
    with McpServer(server()) as connected:
        assert [(tool.name, tool.description) for tool in connected.tools] == [
            ("add", "Add two numbers."), ("fail", "Fail."),
        ]  # fmt: skip
        result = Client("fake/m", router=Router({"fake": model})).ask_full(int, "1 + 2?", tools=connected.tools)
    assert result.value == 3
    assert result.runs[0].value == {"result": 3}
    assert "Error executing tool fail" in str(result.runs[1].error)


def test_an_async_call_uses_a_servers_tools() -> None:
    async def ask() -> Result[int]:
        async with McpServer(server(), prefix="my.") as connected:
            assert connected.tools[0].name == "my_add"
            client = AsyncClient(
                "fake/m", router=Router({"fake": FakeModel([calling(("my_add", {"a": 1, "b": 2})), "3"])})
            )
            async with client.stream(int, "1 + 2?", tools=[*connected.tools]) as stream:
                return await stream.result()

    assert asyncio.run(ask()).runs[0].value == {"result": 3}


def test_a_command_is_started_and_ended(tmp_path: Path) -> None:
    program = tmp_path / "server.py"
    program.write_text(
        "from mcp.server import MCPServer\n"
        "server = MCPServer('sums')\n"
        "@server.tool()\n"
        "def add(a: int, b: int) -> int:\n"
        "    return a + b\n"
        "server.run()\n"
    )
    with McpServer([sys.executable, str(program)]) as connected:
        tool = connected.tools[0]
        assert asyncio.run(tool.call({"a": 2, "b": 2})) == {"result": 4}


def test_a_server_that_cannot_be_reached_is_named() -> None:
    with pytest.raises(UpstreamError, match="MCP server cannot be reached"), McpServer("http://127.0.0.1:9/mcp"):
        pass


def test_output_that_breaks_its_schema_is_an_error() -> None:
    schema: Schema[Any] = Schema(
        "sum", {"type": "object", "properties": {"result": {"type": "integer"}}, "required": ["result"]}
    )
    said: list[Any] = [TextContent(type="text", text="3")]
    for content in ({"result": "three"}, {}, None):
        with pytest.raises(SchemaViolationError, match="output of the MCP tool 'add' is not valid"):
            read_result("add", CallToolResult(content=said, structured_content=content), schema)
    assert read_result("add", CallToolResult(content=said, structured_content={"result": 3}), schema) == {"result": 3}
    assert read_result("add", CallToolResult(content=said), None) == "3"
