"""Define the server's blocks of `slipform.yaml`.

`slipform init` writes the docstrings of this module into the settings file.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from slipform.settings_block import ON_OR_OFF, Positive, SettingsBlock


class ServerSettings(SettingsBlock):
    """Where the proxy listens, and its limits."""

    host: str = "127.0.0.1"
    """The address to listen on; `0.0.0.0` lets other machines call."""
    port: Annotated[int, Field(ge=0, le=65535)] = 8080
    """0 picks a free one."""
    workers: Annotated[int, Field(ge=1, le=256)] = 1
    """Serving processes."""
    max_body_bytes: Annotated[int, Field(ge=1024)] = 8 * 1024 * 1024
    """Larger requests are refused."""
    max_forwarded_bytes: Annotated[int, Field(ge=1024)] = 64 * 1024 * 1024
    """The same for requests that are only forwarded: embeddings, images, audio."""
    max_file_bytes: Annotated[int, Field(ge=1024)] = 512 * 1024 * 1024
    """The same for files that are uploaded or downloaded; they are never held whole."""
    max_schema_bytes: Annotated[int, Field(ge=1024, le=5_000_000)] = 500_000
    """For the schemas of one request together: its response format and its tools."""
    max_schema_nodes: Annotated[int, Field(ge=100)] = 20_000
    """Values (objects, lists, strings, numbers) in those schemas; a pattern counts as 20."""
    body_seconds: Positive = 30
    """How long a client may take to send its request."""
    request_seconds: Positive = 600
    """How long one request may take in all."""
    write_seconds: Positive = 30
    """How long a client may read nothing before it is disconnected."""
    drain_seconds: Positive = 30
    """How long running requests may continue after a stop signal."""
    notice_seconds: Annotated[float, Field(ge=0)] = 0
    """How long new requests are still accepted after it, while /readyz answers 503: time for a balancer to notice."""
    vendor_models: bool = True
    """Whether lists of models hold those of the configured vendors, which are asked for theirs."""
    max_concurrent: Annotated[int, Field(ge=1)] = 1000
    """Concurrent requests; further ones are answered with 503 and `retry-after`."""
    max_concurrent_per_key: Annotated[int, Field(ge=1)] | None = None
    """Concurrent requests of one key, or of one address without keys; nine tenths of `max_concurrent` by default."""
    max_connections: Annotated[int, Field(ge=1)] = 10_000
    """Open connections; beyond it, idle ones are closed for new ones. At most half the files a process may open."""
    max_connections_per_address: Annotated[int, Field(ge=1)] | None = None
    """Open connections of one address; concurrent requests of one client behind a trusted balancer."""
    cors_origins: list[str] = []
    """Web pages of these origins may call; none by default."""
    keys_file: str | None = None
    """Callers' API keys, hashed; `slipform keys add` writes it. Without it any client may call."""
    allow_anonymous: bool = False
    """Whether to serve an address that other machines can reach without a file of keys."""
    requests_per_minute: Annotated[int, Field(ge=1)] | None = None
    """For each key that has no limit of its own, or for each caller's address without keys."""
    wrong_keys_per_minute: Annotated[int, Field(ge=1)] | None = 30
    """From one address; further wrong keys are answered with 429. Valid keys are still accepted."""
    open_pages: list[Literal["metrics", "docs", "openapi", "version", "readyz"]] = []
    """Operators' pages that need no operator's key."""
    allowed_hosts: list[str] = []
    """Host names, beside this machine's own, under which pages are served on loopback without keys."""
    log: Annotated[Literal["text", "json", "off"], ON_OR_OFF] = "text"
    debug_traces: bool = False
    """Also log requests and responses in full. They may be private: off by default. Implies `traces: on`."""
    console: Annotated[Literal["auto", "on", "off"], ON_OR_OFF] = "auto"
    """Whether `/console` is served; `auto`: on loopback without keys, and where there is an operator's key."""
    console_hosts: list[str] = []
    """Host names, beside this machine's own, under which the console is served."""
    console_bytes: Annotated[int, Field(ge=64 * 1024)] = 8 * 1024 * 1024
    """For the figures of recent calls, in each worker."""
    traces: Annotated[Literal["auto", "off", "failures", "on"], ON_OR_OFF] = "auto"
    """Whether the console records prompts and answers: of no call, of failed ones, of all; `auto`: of all, in memory
    only, on loopback without keys, and of none elsewhere."""
    trace_bytes: Annotated[int, Field(ge=1024 * 1024)] = 64 * 1024 * 1024
    """For those words, in each worker."""
    history: str | None = None
    """A SQLite file that keeps the console's calls over restarts; without it they are in memory only."""
    history_days: Positive = 14
    """How long the figures of calls are kept there."""
    history_text_days: Positive = 2
    """How long the words of traced calls are kept there."""
    history_bytes: Annotated[int, Field(ge=1024 * 1024)] = 1024 * 1024 * 1024
    """How large the file may become; the oldest calls make way."""


class Cache(SettingsBlock):
    """Whether valid answers are cached for identical requests."""

    enabled: bool = False
    max_entries: Annotated[int, Field(ge=1)] = 1000
    max_bytes: Annotated[int, Field(ge=1024)] = 64 * 1024 * 1024
    """In each process; Redis has its own limits."""
    ttl_seconds: Positive = 3600
    shared: bool = False
    """Whether callers with different keys share answers; a hit then reveals that the same request was sent before."""


class LedgerSettings(SettingsBlock):
    """Where it is written down what callers' keys have spent."""

    path: str | None = None
    """A SQLite file; beside `server.keys_file` by default, and none without keys."""
    keep_days: Annotated[int, Field(ge=1)] = 90
    """How long single calls are kept for `slipform spend`; the sums that budgets go by are kept longer."""
    assumed_output_tokens: Annotated[int, Field(ge=1)] = 1024
    """Reserved for the answer to a request without a limit (`max_tokens`), and sent with it if the key can run out."""
    on_loss: Literal["refuse", "local"] = "refuse"
    """What becomes of keys with budgets while Redis, where machines count together, is away: they are refused, or this
    machine continues with what it knows alone."""


class Signatures(SettingsBlock):
    """How long, and how much of, what vendors sign (thinking, tool calls) is kept for callers of other APIs."""

    max_bytes: Annotated[int, Field(ge=1024)] = 64 * 1024 * 1024
    """For all keys; Redis has its own limit."""
    max_bytes_per_key: Annotated[int, Field(ge=1024)] = 8 * 1024 * 1024
    ttl_seconds: Positive = 86_400
    file: str | None = None
    """A SQLite file, which survives a restart. Without it: Redis if configured, else a temporary file that all workers
    share, or with one worker the memory."""


class StoredResponses(Signatures):
    """How long, and how much of, answers to Responses requests are stored for vendors that store none themselves."""

    enabled: bool = True
    """Whether they are stored at all; otherwise each request has to carry its whole conversation."""
    max_bytes: Annotated[int, Field(ge=1024)] = 256 * 1024 * 1024
    max_bytes_per_key: Annotated[int, Field(ge=1024)] = 64 * 1024 * 1024


class FetchSettings(SettingsBlock):
    """Whether images and documents that requests name by address are fetched for vendors that take bytes only."""

    enabled: bool = False
    max_bytes: Annotated[int, Field(ge=1024)] = 8 * 1024 * 1024
    """Of all files of one request."""
    max_files: Annotated[int, Field(ge=1)] = 16
    """In one request."""
    seconds: Positive = 10
    """How long fetching the files of one request may take."""
