"""What serves requests now, and how it is replaced without dropping any."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from slipform.client import AsyncClient
from slipform.config import Settings, load_settings
from slipform.engine import options_of, router_of
from slipform.server.gate import Gate

_log = logging.getLogger("slipform.server")


@dataclass(frozen=True, slots=True)
class Deployment:
    """One reading of the configuration and all that was made from it; never changed, only replaced as a whole."""

    settings: Settings
    client: AsyncClient
    gate: Gate
    generation: int = 1

    async def close(self) -> None:
        """Let go of connections and models."""
        await self.gate.close()
        await self.client.close()


Load = Callable[[int], Deployment]
"""Makes the deployment of a generation; raises `ConfigError` when the configuration is bad."""


def load(path: Path | None = None, generation: int = 1) -> Deployment:
    """Read and check the configuration as a whole, and make what it describes."""
    settings = load_settings(path)
    return deploy(AsyncClient(options=options_of(settings), router=router_of(settings)), settings, generation)


def deploy(client: AsyncClient, settings: Settings, generation: int = 1) -> Deployment:
    """A deployment of these settings.

    >>> deploy(AsyncClient(), Settings()).generation
    1
    """
    return Deployment(settings, client, Gate(client, settings), generation)


class Deployments:
    """The current deployment, and the ones before it that still have requests under way.

    A request enters, and leaves when it is over; an old deployment is closed when its last request leaves.
    """

    def __init__(self, first: Deployment) -> None:
        self.current = first
        self._users: dict[int, int] = {first.generation: 0}
        self._retired: dict[int, Deployment] = {}

    @property
    def in_use(self) -> dict[int, int]:
        """How many requests each generation has under way."""
        return dict(self._users)

    def enter(self) -> Deployment:
        """The current deployment, which stays open until `leave`."""
        current = self.current
        self._users[current.generation] += 1
        return current

    async def leave(self, deployment: Deployment) -> None:
        """A request of this deployment is over."""
        self._users[deployment.generation] -= 1
        if self._retired:
            await self._close_unused()

    async def replace(self, new: Deployment) -> None:
        """Serve from `new` from now on; requests under way finish where they began."""
        self._retired[self.current.generation] = self.current
        self._users[new.generation] = 0
        self.current = new
        await self._close_unused()

    async def close(self) -> None:
        """Close everything, whether in use or not."""
        last = [*self._retired.values(), self.current]
        self._retired.clear()
        for deployment in last:
            await deployment.close()

    async def _close_unused(self) -> None:
        unused = [generation for generation in self._retired if not self._users[generation]]
        for generation in unused:
            deployment = self._retired.pop(generation)
            del self._users[generation]
            await deployment.close()
            _log.info("the configuration's generation %d is closed", generation)
