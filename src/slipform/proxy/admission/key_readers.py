"""Find out whether running servers have taken a change of the key file.

A server holds a shared lock on the file whose keys it has in force. `slipform keys` replaces that file by a new one, so
as long as somebody holds the lock on the old one, some server there has not taken the new one. This needs no right but
that of reading the file, counts every worker, works through containers that mount its folder, and a server that dies
leaves nothing behind. It says nothing of other machines.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, Literal, TypeAlias

if sys.platform != "win32":  # which has no such locks: nobody is found there, and nobody can be ruled out
    import fcntl

Taken: TypeAlias = Literal["taken", "no server", "not taken", "unknown"]
_WAIT_SECONDS = 5.0
_POLL_SECONDS = 0.05


def hold(file: BinaryIO) -> bool:
    """Show that this file is the one in force here, until `release`; False when somebody looks at its lock just now."""
    if sys.platform != "win32":
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:  # a file system without locks, where `KeyReaders` finds out the same
            return True
    return True


def release(file: BinaryIO) -> None:
    """It is in force no longer. Closing alone would not do where a child process has inherited the file."""
    if sys.platform != "win32":
        with contextlib.suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_UN)
    file.close()


class KeyReaders:
    """The servers on this machine that go by one version of a key file."""

    def __init__(self, path: Path) -> None:
        self._file: BinaryIO | None = None
        with contextlib.suppress(FileNotFoundError):
            self._file = path.open("rb")
        self._before = self._are_there()

    def processes(self) -> list[int]:
        """Their process ids, as far as the system tells."""
        if self._file is None:
            return []
        wanted = str(os.fstat(self._file.fileno()).st_ino)
        found: set[int] = set()
        with contextlib.suppress(OSError):
            for line in Path("/proc/locks").read_text().splitlines():
                fields = line.split()
                if len(fields) > 5 and fields[1] == "FLOCK" and fields[5].rpartition(":")[2] == wanted:
                    found.add(int(fields[4]))
        return sorted(process for process in found if process > 0)

    def wait(self, seconds: float = _WAIT_SECONDS, clock: Callable[[], float] = time.monotonic) -> Taken:
        """After another file was put in the place of this one: whether they have all taken it."""
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
        """Let go of the file."""
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
