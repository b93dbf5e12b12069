"""Use the tools of an MCP server in a conversation: `McpServer`. Needs the extra `mcp`.

The session runs on a separate event loop in a thread, so that the same tools serve blocking callers and async callers
on any number of event loops.
"""

from __future__ import annotations

import asyncio
import json
import re
import threading
from base64 import b64decode
from collections.abc import Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from slipform.enforce.judging import violation_error
from slipform.errors import ConfigError, SchemaViolationError, SlipformError, UpstreamError, UpstreamTimeout
from slipform.ir import Media, Tool
from slipform.schema import Schema

if TYPE_CHECKING:
    from mcp import Client as McpClient
    from mcp.types import CallToolResult
    from mcp.types import Tool as McpTool

_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_-]")
_CLOSE_SECONDS = 5.0
"""How long a session may take to end, in seconds."""
_MAX_PAGES = 100
_MAX_BYTES = 10_000_000
"""Bytes of all tools that a server lists, and of one result."""


class McpServer:
    """An MCP server while it is connected: `tools` are its tools, ready for `ask(…, tools=…)`.

    ::

        with McpServer("http://127.0.0.1:8000/mcp") as server:
            client.ask(Answer, "…", tools=server.tools)

    The server is the address of one (Streamable HTTP), a command that starts one as a list, or whatever `mcp.Client`
    takes. `prefix` is put before the names of its tools, where two servers have tools of one name. `timeout` is how
    many seconds it may take to connect and list its tools, and to answer each call.
    """

    def __init__(self, server: Any, *, prefix: str = "", timeout: float = 60.0) -> None:
        self._server = server
        self._prefix = prefix
        self._timeout = timeout
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._thread: threading.Thread | None = None
        self.tools: tuple[Tool, ...] = ()
        """The server's tools; empty until it is connected."""

    def __enter__(self) -> Self:
        connected: Future[tuple[Tool, ...]] = Future()
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._serve(connected)), name="slipform-mcp", daemon=True
        )
        self._thread.start()
        try:
            self.tools = connected.result(self._timeout + _CLOSE_SECONDS)
        except TimeoutError:
            raise self._too_slow("connect and list its tools") from None
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._loop is not None and self._stop is not None:
            self._loop.call_soon_threadsafe(self._stop.set)
        if self._thread is not None:
            self._thread.join(2 * _CLOSE_SECONDS)

    async def __aenter__(self) -> Self:
        return await asyncio.to_thread(self.__enter__)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.__exit__, kind, error, trace)

    async def _serve(self, connected: Future[tuple[Tool, ...]]) -> None:
        """Connect, list the tools, and keep the session open until the block is left."""
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        try:
            async with asyncio.timeout(self._timeout) as deadline, _client(self._server) as client:
                tools = await _list_tools(client, self._server)
                deadline.reschedule(None)
                connected.set_result(tuple([self._tool(each, client) for each in tools]))
                await self._stop.wait()
                deadline.reschedule(self._loop.time() + _CLOSE_SECONDS)
        except Exception as error:
            if not connected.done():
                connected.set_exception(self._connect_error(error))
            elif not self._stop.is_set():
                raise

    def _connect_error(self, error: Exception) -> SlipformError:
        if isinstance(error, SlipformError):
            return error
        if isinstance(error, TimeoutError):
            return self._too_slow("connect and list its tools")
        return _unreachable(self._server, error)

    def _too_slow(self, action: str) -> UpstreamTimeout:
        return UpstreamTimeout(
            f"The MCP server did not {action} within {self._timeout:g} s",
            where=_server_name(self._server),
            hint="Check that it works, or give `McpServer` a longer `timeout`.",
        )

    def _tool(self, tool: McpTool, client: McpClient) -> Tool:
        output: Schema[Any] | None = (
            None if tool.output_schema is None else Schema(f"{tool.name} output", tool.output_schema)
        )
        loop = asyncio.get_running_loop()

        async def run(**arguments: Any) -> Any:
            """Call the tool on the session's event loop, from any event loop."""
            future = asyncio.run_coroutine_threadsafe(call(arguments), loop)
            return read_result(tool.name, await asyncio.wrap_future(future), output)

        async def call(arguments: dict[str, Any]) -> CallToolResult:
            try:
                async with asyncio.timeout(self._timeout):
                    return await client.call_tool(tool.name, arguments)
            except TimeoutError:
                raise self._too_slow(f"answer a call of the tool {tool.name!r}") from None

        name = _NOT_IN_NAMES.sub("_", self._prefix + tool.name)[:64]
        return Tool(name, tool.input_schema, tool.description or tool.title, function=run)


def read_result(name: str, result: CallToolResult, output: Schema[Any] | None) -> Any:
    """Return a tool's result; raises `UpstreamError`, or `SchemaViolationError` if it violates its `outputSchema`."""
    size = sum(len(block.model_dump_json()) for block in result.content)
    if result.structured_content is not None:
        size += len(json.dumps(result.structured_content))
    if size > _MAX_BYTES:
        raise UpstreamError(
            f"The MCP tool {name!r} returned {size:,} bytes, and at most {_MAX_BYTES:,} are read",
            hint="Ask the tool for less.",
        )
    if result.is_error:
        raise UpstreamError(_text(result.content) or f"The MCP tool {name!r} failed")
    if output is not None:
        violations = output.validate(result.structured_content)
        if violations:
            raise SchemaViolationError(
                violation_error(violations, what=f"The output of the MCP tool {name!r} is").message,
                where=violations[0].json_path,
                details={"validation_errors": [each.to_dict() for each in violations]},
            )
    if result.structured_content is not None:
        return result.structured_content
    parts = [_part(block) for block in result.content]
    return parts[0] if len(parts) == 1 else parts


def _part(block: Any) -> str | Media:
    """Return one block of a result: text, an image, a sound, or the content of a resource."""
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


async def _list_tools(client: McpClient, server: Any) -> list[McpTool]:
    """Return the tools of all pages; raises `UpstreamError` if the list is too long."""
    tools: list[McpTool] = []
    cursor: str | None = None
    size = 0
    for _ in range(_MAX_PAGES):
        page = await client.list_tools(cursor=cursor)
        tools += page.tools
        size += sum(len(tool.model_dump_json()) for tool in page.tools)
        cursor = page.next_cursor
        if size > _MAX_BYTES:
            break
        if cursor is None:
            return tools
    raise UpstreamError(
        f"The MCP server lists over {_MAX_PAGES} pages or {_MAX_BYTES:,} bytes of tools",
        where=_server_name(server),
        hint="Use a server that offers fewer tools.",
    )


def _unreachable(server: Any, error: BaseException) -> UpstreamError:
    """Return the error for a server that does not answer; task groups nest the reason in groups of one."""
    while isinstance(error, BaseExceptionGroup) and error.exceptions:
        error = error.exceptions[0]
    failure = UpstreamError(
        f"The MCP server cannot be reached: {type(error).__name__}: {error}",
        where=_server_name(server),
        hint="Check the address or the command.",
    )
    failure.__cause__ = error
    return failure


def _server_name(server: Any) -> str | None:
    """Return the address or the command of a server, for an error message."""
    if isinstance(server, list | tuple):
        return " ".join(server)
    return server if isinstance(server, str) else None
