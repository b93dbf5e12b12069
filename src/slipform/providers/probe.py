"""Check whether a provider is available: whether a vendor's address answers, whether the embedded model loads."""

from __future__ import annotations

import re
import time
from typing import Final, NamedTuple

from slipform.errors import SlipformError
from slipform.providers.auth import masked_url
from slipform.providers.base import LoadsModels, Provider
from slipform.providers.http import HttpProvider
from slipform.providers.network.transport import HttpRequest, Timeouts, TransportFault

_SECONDS: Final = 4.0
_ERRNO: Final = re.compile(r"\[Errno -?\d+\] ")


class Probe(NamedTuple):
    """The result of a check, described in words, and its duration."""

    ok: bool
    text: str
    seconds: float


def probe(provider: Provider) -> Probe:
    """Check a provider now, blocking for some seconds at most; no key is sent, and nothing is charged.

    Any status of a vendor counts as an answer: the request is for its address, not for a page.
    """
    began = time.monotonic()
    try:
        text = _check(provider)
    except TransportFault as fault:
        return Probe(False, f"cannot be reached: {_ERRNO.sub('', fault.message)}", time.monotonic() - began)
    except SlipformError as error:
        return Probe(False, str(error), time.monotonic() - began)
    return Probe(True, text, time.monotonic() - began)


def _check(provider: Provider) -> str:
    if isinstance(provider, HttpProvider):
        limits = Timeouts(_SECONDS, _SECONDS, _SECONDS, _SECONDS)
        request = HttpRequest(provider.base_url, {"user-agent": "slipform"}, b"", limits, method="GET")
        provider.transport.open(request).close()
        return "answers"
    if isinstance(provider, LoadsModels):
        provider.check()
        return "is loaded"
    return "runs in this process"


def address(provider: Provider) -> str:
    """Return a provider's address without a password; empty if it makes no calls or the address is unknown."""
    if not isinstance(provider, HttpProvider):
        return ""
    try:
        return masked_url(provider.base_url)
    except SlipformError:
        return ""
