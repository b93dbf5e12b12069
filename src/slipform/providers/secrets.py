"""Keys: read late, shown never."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from slipform.errors import SlipformError

MASK = "[redacted]"
_TOO_SHORT = 6


class Secret:
    """A value that does not show itself: not in repr, not in str, not in a pickle.

    >>> Secret("sk-123456")
    Secret([redacted])
    >>> Secret("sk-123456").reveal()
    'sk-123456'
    """

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        """The value itself; keep it out of anything that is logged."""
        return self._value

    def __repr__(self) -> str:
        return f"Secret({MASK})"

    __str__ = __repr__

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._value == self._value

    def __hash__(self) -> int:
        return hash((Secret, self._value))

    def __reduce__(self) -> str:
        raise TypeError("A Secret cannot be pickled")


def from_environment(names: Sequence[str], environment: Mapping[str, str] | None = None) -> Secret | None:
    """The first of these environment variables that is set and not blank.

    >>> from_environment(["A", "B"], {"A": " ", "B": "key"})
    Secret([redacted])
    """
    source = os.environ if environment is None else environment
    for name in names:
        value = source.get(name, "").strip()
        if value:
            return Secret(value)
    return None


def scrub(value: Any, secrets: Iterable[Secret]) -> Any:
    """The value with every secret in its strings masked, however deep.

    Words of less than six characters stay: local servers get keys like `x`, and no secret is that short.

    >>> scrub({"message": "bad key sk-123456"}, [Secret("sk-123456")])
    {'message': 'bad key [redacted]'}
    """
    words = [secret.reveal() for secret in secrets if len(secret.reveal()) >= _TOO_SHORT]
    return _scrub(value, words) if words else value


def _scrub(value: Any, words: Sequence[str]) -> Any:
    if isinstance(value, str):
        for word in words:
            value = value.replace(word, MASK)
        return value
    if isinstance(value, Mapping):
        return {_scrub(key, words): _scrub(item, words) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)([_scrub(item, words) for item in value])
    return value


def scrub_error(error: SlipformError, secrets: Iterable[Secret]) -> None:
    """Mask secrets in everything an error shows. Vendors do repeat the key they refuse."""
    known = list(secrets)
    error.message = scrub(error.message, known)
    error.args = tuple(scrub(argument, known) for argument in error.args)
    error.where = scrub(error.where, known)
    error.hint = scrub(error.hint, known)
    error.details = scrub(error.details, known)
