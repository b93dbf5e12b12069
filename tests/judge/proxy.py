"""The proxy of the judge's cases, with a vendor for every API behind it, and the verdict on what it answers."""

from __future__ import annotations

import dataclasses
import http.client
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import permutations
from typing import Any, Self
from urllib.parse import urlsplit

from slipform.providers import Provider
from slipform.providers.http import HttpProvider
from slipform.providers.retry import RetryPolicy
from slipform.testing import Api, FakeVendor, Raw, Received, rejected
from tests.judge.answers import Reply
from tests.judge.cases import MOST_ATTEMPTS, TOOL, VENDORS, Case, as_step, drawn_reply, headers_of, request_of
from tests.judge.schemas import validator_of
from tests.proxy.proxying import proxied

_NUMBERED = re.compile(rb"case (\d+)\.")
_INTERNAL = b"unexpected error inside slipform"


@dataclass(slots=True)
class Verdict:
    """What came of a case."""

    problem: str = ""
    """Why the proxy broke its promise; empty when it did not."""
    kinds: list[str] = field(default_factory=list)
    """For each time it was asked: valid, call, refused, cut or an error's status."""
    replies: list[Reply] = field(default_factory=list)
    """What the models answered, in order."""
    raw: bytes = b""
    """What came back last."""


@dataclass(slots=True)
class Heard:
    """An answer of the proxy, read by its API's rules."""

    text: str = ""
    calls: list[tuple[str, str]] = field(default_factory=list)
    refusal: str = ""
    failed: bool = False
    """Whether the stream tells of an error."""
    ended: bool = False
    """Whether the API's last event came."""
    cut: bool = False
    """Whether the API says that the model met a limit or a filter."""


class BrokenPromiseError(AssertionError):
    """The proxy gave what it must not give."""


class Judge:
    """Runs cases; `with` starts the proxies and the vendors."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._running: dict[int, tuple[Case, list[Reply]]] = {}
        self._number = 0
        self._addresses: dict[bool, str] = {}
        self.kinds: Counter[str] = Counter()
        """How often each kind of answer came."""
        self.kept = 0
        """How many answers came from the cache."""
        self.fallen_back = 0
        """How many came from the second model."""

    def __enter__(self) -> Self:
        vendors = {api: self._stack.enter_context(FakeVendor(self._script(api), api=api)) for api in VENDORS}
        aliases = {"-then-".join(pair): [f"{name}/m" for name in pair] for pair in permutations(VENDORS, 2)}
        for cached in (False, True):
            providers: dict[str, Provider] = {
                api: HttpProvider(api, base_url=vendor.base_url, api_key="any", retries=RetryPolicy(1, base=0.001))
                for api, vendor in vendors.items()
            }
            settings = {"default_model": "openai/m", "model_aliases": aliases, "cache": {"enabled": cached}}
            address = self._stack.enter_context(proxied(providers, settings, attempts=MOST_ATTEMPTS))
            self._addresses[cached] = urlsplit(address).netloc
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def run(self, case: Case) -> Verdict:
        """Ask, and judge what comes."""
        self._number += 1
        verdict = Verdict()
        self._running[self._number] = (case, verdict.replies)
        try:
            for turn in range(case.times):
                status, headers, verdict.raw = self._ask(case, self._number, turn)
                verdict.kinds.append(judged(case, status, verdict.raw))
                # Bedrock has no other words for a refusal than those for a filter.
                has_cause = any(reply.finish in _CUT or reply.refusal for reply in verdict.replies)
                if verdict.kinds[-1] == "cut" and not has_cause:
                    raise BrokenPromiseError("a 200 that blames a limit which no model met")
                self.kept += headers.get("x-slipform-cache") == "hit"
                self.fallen_back += headers.get("x-slipform-fallbacks", "0") != "0"
        except BrokenPromiseError as error:
            verdict.problem = str(error)
        self.kinds.update(verdict.kinds)
        del self._running[self._number]
        return verdict

    def _script(self, api: Api) -> Callable[[Received], Raw]:
        def answer(received: Received) -> Raw:
            named = _NUMBERED.search(received.body)
            case, replies = self._running.get(int(named[1]) if named else 0, (None, []))
            if case is None:
                return rejected("There is no such case", 404)
            reply = drawn_reply(case, len(replies), received)
            replies.append(reply)
            return as_step(reply, received, api)

        return answer

    def _ask(self, case: Case, number: int, turn: int) -> tuple[int, Mapping[str, str], bytes]:
        path, body = request_of(case, number, turn)
        # A connection for each: one that waits for its turn is closed by the server in time, as it should be.
        connection = http.client.HTTPConnection(self._addresses[case.cached], timeout=100)
        try:
            connection.request("POST", path, json.dumps(body), headers_of(case))
            response = connection.getresponse()
            return response.status, dict(response.headers.items()), response.read()
        except (OSError, http.client.HTTPException) as error:
            raise BrokenPromiseError(f"the answer did not come to its end: {error!r}") from error
        finally:
            connection.close()


def judged(case: Case, status: int, raw: bytes) -> str:
    """What kind of answer this is; raises `BrokenPromiseError` when it is none that the proxy may give."""
    if status == 500 or _INTERNAL in raw:
        raise BrokenPromiseError(f"an error inside slipform ({status})")
    if status != 200:
        if not _is_error(case.caller, raw):
            raise BrokenPromiseError(f"a {status} that is not in the API's shape")
        return str(status)
    try:
        heard = STREAMED[case.caller](raw) if case.stream else WHOLE[case.caller](json.loads(raw))
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise BrokenPromiseError(f"a 200 that cannot be read: {error!r}") from error
    if heard.failed:
        return "failed stream"
    if not heard.ended:
        raise BrokenPromiseError("a 200 whose last event is missing")
    if heard.calls:
        for name, arguments in heard.calls:
            if name != TOOL or case.tool is None:
                raise BrokenPromiseError(f"a call of {name!r}, which was not offered")
            if heard.cut:
                return "cut"
            _must_fit(arguments or "{}", case.tool, f"the arguments of {name!r}")
        return "call"
    if heard.refusal and not heard.text:
        return "refused"
    if heard.cut:
        return "cut"
    _must_fit(heard.text, case.schema, "the answer")
    return "valid"


def _must_fit(text: str, schema: dict[str, Any], what: str) -> None:
    try:
        value = json.loads(text, parse_constant=_refused, object_pairs_hook=_once)
    except ValueError as error:
        raise BrokenPromiseError(f"a 200, but {what} is not JSON ({error}): {text!r}") from error
    wrong = next(validator_of(schema).iter_errors(value), None)
    if wrong is not None:
        raise BrokenPromiseError(f"a 200, but {what} is not valid: {wrong.message} at {wrong.json_path}: {text}")


def _refused(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len({key for key, _ in pairs}) < len(pairs):
        raise ValueError("a key stands twice")
    return dict(pairs)


def _is_error(caller: str, raw: bytes) -> bool:
    try:
        body = json.loads(raw)
        told = isinstance(body["error"]["message"], str)
    except (ValueError, LookupError, TypeError):
        return False
    return told and (caller != "messages" or body["type"] == "error")


_CUT = frozenset({"length", "content_filter", "max_tokens", "MAX_TOKENS"})


def _chat(answer: dict[str, Any]) -> Heard:
    message = answer["choices"][0]["message"]
    calls = [(call["function"]["name"], call["function"]["arguments"]) for call in message.get("tool_calls") or ()]
    cut = answer["choices"][0].get("finish_reason") in _CUT
    return Heard(message["content"] or "", calls, message.get("refusal") or "", ended=True, cut=cut)


def _responses(answer: dict[str, Any]) -> Heard:
    parts = [part for item in answer["output"] for part in item.get("content") or () if item["type"] == "message"]
    return Heard(
        "".join(part.get("text", "") for part in parts),
        [(item["name"], item["arguments"]) for item in answer["output"] if item["type"] == "function_call"],
        "".join(part.get("refusal", "") for part in parts),
        failed=answer["status"] != "completed",
        ended=True,
    )


def _messages(answer: dict[str, Any]) -> Heard:
    blocks = answer["content"]
    text = "".join(block["text"] for block in blocks if block["type"] == "text")
    calls = [(block["name"], json.dumps(block["input"])) for block in blocks if block["type"] == "tool_use"]
    refused = answer["stop_reason"] == "refusal"
    cut = answer["stop_reason"] in _CUT
    return Heard("" if refused else text, calls, text or "refusal" if refused else "", ended=True, cut=cut)


def _gemini(answer: dict[str, Any]) -> Heard:
    candidate = answer["candidates"][0]
    parts = candidate.get("content", {}).get("parts") or ()
    calls = [(part["functionCall"]["name"], json.dumps(part["functionCall"]["args"])) for part in parts
             if "functionCall" in part]  # fmt: skip
    finish = candidate.get("finishReason", "")
    text = "".join(part.get("text", "") for part in parts if not part.get("thought"))
    refused = finish in ("SAFETY", "PROHIBITED_CONTENT", "REFUSAL")
    cut = finish in _CUT
    return Heard("" if refused else text, calls, text or finish if refused else "", ended=bool(finish), cut=cut)


def _events(raw: bytes) -> Iterator[Any]:
    """What each event of a stream says; `[DONE]` as the text it is."""
    for block in raw.decode().replace("\r\n", "\n").split("\n\n"):
        data = "\n".join(line[5:].removeprefix(" ") for line in block.split("\n") if line.startswith("data:"))
        if data:
            yield data if data == "[DONE]" else json.loads(data)


def _chat_stream(raw: bytes) -> Heard:
    heard, calls, finished = Heard(), dict[int, list[str]](), False
    for event in _events(raw):
        if event == "[DONE]":
            heard.ended = finished
            continue
        if event.get("error"):
            heard.failed = True
            continue
        for choice in event["choices"]:
            delta = choice["delta"]
            heard.text += delta.get("content") or ""
            heard.refusal += delta.get("refusal") or ""
            finished = finished or choice.get("finish_reason") is not None
            heard.cut = heard.cut or choice.get("finish_reason") in _CUT
            for call in delta.get("tool_calls") or ():
                said = calls.setdefault(call["index"], ["", ""])
                said[0] += call["function"].get("name") or ""
                said[1] += call["function"].get("arguments") or ""
    heard.calls = [(name, arguments) for name, arguments in calls.values()]
    return heard


def _responses_stream(raw: bytes) -> Heard:
    heard, grown = Heard(), ""
    for event in _events(raw):
        kind = event["type"]
        if kind == "response.output_text.delta":
            grown += event["delta"]
        elif kind in ("error", "response.failed", "response.incomplete"):
            heard.failed = True
        elif kind == "response.completed":
            heard = dataclasses.replace(_responses(event["response"]), failed=heard.failed)
            if heard.text != grown:
                raise ValueError("the last event tells another answer than the stream")
    return heard


def _messages_stream(raw: bytes) -> Heard:
    heard, blocks, stop = Heard(), dict[int, dict[str, Any]](), ""
    for event in _events(raw):
        kind = event["type"]
        if kind == "content_block_start":
            blocks[event["index"]] = {"said": "", **event["content_block"]}
        elif kind == "content_block_delta":
            delta = event["delta"]
            blocks[event["index"]]["said"] += delta.get("text") or delta.get("partial_json") or ""
        elif kind == "message_delta":
            stop = event["delta"]["stop_reason"]
        heard.failed = heard.failed or kind == "error"
        heard.ended = heard.ended or (kind == "message_stop" and bool(stop))
    for block in blocks.values():
        if block["type"] == "tool_use":
            heard.calls.append((block["name"], block["said"]))
        elif block["type"] == "text":
            heard.text += block["said"]
    heard.cut = stop in _CUT
    if stop == "refusal":
        heard.text, heard.refusal = "", heard.text or "refusal"
    return heard


def _gemini_stream(raw: bytes) -> Heard:
    heard = Heard()
    for event in _events(raw):
        if "error" in event:
            heard.failed = True
            continue
        piece = _gemini(event)
        heard.text += piece.text
        heard.calls += piece.calls
        heard.refusal += piece.refusal
        heard.ended = heard.ended or piece.ended
        heard.cut = heard.cut or piece.cut
    return heard


WHOLE: Mapping[str, Callable[[dict[str, Any]], Heard]] = {
    "chat": _chat, "responses": _responses, "messages": _messages, "gemini": _gemini,
}  # fmt: skip
STREAMED: Mapping[str, Callable[[bytes], Heard]] = {
    "chat": _chat_stream, "responses": _responses_stream, "messages": _messages_stream, "gemini": _gemini_stream,
}  # fmt: skip
