"""Query the consoles of this server's other workers, and relay their events.

A connection goes to any worker, and each stores only its own calls. Workers query one another over sockets in a folder
that only their owner can open; a signature derived from the console's secret identifies their requests.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
from collections.abc import Callable, Mapping
from typing import Any

import orjson

from slipform.addons.server.console.events import Subscriber
from slipform.addons.server.observability.metrics import WorkerAddress, worker_request

_HEADER = "x-slipform-worker"
LAST_EVENT = "last-event-id"
_RECONNECT_SECONDS = 1.0


class OtherWorkers:
    """The other workers; none where there is only one."""

    def __init__(self, worker: WorkerAddress | None, secret: Callable[[], bytes]) -> None:
        self._worker = worker
        self._secret = secret

    @property
    def count(self) -> int:
        """The number of workers, including this one."""
        return 1 if self._worker is None else self._worker.count

    def _headers(self) -> dict[str, str]:
        signature = hmac.new(self._secret(), b"worker", hashlib.sha256).hexdigest()
        return {_HEADER: signature, "content-type": "application/json"}

    def is_request_of_worker(self, headers: Mapping[bytes, bytes]) -> bool:
        """Return whether a request comes from another worker of this server: it has the workers' signature."""
        signature = headers.get(_HEADER.encode())
        if signature is None or self._worker is None:
            return False
        return hmac.compare_digest(signature, self._headers()[_HEADER].encode())

    async def ask(self, method: str, target: str, body: Any = None) -> list[Any]:
        """Return the answers of the other workers, without those that do not answer."""
        if self._worker is None:
            return []
        data = b"" if body is None else orjson.dumps(body)
        answers = await self._worker.ask(method, target, self._headers(), data)
        return [orjson.loads(answer) for _, answer in answers if answer is not None]

    def relay(self, target: str, subscriber: Subscriber, after: str = "") -> list[asyncio.Task[None]]:
        """Send the other workers' events since `after` to a subscriber, until the returned tasks are cancelled."""
        if self._worker is None:
            return []
        following = (self._follow(index, target, subscriber, after) for index in self._worker.other_indices())
        return [asyncio.create_task(each) for each in following]

    async def _follow(self, index: int, target: str, subscriber: Subscriber, after: str) -> None:
        if self._worker is None:
            return
        path = str(self._worker.socket_path(index))
        while True:
            try:
                reader, writer = await asyncio.open_unix_connection(path, limit=4 * 1024 * 1024)
                try:
                    writer.write(worker_request("GET", target, {**self._headers(), LAST_EVENT: after}))
                    await reader.readuntil(b"\r\n\r\n")
                    while event := await reader.readuntil(b"\n\n"):
                        subscriber.relay(event)
                finally:
                    writer.close()
            except (OSError, EOFError, asyncio.LimitOverrunError):
                after = subscriber.position() or "lost"
            await asyncio.sleep(_RECONNECT_SECONDS)
