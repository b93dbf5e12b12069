"""Read one document from standard input in a process with limited memory, and write it to standard output."""

from __future__ import annotations

import sys
from importlib import import_module

import msgspec

from slipform.errors import ConfigError
from slipform.files.reading import ReadOutcome

_MEMORY_BYTES = 4_000_000_000


def main() -> None:
    """Read the format that the first argument names as `module:function`; further numbers render pages instead."""
    _limit_memory()
    module, _, function = sys.argv[1].partition(":")
    reader = getattr(import_module(f"slipform.files.{module}"), function)
    numbers = [int(argument) for argument in sys.argv[2:]]
    data = sys.stdin.buffer.read()
    try:
        if numbers:
            outcome = ReadOutcome(images=reader(data, numbers[1:], numbers[0]))
        else:
            outcome = ReadOutcome(reader(data))
    except ConfigError as error:
        outcome = ReadOutcome(error=error.message, hint=error.hint)
    except MemoryError:
        outcome = ReadOutcome(error="This file needs too much memory to be read", hint="Split it first.")
    sys.stdout.buffer.write(msgspec.msgpack.encode(outcome))


def _limit_memory() -> None:
    try:
        import resource
    except ImportError:  # Windows
        return
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))


if __name__ == "__main__":
    main()
