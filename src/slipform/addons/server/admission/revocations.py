"""Record the keys that other machines revoked, and authenticate the revocations made here.

Machines exchange revocations through Redis, which is not trusted: its data may refuse a key, but never admit one. A
key that was disabled elsewhere is enabled only by a later record that is signed with the key's own hash, which only
machines with the key in their file know. Received revocations are stored in a file, and published again to a Redis
that has lost them.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal, NamedTuple

import orjson

_log = logging.getLogger("slipform.server")
_KINDS: dict[str, Literal["removed", "off", "on"]] = {"removed": "removed", "off": "off", "on": "on"}
_FORM = re.compile(r"(removed|off|on) ([0-9]{1,15})(?: ([0-9a-f]{64}))?")


class Revocation(NamedTuple):
    """The last change of a key: `removed`, or switched `off` or `on`, and its revision.

    >>> Revocation("off", 7).outranks(Revocation("on", 6))
    True
    """

    kind: Literal["removed", "off", "on"]
    revision: int
    proof: str = ""

    @classmethod
    def parse(cls, text: object) -> Revocation | None:
        """Parse a revocation; None for a text of another form."""
        match = _FORM.fullmatch(_decoded(text))
        if match is None:
            return None
        return cls(_KINDS[match[1]], int(match[2]), match[3] or "")

    @classmethod
    def signed(cls, kind: Literal["off", "on"], key_id: str, key_hash: str, revision: int) -> Revocation:
        """Return a record that holders of the key's hash can authenticate."""
        return cls(kind, revision, _proof(kind, key_id, key_hash, revision))

    def is_proven(self, key_id: str, key_hash: str) -> bool:
        """Return whether it was signed with the key's hash."""
        return hmac.compare_digest(self.proof, _proof(self.kind, key_id, key_hash, self.revision))

    def __str__(self) -> str:
        return f"{self.kind} {self.revision} {self.proof}".rstrip()

    def outranks(self, other: Revocation | None) -> bool:
        """Return whether it replaces the other: removal is final, then the later revision wins, then the stricter."""
        if other is None:
            return True
        mine, theirs = (((each.kind == "removed"), each.revision, each.kind == "off") for each in (self, other))
        return mine > theirs


class ReceivedRevocations:
    """The revocations of other machines for the keys known here; stored across restarts where possible."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._revocations: dict[str, Revocation] = _read(path)
        self._is_kept = True

    def all(self) -> Mapping[str, Revocation]:
        """All received revocations, by the keys' ids."""
        return self._revocations

    def update(self, published: Mapping[str, object], hashes: Mapping[str, str]) -> list[str]:
        """Apply the published revocations of the keys with these hashes; return the ids of those that change."""
        changed = []
        for key_id, text in published.items():
            revocation = Revocation.parse(text)
            key_hash = hashes.get(key_id)
            if revocation is None or key_hash is None or not revocation.outranks(self._revocations.get(key_id)):
                continue
            if revocation.kind == "on" and not revocation.is_proven(key_id, key_hash):
                continue
            self._revocations[key_id] = revocation
            changed.append(key_id)
        if changed:
            self._keep()
        return changed

    def _keep(self) -> None:
        """Write all revocations; the other workers do the same with theirs."""
        fresh = self._path.with_name(f"{self._path.name}.{os.getpid()}.new")
        document = {key_id: str(each) for key_id, each in sorted(self._revocations.items())}
        try:
            descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(orjson.dumps(document, option=orjson.OPT_INDENT_2))
                file.flush()
                os.fsync(file.fileno())
            fresh.replace(self._path)
        except OSError as error:
            if self._is_kept:
                _log.warning(
                    "%s: %s. Keys revoked on other machines are remembered until this process ends, and heard again "
                    "from Redis; give the server a folder it can write, as STATE_DIRECTORY, to remember them longer.",
                    self._path,
                    error.strerror,
                )
            self._is_kept = False
        else:
            self._is_kept = True


def remembered_at(keys_file: Path, environment: Mapping[str, str]) -> Path:
    """Return the file for received revocations: in systemd's state folder, or beside the key file.

    >>> remembered_at(Path("/etc/slipform/keys.json"), {"STATE_DIRECTORY": "/var/lib/slipform"}).as_posix()
    '/var/lib/slipform/keys.json.revoked'
    """
    folder = environment.get("STATE_DIRECTORY", "").partition(":")[0]
    return (Path(folder) if folder else keys_file.parent) / f"{keys_file.name}.revoked"


def latest_revocations(records: Iterable[tuple[str, Revocation]]) -> dict[str, Revocation]:
    """Return the current revocation of each key."""
    latest: dict[str, Revocation] = {}
    for key_id, each in records:
        if each.outranks(latest.get(key_id)):
            latest[key_id] = each
    return latest


def _read(path: Path) -> dict[str, Revocation]:
    try:
        document = orjson.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, orjson.JSONDecodeError) as error:
        _log.error("%s: %s. Keys revoked on other machines are not known until Redis tells of them.", path, error)
        return {}
    listed = document.items() if isinstance(document, dict) else ()
    return {key_id: each for key_id, text in listed if (each := Revocation.parse(text)) is not None}


def _proof(kind: str, key_id: str, key_hash: str, revision: int) -> str:
    return hmac.new(key_hash.encode(), f"slipform {key_id} {kind} {revision}".encode(), hashlib.sha256).hexdigest()


def _decoded(text: object) -> str:
    if isinstance(text, bytes):
        return text.decode("ascii", "replace")
    return text if isinstance(text, str) else ""
