"""Prepare calls to one vendor at one address, and record what it refuses."""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec

from slipform.codecs import BoundCodec, Capabilities, EncodedRequest
from slipform.codecs.codec import BodyTemplate
from slipform.codecs.schema_channel import wraps_root
from slipform.enforce.prompts import Wording, first_request
from slipform.enforce.side_by_side import SCHEMA_SPLIT
from slipform.errors import AuthenticationError, SchemaError, SlipformError, UpstreamError
from slipform.ir import Message, ModelRequest, ModelWarning
from slipform.providers import retry
from slipform.providers.auth import (
    Authorised,
    AwsKeys,
    Secret,
    authorise,
    environment_text,
    from_environment,
    scrub_error,
    secrets_in,
)
from slipform.providers.catalog import Vendor
from slipform.providers.cloud_credentials import AwsCredentials, GoogleCredentials, cloud_credentials
from slipform.providers.network.transport import HttpRequest, Timeouts
from slipform.providers.refusals import record_refusal
from slipform.providers.retry import DowngradeStore, NoDowngrades, RetryPolicy
from slipform.schema import OutputStrategy, ResponseFormat

_USUAL: Final = Timeouts()
_UNSENT: Final = Authorised("", {})
_REQUEST_ID: Final = (
    "x-request-id", "request-id", "x-amzn-requestid", "apim-request-id", "x-goog-request-id", "cf-ray",
)  # fmt: skip


class PreparedCall(msgspec.Struct, frozen=True):
    """One attempt at a request: its encoded form, and everything needed to read the answer."""

    model: str
    provider: str
    codec: BoundCodec
    encoded: EncodedRequest
    capabilities: Capabilities
    authorised: Authorised
    streamed: bool
    warnings: tuple[ModelWarning, ...] = ()
    timeouts: Timeouts = _USUAL

    def __repr__(self) -> str:  # error reports with variables show this
        return f"PreparedCall({self.provider}/{self.model})"

    def http(self, timeouts: Timeouts) -> HttpRequest:
        """Return the request for the transport."""
        sent = self.authorised
        return HttpRequest(sent.url, sent.headers, self.encoded.body, timeouts, self.streamed)

    def with_body(self, body: bytes) -> PreparedCall:
        """Return the same attempt with another body."""
        encoded = self.encoded
        other = EncodedRequest(encoded.path, body, encoded.headers, encoded.warnings, encoded.context)
        return PreparedCall(
            self.model,
            self.provider,
            self.codec,
            other,
            self.capabilities,
            self.authorised,
            self.streamed,
            self.warnings,
            self.timeouts,
        )

    def annotate(self, error: SlipformError, headers: Mapping[str, str] | None = None) -> SlipformError:
        """Return the error with the call it belongs to, and without any key in it."""
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


Version: TypeAlias = tuple[str, int]


class CallTemplate(NamedTuple):
    """The calls of one frame to one model: everything but the conversation, and the state it was built for."""

    version: Version
    key: str
    prepared: PreparedCall
    encode_turns: Callable[[Sequence[Message]], bytes | None]
    body: BodyTemplate


class BoundModel(NamedTuple):
    """A model at its address, after its downgrades: its capabilities there, and the codec for them."""

    url: str
    downgrades: frozenset[str]
    capabilities: Capabilities
    codec: BoundCodec


logger = logging.getLogger("slipform.providers")
_KEPT = 256
_PROMPTED: Final = OutputStrategy.PROMPTED


def _lower(headers: Mapping[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}


def _address(vendor: Vendor, base_url: str | None) -> str | None:
    """Return the base URL if nothing can change it later; else None."""
    template = base_url or ("" if vendor.base_url_env else vendor.base_url)
    if template and "{" not in template:
        return vendor.url(template)
    return None


def _with_schema_in_prompt(
    request: ModelRequest, capabilities: Capabilities
) -> tuple[ModelRequest, tuple[ModelWarning, ...]]:
    """Return the request with its schema in the prompt, which alone carries it, and the warnings of the prompt."""
    wording = Wording("list_keys" in capabilities.quirks, wraps_root=wraps_root(capabilities, request))
    prompted = first_request(request, _PROMPTED, wording)
    return prompted.request, prompted.warnings


class Endpoint:
    """Everything about a vendor's address except for the network."""

    def __init__(
        self,
        vendor: Vendor,
        make_codec: Callable[[Capabilities], BoundCodec],
        store: DowngradeStore,
        name: str,
        *,
        base_url: str | None = None,
        api_key: Secret | None = None,
        headers: Mapping[str, str] | None = None,
        settings: Mapping[str, str] | None = None,
        timeouts: Timeouts | None = None,
        retries: RetryPolicy | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.vendor = vendor
        self.store = store
        self.name = name
        self.settings = dict(settings or {})
        self.timeouts = timeouts or Timeouts()
        self.retries = retries or RetryPolicy()
        self.clock = clock
        self._make_codec = make_codec
        self._base_url = base_url
        self._api_key = api_key
        usual = {"content-type": "application/json", "accept": "*/*", "user-agent": "slipform"}
        self._override_headers = _lower(headers or {})
        """`headers` with lower-case names: they override all others."""
        self.fixed = {**usual, **_lower(vendor.headers), **self._override_headers}
        """Headers that are the same for every call."""
        self.secrets = secrets_in(self.fixed)
        """The secrets among them."""
        self._codecs: dict[Capabilities, BoundCodec] = {}
        self._bound_models: dict[str, tuple[Version, BoundModel]] = {}
        """By model, each with the version for which it was bound."""
        self.cloud = cloud_credentials(vendor.auth, self.settings)
        """The source of a cloud's credentials, if code and environment provide none."""
        self._address = _address(vendor, base_url)
        self._authorised: dict[tuple[Any, ...], Authorised] = {}
        """By everything that it depends on: address, key, and further headers."""

    @property
    def version(self) -> Version | None:
        """The address and the state of the downgrades: models are bound again when it changes; None if unknown."""
        state = getattr(self.store, "version", None)
        if state is None:
            return None
        return (self._address or self.url(), state)

    def bind(self, model: str, response_format: ResponseFormat | None = None) -> BoundModel:
        """Return the model bound for requests with this response format; cached until the next downgrade."""
        version = self.version
        cached = self._bound_models.get(model)
        bound = None if version is None or cached is None or cached[0] != version else cached[1]
        if bound is None:
            url = self.url() if version is None else version[0]
            bound = self._bind(url, model, self.store.get(retry.model_key(url, model)))
            if version is not None:
                if len(self._bound_models) >= _KEPT:
                    self._bound_models.clear()
                self._bound_models[model] = (version, bound)
        if response_format is None or retry.PER_SCHEMA not in bound.downgrades:
            return bound
        key = retry.schema_key(bound.url, model, response_format)
        if key:
            return self._bind(bound.url, model, bound.downgrades | self.store.get(key))
        return bound

    def _bind(self, url: str, model: str, downgrades: frozenset[str]) -> BoundModel:
        capabilities = retry.apply_downgrades(self.vendor.capabilities(model), downgrades)
        return BoundModel(url, downgrades, capabilities, self.codec(model, capabilities))

    def capabilities(self, model: str) -> Capabilities:
        """Return what the model can do here, minus its downgrades."""
        return self.bind(model).capabilities

    def capabilities_for(self, request: ModelRequest) -> Capabilities:
        """Return what the model can do for this request; less if its schema does not fit the native channel."""
        bound = self.bind(request.model, request.response_format)
        capabilities = bound.capabilities
        codec = bound.codec
        if request.response_format is None or codec.strategy is not OutputStrategy.NATIVE:
            return capabilities
        with suppress(SchemaError):  # faults of the schema are reported on its use
            if codec.strategy_for(request) is not OutputStrategy.NATIVE and capabilities.native:
                return dataclasses.replace(capabilities, native=False)
        return capabilities

    def codec_for(self, model: str, response_format: ResponseFormat | None) -> BoundCodec:
        """Return the codec for this model and response format, after the downgrades of both."""
        return self.bind(model, response_format).codec

    def codec(self, model: str, capabilities: Capabilities) -> BoundCodec:
        """Return the codec for these capabilities, created once; it resolves `auto`."""
        made = self._codecs.get(capabilities)
        if made is None:
            if len(self._codecs) >= _KEPT:
                self._codecs.clear()
            made = self._codecs[capabilities] = self._make_codec(capabilities)
            logger.debug("%s/%s: resolved, codec=%s, auto=%s", self.name, model, made.name, made.strategy.value)
        return made

    def find_prepared(self, request: ModelRequest, model: str, *, streamed: bool) -> PreparedCall | None:
        """Return one attempt at a request whose frame has a template; None if it must be prepared from scratch."""
        template = None if request.frame is None else request.frame.find((self, model, streamed))
        if template is None or request.timeout is not None or self.cloud is not None:
            return None
        version, key, prepared, encode_turns, body = template
        if version != self.version or key != self.key_text():
            return None
        turns = encode_turns(request.messages)
        return None if turns is None else prepared.with_body(body.with_turns(turns))

    def _keep_template(self, request: ModelRequest, prepared: PreparedCall) -> None:
        """Store an attempt at a request of a frame, for the next one with a different conversation."""
        frame = request.frame
        version = self.version
        is_signed = self.vendor.auth == "sigv4"  # a signature is valid for one body only
        if frame is None or version is None or is_signed or self.cloud is not None or request.timeout is not None:
            return
        codec = prepared.codec
        body = codec.find_template(request, stream=prepared.streamed)
        if body is not None and codec.encode_plain_turns is not None:
            template = CallTemplate(version, self.key_text(), prepared, codec.encode_plain_turns, body)
            frame.keep((self, request.model, prepared.streamed), template)

    def key_text(self) -> str:
        """Return the key of a call as text, to distinguish calls with different keys; empty without one."""
        if self._api_key is not None:
            return self._api_key.reveal()
        text = environment_text(self.vendor.api_key_env)
        if text or self.cloud is None:
            return text
        key = self.call_key()
        return "" if key is None else key.reveal()

    def prepare(self, request: ModelRequest, *, streamed: bool) -> PreparedCall:
        """Encode, address and sign one attempt."""
        prepared = self.find_prepared(request, request.model, streamed=streamed)
        if prepared is not None:
            return prepared
        bound = self.bind(request.model, request.response_format)
        url, downgrades, capabilities, codec = bound
        encoded, prompt_warnings = self._encoded(request, bound, streamed=streamed)
        is_prompted = encoded.context is not None and encoded.context.strategy is _PROMPTED
        authorised = self.authorise(url + encoded.path, encoded.headers, encoded.body)
        warnings = (*encoded.warnings, *prompt_warnings) if prompt_warnings else encoded.warnings
        if downgrades:
            unreported = (retry.PER_SCHEMA, "split_schema")
            reported = (name for name in sorted(downgrades) if "use_" not in name and name not in unreported)
            used = None if encoded.context is None else encoded.context.strategy
            warnings = (*warnings, *(retry.downgrade_warning(name, request.model, used) for name in reported))
        limits = self.timeouts_for(request)
        prepared = PreparedCall(
            request.model, self.name, codec, encoded, capabilities, authorised, streamed, warnings, limits
        )
        if request.response_format is None or not is_prompted:  # for such models the prompt depends on the conversation
            self._keep_template(request, prepared)
        return prepared

    def _encoded(
        self, request: ModelRequest, bound: BoundModel, *, streamed: bool
    ) -> tuple[EncodedRequest, tuple[ModelWarning, ...]]:
        """Return the request in the vendor's format, and the warnings of a prompt that carries its schema."""
        encoded = bound.codec.encode_request(request, stream=streamed)
        channel = encoded.context
        if request.response_format is None or request.tells_schema or channel is None:
            return encoded, ()
        if channel.strategy is not _PROMPTED:
            return encoded, ()
        request, warnings = _with_schema_in_prompt(request, bound.capabilities)
        return bound.codec.encode_request(request, stream=streamed), warnings

    def prepare_batched(self, request: ModelRequest, downgrades: frozenset[str] | None = None) -> PreparedCall:
        """Encode a request for a batch, without address and key; with these downgrades, by default the current ones."""
        if downgrades is None:
            downgrades = self.bind(request.model, request.response_format).downgrades
        bound = self._bind("", request.model, downgrades)
        encoded, prompt_warnings = self._encoded(request, bound, streamed=False)
        warnings = (*encoded.warnings, *prompt_warnings)
        return PreparedCall(
            request.model, self.name, bound.codec, encoded, bound.capabilities, _UNSENT, False, warnings
        )

    def key(self) -> Secret | None:
        """Return the key given in code, else the environment's, read for each call so that it can be rotated."""
        return self._api_key or from_environment(self.vendor.api_key_env)

    def call_key(self) -> Secret | None:
        """Return the key of a call: `key`, else an access token of the cloud, which may have to be fetched."""
        key = self.key()
        if key is None and isinstance(self.cloud, GoogleCredentials):
            return self.cloud.token
        return key

    @property
    def waits_for_credentials(self) -> bool:
        """Whether the next call would block until it has credentials of the cloud."""
        if self.cloud is None or self.cloud.is_current or self.key() is not None:
            return False
        has_own = bool(self.settings.get("profile") or self.settings.get("role_arn"))
        return self.vendor.auth != "sigv4" or has_own or from_environment(["AWS_ACCESS_KEY_ID"]) is None

    def refresh_credentials(self) -> None:
        """Fetch credentials of the cloud, blocking; errors are reported by the call that uses them."""
        if self.cloud is not None:
            with suppress(AuthenticationError):
                self.cloud.refresh()

    def authorise(self, url: str, headers: Mapping[str, str], body: bytes) -> Authorised:
        """Return the address and headers of a call, with the key; equal calls share one result."""
        key = self.call_key()
        mark = (url, "" if key is None else key.reveal(), *headers.items())
        made = self._authorised.get(mark)
        if made is None:
            made = self.authorise_uncached(url, {**_lower(headers), **self._override_headers}, body, key)
            if self.vendor.auth != "sigv4":  # a signature is valid for one body only
                if len(self._authorised) >= _KEPT:
                    self._authorised.clear()
                self._authorised[mark] = made
        return made

    def authorise_uncached(self, url: str, headers: Mapping[str, str], body: bytes, key: Secret | None) -> Authorised:
        """Return the address and headers of a call, with the key added in the vendor's way."""
        sent = {**self.fixed, **headers}
        return authorise(
            self.vendor,
            url=url,
            headers=sent,
            body=body,
            key=key,
            settings=self.settings,
            other_secrets=self.secrets,
            aws_keys=self._aws_keys,
        )

    def _aws_keys(self) -> AwsKeys:
        if isinstance(self.cloud, AwsCredentials):
            return self.cloud.keys
        return AwsCredentials(self.settings).keys

    def timeouts_for(self, request: ModelRequest) -> Timeouts:
        """Return the time limits of this call: the endpoint's, or the request's if they are shorter."""
        limits = self.timeouts
        total = request.timeout
        if total is None or (limits.total is not None and limits.total <= total):
            return limits
        return Timeouts(limits.connect, limits.first_byte, limits.between_chunks, total)

    def url(self) -> str:
        """Return the base URL, read again for each call since parts of it may come from the environment."""
        return self._address or self.vendor.url(self._base_url, self.settings)

    def downgrade_after(self, error: UpstreamError, request: ModelRequest, prepared: PreparedCall) -> bool:
        """Record the feature that the vendor refused; return True if a retry without it is worthwhile."""
        if isinstance(self.store, NoDowngrades):
            return False
        text = f"{error.message} {error.details.get('param') or ''} {error.details.get('code') or ''}"
        recognised = record_refusal(text, request, prepared.capabilities)
        if recognised is None:
            return False
        downgrade, about_schema = recognised
        self._record_downgrade(downgrade, request, about_schema=about_schema)
        about = " for this schema" if about_schema else ""
        logger.warning("%s/%s: request refused, downgrade=%s%s", self.name, request.model, downgrade, about)
        if downgrade == "split_schema":  # the caller requests the schema in parts
            error.details[SCHEMA_SPLIT] = True
            return False
        return True

    def record_ignored_schema(self, request: ModelRequest, prepared: PreparedCall) -> None:
        """Record that the model's answer does not even begin as the schema in its native channel requires."""
        if "schema_in_prompt" in prepared.capabilities.quirks or isinstance(self.store, NoDowngrades):
            return
        self._record_downgrade("schema_unseen", request, about_schema=False)
        logger.warning("%s/%s: schema ignored, the prompt shows it from now on", self.name, request.model)

    def _record_downgrade(self, downgrade: retry.DowngradeName, request: ModelRequest, *, about_schema: bool) -> None:
        key = None
        if about_schema:
            key = retry.schema_key(self.url(), request.model, request.response_format)
        about_model = retry.model_key(self.url(), request.model)
        self.store.add(key or about_model, downgrade)
        if key:
            self.store.add(about_model, retry.PER_SCHEMA)
