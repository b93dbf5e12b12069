"""The settings as they are in force, without the secrets in them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit, urlunsplit

if TYPE_CHECKING:
    from slipform.config import Settings

_QUERY_SECRET: Final = re.compile(r"((?:key|token|secret|password)[^=&]*=)[^&#]+", re.IGNORECASE)


def effective(settings: Settings) -> str:
    """All settings as YAML; passwords in addresses and headers that hold credentials are masked.

    >>> from slipform.config import read_settings
    >>> "hunter22" in effective(read_settings("redis: {url: 'redis://me:hunter22@host/0'}"))
    False
    """
    import yaml

    return yaml.safe_dump(_masked(settings.model_dump(mode="json")), sort_keys=False, allow_unicode=True)


def checked(settings: Settings, host: str | None, port: int | None) -> None:
    """Print what `serve` would run with; a mistake in it is raised as when it starts."""
    from slipform.cli.output import write
    from slipform.engine import router_of

    router_of(settings).close()
    given = {name: value for name, value in (("host", host), ("port", port)) if value is not None}
    server = settings.server.model_copy(update=given)
    write(effective(settings.model_copy(update={"server": server})), end="")


def masked_url(url: str) -> str:
    """An address without its password and without keys in its query.

    >>> masked_url("redis://me:hunter22@host:6379/0")
    'redis://me:[redacted]@host:6379/0'
    """
    from slipform.providers.secrets import MASK

    parts = urlsplit(url)
    login, at, host = parts.netloc.rpartition("@")
    name, colon, _ = login.partition(":")
    netloc = f"{name}{colon}{MASK if colon else ''}{at}{host}"
    query = _QUERY_SECRET.sub(rf"\1{MASK}", parts.query)
    return urlunsplit((parts.scheme, netloc, parts.path, query, parts.fragment))


def _masked(value: Any) -> Any:
    from slipform.providers.auth import secrets_in
    from slipform.providers.secrets import MASK

    if isinstance(value, str):
        return masked_url(value) if "://" in value else value
    if isinstance(value, list):
        return [_masked(item) for item in value]
    if not isinstance(value, Mapping):
        return value
    return {
        name: MASK if isinstance(item, str) and _is_credential(name, item, secrets_in) else _masked(item)
        for name, item in value.items()
    }


def _is_credential(name: str, value: str, secrets_in: Any) -> bool:
    """By its name; the names of environment variables and files are no secrets."""
    return not name.endswith(("_env", "_file")) and bool(secrets_in({name: value}))
