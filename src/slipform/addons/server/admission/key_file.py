"""Read a key file in a running server: find presented keys and apply changes.

A server holds a shared lock on the file whose keys it uses. `slipform keys` replaces that file by a new one, so as
long as a process holds the lock on the old file, some server has not loaded the new one. This needs no permission
except to read the file, counts every worker, works through containers that mount its folder, and leaves nothing
behind when a server dies. It does not cover other machines.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import hmac
import logging
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

import msgspec
import orjson

from slipform.addons.server.admission.budgets import KeyBudget
from slipform.addons.server.admission.revocations import (
    ReceivedRevocations,
    Revocation,
    latest_revocations,
    remembered_at,
)
from slipform.errors import ConfigError

if sys.platform != "win32":  # which has no such locks: there a holder can be neither found nor ruled out
    import fcntl

_log = logging.getLogger("slipform.server")
_audit = logging.getLogger("slipform.audit")
KEY_PREFIX = "sf-"
_ID = re.compile(r"[0-9a-f]{12}")
_NOBODY = "0" * 64
_RECHECK_SECONDS = 1.0
_READS = 5
"""The most attempts to read a file that is replaced while it is read."""
_ACTIONS = {"removed": "removed", "off": "disabled", "on": "enabled"}
_Stamp: TypeAlias = tuple[int, int, int]
_NO_LIMITS = (None,) * 5


@dataclass(frozen=True, slots=True)
class Key:
    """A stored key. The secret is shown once, when the key is created, and cannot be recovered."""

    id: str
    name: str
    salt: str
    hash: str
    models: tuple[str, ...] | None = None
    """Patterns (`openai/*`) of the models it may use; all when None."""
    requests_per_minute: int | None = None
    created: str = ""
    disabled: bool = False
    switched: int = 0
    """The revision in which it was last disabled or enabled; machines compare it to find the later of two records."""
    expires: str = ""
    """When it expires, in ISO 8601; empty for never."""
    operator: bool = False
    """Whether it opens the operators' pages."""
    max_cost: float | None = None
    """The money that it may spend in a period; for this and the fields below see `KeyBudget`."""
    max_tokens: int | None = None
    period: str = ""
    soft_cost: float | None = None
    soft_tokens: int | None = None
    max_concurrent: int | None = None

    @property
    def budget(self) -> KeyBudget | None:
        """The limits of its spending; None where nothing is limited."""
        limits = (self.max_cost, self.max_tokens, self.soft_cost, self.soft_tokens, self.max_concurrent)
        if limits == _NO_LIMITS:
            return None
        return KeyBudget(
            self.max_cost, self.max_tokens, self.period, self.soft_cost, self.soft_tokens, self.max_concurrent
        )

    def is_expired(self, now: float) -> bool:
        """Return whether the key has expired.

        >>> Key("1", "ada", "", "", expires="1970-01-02T00:00:00+00:00").is_expired(now=86_400.0)
        True
        """
        return bool(self.expires) and datetime.fromisoformat(self.expires).timestamp() <= now


@dataclass(frozen=True, slots=True)
class RemovedKey:
    """The record of a removed key, which informs machines that still have the key, even months later."""

    id: str
    name: str
    removed: str = ""

    @property
    def revocation(self) -> Revocation:
        """Return the revocation for other machines."""
        return Revocation("removed", 0)


@dataclass(frozen=True, slots=True)
class KeyDocument:
    """The content of a key file: keys and removed keys, each by its id."""

    keys: dict[str, Key] = field(default_factory=dict)
    removed: dict[str, RemovedKey] = field(default_factory=dict)

    def revocations(self) -> Iterator[tuple[str, Revocation]]:
        """Return the changes made here to the keys, for other machines."""
        for each in self.removed.values():
            yield each.id, each.revocation
        for key in self.keys.values():
            if key.switched:
                yield key.id, revocation_of(key)


def revocation_of(key: Key) -> Revocation:
    """Return whether a key is enabled or disabled here, as a record for other machines."""
    return Revocation.signed("off" if key.disabled else "on", key.id, key.hash, key.switched)


def read_keys(path: Path) -> dict[str, Key]:
    """Return the keys of a file by their ids."""
    return read_key_file(path).keys


def read_key_file(path: Path) -> KeyDocument:
    """Return the keys and removed keys of a file."""
    with open_key_file(path) as file:
        return parse_key_file(file, path)


def presented_id(presented: str) -> str:
    """Return the public part of a key, for logs; empty for a text of another form, which may be another service's key.

    >>> presented_id("sf-0123456789ab-secret"), presented_id("sk-proj-secret")
    ('0123456789ab', '')
    """
    identity, _ = split_key(presented)
    return identity if _ID.fullmatch(identity) else ""


def split_key(presented: str) -> tuple[str, str]:
    """Return the public id and the secret of a presented key; an empty id for a text of another form."""
    prefix, _, rest = presented.partition("-")
    identity, _, secret = rest.partition("-")
    if f"{prefix}-" == KEY_PREFIX:
        return (identity, secret)
    return ("", secret)


def open_key_file(path: Path) -> BinaryIO:
    """Open the file for reading; raises `ConfigError` when that fails."""
    try:
        return path.open("rb")
    except FileNotFoundError:
        hint = "Make it with `slipform keys add NAME`."
        raise ConfigError("The key file does not exist", where=str(path), hint=hint) from None
    except OSError as error:
        raise ConfigError(f"The key file cannot be read: {error.strerror}", where=str(path)) from error


def parse_key_file(file: BinaryIO, path: Path) -> KeyDocument:
    """Decode an open key file; raises `ConfigError` for invalid content."""
    try:
        document = orjson.loads(file.read())
        removed = [RemovedKey(**each) for each in document.get("removed", [])]
        return KeyDocument({each["id"]: _key(each) for each in document["keys"]}, {each.id: each for each in removed})
    except OSError as error:
        raise ConfigError(f"The key file cannot be read: {error.strerror}", where=str(path)) from error
    except (orjson.JSONDecodeError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise ConfigError(
            f"The key file is damaged: {error}", where=str(path), hint="Restore it, or make new keys."
        ) from error


def _key(fields: Mapping[str, Any]) -> Key:
    Key(**fields)  # raises for an unknown field, whose limit would be ignored
    key = msgspec.convert(fields, Key)  # raises for a wrong type: `models: "openai/*"` would be eight patterns, one `*`
    key.is_expired(0.0)  # raises for an invalid time
    if (budget := key.budget) is not None:
        budget.check()
    return key


def hash_secret(salt: str, secret: str) -> str:
    """Return the hash that is stored instead of a secret."""
    # The secret is 256 random bits, so there is nothing to guess and no need for a slow hash.
    return hashlib.sha256(f"{salt}{secret}".encode("utf-8", "replace")).hexdigest()


def hold(file: BinaryIO) -> bool:
    """Lock this file as the one in use here, until `release`; return False while another process checks its lock."""
    if sys.platform != "win32":
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:  # the file system has no locks, which `KeyReaders` finds out as well
            return True
    return True


def release(file: BinaryIO) -> None:
    """Release the lock. Closing alone would not release it where a child process has inherited the file."""
    if sys.platform != "win32":
        with contextlib.suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_UN)
    file.close()


class KeyFile:
    """The current keys: a change of the file takes effect within a second, without a restart.

    After `start`, a lock on the version of the file in use shows it to `slipform keys`.
    """

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._clock = clock
        self._holds = False
        self._locked_file: BinaryIO | None = None
        self._complaint = ""
        self._stamp: _Stamp | None = None
        self._document = KeyDocument()
        self._received = ReceivedRevocations(remembered_at(path, os.environ))
        self._off: frozenset[str] = frozenset()
        self._gone: frozenset[str] = frozenset()
        self._read()
        self._checked = clock()

    def start(self) -> None:
        """From now on, lock the version of the file that is in use, for `slipform keys` to see."""
        if not self._holds:
            self._holds = True
            self._stamp = None
            self.refresh()

    def close(self) -> None:
        """Release the lock."""
        self._holds = False
        if self._locked_file is not None:
            release(self._locked_file)
            self._locked_file = None

    def find(self, presented: str) -> Key | None:
        """Return the presented key if it is valid. A wrong id takes as long as a wrong secret."""
        self._recheck()
        identity, secret = split_key(presented)
        key = self._document.keys.get(identity) if identity not in self._gone else None
        salt, expected_hash = (key.salt, key.hash) if key is not None else ("", _NOBODY)
        if not hmac.compare_digest(hash_secret(salt, secret), expected_hash):
            return None
        if key is not None and identity in self._off:
            return dataclasses.replace(key, disabled=True)
        return key

    def _recheck(self) -> None:
        if self._clock() - self._checked >= _RECHECK_SECONDS:
            self.refresh()

    def refresh(self) -> None:
        """Load the file if it has changed. If it cannot be read, keep the keys loaded before, and retry later."""
        self._checked = self._clock()
        if _stamp(self._path) == self._stamp:
            return
        before = self._document
        try:
            self._read()
        except ConfigError as error:
            # Continuing with the previous keys is safer than rejecting or admitting every caller.
            if str(error) != self._complaint:
                _log.error("keys: file cannot be read, the keys read before stay in force. %s", error)
            self._complaint = str(error)
            return
        self._complaint = ""
        for action, key in _differences(before, self._document):
            _log_key(action, key.id, key.name, f"taken from {self._path}")

    def known_revocations(self) -> dict[str, Revocation]:
        """Return the revocations that this machine publishes: its own, and those received from others."""
        return latest_revocations([*self._document.revocations(), *self._received.all().items()])

    def all(self) -> list[Key]:
        """Return the keys in use, those that other machines disabled marked as disabled."""
        self._recheck()
        keys = [key for key in self._document.keys.values() if key.id not in self._gone]
        return [dataclasses.replace(key, disabled=True) if key.id in self._off else key for key in keys]

    def ids(self) -> list[str]:
        """Return the ids of all keys."""
        return list(self._document.keys)

    def apply_published(self, published: Mapping[str, object]) -> None:
        """Apply the revocations from Redis to these keys."""
        keys = self._document.keys
        for key_id in self._received.update(published, {each.id: each.hash for each in keys.values()}):
            action = _ACTIONS[self._received.all()[key_id].kind]
            _log_key(action, key_id, keys[key_id].name, "heard from another machine")
        self._judge()

    def _read(self) -> None:
        """Read the file, again if it is replaced while it is read."""
        for _ in range(_READS):
            file = open_key_file(self._path)
            try:
                is_locked = self._holds and hold(file)
                stamp = _stamp_of(os.fstat(file.fileno()))
                document = parse_key_file(file, self._path)
            except BaseException:
                file.close()
                raise
            # The file may have been replaced before it was locked: then the lock would be on the old file.
            if stamp == _stamp(self._path):
                break
            release(file)
        else:
            raise ConfigError("The key file changed while it was read", where=str(self._path))
        if self._locked_file is not None:
            release(self._locked_file)
            self._locked_file = None
        if is_locked:
            self._locked_file = file
        else:
            file.close()
        self._document = document
        self._stamp = stamp if is_locked or not self._holds else None
        self._judge()

    def _judge(self) -> None:
        """Update the set of keys that are refused because of revocations from other machines."""
        off = set()
        gone = set()
        for key_id, revocation in self._received.all().items():
            key = self._document.keys.get(key_id)
            if revocation.kind == "removed":
                gone.add(key_id)
            elif revocation.kind == "off" and key is not None and revocation.revision >= key.switched:
                off.add(key_id)
        self._off = frozenset(off)
        self._gone = frozenset(gone)


def _differences(before: KeyDocument, after: KeyDocument) -> Iterator[tuple[str, Key]]:
    """Yield the changes of each key between two versions of the file."""
    for key_id, key in before.keys.items():
        if key_id not in after.keys:
            yield "removed", key
    for key_id, key in after.keys.items():
        old = before.keys.get(key_id)
        if old is None:
            yield "added", key
        elif old.disabled != key.disabled:
            yield "disabled" if key.disabled else "enabled", key
        elif old != key:
            yield "changed", key


def _stamp(path: Path) -> _Stamp | None:
    try:
        return _stamp_of(path.stat())
    except OSError:
        return None


def _stamp_of(status: os.stat_result) -> _Stamp:
    return status.st_mtime_ns, status.st_size, status.st_ino


def _log_key(action: str, key: str, name: str, reason: str) -> None:
    """Write to the audit log that this server has loaded a change of a key."""
    fields = {"action": action, "key": key, "name": name, "reason": reason}
    _audit.info("audit", extra={"slipform": {field: value for field, value in fields.items() if value}})
