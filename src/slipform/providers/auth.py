"""How each vendor wants to see the key."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from urllib.parse import quote

from slipform.errors import AuthenticationError
from slipform.ir.quick import quick
from slipform.providers.catalog import Vendor
from slipform.providers.secrets import Secret, from_environment
from slipform.providers.sigv4 import AwsKeys, sign

_SENSITIVE = re.compile(r"auth|key|token|secret|cookie|credential", re.IGNORECASE)
_AWS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")


@quick
@dataclass(frozen=True, slots=True)
class Authorised:
    """A request's address and headers with the key in them, and the secrets that must not be shown."""

    url: str = field(repr=False)
    headers: dict[str, str] = field(repr=False)
    secrets: tuple[Secret, ...] = ()


def authorise(
    vendor: Vendor,
    *,
    url: str,
    headers: Mapping[str, str],
    body: bytes,
    key: Secret | None,
    settings: Mapping[str, str],
    kept: tuple[Secret, ...] = (),
) -> Authorised:
    """Add the key in the vendor's way; an `AuthenticationError` names the environment variable that is not set.

    `key` is one given in code; without it the environment is read, at each call, so that keys can be rotated. `kept`
    are the secrets that `headers` hold already.
    """
    found = key or from_environment(vendor.api_key_env)
    if vendor.auth == "none":
        return Authorised(url, dict(headers), kept)
    if found is None:
        if vendor.auth == "sigv4":
            return _signed(vendor, url, headers, body, settings, kept)
        if vendor.key == "optional" or _has_own(headers):
            return Authorised(url, dict(headers), kept)
        raise _missing(vendor, vendor.api_key_env)
    value = found.reveal()
    secrets = (*kept, found)
    if vendor.auth == "query":
        joint = "&" if "?" in url else "?"
        return Authorised(f"{url}{joint}key={quote(value, safe='')}", dict(headers), secrets)
    if vendor.auth in ("bearer", "sigv4"):
        return Authorised(url, {**headers, "authorization": f"Bearer {value}"}, secrets)
    return Authorised(url, {**headers, vendor.auth: value}, secrets)


def secrets_in(headers: Mapping[str, str]) -> tuple[Secret, ...]:
    """The values of headers that, by their name, hold a credential."""
    return tuple(Secret(value) for name, value in headers.items() if _SENSITIVE.search(name) and value)


def _has_own(headers: Mapping[str, str]) -> bool:
    """Whether the settings' headers bring a credential of their own, as some gateways want it."""
    return any(name.lower() in ("authorization", "x-api-key", "api-key") for name in headers)


def _signed(
    vendor: Vendor,
    url: str,
    headers: Mapping[str, str],
    body: bytes,
    settings: Mapping[str, str],
    kept: tuple[Secret, ...],
) -> Authorised:
    access, secret, session = (from_environment([name]) for name in _AWS)
    if access is None or secret is None:
        raise _missing(vendor, (*vendor.api_key_env, "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"))
    added = sign(
        AwsKeys(access.reveal(), secret, session),
        method="POST",
        url=url,
        headers=headers,
        body=body,
        region=vendor.region(settings),
        service="bedrock",
        now=datetime.now(UTC),
    )
    return Authorised(url, {**headers, **added}, (*kept, secret, *((session,) if session else ())))


def _missing(vendor: Vendor, names: tuple[str, ...]) -> AuthenticationError:
    if not names:
        hint = f"Name the environment variable that holds it in `providers.{vendor.name}.api_key_env`."
    else:
        hint = f"Set the environment variable {' or '.join(names)}."
    return AuthenticationError(
        f"There is no API key for the provider {vendor.name!r}; no call was made",
        hint=hint,
        details={"provider": vendor.name, "api_key_env": list(names)},
    )
