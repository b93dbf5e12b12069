"""Find API keys, add them to requests (SigV4 included), and mask them in messages."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any
from urllib.parse import parse_qsl, quote, urlsplit, urlunsplit

import msgspec

from slipform.errors import AuthenticationError, SlipformError
from slipform.providers.catalog import Vendor

MASK = "[redacted]"
MIN_MASKED = 8
"""Shorter keys are not masked in a vendor's responses."""
_TOO_SHORT = 6
_QUERY_SECRET = re.compile(r"((?:key|token|secret|password)[^=&]*=)[^&#]+", re.IGNORECASE)
_HTML_IN_JSON = str.maketrans({char: f"\\u{ord(char):04x}" for char in "<>&='"})


def masked_url(url: str) -> str:
    """Return a URL without its password and without keys in its query.

    >>> masked_url("redis://me:hunter22@host:6379/0")
    'redis://me:[redacted]@host:6379/0'
    """
    parts = urlsplit(url)
    login, at, host = parts.netloc.rpartition("@")
    name, colon, _ = login.partition(":")
    netloc = f"{name}{colon}{MASK if colon else ''}{at}{host}"
    query = _QUERY_SECRET.sub(rf"\1{MASK}", parts.query)
    return urlunsplit((parts.scheme, netloc, parts.path, query, parts.fragment))


class Secret:
    """A value that is hidden in its repr, str and pickle.

    >>> Secret("sk-123456")
    Secret([redacted])
    >>> Secret("sk-123456").reveal()
    'sk-123456'
    """

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        """Return the value; keep it out of anything that is logged."""
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
    """Return the first of these environment variables that is set and not blank.

    >>> from_environment(["A", "B"], {"A": " ", "B": "key"})
    Secret([redacted])
    """
    value = environment_text(names, environment)
    return Secret(value) if value else None


def environment_text(names: Sequence[str], environment: Mapping[str, str] | None = None) -> str:
    """Return the same as plain text, for comparison only, never for display; empty if none is set."""
    source = os.environ if environment is None else environment
    for name in names:
        try:
            value = source[name].strip()
        except KeyError:
            continue
        if value:
            return value
    return ""


def scrub(value: Any, secrets: Iterable[Secret]) -> Any:
    """Return the value with every secret in its strings masked, at any depth.

    Secrets of less than six characters are not masked: local servers get keys like `x`, and no real secret is that
    short.

    >>> scrub({"message": "bad key sk-123456"}, [Secret("sk-123456")])
    {'message': 'bad key [redacted]'}
    """
    masked_words = [secret.reveal() for secret in secrets if len(secret.reveal()) >= _TOO_SHORT]
    return _scrub(value, masked_words) if masked_words else value


def _scrub(value: Any, masked_words: Sequence[str]) -> Any:
    if isinstance(value, str):
        for word in masked_words:
            value = value.replace(word, MASK)
        return value
    if isinstance(value, Mapping):
        return {_scrub(key, masked_words): _scrub(item, masked_words) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)([_scrub(item, masked_words) for item in value])
    return value


def scrub_error(error: SlipformError, secrets: Iterable[Secret]) -> None:
    """Mask secrets in everything an error shows. Some vendors repeat the key they refuse."""
    known_secrets = list(secrets)
    error.message = scrub(error.message, known_secrets)
    error.args = tuple(scrub(argument, known_secrets) for argument in error.args)
    error.where = scrub(error.where, known_secrets)
    error.hint = scrub(error.hint, known_secrets)
    error.details = scrub(error.details, known_secrets)


@lru_cache(maxsize=64)
def spellings(secrets: tuple[Secret, ...]) -> tuple[bytes, ...]:
    """Return the encodings in which each of these secrets may occur, the longest first."""
    variants: set[str] = set()
    for secret in secrets:
        word = secret.reveal()
        if len(word) >= MIN_MASKED:
            escaped = json.dumps(word)[1:-1]
            html = escaped.translate(_HTML_IN_JSON)
            variants |= {
                word,
                quote(word, safe=""),
                quote(word),
                escaped,
                html,
            }
            variants |= {escaped.replace("/", "\\/"), html.replace("/", "\\/"), html.replace("+", "\\u002b")}
    return tuple(
        sorted((word.encode("utf-8", "surrogatepass") for word in variants), key=lambda word: (-len(word), word))
    )


_ALGORITHM = "AWS4-HMAC-SHA256"


@dataclass(frozen=True, slots=True)
class AwsKeys:
    """An access key; `session` is the token of a temporary one."""

    access: str
    secret: Secret
    session: Secret | None = None


def sign(
    keys: AwsKeys,
    *,
    method: str,
    url: str,
    headers: Mapping[str, str],
    body: bytes,
    region: str,
    service: str,
    now: datetime,
) -> dict[str, str]:
    """Return the headers that sign a request for AWS: `authorization`, `x-amz-date` and, if any, the token.

    All of `headers` are signed, so none of them may change afterwards.
    """
    stamp = now.astimezone(UTC).strftime("%Y%m%dT%H%M%SZ")
    parts = urlsplit(url)
    added = {"x-amz-date": stamp}
    if keys.session is not None:
        added["x-amz-security-token"] = keys.session.reveal()
    signed = {name.lower(): " ".join(value.split()) for name, value in {**headers, **added}.items()}
    signed["host"] = parts.netloc
    names = ";".join(sorted(signed))
    canonical = "\n".join(
        [
            method,
            _canonical_path(parts.path),
            _canonical_query(parts.query),
            *(f"{name}:{signed[name]}" for name in sorted(signed)),
            "",
            names,
            hashlib.sha256(body).hexdigest(),
        ]
    )
    scope = f"{stamp[:8]}/{region}/{service}/aws4_request"
    text = "\n".join([_ALGORITHM, stamp, scope, hashlib.sha256(canonical.encode()).hexdigest()])
    signature = hmac.new(_signing_key(keys.secret, scope), text.encode(), hashlib.sha256).hexdigest()
    added["authorization"] = (
        f"{_ALGORITHM} Credential={keys.access}/{scope}, SignedHeaders={names}, Signature={signature}"
    )
    return added


def _signing_key(secret: Secret, scope: str) -> bytes:
    key = b"AWS4" + secret.reveal().encode()
    for part in scope.split("/"):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    return key


def _canonical_path(path: str) -> str:
    # Every service but S3 encodes the path once more: the `%3A` of a model id becomes `%253A`.
    return quote(path or "/", safe="/-_.~")


def _canonical_query(query: str) -> str:
    pairs = [(quote(k, safe="-_.~"), quote(v, safe="-_.~")) for k, v in parse_qsl(query, keep_blank_values=True)]
    return "&".join(f"{name}={value}" for name, value in sorted(pairs))


_SENSITIVE = re.compile(r"auth|key|token|secret|cookie|credential", re.IGNORECASE)
_AWS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")


class Authorised(msgspec.Struct, frozen=True):
    """A request's URL and headers including the key, and the secrets to mask."""

    url: str
    headers: dict[str, str]
    secrets: tuple[Secret, ...] = ()
    masked_words: tuple[bytes, ...] = ()
    """The encodings in which the secrets may occur in a vendor's responses."""

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "masked_words", spellings(self.secrets))

    def __repr__(self) -> str:
        return f"Authorised(secrets={self.secrets!r})"


def authorise(
    vendor: Vendor,
    *,
    url: str,
    headers: Mapping[str, str],
    body: bytes,
    key: Secret | None,
    settings: Mapping[str, str],
    other_secrets: tuple[Secret, ...] = (),
    aws_keys: Callable[[], AwsKeys] | None = None,
) -> Authorised:
    """Add the key in the way of the vendor; raises an `AuthenticationError` that names the unset environment variable.

    `key` is one given in code; without it the environment is read for each call, so that keys can be rotated.
    `other_secrets` are those that `headers` already contain, `aws_keys` resolves an access key elsewhere.
    """
    api_key = key or from_environment(vendor.api_key_env)
    if vendor.auth == "none":
        return Authorised(url, dict(headers), other_secrets)
    if api_key is None:
        if vendor.auth == "sigv4":
            keys = _aws_keys(vendor, settings, aws_keys)
            return _signed(vendor, url, headers, body, settings, other_secrets, keys)
        if vendor.key == "optional" or _has_credential(headers):
            return Authorised(url, dict(headers), other_secrets)
        raise _missing_key_error(vendor, vendor.api_key_env)
    value = api_key.reveal()
    secrets = (*other_secrets, api_key)
    if vendor.auth == "query":
        joint = "&" if "?" in url else "?"
        return Authorised(f"{url}{joint}key={quote(value, safe='')}", dict(headers), secrets)
    if vendor.auth in ("bearer", "sigv4", "google"):
        return Authorised(url, {**headers, "authorization": f"Bearer {value}"}, secrets)
    return Authorised(url, {**headers, vendor.auth: value}, secrets)


def secrets_in(headers: Mapping[str, str]) -> tuple[Secret, ...]:
    """Return the values of headers whose name marks a credential."""
    return tuple(Secret(value) for name, value in headers.items() if _SENSITIVE.search(name) and value)


def _has_credential(headers: Mapping[str, str]) -> bool:
    """Return whether the settings' headers contain a separate credential, as some gateways require."""
    return any(name.lower() in ("authorization", "x-api-key", "api-key") for name in headers)


def _aws_keys(vendor: Vendor, settings: Mapping[str, str], other: Callable[[], AwsKeys] | None) -> AwsKeys:
    """Return the access key to sign with: the settings' profile or role, else the environment's, else another."""
    access, secret, session = (from_environment([name]) for name in _AWS)
    has_own = bool(settings.get("profile") or settings.get("role_arn"))
    if access is not None and secret is not None and not has_own:
        return AwsKeys(access.reveal(), secret, session)
    missing = _missing_key_error(vendor, (*vendor.api_key_env, "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"))
    if other is None:
        raise missing
    try:
        return other()
    except AuthenticationError as error:
        if has_own:
            raise
        missing.hint = f"{missing.hint} {error.message}."
        raise missing from None


def _signed(
    vendor: Vendor,
    url: str,
    headers: Mapping[str, str],
    body: bytes,
    settings: Mapping[str, str],
    other_secrets: tuple[Secret, ...],
    keys: AwsKeys,
) -> Authorised:
    added = sign(
        keys,
        method="POST",
        url=url,
        headers=headers,
        body=body,
        region=vendor.region(settings),
        service="bedrock",
        now=datetime.now(UTC),
    )
    secrets = (keys.secret,) if keys.session is None else (keys.secret, keys.session)
    return Authorised(url, {**headers, **added}, (*other_secrets, *secrets))


def _missing_key_error(vendor: Vendor, names: tuple[str, ...]) -> AuthenticationError:
    if not names:
        hint = f"Name the environment variable that holds it in `providers.{vendor.name}.api_key_env`."
    else:
        hint = f"Set the environment variable {' or '.join(names)}."
    return AuthenticationError(
        f"The provider {vendor.name!r} has no API key; no call was made",
        hint=hint,
        details={"provider": vendor.name, "api_key_env": list(names)},
    )
