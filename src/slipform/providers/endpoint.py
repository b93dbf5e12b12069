"""One vendor at one address: which codec speaks to it, how a request is dressed for it, what it has taught."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from slipform.codecs.base import Capabilities, Codec, EncodedRequest
from slipform.errors import SlipformError, UpstreamError
from slipform.ir import ModelRequest, ModelWarning
from slipform.ir.quick import quick
from slipform.providers import lessons
from slipform.providers.auth import Authorised, authorise, secrets_in
from slipform.providers.catalog import Vendor
from slipform.providers.codecs_by_name import CodecFactory
from slipform.providers.lessons import LessonStore
from slipform.providers.retry import Retries
from slipform.providers.secrets import Secret, scrub_error
from slipform.providers.transport import HttpRequest, Timeouts

logger = logging.getLogger("slipform.providers")

_KEPT = 256
_USUAL = Timeouts()
_BY_SCHEMA = "by_schema"
"""Kept with a model's lessons: some of its schemas have lessons of their own. Their keys are dear to make."""
_REQUEST_ID = ("x-request-id", "request-id", "x-amzn-requestid", "apim-request-id", "x-goog-request-id", "cf-ray")


def _lower(headers: Mapping[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}


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


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Everything about a vendor's address but the network."""

    vendor: Vendor
    make_codec: CodecFactory
    store: LessonStore
    name: str
    base_url: str | None = None
    api_key: Secret | None = None
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    settings: Mapping[str, str] = field(default_factory=dict)
    timeouts: Timeouts = field(default_factory=Timeouts)
    retries: Retries = field(default_factory=Retries)
    clock: Callable[[], float] = time.monotonic
    codecs: dict[Capabilities, Codec] = field(default_factory=dict, repr=False)
    known: dict[tuple[str, frozenset[str]], tuple[Capabilities, Codec]] = field(default_factory=dict, repr=False)
    """By the model and what was learned of it."""
    own: Mapping[str, str] = field(init=False, repr=False)
    """`headers`, with their names in lower case: they win over all others."""
    fixed: Mapping[str, str] = field(init=False, repr=False)
    """Headers that are the same for every call."""
    kept: tuple[Secret, ...] = field(init=False, repr=False)
    """The secrets among them."""

    def __post_init__(self) -> None:
        usual = {"content-type": "application/json", "accept": "*/*", "user-agent": "slipform"}
        object.__setattr__(self, "own", _lower(self.headers))
        object.__setattr__(self, "fixed", {**usual, **_lower(self.vendor.headers), **self.own})
        object.__setattr__(self, "kept", secrets_in(self.fixed))

    def capabilities(self, model: str) -> Capabilities:
        """What the model can do here, less what it was learned not to do."""
        return self._spoken(model, self.store.get(lessons.model_key(self.url(), model)))[0]

    def codec(self, model: str, capabilities: Capabilities) -> Codec:
        """The codec for these capabilities, made once: what `auto` means is settled here."""
        made = self.codecs.get(capabilities)
        if made is None:
            if len(self.codecs) >= _KEPT:
                self.codecs.clear()
            made = self.codecs[capabilities] = self.make_codec(capabilities)
            logger.debug("%s/%s: codec %s, auto means %s", self.name, model, made.name, made.strategy.value)
        return made

    def prepare(self, request: ModelRequest, *, streamed: bool) -> Prepared:
        """Spell, address and sign one attempt."""
        url = self.url()
        learned = self._lessons(url, request)
        capabilities, codec = self._spoken(request.model, learned)
        encoded = codec.encode_request(request, stream=streamed)
        headers = {**self.fixed, **_lower(encoded.headers), **self.own} if encoded.headers else self.fixed
        authorised = authorise(
            self.vendor,
            url=url + encoded.path,
            headers=headers,
            body=encoded.body,
            key=self.api_key,
            settings=self.settings,
            kept=self.kept,
        )
        warnings = encoded.warnings
        if learned:
            said = (lesson for lesson in sorted(learned) if "use_" not in lesson and lesson != _BY_SCHEMA)
            warnings = (*warnings, *(lessons.lesson_warning(lesson, request.model) for lesson in said))
        limits = self.timeouts_for(request)
        return Prepared(request.model, self.name, codec, encoded, capabilities, authorised, streamed, warnings, limits)

    def timeouts_for(self, request: ModelRequest) -> Timeouts:
        """The time limits of this call: the endpoint's, or less when the request has less."""
        given, total = self.timeouts, request.timeout
        if total is None or (given.total is not None and given.total <= total):
            return given
        return Timeouts(given.connect, given.first_byte, given.between_chunks, total)

    def url(self) -> str:
        """The base URL, read anew for each call since parts of it may come from the environment."""
        return self.vendor.url(self.base_url, self.settings)

    def learn(self, error: UpstreamError, request: ModelRequest, prepared: Prepared) -> bool:
        """Remember what a refusal of the request teaches; True when repeating it is worthwhile."""
        text = f"{error.message} {error.details.get('param') or ''} {error.details.get('code') or ''}"
        taught = lessons.learn(text, request, prepared.capabilities)
        if taught is None:
            return False
        lesson, about_schema = taught
        key = lessons.schema_key(self.url(), request.model, request) if about_schema else None
        about_model = lessons.model_key(self.url(), request.model)
        self.store.add(key or about_model, lesson)
        if key:
            self.store.add(about_model, _BY_SCHEMA)
        logger.warning(
            "%s/%s refused the request; learned %s%s",
            self.name,
            request.model,
            lesson,
            " for this schema" if about_schema else "",
        )
        return True

    def _spoken(self, model: str, learned: frozenset[str]) -> tuple[Capabilities, Codec]:
        """What the model can do after these lessons, and the codec for that."""
        known = self.known.get((model, learned))
        if known is None:
            if len(self.known) >= _KEPT:
                self.known.clear()
            capabilities = lessons.downgrade(self.vendor.capabilities(model), learned)
            known = self.known[model, learned] = (capabilities, self.codec(model, capabilities))
        return known

    def _lessons(self, url: str, request: ModelRequest) -> frozenset[str]:
        learned = self.store.get(lessons.model_key(url, request.model))
        if _BY_SCHEMA not in learned:
            return learned
        key = lessons.schema_key(url, request.model, request)
        return learned | self.store.get(key) if key else learned
