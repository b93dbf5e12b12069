"""Read the switches of one request: the body's field `slipform` and the headers `x-slipform-*`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final, Literal, TypeAlias, cast

from slipform.codecs.model_name import excerpt_of
from slipform.enforce.adoption import AdoptionMode
from slipform.errors import ConfigError, RequestError
from slipform.ir.evidence import Evidence
from slipform.schema import OutputStrategy

FIELD = "slipform"
StreamMode: TypeAlias = Literal["auto", "live", "buffer", "reject"]
_PREFIX = b"x-slipform-"
_LONGEST = 60
_MODES = ("auto", "live", "buffer", "reject")
_ADOPTIONS = ("off", "json_mode", "all")
_WORDS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
_OTHERS = frozenset({"request_id", "cache", "key", "provider", "trace"})
"""Headers with the same prefix that are not switches."""


_CHANGES_ANSWER: Final = {"changes_answer": True}
"""Marks a switch that changes the correct answer: requests that differ in it do not share cached answers."""
_KEEPS_ANSWER: Final = {"changes_answer": False}


@dataclass(frozen=True, slots=True)
class RequestSwitches:
    """The switches of one request; for those that are not set, the configuration applies."""

    report: bool = field(default=False, metadata=_KEEPS_ANSWER)
    strategy: OutputStrategy | None = field(default=None, metadata=_CHANGES_ANSWER)
    stream_mode: StreamMode | None = field(default=None, metadata=_KEEPS_ANSWER)
    max_attempts: int | None = field(default=None, metadata=_KEEPS_ANSWER)
    adopt: AdoptionMode | None = field(default=None, metadata=_CHANGES_ANSWER)
    schema: str | None = field(default=None, metadata=_CHANGES_ANSWER)
    """The name of a schema in the `schemas` folder, for clients that cannot send one."""
    evidence: Evidence | None = field(default=None, metadata=_CHANGES_ANSWER)
    """The evidence to collect for each value of the answer."""

    def cache_key(self) -> tuple[Any, ...]:
        """Return the values of the switches that change the answer; each switch declares whether it does."""
        return tuple([getattr(self, each.name) for each in fields(self) if each.metadata["changes_answer"]])


NOTHING = RequestSwitches()


def has_switches(header_names: Iterable[bytes]) -> bool:
    """Return whether a request has headers that may be switches."""
    return b"\n".join(header_names).find(_PREFIX) >= 0


def switches_of(own_field: Any, headers: Mapping[bytes, bytes], most_attempts: int) -> RequestSwitches:
    """Read the switches of a request, the body's before the headers'; raises `RequestError` for a wrong one.

    >>> switches_of({"report": True}, {b"x-slipform-max-attempts": b"2"}, 3)
    RequestSwitches(report=True, strategy=None, stream_mode=None, max_attempts=2, adopt=None, schema=None, \
evidence=None)
    """
    switches = NOTHING
    for name, value in headers.items():
        if name[:11] == _PREFIX:
            switch = name[11:].decode("latin-1").replace("-", "_")
            if switch not in _OTHERS:
                switches = _with_switch(
                    switches, switch, value.decode("latin-1"), f"header {name.decode('latin-1')}", most_attempts
                )
    if own_field is None:
        return switches
    if not isinstance(own_field, Mapping):
        raise RequestError("Expected an object of switches", where=FIELD, hint=_hint())
    for name, value in own_field.items():
        switches = _with_switch(switches, name, value, f"{FIELD}.{name}", most_attempts)
    return switches


def _with_switch(switches: RequestSwitches, name: str, value: Any, where: str, most_attempts: int) -> RequestSwitches:
    read = _READERS.get(name)
    if read is None:
        raise RequestError(f"Unknown switch {excerpt_of(name)}", where=where[:_LONGEST], hint=_hint())
    try:
        parsed = read(value)
    except ConfigError as error:
        raise RequestError(error.message, where=f"{FIELD}.{error.where}", hint=error.hint) from None
    except (ValueError, KeyError, TypeError):
        raise RequestError(
            f"{excerpt_of(value)} is not a value of the switch {name!r}", where=where, hint=_hint()
        ) from None
    if name == "max_attempts" and not 1 <= parsed <= most_attempts:
        raise RequestError(f"Between 1 and {most_attempts} attempts are allowed here", where=where)
    return replace(switches, **{name: parsed})


def _flag(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    return _WORDS[str(value).lower()]


def _count(value: Any) -> int:
    if isinstance(value, bool | float):
        raise TypeError
    return int(value)


def _name(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise TypeError
    return value


def _mode(value: Any) -> StreamMode:
    if value not in _MODES:
        raise ValueError
    return cast("StreamMode", value)


def _adoption(value: Any) -> AdoptionMode:
    if value not in _ADOPTIONS:
        raise ValueError
    return cast("AdoptionMode", value)


def _evidence(value: Any) -> Evidence | None:
    if isinstance(value, str):  # a header
        return Evidence() if _flag(value) else None
    if value is False or value is None:
        return None
    return Evidence.of(value)


_READERS: dict[str, Callable[[Any], Any]] = {
    "report": _flag,
    "strategy": OutputStrategy,
    "stream_mode": _mode,
    "max_attempts": _count,
    "adopt": _adoption,
    "schema": _name,
    "evidence": _evidence,
}


def _hint() -> str:
    strategies = ", ".join(each.value for each in OutputStrategy)
    return (
        f"The switches are report (true or false), strategy ({strategies}), stream_mode ({', '.join(_MODES)}), "
        f"max_attempts (a number), adopt ({', '.join(_ADOPTIONS)}), schema (the name of one) "
        "and evidence (true, or an object of options)."
    )
