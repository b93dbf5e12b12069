"""Hold the deployment that serves requests, and replace it without dropping any or weakening its protection.

A reload applies the new file, unless that has accidentally lost a protection. It is refused as a whole, and the old
generation continues, when

* there was a file, and now there is none, or it cannot be read or parsed, or it is empty, or its last line is cut
  off;
* one of the protecting blocks (`server`, `redis`, `ledger`, `output`, `enforcement`) is missing now: an empty block
  (`server: {}`) says that its defaults are intended;
* keys were required and no longer are, unless the new file itself says `server.allow_anonymous: true`, which the old
  one did not;
* the keys' file is gone or cannot be read;
* other machines can reach the socket that is actually bound, whatever host the new file names, and neither keys nor
  `allow_anonymous` (`--insecure`) are set.

The operator may change values: limits may be raised, origins opened. After a restart, nothing is compared with the
previous configuration.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from slipform.addons.server.admission.admission import check_exposed
from slipform.addons.server.calls.routes import CallRouter
from slipform.config import ConfigReading, Settings, load_config
from slipform.engine.setup import options_of, router_of
from slipform.errors import ConfigError
from slipform.library.async_client import AsyncClient
from slipform.providers.downgrade_file import downgrade_file, remembered_downgrades

_log = logging.getLogger("slipform.server")
REFUSED = "the new configuration is refused, generation %d goes on: %s"
_PROTECTING = ("server", "redis", "ledger", "output", "enforcement")
"""Blocks without which calls are less limited, or answers less strictly validated."""


@dataclass(eq=False, slots=True)
class Deployment:
    """One version of the configuration and the objects built from it; never changed, only replaced as a whole."""

    reading: ConfigReading
    client: AsyncClient
    gate: CallRouter
    generation: int = 1
    users: int = 0
    """Requests in progress."""
    settings: Settings = field(init=False)
    """The settings that it was built from."""

    def __post_init__(self) -> None:
        self.settings = self.reading.settings

    async def close(self) -> None:
        """Close connections and models."""
        await self.gate.close()
        await self.client.close()


Load = Callable[[Deployment], Deployment]
"""Builds the deployment that replaces this one; raises `ConfigError` for a bad or weaker configuration."""


@dataclass(frozen=True, slots=True)
class ActiveConfig:
    """The configuration in use, and the reloads so far: the initial state of a worker that replaces another.

    >>> ActiveConfig(ConfigReading(Settings())).generation
    1
    """

    reading: ConfigReading
    generation: int = 1
    refused: int = 0
    """Reloads that were refused since the server started."""
    last_refused: bool = False


def load(
    path: Path | None = None,
    bound: str | None = None,
    *,
    replacing: ConfigReading | None = None,
    generation: int = 1,
) -> Deployment:
    """Read and check the configuration as a whole, also against the current one, and build its deployment.

    `bound` is the host of the listening socket; the host in the settings applies where nothing listens yet.
    """
    reading = load_config(path)
    if replacing is not None:
        check_not_weaker(replacing, reading)
    with reading.locating_mistakes():
        return deploy(client_of(reading.settings), reading, generation, bound)


def client_of(settings: Settings) -> AsyncClient:
    """Build the client that these settings describe."""
    downgrades = None
    if settings.runtime.remember_downgrades:
        downgrades = remembered_downgrades(downgrade_file())
    return AsyncClient(options=options_of(settings), router=router_of(settings, downgrades=downgrades))


def deploy(client: AsyncClient, reading: ConfigReading, generation: int = 1, bound: str | None = None) -> Deployment:
    """Build a deployment of these settings, in which callers cannot reach files or start downloads.

    >>> deploy(AsyncClient(), ConfigReading(Settings())).generation
    1
    """
    check_exposed(reading.settings, bound)
    further = (client.options.formatter,) if client.options.formatter else ()
    restricted = AsyncClient(client.model, options=client.options, router=client.router.for_callers(*further))
    return Deployment(
        reading, restricted, CallRouter(restricted.router, restricted.options, reading.settings), generation
    )


def check_not_weaker(old: ConfigReading, new: ConfigReading) -> None:
    """Raise where a new configuration lost a protection of callers or the operator, as this module's docstring defines.

    >>> check_not_weaker(ConfigReading(Settings(), names=frozenset({"server"})), ConfigReading(Settings()))
    Traceback (most recent call last):
    slipform.errors.ConfigError: The new config says nothing. Put it back as it was, or restart if you mean it.
    """
    where = None
    if new.path or old.path:
        where = str(new.path or old.path)
    undo = "Put it back as it was, or restart if you mean it."
    if old.path is not None and new.path is None:
        raise ConfigError("The config is gone", where=where, hint=undo)
    if old.names and not new.names:
        raise ConfigError("The new config says nothing", where=where, hint=undo)
    if old.ends_in_newline and not new.ends_in_newline:
        raise ConfigError("The new config's last line has no end, so it may be cut off", where=where, hint=_NEWLINE)
    missing = next((name for name in _PROTECTING if name in old.names and name not in new.names), None)
    if missing is not None:
        empty = "null" if missing == "redis" else "{}"
        hint = f"Put it back. If its defaults are meant, write `{missing}: {empty}`."
        raise ConfigError(f"`{missing}` was set and is gone", where=where, hint=hint)
    if old.settings.server.keys_file and not new.settings.server.keys_file and _anonymous(old) >= _anonymous(new):
        raise ConfigError(
            "`server.keys_file` was set and is missing now; refusing to serve without keys", where=where, hint=_KEYS
        )


_NEWLINE = "Write it again, and end it with a line break."
_KEYS = "Put it back. To serve without keys, restart, or let the new file be the first to say `allow_anonymous: true`."


def _anonymous(reading: ConfigReading) -> bool:
    """Return whether the file itself, not `--insecure` or the environment, lets any client call."""
    return reading.settings.server.allow_anonymous and "server.allow_anonymous" in reading.names


class Deployments:
    """The current deployment, and the earlier ones that still have requests in progress.

    Code that serves a request is counted in the deployment's `users`; an old deployment is closed when its last
    request has ended.
    """

    def __init__(self, first: Deployment) -> None:
        self.current = first
        self.retired: list[Deployment] = []

    async def replace(self, new: Deployment) -> None:
        """Use `new` for further requests; those in progress finish with their own deployment."""
        self.retired.append(self.current)
        self.current = new
        await self.close_unused()

    async def close(self) -> None:
        """Close all deployments, whether in use or not."""
        last = [*self.retired, self.current]
        self.retired.clear()
        for deployment in last:
            await deployment.close()

    async def close_unused(self) -> None:
        """Close old deployments without calls."""
        for deployment in [each for each in self.retired if not each.users]:
            self.retired.remove(deployment)
            await deployment.close()
            _log.info("config: old generation closed, generation=%d", deployment.generation)
