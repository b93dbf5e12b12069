"""Serve from a key file: find the key that was presented; take changes of the file, and of other machines."""

from __future__ import annotations

import dataclasses
import hmac
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import BinaryIO, TypeAlias

from slipform.errors import ConfigError
from slipform.proxy.admission import audit
from slipform.proxy.admission.key_readers import hold, release
from slipform.proxy.admission.keys import Key, KeyDocument, hash_secret, open_key_file, parse_key_file, split_key
from slipform.proxy.admission.revocations import HeardRevocations, Revocation, best_known, remembered_at

_log = logging.getLogger("slipform.server")
_NOBODY = "0" * 64
_RECHECK_SECONDS = 1.0
_READS = 5
"""How often a file is read again that was replaced while it was read."""
_ACTIONS = {"removed": "removed", "off": "disabled", "on": "enabled"}
_Stamp: TypeAlias = tuple[int, int, int]


class KeyFile:
    """The keys as they are now: a change of the file counts within a second, without a restart.

    After `start` the version of the file that is in force is held by a lock, for `slipform keys` to see.
    """

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._clock = clock
        self._holds = False
        self._held: BinaryIO | None = None
        self._complaint = ""
        self._stamp: _Stamp | None = None
        self._document = KeyDocument()
        self._heard = HeardRevocations(remembered_at(path, os.environ))
        self._off: frozenset[str] = frozenset()
        self._gone: frozenset[str] = frozenset()
        self._read()
        self._checked = clock()

    def start(self) -> None:
        """From now on, show by a lock which version of the file is in force."""
        if not self._holds:
            self._holds, self._stamp = True, None
            self.refresh()

    def close(self) -> None:
        """Show it no longer."""
        self._holds = False
        if self._held is not None:
            release(self._held)
            self._held = None

    def find(self, presented: str) -> Key | None:
        """The key that was presented, if it is one of these. A wrong id takes as long as a wrong secret."""
        now = self._clock()
        if now - self._checked >= _RECHECK_SECONDS:
            self.refresh()
        identity, secret = split_key(presented)
        key = self._document.keys.get(identity) if identity not in self._gone else None
        salt, known = (key.salt, key.hash) if key is not None else ("", _NOBODY)
        if not hmac.compare_digest(hash_secret(salt, secret), known):
            return None
        return dataclasses.replace(key, disabled=True) if key is not None and identity in self._off else key

    def refresh(self) -> None:
        """Take the file if it has changed. One that cannot be read is tried again, and the keys read before stay."""
        self._checked = self._clock()
        if _stamp(self._path) == self._stamp:
            return
        before = self._document
        try:
            self._read()
        except ConfigError as error:
            # Going on with the keys that were good is safer than letting nobody in, or everybody.
            if str(error) != self._complaint:
                _log.error("%s The keys read before stay in force.", error)
            self._complaint = str(error)
            return
        self._complaint = ""
        for action, key in _differences(before, self._document):
            audit.log_key(action, key.id, key.name, f"taken from {self._path}")

    def known_revocations(self) -> dict[str, Revocation]:
        """What this machine can tell others: what was done here, and what it has heard."""
        return best_known([*self._document.revocations(), *self._heard.all().items()])

    def ids(self) -> list[str]:
        """The ids of all keys."""
        return list(self._document.keys)

    def hear(self, said: Mapping[str, object]) -> None:
        """Take what Redis says of these keys."""
        keys = self._document.keys
        for key_id in self._heard.hear(said, {each.id: each.hash for each in keys.values()}):
            action = _ACTIONS[self._heard.all()[key_id].kind]
            audit.log_key(action, key_id, keys[key_id].name, "heard from another machine")
        self._judge()

    def _read(self) -> None:
        for _ in range(_READS):
            file = open_key_file(self._path)
            try:
                held = self._holds and hold(file)
                stamp = _stamp_of(os.fstat(file.fileno()))
                document = parse_key_file(file, self._path)
            except BaseException:
                file.close()
                raise
            # Another file may have come in its place before it was held: then nobody would have seen that it is.
            if stamp == _stamp(self._path):
                break
            release(file)
        else:
            raise ConfigError("The file of keys changes while it is read", where=str(self._path))
        if self._held is not None:
            release(self._held)
            self._held = None
        if held:
            self._held = file
        else:
            file.close()
        self._document, self._stamp = document, stamp if held or not self._holds else None
        self._judge()

    def _judge(self) -> None:
        """Which keys of the file are refused because of what was heard."""
        off, gone = set(), set()
        for key_id, heard in self._heard.all().items():
            key = self._document.keys.get(key_id)
            if heard.kind == "removed":
                gone.add(key_id)
            elif heard.kind == "off" and key is not None and heard.revision >= key.switched:
                off.add(key_id)
        self._off, self._gone = frozenset(off), frozenset(gone)


def _differences(before: KeyDocument, after: KeyDocument) -> Iterator[tuple[str, Key]]:
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


def _stamp_of(found: os.stat_result) -> _Stamp:
    return found.st_mtime_ns, found.st_size, found.st_ino
