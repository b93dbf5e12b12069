"""Get credentials of AWS and Google Cloud as their own libraries do, and refresh them before they expire.

AWS: environment, profile, web identity, container and instance roles, by `botocore` (`slipform[aws]`). Google: a
service account's file, workload identity, the metadata server, by `google-auth` (`slipform[google]`). Both libraries
block while they fetch credentials, so calls on an event loop refresh them in a thread first.
"""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Callable, Mapping
from datetime import UTC
from importlib.util import find_spec
from typing import Any, Final

from slipform.errors import AuthenticationError
from slipform.providers.auth import AwsKeys, Secret
from slipform.providers.network.client import HttpTransport
from slipform.providers.network.transport import HttpRequest, Timeouts, TransportFault

_SCOPES: Final = ("https://www.googleapis.com/auth/cloud-platform",)
_PROJECTS: Final = "https://cloudresourcemanager.googleapis.com/"
_EARLY_SECONDS: Final = 240.0
"""How long before its expiry a token is refreshed; Google's libraries use the same."""
_LASTS_SECONDS: Final = 3600.0
"""The assumed lifetime of a token that does not state one."""
_CHECK_SECONDS: Final = 30.0
"""How long credentials are used before checking whether they have changed."""


class _RefreshedCredentials:
    """Credentials of a library, with the time until which they need not be refreshed."""

    def __init__(self, settings: Mapping[str, str], clock: Callable[[], float]) -> None:
        self._settings = settings
        self._clock = clock
        self._lock = threading.Lock()
        self._source: Any = None
        self._until = float("-inf")

    @property
    def is_current(self) -> bool:
        """Whether the next call need not wait for credentials."""
        return self._clock() < self._until


class AwsCredentials(_RefreshedCredentials):
    """The credentials that `botocore` resolves, for a profile or a role if the settings name one."""

    def __init__(self, settings: Mapping[str, str], clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(settings, clock)
        self._keys: AwsKeys | None = None

    @property
    def is_installed(self) -> bool:
        """Whether the library that resolves credentials is installed."""
        return find_spec("botocore") is not None

    @property
    def keys(self) -> AwsKeys:
        """Return the access key; raises `AuthenticationError` if there is none."""
        if not self.is_current or self._keys is None:
            self.refresh()
        if self._keys is None:
            raise _no_credentials("AWS", "aws")
        return self._keys

    def refresh(self) -> None:
        """Fetch credentials unless current ones exist, blocking; raises `AuthenticationError`."""
        with self._lock:
            if self.is_current:
                return
            try:
                from botocore.exceptions import BotoCoreError, ClientError
            except ImportError:
                raise _not_installed("aws") from None
            try:
                self._source = self._source or _aws_source(self._settings)
                frozen = None
                if self._source is not None:
                    frozen = self._source.get_frozen_credentials()
            except (BotoCoreError, ClientError) as error:
                raise AuthenticationError(
                    f"AWS gave no credentials: {error}", hint="Check the profile or the role of `settings`."
                ) from error
            if frozen is None or not frozen.access_key:
                raise _no_credentials("AWS", "aws")
            session = Secret(frozen.token) if frozen.token else None
            self._keys = AwsKeys(frozen.access_key, Secret(frozen.secret_key), session)
            self._until = self._clock() + _CHECK_SECONDS


def _aws_source(settings: Mapping[str, str]) -> Any:
    """Return the object from which `botocore` gets and refreshes credentials; None if its chain finds none."""
    from botocore.credentials import AssumeRoleCredentialFetcher, DeferredRefreshableCredentials
    from botocore.session import Session

    session = Session(profile=settings.get("profile") or None)
    source = session.get_credentials()
    role = settings.get("role_arn")
    if not role or source is None:
        return source
    names = {"session_name": "RoleSessionName", "external_id": "ExternalId"}
    arguments = {"RoleSessionName": "slipform"}
    arguments |= {names[name]: settings[name] for name in names if settings.get(name)}
    region = settings.get("region") or session.get_config_variable("region") or "us-east-1"

    def client(service: str, **options: Any) -> Any:
        return session.create_client(service, region_name=region, **options)

    fetcher = AssumeRoleCredentialFetcher(client, source, role, extra_args=arguments)
    return DeferredRefreshableCredentials(method="assume-role", refresh_using=fetcher.fetch_credentials)


class GoogleCredentials(_RefreshedCredentials):
    """Application Default Credentials, or those of the file that the settings name."""

    def __init__(self, settings: Mapping[str, str], clock: Callable[[], float] = time.time) -> None:
        super().__init__(settings, clock)
        self._token: Secret | None = None

    @property
    def is_installed(self) -> bool:
        """Whether the library that resolves credentials is installed."""
        return find_spec("google") is not None and find_spec("google.auth") is not None

    @property
    def token(self) -> Secret:
        """Return the access token; raises `AuthenticationError` if there is none."""
        if not self.is_current or self._token is None:
            self.refresh()
        if self._token is None:
            raise _no_credentials("Google Cloud", "google")
        return self._token

    def refresh(self) -> None:
        """Fetch a token unless a current one exists, blocking; raises `AuthenticationError`."""
        with self._lock:
            if self.is_current:
                return
            try:
                from google.auth.exceptions import GoogleAuthError
            except ImportError:
                raise _not_installed("google") from None
            try:
                request = _google_request()
                self._source = self._source or _google_source(self._settings, request)
                if self._seconds_left() <= _EARLY_SECONDS:
                    self._source.refresh(request)
            except (GoogleAuthError, OSError, ValueError) as error:
                raise AuthenticationError(
                    f"Google Cloud gave no access token: {error}",
                    hint="Set GOOGLE_APPLICATION_CREDENTIALS, `settings.credentials_file` or VERTEX_ACCESS_TOKEN.",
                ) from error
            self._token = Secret(self._source.token)
            self._until = self._clock() + max(self._seconds_left() - _EARLY_SECONDS, 1.0)

    def _seconds_left(self) -> float:
        """Return the remaining lifetime of the token; 0 before there is one."""
        if self._source.token is None:
            return 0.0
        expiry = self._source.expiry  # in UTC, without a time zone
        if expiry is None:
            return _LASTS_SECONDS
        return float(expiry.replace(tzinfo=UTC).timestamp() - self._clock())


def _google_source(settings: Mapping[str, str], request: Any) -> Any:
    import google.auth

    path = settings.get("credentials_file")
    if not path:
        source, _ = google.auth.default(scopes=_SCOPES, request=request)
        return source
    with warnings.catch_warnings():
        # It warns of files from untrusted sources; this one is named in the server's configuration.
        warnings.simplefilter("ignore", DeprecationWarning)
        source, _ = google.auth.load_credentials_from_file(path, scopes=_SCOPES, request=request)  # type: ignore[no-untyped-call]
    return source


def _google_request() -> Any:
    """Return the function that sends the requests of Google's library with slipform's client: it needs no other."""
    from google.auth import exceptions, transport

    network = HttpTransport()

    class Answer(transport.Response):
        """A response in the form that the library reads."""

        def __init__(self, status: int, headers: Mapping[str, str], data: bytes) -> None:
            self._fields = (status, headers, data)

        @property
        def status(self) -> int:
            return self._fields[0]

        @property
        def headers(self) -> Mapping[str, str]:
            return self._fields[1]

        @property
        def data(self) -> bytes:
            return self._fields[2]

    class Request(transport.Request):
        """Sends requests of the library."""

        def __call__(
            self,
            url: str,
            method: str = "GET",
            body: Any = None,
            headers: Any = None,
            timeout: Any = None,
            **_options: Any,
        ) -> Answer:
            if url.startswith(_PROJECTS):  # the library looks up the project, which the settings name
                return Answer(404, {}, b"{}")
            data = body.encode() if isinstance(body, str) else body or b""
            seconds = float(timeout) if isinstance(timeout, int | float) else 30.0
            limits = Timeouts(seconds, seconds, seconds, seconds)
            sent = {str(name).lower(): str(value) for name, value in (headers or {}).items()}
            try:
                stream = network.open(HttpRequest(url, sent, data, limits, method=method))
                try:
                    pieces = list(iter(stream.read, b""))
                    return Answer(stream.status, dict(stream.headers), b"".join(pieces))
                finally:
                    stream.close()
            except TransportFault as fault:
                raise exceptions.TransportError(fault.message) from fault  # type: ignore[no-untyped-call]

    return Request()


def cloud_credentials(auth: str, settings: Mapping[str, str]) -> AwsCredentials | GoogleCredentials | None:
    """Return the source of credentials for this way of authorising calls; None if it needs none."""
    if auth == "sigv4":
        return AwsCredentials(settings)
    if auth == "google":
        return GoogleCredentials(settings)
    return None


def _not_installed(extra: str) -> AuthenticationError:
    library = {"aws": "botocore", "google": "google-auth"}[extra]
    return AuthenticationError(
        f"There is no key in the environment, and {library} is not installed, which finds others; no call was made",
        hint=f"Run `pip install 'slipform[{extra}]'`, or set a key.",
    )


def _no_credentials(cloud: str, extra: str) -> AuthenticationError:
    places = {"aws": "environment, profiles, container or instance", "google": "environment, files or metadata server"}
    return AuthenticationError(
        f"There are no credentials of {cloud} in {places[extra]}; no call was made",
        hint="docs/providers.md lists where they are looked for.",
    )
