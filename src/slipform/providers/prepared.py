"""One attempt at a call, ready to be sent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from slipform.codecs.base import Capabilities, Codec, EncodedRequest
from slipform.errors import SlipformError
from slipform.ir import ModelWarning
from slipform.providers.auth import Authorised
from slipform.providers.network.transport import HttpRequest, Timeouts
from slipform.providers.secrets import scrub_error

_USUAL: Final = Timeouts()
_REQUEST_ID: Final = (
    "x-request-id", "request-id", "x-amzn-requestid", "apim-request-id", "x-goog-request-id", "cf-ray",
)  # fmt: skip


class Prepared:
    """One attempt at a request: the codec that spelled it, and what it takes to read the answer."""

    __slots__ = (
        "authorised", "capabilities", "codec", "encoded", "model", "provider", "streamed", "timeouts", "warnings",
    )  # fmt: skip

    def __init__(
        self,
        model: str,
        provider: str,
        codec: Codec,
        encoded: EncodedRequest,
        capabilities: Capabilities,
        authorised: Authorised,
        streamed: bool,
        warnings: tuple[ModelWarning, ...] = (),
        timeouts: Timeouts = _USUAL,
    ) -> None:
        self.model: Final = model
        self.provider: Final = provider
        self.codec: Final = codec
        self.encoded: Final = encoded
        self.capabilities: Final = capabilities
        self.authorised: Final = authorised
        self.streamed: Final = streamed
        self.warnings: Final = warnings
        self.timeouts: Final = timeouts

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
