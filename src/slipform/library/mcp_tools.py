"""Use the tools of an MCP server in a conversation: `McpServer`. Needs the extra `mcp`.

The session lives on an event loop of its own, in a thread: so the same tools serve blocking and async callers, and the
several event loops that these may have.
"""

from __future__ import annotations

import asyncio
import re
import threading
from base64 import b64decode
from collections.abc import Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from slipform.enforce.judging import violation_error
from slipform.errors import ConfigError, SchemaViolationError, SlipformError, UpstreamError
from slipform.ir import Media, Tool
from slipform.schema import Schema

if TYPE_CHECKING:
    from mcp import Client as McpClient
    from mcp.types import CallToolResult
    from mcp.types import Tool as McpTool

_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_-]")


class McpServer:
    """An MCP server while it is connected: `tools` are its tools, ready for `ask(…, tools=…)`.

    ::

        with McpServer("http://127.0.0.1:8000/mcp") as server:
            client.ask(Answer, "…", tools=server.tools)

    The server is the address of one (Streamable HTTP), a command that starts one as a list, or whatever `mcp.Client`
    takes. `prefix` stands before the names of its tools, where two servers have tools of one name.
    """

    def __init__(self, server: Any, *, prefix: str = "") -> None:
        self._server = server
        self._prefix = prefix
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._thread: threading.Thread | None = None
        self.tools: tuple[Tool, ...] = ()
        """The server's tools; empty before it is connected."""

    def __enter__(self) -> Self:
        connected: Future[tuple[Tool, ...]] = Future()
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._serve(connected)), name="slipform-mcp", daemon=True
        )
        self._thread.start()
        self.tools = connected.result()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._loop is not None and self._stop is not None:
            self._loop.call_soon_threadsafe(self._stop.set)
        if self._thread is not None:
            self._thread.join()

    async def __aenter__(self) -> Self:
        return await asyncio.to_thread(self.__enter__)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.__exit__, kind, error, trace)

    async def _serve(self, connected: Future[tuple[Tool, ...]]) -> None:
        """Connect, list the tools, and keep the session until the server is left."""
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        try:
            async with _client(self._server) as client:
                connected.set_result(tuple([self._tool(each, client) for each in await _listed(client)]))
                await self._stop.wait()
        except SlipformError as error:
            connected.set_exception(error)
        except Exception as error:
            if connected.done():
                raise
            connected.set_exception(_unreachable(self._server, error))

    def _tool(self, tool: McpTool, client: McpClient) -> Tool:
        output: Schema[Any] | None = (
            None if tool.output_schema is None else Schema(f"{tool.name} output", tool.output_schema)
        )
        loop = asyncio.get_running_loop()

        async def run(**arguments: Any) -> Any:
            """Call the tool on the session's event loop, from whichever loop this one is."""
            future = asyncio.run_coroutine_threadsafe(client.call_tool(tool.name, arguments), loop)
            return read_result(tool.name, await asyncio.wrap_future(future), output)

        name = _NOT_IN_NAMES.sub("_", self._prefix + tool.name)[:64]
        return Tool(name, tool.input_schema, tool.description or tool.title, function=run)


def read_result(name: str, result: CallToolResult, output: Schema[Any] | None) -> Any:
    """Return what a tool gave; raises `UpstreamError`, or `SchemaViolationError` where it breaks its `outputSchema`."""
    if result.is_error:
        raise UpstreamError(_text(result.content) or f"The MCP tool {name!r} failed")
    if output is not None:
        found = output.validate(result.structured_content)
        if found:
            raise SchemaViolationError(
                violation_error(found, what=f"The output of the MCP tool {name!r} is").message,
                where=found[0].json_path,
                details={"validation_errors": [each.to_dict() for each in found]},
            )
    if result.structured_content is not None:
        return result.structured_content
    parts = [_part(block) for block in result.content]
    return parts[0] if len(parts) == 1 else parts


def _part(block: Any) -> str | Media:
    """Return one block of a result: text, an image, a sound, or what a resource holds."""
    if block.type == "text":
        return str(block.text)
    if block.type in ("image", "audio"):
        return Media(block.type, block.mime_type, b64decode(block.data))
    if block.type == "resource":
        from mcp.types import TextResourceContents

        resource = block.resource
        if isinstance(resource, TextResourceContents):
            return resource.text
        return Media("file", resource.mime_type, b64decode(resource.blob))
    return str(block.model_dump_json(by_alias=True, exclude_none=True))


def _text(blocks: Sequence[Any]) -> str:
    return "\n".join(block.text for block in blocks if block.type == "text")


def _client(server: Any) -> McpClient:
    try:
        from mcp import Client, StdioServerParameters
    except ImportError as error:
        raise ConfigError("MCP servers need the package `mcp`", hint="pip install 'slipform[mcp]'") from error
    if isinstance(server, list | tuple):
        command, *arguments = server
        server = StdioServerParameters(command=command, args=arguments)
    return Client(server)


async def _listed(client: McpClient) -> list[McpTool]:
    """Return all tools, of all pages."""
    tools: list[McpTool] = []
    cursor: str | None = None
    while True:
        page = await client.list_tools(cursor=cursor)
        tools += page.tools
        cursor = page.next_cursor
        if cursor is None:
            return tools


def _unreachable(server: Any, error: BaseException) -> UpstreamError:
    """Return the error for a server that does not answer; task groups hide the reason in groups of one."""
    while isinstance(error, BaseExceptionGroup) and error.exceptions:
        error = error.exceptions[0]
    failure = UpstreamError(
        f"The MCP server cannot be reached: {type(error).__name__}: {error}",
        where=server if isinstance(server, str) else " ".join(server) if isinstance(server, list | tuple) else None,
        hint="Check the address or the command.",
    )
    failure.__cause__ = error
    return failure
