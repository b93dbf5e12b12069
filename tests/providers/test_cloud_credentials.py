"""Calls to Bedrock and Vertex AI carry the credentials that the libraries of their clouds find."""

from __future__ import annotations

import asyncio
import http.server
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from slipform.errors import AuthenticationError
from slipform.ir import Message, ModelRequest
from slipform.providers.cloud_credentials import AwsCredentials, GoogleCredentials
from slipform.providers.http import HttpProvider
from slipform.testing import FakeVendor

pytest.importorskip("botocore")
ASK = ModelRequest("m", (Message.user("hi"),))
ROLE = "arn:aws:iam::1:role/r"
LATER = "2099-01-01T00:00:00Z"
KEYS = {"AccessKeyId": "AKIDCONTAINER", "SecretAccessKey": "container-secret", "Token": "container-token"}
STS = f"""<AssumeRoleResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><AssumeRoleResult><Credentials>
<AccessKeyId>AKIDROLE</AccessKeyId><SecretAccessKey>role-secret</SecretAccessKey><SessionToken>role-token</SessionToken>
<Expiration>{LATER}</Expiration></Credentials></AssumeRoleResult></AssumeRoleResponse>"""
TOKEN = {"access_token": "ya29.token-of-a-test", "expires_in": 3600, "token_type": "Bearer"}
EXCHANGED = {**TOKEN, "issued_token_type": "urn:ietf:params:oauth:token-type:access_token"}


class Answers(http.server.BaseHTTPRequestHandler):
    """The endpoints at which clouds give credentials."""

    def do_GET(self) -> None:
        self._reply(self.path.partition("?")[0])

    def do_POST(self) -> None:
        self.do_GET()

    def do_PUT(self) -> None:
        self.do_GET()

    def _reply(self, path: str) -> None:
        length = int(self.headers.get("content-length") or 0)
        body = self.rfile.read(length).decode()
        self.server.asked.append((self.command, path, body))  # type: ignore[attr-defined]
        answers: dict[str, Any] = {
            "/creds": {**KEYS, "Expiration": LATER},
            "/latest/api/token": "imds-token",
            "/latest/meta-data/iam/security-credentials/": "my-role",
            "/latest/meta-data/iam/security-credentials/my-role": {
                **KEYS, "AccessKeyId": "AKIDINSTANCE", "Code": "Success", "Expiration": LATER,
            },
            "/": STS,
            "/token": TOKEN,
            "/exchange": EXCHANGED,
            "/computeMetadata/v1/instance/service-accounts/default/token": TOKEN,
            "/computeMetadata/v1/project/project-id": "my-project",
            "/computeMetadata/v1/universe/universe-domain": "googleapis.com",
            "/computeMetadata/v1/instance/service-accounts/default/": {"email": "a@b", "scopes": []},
        }  # fmt: skip
        answer = answers.get(path)
        self.send_response(200 if answer is not None else 404)
        data = (answer if isinstance(answer, str) else json.dumps(answer)).encode()
        self.send_header("metadata-flavor", "Google")
        kind = "application/json" if isinstance(answer, dict) else "text/plain"
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        pass


class Cloud:
    """A scripted cloud on this machine."""

    def __init__(self) -> None:
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answers)
        self._server.asked = []  # type: ignore[attr-defined]
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    @property
    def asked(self) -> list[tuple[str, str, str]]:
        return self._server.asked  # type: ignore[attr-defined,no-any-return]

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def cloud(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Cloud]:
    import os

    for name in list(os.environ):
        if name.startswith(("AWS_", "GOOGLE_", "VERTEX_", "GCE_", "CLOUDSDK_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
    made = Cloud()
    yield made
    made.close()


def of_profile(_cloud: Cloud, _set: Callable[[str, str], None], folder: Path) -> dict[str, str]:
    (folder / "credentials").write_text(
        "[work]\naws_access_key_id = AKIDPROFILE\naws_secret_access_key = s3cret-words\n"
    )
    return {"profile": "work"}


def of_container(cloud: Cloud, set_: Callable[[str, str], None], _folder: Path) -> dict[str, str]:
    set_("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"{cloud.url}/creds")
    return {}


def of_instance(cloud: Cloud, set_: Callable[[str, str], None], _folder: Path) -> dict[str, str]:
    set_("AWS_EC2_METADATA_DISABLED", "false")
    set_("AWS_EC2_METADATA_SERVICE_ENDPOINT", cloud.url)
    return {}


def of_role(cloud: Cloud, set_: Callable[[str, str], None], folder: Path) -> dict[str, str]:
    set_("AWS_ENDPOINT_URL_STS", cloud.url)
    return {**of_profile(cloud, set_, folder), "role_arn": ROLE, "external_id": "ext"}


def of_environment(_cloud: Cloud, set_: Callable[[str, str], None], _folder: Path) -> dict[str, str]:
    set_("AWS_ACCESS_KEY_ID", "AKIDENVIRONMENT")
    set_("AWS_SECRET_ACCESS_KEY", "environment-secret")
    return {}


AWS: Any = {
    "AKIDPROFILE": (of_profile, None),
    "AKIDCONTAINER": (of_container, "container-token"),
    "AKIDINSTANCE": (of_instance, "container-token"),
    "AKIDROLE": (of_role, "role-token"),
    "AKIDENVIRONMENT": (of_environment, None),
}


@pytest.mark.parametrize("access", AWS)
def test_bedrock_is_called_with_the_credentials_of_the_usual_chain(
    access: str, cloud: Cloud, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    prepare, session = AWS[access]
    settings = prepare(cloud, monkeypatch.setenv, tmp_path)
    with FakeVendor(["hello"], api="bedrock") as vendor:
        provider = HttpProvider("bedrock", base_url=vendor.base_url, settings={"region": "eu-west-1", **settings})
        texts = [provider.complete(ASK).text, asyncio.run(provider.complete_async(ASK)).text]
        texts.append("".join(chunk.text for chunk in provider.stream(ASK)))
    asked = len(cloud.asked)
    assert texts == ["hello"] * 3
    for received in vendor.requests:
        assert f"Credential={access}/" in received.headers["authorization"]
        assert "/eu-west-1/bedrock/aws4_request" in received.headers["authorization"]
        assert received.headers.get("x-amz-security-token") == session
    assert asked <= 4, "once for all calls"


def service_account(cloud: Cloud, set_: Callable[[str, str], None], folder: Path) -> dict[str, str]:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()
    account = {
        "type": "service_account", "client_email": "a@b.iam.gserviceaccount.com", "private_key": pem,
        "private_key_id": "1", "token_uri": f"{cloud.url}/token", "project_id": "p",
    }  # fmt: skip
    (folder / "account.json").write_text(json.dumps(account))
    set_("GOOGLE_APPLICATION_CREDENTIALS", str(folder / "account.json"))
    return {}


def named_file(cloud: Cloud, _set: Callable[[str, str], None], folder: Path) -> dict[str, str]:
    service_account(cloud, lambda _name, _value: None, folder)
    return {"credentials_file": str(folder / "account.json")}


def workload_identity(cloud: Cloud, set_: Callable[[str, str], None], folder: Path) -> dict[str, str]:
    (folder / "subject").write_text("subject-token")
    pool = "//iam.googleapis.com/projects/1/locations/global/workloadIdentityPools/p/providers/q"
    external = {
        "type": "external_account", "audience": pool, "subject_token_type": "urn:ietf:params:oauth:token-type:jwt",
        "token_url": f"{cloud.url}/exchange", "credential_source": {"file": str(folder / "subject")},
    }  # fmt: skip
    (folder / "external.json").write_text(json.dumps(external))
    set_("GOOGLE_APPLICATION_CREDENTIALS", str(folder / "external.json"))
    return {}


def metadata_server(cloud: Cloud, set_: Callable[[str, str], None], _folder: Path) -> dict[str, str]:
    set_("GCE_METADATA_HOST", cloud.url.removeprefix("http://"))
    set_("GCE_METADATA_IP", cloud.url.removeprefix("http://"))
    return {}


@pytest.mark.parametrize("prepare", [service_account, named_file, workload_identity, metadata_server])
def test_vertex_is_called_with_application_default_credentials(
    prepare: Any, cloud: Cloud, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    settings = prepare(cloud, monkeypatch.setenv, tmp_path)
    with FakeVendor(["hello"], api="gemini") as vendor:
        provider = HttpProvider("vertex", base_url=vendor.base_url, settings={"project": "p", **settings})
        texts = [provider.complete(ASK).text, asyncio.run(provider.complete_async(ASK)).text]
    assert texts == ["hello"] * 2
    assert {each.headers["authorization"] for each in vendor.requests} == {f"Bearer {TOKEN['access_token']}"}
    assert len([path for _, path, _ in cloud.asked if path.endswith(("token", "exchange"))]) == 1


def test_a_token_is_refreshed_before_it_expires(cloud: Cloud, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import time

    service_account(cloud, monkeypatch.setenv, tmp_path)
    ahead = [0.0, 3000.0, 3500.0]
    credentials = GoogleCredentials({}, lambda: time.time() + ahead[0])
    counts = []
    while ahead:
        assert credentials.token.reveal() == TOKEN["access_token"]
        counts.append(len(cloud.asked))
        del ahead[0]
    assert counts == [1, 1, 2]


def test_without_credentials_no_call_is_made_and_the_error_says_what_to_do(
    cloud: Cloud, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    with FakeVendor(["hello"], api="bedrock") as vendor:
        for provider in (
            HttpProvider("bedrock", base_url=vendor.base_url),
            HttpProvider("bedrock", base_url=vendor.base_url, settings={"profile": "nobody"}),
            HttpProvider("vertex", base_url=vendor.base_url, settings={"project": "p"}),
            HttpProvider("vertex", base_url=vendor.base_url, settings={"credentials_file": str(tmp_path / "none")}),
        ):
            with pytest.raises(AuthenticationError) as caught:
                provider.complete(ASK)
            assert caught.value.hint
            with pytest.raises(AuthenticationError):
                asyncio.run(provider.complete_async(ASK))
    assert vendor.requests == []
    assert cloud.asked == []


def test_a_library_that_is_missing_is_named(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    del cloud
    import sys

    monkeypatch.setitem(sys.modules, "botocore.exceptions", None)
    monkeypatch.setitem(sys.modules, "google.auth.exceptions", None)
    with pytest.raises(AuthenticationError, match=r"slipform\[aws\]"):
        AwsCredentials({}).refresh()
    with pytest.raises(AuthenticationError, match=r"slipform\[google\]"):
        GoogleCredentials({}).refresh()
