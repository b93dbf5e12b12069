"""One attempt at a call, ready to be sent: a plain class, because `endpoint` and `calls` are compiled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from slipform.codecs.base import Capabilities, Codec, EncodedRequest
from slipform.errors import SlipformError
from slipform.ir import ModelWarning
from slipform.ir.quick import quick
from slipform.providers.auth import Authorised
from slipform.providers.secrets import scrub_error
from slipform.providers.transport import HttpRequest, Timeouts

_USUAL = Timeouts()
_REQUEST_ID = ("x-request-id", "request-id", "x-amzn-requestid", "apim-request-id", "x-goog-request-id", "cf-ray")


@quick
@dataclass(frozen=True, slots=True)
class Prepared:
    """One attempt at a request: the codec that spelled it, and what it takes to read the answer."""

    model: str
    provider: str
    codec: Codec
    encoded: EncodedRequest
    capabilities: Capabilities
    authorised: Authorised
    streamed: bool
    warnings: tuple[ModelWarning, ...] = ()
    timeouts: Timeouts = _USUAL

    def http(self, timeouts: Timeouts) -> HttpRequest:
        """The request for the transport."""
        sent = self.authorised
        return HttpRequest(sent.url, sent.headers, self.encoded.body, timeouts, self.streamed)

    def annotate(self, error: SlipformError, headers: Mapping[str, str] | None = None) -> SlipformError:
        """The error with the call it belongs to, and without any key in it."""
        error.details.setdefault("provider", self.provider)
        error.details.setdefault("model", self.model)
        for name in _REQUEST_ID:
            if headers is not None and headers.get(name):
                error.details.setdefault("request_id", headers[name])
                break
        if error.where is None:
            error.where = f"{self.provider}/{self.model}"
        scrub_error(error, self.authorised.secrets)
        return error
