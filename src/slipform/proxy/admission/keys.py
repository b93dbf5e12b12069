"""The key file.

A change keeps the file's owner, group and mode: a server that runs as another user could otherwise not read it, and
would go on with the keys that it had read before.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
import re
import secrets
import stat
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, BinaryIO

import orjson

from slipform.errors import ConfigError
from slipform.proxy.admission import audit
from slipform.proxy.admission.key_readers import KeyReaders
from slipform.proxy.admission.revocations import Revocation

_PREFIX = "sf-"
_ID = re.compile(r"[0-9a-f]{12}")
_ACCESS_LIST = "system.posix_acl_access"
_SPANS = {"h": timedelta(hours=1), "d": timedelta(days=1), "w": timedelta(weeks=1)}


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
    switched: int = 0
    """The revision in which it was last disabled or enabled, by which machines know which of two records is later."""
    expires: str = ""
    """When it stops being good, in ISO 8601; never when empty."""
    operator: bool = False
    """Whether it opens the operators' pages."""

    def is_expired(self, now: float) -> bool:
        """Whether its time is over.

        >>> Key("1", "ada", "", "", expires="1970-01-02T00:00:00+00:00").is_expired(now=86_400.0)
        True
        """
        return bool(self.expires) and datetime.fromisoformat(self.expires).timestamp() <= now


@dataclass(frozen=True, slots=True)
class RemovedKey:
    """What is kept of a key that was removed: enough to tell machines that still have it, also months later."""

    id: str
    name: str
    removed: str = ""

    @property
    def revocation(self) -> Revocation:
        """What other machines are told."""
        return Revocation("removed", 0)


@dataclass(frozen=True, slots=True)
class KeyDocument:
    """What a key file holds: keys and removed keys, each by its id."""

    keys: dict[str, Key] = field(default_factory=dict)
    removed: dict[str, RemovedKey] = field(default_factory=dict)

    def revocations(self) -> Iterator[tuple[str, Revocation]]:
        """What was done here with the keys, for other machines."""
        for each in self.removed.values():
            yield each.id, each.revocation
        for key in self.keys.values():
            if key.switched:
                yield key.id, revocation_of(key)


def revocation_of(key: Key) -> Revocation:
    """Whether a key is switched on or off here, as other machines are told."""
    return Revocation.signed("off" if key.disabled else "on", key.id, key.hash, key.switched)


def add_key(
    path: Path,
    name: str,
    *,
    models: Sequence[str] | None = None,
    requests_per_minute: int | None = None,
    expires: str = "",
    operator: bool = False,
) -> tuple[Key, str]:
    """A new key in the file, which is made when there is none; gives what is kept, and the key to hand out."""
    with _changing(path) as draft:
        if any(key.name == name for key in draft.keys.values()):
            raise ConfigError(f"There is a key named {name!r} already", where=str(path), hint="Choose another name.")
        identity, secret, salt = secrets.token_hex(6), secrets.token_urlsafe(32), secrets.token_hex(16)
        key = Key(
            id=identity,
            name=name,
            salt=salt,
            hash=hash_secret(salt, secret),
            models=tuple(models) if models else None,
            requests_per_minute=requests_per_minute,
            created=_now(),
            expires=expires,
            operator=operator,
        )
        draft.put(key, "added", models=key.models, expires=expires, operator=operator)
    return key, f"{_PREFIX}{identity}-{secret}"


def remove_key(path: Path, name: str, *, confirm: Callable[[KeyReaders], None] | None = None) -> Key | RemovedKey:
    """Take the key of this name, or this id, out of the file; once more for one that is out of it changes nothing.

    `confirm` is given the servers that went by the file before the change.
    """
    with _changing(path, confirm) as draft:
        key = draft.find(name)
        if key is None:
            gone = next((each for each in reversed(draft.removed.values()) if name in (each.id, each.name)), None)
            if gone is None:
                raise _no_key(name, path)
            return gone
        draft.remove(key)
    return key


def disable_key(
    path: Path,
    name: str,
    disabled: bool = True,
    *,
    after: Callable[[str], int] | None = None,
    confirm: Callable[[KeyReaders], None] | None = None,
) -> Key:
    """Refuse a key for a while, or let it in again; `after` tells the last revision that other machines know of it."""
    with _changing(path, confirm) as draft:
        found = draft.find(name)
        if found is None:
            raise _no_key(name, path)
        # By the clock, but never before what is known already, whoever's clock that went by.
        known = after(found.id) if after is not None else 0
        revision = max(int(time.time() * 1000), found.switched + 1, known + 1)
        key = dataclasses.replace(found, disabled=disabled, switched=revision)
        draft.put(key, "disabled" if disabled else "enabled")
    return key


def expiry(text: str, now: datetime | None = None) -> str:
    """When a key ends that is given `12h`, `30d`, `6w`, a date (its first moment in UTC) or a time in ISO 8601.

    >>> expiry("30d", datetime(2027, 1, 1, tzinfo=UTC))
    '2027-01-31T00:00:00+00:00'
    """
    start = now or datetime.now(UTC)
    try:
        if (span := re.fullmatch(r"([0-9]{1,5})([hdw])", text)) is not None:
            end = start + int(span[1]) * _SPANS[span[2]]
        else:
            end = datetime.fromisoformat(text)
            end = end.replace(tzinfo=UTC) if end.tzinfo is None else end.astimezone(UTC)
    except (ValueError, OverflowError):
        hint = "Write 12h, 30d, 6w, 2027-01-31 or 2027-01-31T12:00Z."
        raise ConfigError(f"{text!r} is not a time a key could end", where="--expires", hint=hint) from None
    if end <= start:
        raise ConfigError(f"{text!r} is over already", where="--expires", hint="Choose a time to come.")
    return end.isoformat(timespec="seconds")


def read_keys(path: Path) -> dict[str, Key]:
    """The keys of a file, by their ids."""
    return read_key_file(path).keys


def read_key_file(path: Path) -> KeyDocument:
    """All that a key file holds."""
    with open_key_file(path) as file:
        return parse_key_file(file, path)


def presented_id(presented: str) -> str:
    """The public part of a key, for logs; empty when it is not of our form, as it may be a key of somebody else.

    >>> presented_id("sf-0123456789ab-secret"), presented_id("sk-proj-secret")
    ('0123456789ab', '')
    """
    identity, _ = split_key(presented)
    return identity if _ID.fullmatch(identity) else ""


def split_key(presented: str) -> tuple[str, str]:
    """The public id and the secret of a presented key; no id when it is not of our form."""
    prefix, _, rest = presented.partition("-")
    identity, _, secret = rest.partition("-")
    return (identity, secret) if f"{prefix}-" == _PREFIX else ("", secret)


def open_key_file(path: Path) -> BinaryIO:
    """The file, to be read; raises `ConfigError` when it cannot be."""
    try:
        return path.open("rb")
    except FileNotFoundError:
        hint = "Make it with `slipform keys add NAME`."
        raise ConfigError("There is no file of keys", where=str(path), hint=hint) from None
    except OSError as error:
        raise ConfigError(f"The file of keys cannot be read: {error.strerror}", where=str(path)) from error


def parse_key_file(file: BinaryIO, path: Path) -> KeyDocument:
    """What an open key file holds; raises `ConfigError` when that makes no sense."""
    try:
        document = orjson.loads(file.read())
        removed = [RemovedKey(**each) for each in document.get("removed", [])]
        return KeyDocument({each["id"]: _key(each) for each in document["keys"]}, {each.id: each for each in removed})
    except OSError as error:
        raise ConfigError(f"The file of keys cannot be read: {error.strerror}", where=str(path)) from error
    except (orjson.JSONDecodeError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise ConfigError(
            f"The file of keys is damaged: {error}", where=str(path), hint="Restore it, or make new keys."
        ) from error


def _key(fields: Mapping[str, Any]) -> Key:
    models = fields.get("models")
    key = Key(**{**fields, "models": tuple(models) if models is not None else None})
    key.is_expired(0.0)  # raises for a time that is none
    return key


def _fields(record: Key | RemovedKey) -> dict[str, Any]:
    """What is written of a record: what differs from its defaults, so that an older reader meets nothing it lacks."""
    defaults = {each.name: each.default for each in dataclasses.fields(record)}
    return {name: value for name, value in dataclasses.asdict(record).items() if value != defaults[name]}


def _no_key(name: str, path: Path) -> ConfigError:
    return ConfigError(f"There is no key {name!r}", where=str(path), hint="`slipform keys list` shows them.")


def hash_secret(salt: str, secret: str) -> str:
    """What is kept instead of a secret."""
    # The secret is 256 random bits, so there is nothing to guess and no need for a slow hash.
    return hashlib.sha256(f"{salt}{secret}".encode("utf-8", "replace")).hexdigest()


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


class _Draft:
    """The keys of a file while they are changed, and the audit lines of the changes."""

    def __init__(self, document: KeyDocument) -> None:
        self.keys = document.keys
        self.removed = document.removed
        self.lines: list[bytes] = []

    def find(self, name: str) -> Key | None:
        return self.keys.get(name) or next((key for key in self.keys.values() if key.name == name), None)

    def put(self, key: Key, action: str, **more: Any) -> None:
        self.keys[key.id] = key
        self.lines.append(audit.change_line(action, key.id, key.name, **more))

    def remove(self, key: Key) -> None:
        del self.keys[key.id]
        self.removed[key.id] = RemovedKey(key.id, key.name, _now())
        self.lines.append(audit.change_line("removed", key.id, key.name))

    def written(self) -> bytes:
        document = {
            "version": 1,
            "keys": [_fields(each) for each in self.keys.values()],
            "removed": [_fields(each) for each in self.removed.values()],
        }
        return orjson.dumps(document, option=orjson.OPT_INDENT_2)


@contextlib.contextmanager
def _changing(path: Path, confirm: Callable[[KeyReaders], None] | None = None) -> Iterator[_Draft]:
    """The keys, to be changed in place; one writer at a time, and readers see the old file or the new one."""
    path = path.resolve()  # a link stays one
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _locked(path), contextlib.closing(KeyReaders(path)) as readers:
            like = _stat(path)
            draft = _Draft(read_key_file(path) if like is not None else KeyDocument())
            yield draft
            if draft.lines:
                with _beside(path, "audit") as log:  # a change that cannot be recorded is not made
                    _replace(path, draft.written(), like)
                    for line in draft.lines:
                        audit.append(log, line)
                if confirm is not None:
                    confirm(readers)
    except PermissionError as error:
        raise _not_permitted(path, error.strerror or str(error)) from error


def _replace(path: Path, content: bytes, like: os.stat_result | None) -> None:
    fresh = path.with_name(f"{path.name}.new")
    fresh.unlink(missing_ok=True)
    try:
        with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            if like is not None:
                _keep_access(file, path, like)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise


def _keep_access(file: BinaryIO, path: Path, like: os.stat_result) -> None:
    """Let the new file be read by whoever could read the old one; raises `PermissionError` where that cannot be."""
    if not hasattr(os, "fchown"):
        return
    made = os.fstat(file.fileno())
    if (made.st_uid, made.st_gid) != (like.st_uid, like.st_gid):
        os.fchown(file.fileno(), like.st_uid, like.st_gid)
    os.fchmod(file.fileno(), stat.S_IMODE(like.st_mode))
    if hasattr(os, "getxattr"):
        try:
            granted = os.getxattr(path, _ACCESS_LIST)
        except OSError:  # there is none, or the file system has no such lists
            return
        os.setxattr(file.fileno(), _ACCESS_LIST, granted)


def _beside(path: Path, ending: str) -> BinaryIO:
    """A file that goes with the key file, to be appended to; the key file's owner can use it whoever makes it."""
    descriptor = os.open(path.with_name(f"{path.name}.{ending}"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    if hasattr(os, "fchown") and os.geteuid() == 0:
        owner = _stat(path) or path.parent.stat()
        os.fchown(descriptor, owner.st_uid, owner.st_gid)
    return os.fdopen(descriptor, "ab")


def _stat(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except FileNotFoundError:
        return None


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    try:
        import fcntl
    except ImportError:  # Windows: the file is still whole, two writers at once may lose a change
        yield
        return
    with _beside(path, "lock") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _not_permitted(path: Path, reason: str) -> ConfigError:
    owned, found = path, None
    for owned in (path, *path.parents):
        with contextlib.suppress(OSError):
            found = owned.stat()
            break
    owner = audit.user_name(found.st_uid) if found is not None else "another user"
    access = f"{owner} (mode {stat.S_IMODE(found.st_mode):04o})" if found is not None else owner
    return ConfigError(
        f"Nothing was changed: {owned} belongs to {access}, and {audit.actor()} cannot rewrite it as such: {reason}",
        where=str(path),
        hint=f"Run the command as that user (`sudo -u {owner} slipform keys …`) or as root.",
    )
