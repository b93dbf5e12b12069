"""Who may call, what, and how often."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

from slipform.config import Settings


@dataclass(frozen=True, slots=True)
class Caller:
    """Who calls: the name of their key, and the models it may use (all when None)."""

    name: str = ""
    models: tuple[str, ...] | None = None


class Guard:
    """Lets calls in, one by one."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    @asynccontextmanager
    async def admit(self, headers: Mapping[bytes, bytes], address: str) -> AsyncIterator[Caller]:
        """The caller, for as long as the call goes on; raises what the caller is to be told otherwise."""
        del headers, address
        yield Caller()
