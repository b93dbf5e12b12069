"""Change the key file for `slipform keys`, and find out whether running servers have loaded the change.

Each change is appended as a line of JSON to `KEYS_FILE.audit`: when, what, whose key, by whom. A running server logs
what it loads from the file, receives from other machines (key_file.py) and refuses (refusals.py) as the logger
`slipform.audit`, also with `server.log: off`. No line contains a secret: keys are named by their public ids.

A change keeps the file's owner, group and mode: otherwise a server of another user could not read it, and would
continue with the previous keys.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import secrets
import stat
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, BinaryIO, Literal, TypeAlias

import orjson

from slipform.addons.server.admission.budgets import KeyBudget
from slipform.addons.server.admission.key_file import (
    KEY_PREFIX,
    Key,
    KeyDocument,
    RemovedKey,
    hash_secret,
    read_key_file,
)
from slipform.errors import ConfigError

if sys.platform != "win32":
    import fcntl

Taken: TypeAlias = Literal["taken", "no server", "not taken", "unknown"]
_WAIT_SECONDS = 5.0
_POLL_SECONDS = 0.05
_ACCESS_LIST = "system.posix_acl_access"
ON_BEHALF_OF: ContextVar[str] = ContextVar("on_behalf_of", default="")
"""The operator for whom a server changes the file, for the audit log."""
_SPANS = {"h": timedelta(hours=1), "d": timedelta(days=1), "w": timedelta(weeks=1)}


def add_key(
    path: Path,
    name: str,
    *,
    models: Sequence[str] | None = None,
    requests_per_minute: int | None = None,
    expires: str = "",
    operator: bool = False,
    budget: KeyBudget | None = None,
) -> tuple[Key, str]:
    """Add a new key to the file, which is created if missing; return the stored key, and the secret for its user."""
    with _changing(path) as draft:
        if any(key.name == name for key in draft.keys.values()):
            raise ConfigError(f"There is a key named {name!r} already", where=str(path), hint="Choose another name.")
        identity = secrets.token_hex(6)
        secret = secrets.token_urlsafe(32)
        salt = secrets.token_hex(16)
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
            **dataclasses.asdict(budget or KeyBudget()),
        )
        limits = _written_limits(key)
        draft.put(key, "added", models=key.models, expires=expires, operator=operator, **limits)
    return key, f"{KEY_PREFIX}{identity}-{secret}"


def remove_key(path: Path, name: str, *, confirm: Callable[[KeyReaders], None] | None = None) -> Key | RemovedKey:
    """Take the key of this name, or this id, out of the file; once more for one that is out of it changes nothing.

    `confirm` receives the servers that used the file before the change.
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
    """Disable a key, or enable it again; `after` returns the last revision that other machines know of it."""
    with _changing(path, confirm) as draft:
        current = draft.find(name)
        if current is None:
            raise _no_key(name, path)
        # From the clock, but higher than every known revision, whichever machine's clock set it.
        known_revision = after(current.id) if after is not None else 0
        revision = max(int(time.time() * 1000), current.switched + 1, known_revision + 1)
        key = dataclasses.replace(current, disabled=disabled, switched=revision)
        draft.put(key, "disabled" if disabled else "enabled")
    return key


def change_key(
    path: Path,
    name: str,
    changes: Mapping[str, Any],
    *,
    confirm: Callable[[KeyReaders], None] | None = None,
) -> Key:
    """Change the limits of a key: fields of `Key`, None to remove a limit."""
    with _changing(path, confirm) as draft:
        current = draft.find(name)
        if current is None:
            raise _no_key(name, path)
        key = dataclasses.replace(current, **changes)
        if key.budget is not None:
            key.budget.check()
        draft.put(key, "changed", before=_written_limits(current), after=_written_limits(key))
    return key


def _written_limits(key: Key) -> dict[str, Any]:
    """Return a key's budget, for the audit log."""
    limits = {} if key.budget is None else dataclasses.asdict(key.budget)
    return {name: limit for name, limit in limits.items() if limit not in (None, "")}


def expiry(text: str, now: datetime | None = None) -> str:
    """Return when a key expires, given `12h`, `30d`, `6w`, a date (its first moment in UTC) or a time in ISO 8601.

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


def _fields(record: Key | RemovedKey) -> dict[str, Any]:
    """Return the fields of a record that differ from their defaults, so that older versions find no unknown field."""
    defaults = {each.name: each.default for each in dataclasses.fields(record)}
    return {name: value for name, value in dataclasses.asdict(record).items() if value != defaults[name]}


def _no_key(name: str, path: Path) -> ConfigError:
    return ConfigError(f"Unknown key {name!r}", where=str(path), hint="`slipform keys list` shows them.")


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


class _Draft:
    """The keys of a file during a change, and the audit lines of the changes."""

    def __init__(self, document: KeyDocument) -> None:
        self.keys = document.keys
        self.removed = document.removed
        self.lines: list[bytes] = []

    def find(self, name: str) -> Key | None:
        return self.keys.get(name) or next((key for key in self.keys.values() if key.name == name), None)

    def put(self, key: Key, action: str, **more: Any) -> None:
        self.keys[key.id] = key
        self.lines.append(_change_line(action, key.id, key.name, **more))

    def remove(self, key: Key) -> None:
        del self.keys[key.id]
        self.removed[key.id] = RemovedKey(key.id, key.name, _now())
        self.lines.append(_change_line("removed", key.id, key.name))

    def written(self) -> bytes:
        document = {
            "version": 1,
            "keys": [_fields(each) for each in self.keys.values()],
            "removed": [_fields(each) for each in self.removed.values()],
        }
        return orjson.dumps(document, option=orjson.OPT_INDENT_2)


@contextlib.contextmanager
def _changing(path: Path, confirm: Callable[[KeyReaders], None] | None = None) -> Iterator[_Draft]:
    """Yield the keys for changes in place; one writer at a time, and readers see either the old file or the new one."""
    path = path.resolve()  # a link stays a link
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
                        _append(log, line)
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
    """Let the users who could read the old file read the new one; raises `PermissionError` where that is impossible."""
    if not hasattr(os, "fchown"):
        return
    made = os.fstat(file.fileno())
    if (made.st_uid, made.st_gid) != (like.st_uid, like.st_gid):
        os.fchown(file.fileno(), like.st_uid, like.st_gid)
    os.fchmod(file.fileno(), stat.S_IMODE(like.st_mode))
    if hasattr(os, "getxattr"):
        try:
            granted = os.getxattr(path, _ACCESS_LIST)
        except OSError:  # the file has no access list, or the file system has none
            return
        os.setxattr(file.fileno(), _ACCESS_LIST, granted)


def _beside(path: Path, ending: str) -> BinaryIO:
    """Open a file beside the key file for appending; the key file's owner can use it whichever user creates it."""
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
    if sys.platform == "win32":  # the file stays complete, but two concurrent writers may lose a change
        yield
        return
    with _beside(path, "lock") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _not_permitted(path: Path, reason: str) -> ConfigError:
    owned = path
    status = None
    for owned in (path, *path.parents):
        with contextlib.suppress(OSError):
            status = owned.stat()
            break
    owner = user_name(status.st_uid) if status is not None else "another user"
    access = f"{owner} (mode {stat.S_IMODE(status.st_mode):04o})" if status is not None else owner
    return ConfigError(
        f"Nothing was changed: {owned} belongs to {access}, and {_actor()} cannot rewrite it as such: {reason}",
        where=str(path),
        hint=f"Run the command as that user (`sudo -u {owner} slipform keys …`) or as root.",
    )


class KeyReaders:
    """The servers on this machine that use one version of a key file."""

    def __init__(self, path: Path) -> None:
        self._file: BinaryIO | None = None
        with contextlib.suppress(FileNotFoundError):
            self._file = path.open("rb")
        self._before = self._are_there()

    def processes(self) -> list[int]:
        """Return their process ids, as far as the system reports them."""
        if self._file is None:
            return []
        inode = str(os.fstat(self._file.fileno()).st_ino)
        process_ids: set[int] = set()
        with contextlib.suppress(OSError):
            for line in Path("/proc/locks").read_text().splitlines():
                fields = line.split()
                if len(fields) > 5 and fields[1] == "FLOCK" and fields[5].rpartition(":")[2] == inode:
                    process_ids.add(int(fields[4]))
        return sorted(process for process in process_ids if process > 0)

    def wait(self, seconds: float = _WAIT_SECONDS, clock: Callable[[], float] = time.monotonic) -> Taken:
        """Wait until the servers have loaded the replacement of this file; return whether all of them have."""
        if self._before is None:
            return "unknown"
        if not self._before:
            return "no server"
        end = clock() + seconds
        while self._are_there():
            if clock() >= end:
                return "not taken"
            time.sleep(_POLL_SECONDS)
        return "taken"

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()

    def _are_there(self) -> bool | None:
        if self._file is None:
            return False
        if sys.platform == "win32":
            return None
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            return None
        fcntl.flock(self._file, fcntl.LOCK_UN)
        return False


def _change_line(action: str, key: str, name: str, **more: Any) -> bytes:
    """Return the audit line of a change made with `slipform keys`."""
    fields = {"time": _now(), "action": action, "key": key, "name": name}
    return orjson.dumps({**fields, "actor": _actor(), **{k: v for k, v in more.items() if v}}) + b"\n"


def _append(file: BinaryIO, line: bytes) -> None:
    """Append a line to the audit file, and flush it to disk."""
    file.write(line)
    file.flush()
    os.fsync(file.fileno())


def _actor() -> str:
    """Return the user of this process, and the user who called `sudo`, or the operator who used the console."""
    name = user_name(os.getuid()) if hasattr(os, "getuid") else os.environ.get("USERNAME", "")
    if operator := ON_BEHALF_OF.get():
        return f"{name} (console, {operator})"
    through = os.environ.get("SUDO_USER")
    return f"{name} (sudo by {through})" if through else name


def user_name(number: int) -> str:
    """Return a user's name, or the id of a user without one."""
    try:
        import pwd

        return pwd.getpwuid(number).pw_name
    except (ImportError, KeyError):
        return str(number)
