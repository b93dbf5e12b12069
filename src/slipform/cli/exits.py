"""What a command's exit code means: the one table that scripts can rely on."""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from slipform.errors import (
    ConfigError,
    EnforcementError,
    RefusalError,
    RequestError,
    SchemaError,
    SlipformError,
    TruncatedError,
    UpstreamError,
)


class Exit(IntEnum):
    """The exit codes; `docs/cli.md` has the same table.

    >>> Exit.INVALID.value
    5
    """

    OK = 0
    """All went well."""
    OTHER = 1
    """Something else went wrong; `doctor` found something to mend."""
    USAGE = 2
    """The command was not written as it wants to be."""
    MISTAKE = 3
    """What was given cannot be used: the config, a schema, a model's name, a file."""
    UPSTREAM = 4
    """The model's side failed: network, key, rate limit, time limit, embedded engine."""
    INVALID = 5
    """The answer or the document is not valid and cannot be made so."""
    DECLINED = 6
    """The model refused, or its answer was cut off by a limit."""
    STOPPED = 130
    """Ctrl-C."""
    CLOSED_PIPE = 141
    """Nobody reads the output any more, as after `| head`."""


_BY_ERROR: Final[tuple[tuple[type[SlipformError], Exit], ...]] = (
    (RefusalError, Exit.DECLINED),
    (TruncatedError, Exit.DECLINED),
    (EnforcementError, Exit.INVALID),
    (UpstreamError, Exit.UPSTREAM),
    (ConfigError, Exit.MISTAKE),
    (RequestError, Exit.MISTAKE),
    (SchemaError, Exit.MISTAKE),
)


def exit_for(error: SlipformError) -> Exit:
    """The code that a command ends with after this error.

    >>> exit_for(ConfigError("No such setting")).name
    'MISTAKE'
    """
    return next((code for kind, code in _BY_ERROR if isinstance(error, kind)), Exit.OTHER)
