"""What a model's name becomes in the path of a vendor's URL, for every vendor of the catalogue that has it there."""

from __future__ import annotations

import contextlib
import posixpath
from collections.abc import Iterator
from urllib.parse import unquote, urlsplit

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as settings_of
from hypothesis import strategies as st

from slipform.codecs import make_codec
from slipform.codecs.model_name import MOST, check_name, url_path
from slipform.errors import RequestError, UpstreamError
from slipform.ir import Message, ModelRequest
from slipform.providers.catalog import load_catalog
from slipform.providers.http import HttpProvider
from slipform.providers.retry import RetryPolicy
from slipform.testing import FakeVendor, Raw
from tests.conftest import examples

MARK = "claude-mark"
IN_THE_PATH = ["bedrock", "gemini", "vertex", "vertex-anthropic"]
REFUSED = {
    "a/../b": "`..`",
    "../b": "`..`",
    "..": "`..`",
    "a/./b": "`.`",
    "a/.": "`.`",
    "a//b": "empty segment",
    "/a": "empty segment",
    "a/": "empty segment",
    "a/ /b": "empty segment",
    "a/.. /b": "`..`",
    "a?b": "`?`",
    "a#b": "`#`",
    "a%2fb": "`%`",
    "a%2Fb": "`%`",
    "a%252fb": "`%`",
    "a%2e%2e": "`%`",
    "a\\b": "`\\`",
    "..;/b": "`;`",
    "a/\uff0e\uff0e/b": "`..`",
    "a\uff1fb": "`?`",
    "a\x00b": "U+0000",
    "a\r\nb": "U+000D",
    "a\x7fb": "U+007F",
    "a\u2028b": "U+2028",
    "a\ud800b": "U+D800",
    "a" * (MOST + 1): "257 characters",
}
TAKEN = {
    "gemini": {
        "gemini-3": "/models/gemini-3:generateContent",
        "models/gemini-3": "/models/gemini-3:generateContent",
        "tunedModels/mine": "/tunedModels/mine:generateContent",
        "publishers/meta/models/llama": "/publishers/meta/models/llama:generateContent",
        "gemini 3:countTokens": "/models/gemini%203%3AcountTokens:generateContent",
        "modèle…": "/models/mod%C3%A8le%E2%80%A6:generateContent",
    },
    "vertex": {"gemini-3@001": "/models/gemini-3@001:generateContent"},
    "vertex-anthropic": {
        "claude-opus-5@20260101": "/publishers/anthropic/models/claude-opus-5@20260101:rawPredict",
    },
    "bedrock": {
        "us.amazon.nova-pro-v1:0": "/model/us.amazon.nova-pro-v1%3A0/converse",
        "arn:aws:bedrock:us-east-1:123:inference-profile/us.x": (
            "/model/arn%3Aaws%3Abedrock%3Aus-east-1%3A123%3Ainference-profile%2Fus.x/converse"
        ),
    },
}


def encoded_path(vendor: str, model: str) -> str:
    row = load_catalog().vendor(vendor)
    codec = make_codec(row.codec, row.capabilities(model))
    return codec.encode_request(ModelRequest(model, (Message.user("hi"),)), stream=False).path


@contextlib.contextmanager
def sending(kind: str, vendor: FakeVendor) -> Iterator[HttpProvider]:
    address = f"{vendor.base_url}/base"
    with HttpProvider(kind, base_url=address, api_key="k", retries=RetryPolicy(attempts=0)) as provider:
        yield provider


def test_these_vendors_and_no_others_have_the_model_in_the_path() -> None:
    found = [vendor for vendor in load_catalog().vendors if MARK in encoded_path(vendor, MARK)]
    assert sorted(found) == IN_THE_PATH


@pytest.mark.parametrize("vendor", IN_THE_PATH)
@pytest.mark.parametrize("name", REFUSED, ids=ascii)
def test_what_would_change_the_path_is_refused_by_name_in_the_library_too(vendor: str, name: str) -> None:
    with FakeVendor(["hi"]) as upstream, sending(vendor, upstream) as provider:
        with pytest.raises(RequestError) as caught:
            provider.complete(ModelRequest(name, (Message.user("hi"),)))
        assert REFUSED[name] in caught.value.message
        assert caught.value.where == "model"
        assert len(str(caught.value)) < 300
        assert str(caught.value).isprintable()
        assert upstream.requests == []


@pytest.mark.parametrize(("vendor", "name"), [(vendor, name) for vendor, names in TAKEN.items() for name in names])
def test_names_with_slashes_and_colons_go_on_working(vendor: str, name: str) -> None:
    assert encoded_path(vendor, name) == TAKEN[vendor][name]


SIGNS = st.sampled_from(
    [*"ab.-_~@:/ ?#%;\\&=+,é中", "..", "/../", "//", "%2f", "%252E", "\x00", "\n", "\uff0e", "models/"]
)


@pytest.fixture(scope="module")
def upstream() -> Iterator[FakeVendor]:
    with FakeVendor([Raw(status=400, pieces=(b"{}",))]) as vendor:
        yield vendor


@pytest.mark.parametrize("vendor", IN_THE_PATH)
@given(name=st.lists(SIGNS, min_size=1, max_size=8).map("".join) | st.text(min_size=1, max_size=20))
@settings_of(max_examples=examples(300), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_is_sent_lies_where_the_codec_puts_models_or_is_refused(
    upstream: FakeVendor, vendor: str, name: str
) -> None:
    upstream.requests.clear()
    with sending(vendor, upstream) as provider:
        try:
            provider.complete(ModelRequest(name, (Message.user("hi"),)))
        except RequestError:
            assert upstream.requests == []
            return
        except UpstreamError:
            pass  # the vendor's 400, once it has seen the path
    (sent,) = [request.path for request in upstream.requests]
    mark = f"{MARK}/x" if "/" in name else MARK
    template = urlsplit(upstream.base_url).path + "/base" + encoded_path(vendor, mark)
    expected = unquote(template).replace(mark, name)
    assert sent.isascii()
    assert sent.isprintable()
    assert not {"?", "#"} & set(sent)
    decoded = sent
    while (further := unquote(decoded)) != decoded:  # however often somebody on the way decodes it
        decoded = further
        assert posixpath.normpath(decoded) == decoded
    assert decoded == expected


@given(name=st.text(max_size=400))
def test_a_name_that_passes_the_check_is_short_and_without_control_characters(name: str) -> None:
    with contextlib.suppress(RequestError):
        check_name(name)
        assert len(name) <= MOST
        assert not {chr(code) for code in [*range(32), *range(127, 160)]} & set(name)
        name.encode()


def test_two_names_never_share_a_path() -> None:
    names = ["a/b", "a:b", "a b", "a+b", "a&b", "a@b", "a,b", "a.b"]
    assert len({url_path(name, one_segment=True) for name in names}) == len(names)
