"""Write one line for every change of keys and for every refusal: when, what, whose key, by whom or from where, why.

Changes made with `slipform keys` are appended to `KEYS_FILE.audit`, as JSON, by the command itself. What a running
server takes over from the key file, hears from other machines and refuses goes to its log, as the logger
`slipform.audit`, also with `server.log: off`. No line holds a secret: a key is named by its public id.
"""

from __future__ import annotations

import logging
import os
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, BinaryIO

import orjson

if TYPE_CHECKING:
    from slipform.proxy.admission.refusals import Refused

_log = logging.getLogger("slipform.audit")


def log_refusal(error: Refused, *, address: str, request_id: str, path: str, name: str = "") -> None:
    """Log that a request was refused."""
    _write(
        "refused",
        id=request_id,
        key=error.key,
        name=name,
        address=address,
        path=path[:200],
        code=error.code,
        reason=error.message,
    )


def log_key(action: str, key: str, name: str, reason: str) -> None:
    """Log that a running server goes by something new about a key."""
    _write(action, key=key, name=name, reason=reason)


def change_line(action: str, key: str, name: str, **more: Any) -> bytes:
    """The line of a change made with `slipform keys`."""
    fields = {"time": datetime.now(UTC).isoformat(timespec="seconds"), "action": action, "key": key, "name": name}
    return orjson.dumps({**fields, "actor": actor(), **{k: v for k, v in more.items() if v}}) + b"\n"


def append(file: BinaryIO, line: bytes) -> None:
    """Add a line to the audit file, and see that it is on the disk."""
    file.write(line)
    file.flush()
    os.fsync(file.fileno())


def actor() -> str:
    """The user of this process, and the one who called `sudo`."""
    name = user_name(os.getuid()) if hasattr(os, "getuid") else os.environ.get("USERNAME", "")
    through = os.environ.get("SUDO_USER")
    return f"{name} (sudo by {through})" if through else name


def user_name(number: int) -> str:
    """A user's name, or the number where it has none."""
    try:
        import pwd

        return pwd.getpwuid(number).pw_name
    except (ImportError, KeyError):
        return str(number)


def _write(action: str, **fields: Any) -> None:
    kept = {name: value for name, value in fields.items() if value}
    _log.info("audit", extra={"slipform": {"action": action, **kept}})
