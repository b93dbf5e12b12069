"""Callers' API keys: a file of salted hashes, read again when it changes, written whole or not at all."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import hmac
import logging
import os
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson

from slipform.errors import ConfigError

_log = logging.getLogger("slipform.server")
_PREFIX = "sf-"
_NOBODY = "0" * 64
_RECHECK_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Key:
    """What is kept of a key. The key itself is shown once, when it is made, and cannot be had again."""

    id: str
    name: str
    salt: str
    hash: str
    models: tuple[str, ...] | None = None
    """Patterns (`openai/*`) of the models it may use; all when None."""
    requests_per_minute: int | None = None
    created: str = ""
    disabled: bool = False


def add_key(
    path: Path, name: str, *, models: Sequence[str] | None = None, requests_per_minute: int | None = None
) -> tuple[Key, str]:
    """A new key in the file, which is made when there is none; gives what is kept, and the key to hand out."""
    with _changing(path) as keys:
        if any(key.name == name for key in keys.values()):
            raise ConfigError(f"There is a key named {name!r} already", where=str(path), hint="Choose another name.")
        identity, secret, salt = secrets.token_hex(6), secrets.token_urlsafe(32), secrets.token_hex(16)
        key = Key(
            id=identity,
            name=name,
            salt=salt,
            hash=_hashed(salt, secret),
            models=tuple(models) if models else None,
            requests_per_minute=requests_per_minute,
            created=datetime.now(UTC).isoformat(timespec="seconds"),
        )
        keys[identity] = key
    return key, f"{_PREFIX}{identity}-{secret}"


def remove_key(path: Path, name: str) -> Key:
    """Take the key of this name, or this id, out of the file."""
    with _changing(path) as keys:
        return keys.pop(_named(keys, name, path).id)


def disable_key(path: Path, name: str, disabled: bool = True) -> Key:
    """Refuse a key for a while, or let it in again."""
    with _changing(path) as keys:
        key = dataclasses.replace(_named(keys, name, path), disabled=disabled)
        keys[key.id] = key
    return key


def read_keys(path: Path) -> dict[str, Key]:
    """The keys of a file, by their ids."""
    try:
        document = orjson.loads(path.read_bytes())
        return {each["id"]: _key(each) for each in document["keys"]}
    except FileNotFoundError:
        raise ConfigError(
            "There is no file of keys", where=str(path), hint="Make it with `slipform keys add NAME`."
        ) from None
    except OSError as error:
        raise ConfigError(f"The file of keys cannot be read: {error.strerror}", where=str(path)) from error
    except (orjson.JSONDecodeError, KeyError, TypeError) as error:
        raise ConfigError(
            f"The file of keys is damaged: {error}", where=str(path), hint="Restore it, or make new keys."
        ) from error


class KeyFile:
    """The keys as they are now: a change of the file counts within a second, without a restart."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._clock = clock
        self._stamp = _stamp(path)
        self._keys = read_keys(path)
        self._checked = clock()
        self.revoked: frozenset[str] = frozenset()
        """Ids that another machine has revoked."""

    def find(self, presented: str) -> Key | None:
        """The key that was presented, if it is one of these. A wrong id takes as long as a wrong secret."""
        self._refresh()
        prefix, _, rest = presented.partition("-")
        identity, _, secret = rest.partition("-")
        key = self._keys.get(identity) if f"{prefix}-" == _PREFIX and identity not in self.revoked else None
        salt, known = (key.salt, key.hash) if key is not None else ("", _NOBODY)
        return key if hmac.compare_digest(_hashed(salt, secret), known) else None

    def _refresh(self) -> None:
        now = self._clock()
        if now - self._checked < _RECHECK_SECONDS:
            return
        self._checked = now
        stamp = _stamp(self._path)
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            self._keys = read_keys(self._path)
        except ConfigError as error:
            # Going on with the keys that were good is safer than letting nobody in, or everybody.
            _log.error("%s The keys read before stay in force.", error)


def _key(fields: Mapping[str, Any]) -> Key:
    models = fields.get("models")
    return Key(**{**fields, "models": tuple(models) if models is not None else None})


def _named(keys: Mapping[str, Key], name: str, path: Path) -> Key:
    found = keys.get(name) or next((key for key in keys.values() if key.name == name), None)
    if found is None:
        raise ConfigError(f"There is no key {name!r}", where=str(path), hint="`slipform keys list` shows them.")
    return found


def _hashed(salt: str, secret: str) -> str:
    # The secret is 256 random bits, so there is nothing to guess and no need for a slow hash.
    return hashlib.sha256(f"{salt}{secret}".encode("utf-8", "replace")).hexdigest()


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


@contextlib.contextmanager
def _changing(path: Path) -> Iterator[dict[str, Key]]:
    """The keys, to be changed in place; one writer at a time, and readers see the old file or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with _locked(path.with_name(f"{path.name}.lock")):
        keys = read_keys(path) if path.exists() else {}
        yield keys
        fresh = path.with_name(f"{path.name}.new")
        fresh.unlink(missing_ok=True)
        with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            document = {"version": 1, "keys": [dataclasses.asdict(key) for key in keys.values()]}
            file.write(orjson.dumps(document, option=orjson.OPT_INDENT_2))
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    try:
        import fcntl
    except ImportError:  # Windows: the file is still whole, two writers at once may lose a change
        yield
        return
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), "wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
