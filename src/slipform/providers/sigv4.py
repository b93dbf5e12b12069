"""AWS Signature Version 4, for Bedrock, with the standard library alone."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from urllib.parse import parse_qsl, quote, urlsplit

from slipform.providers.secrets import Secret

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
    """The headers to add so that AWS accepts the request: `authorization`, `x-amz-date` and, if any, the token.

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
