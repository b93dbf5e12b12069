"""The other workers of one server, each reachable on a socket file of its own; used to gather metrics."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

_TIMEOUT = 2.0
_ASK = b"GET /metrics?worker=self HTTP/1.0\r\nhost: worker\r\naccept: text/plain\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Worker:
    """Which worker this is, of how many, and the folder with their sockets."""

    index: int
    count: int
    folder: Path

    def socket_path(self, index: int | None = None) -> Path:
        """Where a worker listens for the others.

        >>> Worker(0, 2, Path("run")).socket_path(1).name
        'worker-1.sock'
        """
        return self.folder / f"worker-{self.index if index is None else index}.sock"

    async def others(self) -> list[tuple[str, str]]:
        """The metrics of the other workers by their number; one that does not answer in time is left out."""
        indices = [index for index in range(self.count) if index != self.index]
        found = await asyncio.gather(*(_page(self.socket_path(index)) for index in indices))
        return [(str(index), page) for index, page in zip(indices, found, strict=True) if page is not None]


async def _page(path: Path) -> str | None:
    try:
        async with asyncio.timeout(_TIMEOUT):
            reader, writer = await asyncio.open_unix_connection(str(path))
            try:
                writer.write(_ASK)
                head, _, body = (await reader.read(-1)).partition(b"\r\n\r\n")
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return None
    return body.decode() if b" 200 " in head.split(b"\r\n", 1)[0] else None
