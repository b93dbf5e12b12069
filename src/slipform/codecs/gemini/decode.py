"""Read an answer of generateContent, whole or streamed."""

from __future__ import annotations

import re
from base64 import b64decode
from binascii import Error as BadBase64
from collections.abc import Iterable, Mapping
from itertools import pairwise
from secrets import token_hex
from typing import Any

from slipform.codecs.answer import (
    FINISH_MISSING,
    Finishes,
    arguments_text,
    build_answer,
    count,
    read_json,
    rest_of,
    usage_of,
)
from slipform.codecs.gemini.encode import NAME
from slipform.codecs.schema_channel import SchemaChannel
from slipform.codecs.vendor_errors import fault_error
from slipform.errors import UpstreamError
from slipform.ir import CompletionChunk, Media, ModelResponse, Opaque, Part, Reasoning, Text, ToolCall, ToolDelta, Usage
from slipform.ir.logprobs import LOGPROBS
from slipform.ir.response import ENVELOPE
from slipform.text.strict import compact_json, parse

_STEP = re.compile(r"\.([^.\[\]]+)|\[(\d+)\]|\[['\"](.*?)['\"]\]")
_VALUES = ("stringValue", "numberValue", "boolValue", "nullValue")
_FAR = 100_000


class PartialCall:
    """Collects the arguments of one call while their pieces arrive.

    >>> call = PartialCall(0)
    >>> call.add([{"jsonPath": "$.tags[0]", "stringValue": "ne", "willContinue": True}])
    >>> call.add([{"jsonPath": "$.tags[0]", "stringValue": "w"}])
    >>> call.arguments
    '{"tags":["new"]}'
    """

    __slots__ = ("_args", "_open", "index")

    def __init__(self, index: int) -> None:
        self.index = index
        self._args: dict[str, Any] = {}
        self._open: str | None = None

    def add(self, pieces: Iterable[Any]) -> None:
        """Add pieces at their paths; text continues if the previous piece announced it."""
        for piece in pieces:
            if not isinstance(piece, Mapping):
                continue
            path = str(piece.get("jsonPath") or "$")
            key = next((name for name in _VALUES if name in piece), None)
            value = None if key in (None, "nullValue") else piece[key]
            self._put(path, value, grow=path == self._open)
            self._open = path if piece.get("willContinue") else None

    @property
    def arguments(self) -> str:
        """The arguments as JSON text."""
        return compact_json(self._args)

    def _put(self, path: str, value: Any, *, grow: bool) -> None:
        """Write a value at a path of the arguments, or append to the text there."""
        steps: list[str | int] = [int(m[2]) if m[2] is not None else m[1] or m[3] or "" for m in _STEP.finditer(path)]
        if not steps:
            return
        place: Any = self._args
        for step, following in pairwise(steps):
            child = _get(place, step)
            if not isinstance(child, (dict, list)):
                child = [] if isinstance(following, int) else {}
                _set(place, step, child)
            place = child
        old = _get(place, steps[-1])
        _set(place, steps[-1], old + value if grow and isinstance(old, str) and isinstance(value, str) else value)


def _get(place: Any, step: str | int) -> Any:
    if isinstance(place, dict):
        return place.get(str(step))
    if isinstance(step, int) and step < len(place):
        return place[step]
    return None


def _set(place: Any, step: str | int, value: Any) -> None:
    if isinstance(place, dict):
        place[str(step)] = value
    elif isinstance(step, int) and step < _FAR:
        place.extend([None] * (step + 1 - len(place)))
        place[step] = value


FINISH: Finishes = {
    "STOP": "stop",
    "1": "stop",
    "MAX_TOKENS": "length",
    "2": "length",
    "CONTINUATION": "pause",
    **dict.fromkeys(
        (
            "SAFETY", "RECITATION", "BLOCKLIST", "PROHIBITED_CONTENT", "SPII", "IMAGE_SAFETY", "IMAGE_OTHER",
            "IMAGE_PROHIBITED_CONTENT", "IMAGE_RECITATION", "MODEL_ARMOR", "JAILBREAK", "3", "4",
        ),
        "content_filter",
    ),
    **dict.fromkeys(
        (
            "LANGUAGE", "OTHER", "MALFORMED_FUNCTION_CALL", "MALFORMED_RESPONSE", "UNEXPECTED_TOOL_CALL",
            "TOO_MANY_TOOL_CALLS", "NO_IMAGE", "FINISH_REASON_UNSPECIFIED",
        ),
        "error",
    ),
}  # fmt: skip
_KNOWN = frozenset({"candidates", "usageMetadata", "modelVersion", "responseId", "error"})
_CANDIDATE = frozenset({"content", "finishReason", "index", "finish_reason"})


def join_answers(body: bytes) -> dict[str, Any]:
    """Return one answer; a stream requested without `alt=sse` is an array of answers, each with only the new parts."""
    try:
        answers = parse(body)
    except ValueError:
        answers = None
    if not isinstance(answers, list) or len(answers) < 2 or not all(isinstance(item, dict) for item in answers):
        return read_json(body)
    candidates: dict[int, dict[str, Any]] = {}
    whole: dict[str, Any] = {}
    for answer in answers:
        if answer.get("error"):
            raise fault_error(answer, status=None)
        whole.update(answer)
        for candidate in answer.get("candidates") or ():
            merged = candidates.setdefault(candidate.get("index") or 0, {"content": {"parts": []}})
            parts = (candidate.get("content") or {}).get("parts") or []
            merged.update({key: value for key, value in candidate.items() if key != "content"})
            merged["content"]["parts"].extend(parts)
    return {**whole, "candidates": [candidates[index] for index in sorted(candidates)]}


def decode_body(data: Mapping[str, Any], plan: SchemaChannel) -> ModelResponse:
    """Return a whole answer."""
    data = camel_keys(data)
    candidates = [item for item in data.get("candidates") or () if isinstance(item, Mapping)]
    if not candidates:
        return _blocked(data, plan)
    others = tuple(_decode_candidate(camel_keys(item), data, SchemaChannel()) for item in candidates[1:])
    return _decode_candidate(camel_keys(candidates[0]), data, plan, others)


def _decode_candidate(
    candidate: Mapping[str, Any], data: Mapping[str, Any], plan: SchemaChannel, others: tuple[ModelResponse, ...] = ()
) -> ModelResponse:
    finish_reason = finish_text(candidate.get("finishReason"))
    answer_id = str(data.get("responseId") or "")
    content = camel_keys(candidate.get("content") or {})
    parts: list[Part] = []
    for index, item in enumerate(content.get("parts") or ()):
        parts.extend(read_part(camel_keys(item), index, answer_id))
    extra = {**extras(data), **_rest(candidate)}
    return build_answer(
        plan,
        parts,
        finish=FINISH.get(finish_reason or "", "unknown"),
        raw_finish=finish_reason,
        usage=read_usage(data.get("usageMetadata")),
        model=data.get("modelVersion"),
        id_=data.get("responseId"),
        extra=extra,
        warnings=() if finish_reason else (FINISH_MISSING,),
        others=others,
    )


def _blocked(data: Mapping[str, Any], plan: SchemaChannel) -> ModelResponse:
    feedback = camel_keys(data.get("promptFeedback") or {})
    reason = feedback.get("blockReason")
    if reason is None:
        raise UpstreamError("The response has no candidates", details={"category": "unreadable", "retryable": True})
    return build_answer(
        plan,
        (),
        finish="content_filter",
        raw_finish=str(reason),
        usage=read_usage(data.get("usageMetadata")),
        model=data.get("modelVersion"),
        id_=data.get("responseId"),
        extra=extras(data),
    )


def extras(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields without a name in the IR, and the vendor's usage unchanged."""
    usage = data.get("usageMetadata")
    fields = rest_of(data, _KNOWN, usage)
    return {**fields, ENVELOPE: {NAME: {"usage": camel_keys(usage)}}} if usage else fields


def _rest(candidate: Mapping[str, Any]) -> dict[str, Any]:
    """Return the further fields of a candidate, with the token probabilities in the common form of answers."""
    rest = rest_of(candidate, _CANDIDATE)
    result = rest.pop("logprobsResult", None)
    chosen = None
    if isinstance(result, Mapping):
        chosen = result.get("chosenCandidates")
    if isinstance(result, Mapping) and isinstance(chosen, list):
        tops = result.get("topCandidates") or [{}] * len(chosen)
        rest[LOGPROBS] = {
            "content": [
                {**_token(each), "top_logprobs": [_token(other) for other in top.get("candidates") or ()]}
                for each, top in zip(chosen, tops, strict=False)
            ]
        }
    return rest


def _token(entry: Mapping[str, Any]) -> dict[str, Any]:
    text = str(entry.get("token") or "")
    id_field = {"id": entry["tokenId"]} if "tokenId" in entry else {}
    return {"token": text, "bytes": list(text.encode()), "logprob": entry.get("logProbability"), **id_field}


def finish_text(value: Any) -> str | None:
    """Return the finish reason as text; JSON dumps of gRPC responses contain its number."""
    return None if value is None else str(value)


def camel_keys(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the same fields in camelCase: both spellings occur on the wire.

    >>> camel_keys({"finish_reason": "STOP"})
    {'finishReason': 'STOP'}
    """
    if not any("_" in key for key in data):
        return data
    return {_camel(key): value for key, value in data.items()}


def _camel(key: str) -> str:
    head, *rest = key.split("_")
    if head:
        return head + "".join(word.capitalize() for word in rest)
    return key


def read_part(part: Mapping[str, Any], index: int, answer_id: str) -> list[Part]:
    """Return one part; a signature stays with the part it signs, or is separate if the vendor sends it separately."""
    signature = part.get("thoughtSignature")
    call = part.get("functionCall")
    if isinstance(call, Mapping):
        # Its signature is looked up by this id, so the id has to be unique.
        new_id = f"call_{answer_id}_{index}" if answer_id else f"call_{token_hex(8)}_{index}"
        extra = {NAME: {"thoughtSignature": signature}} if signature else {}
        name = str(call.get("name") or "")
        arguments = arguments_text(call.get("args"))
        return [ToolCall(call.get("id") or new_id, name, arguments, extra)]
    if part.get("thought"):
        return [Reasoning(str(part.get("text") or ""), {NAME: dict(part)})]
    if "text" in part:
        if part["text"]:
            return [Text(str(part["text"]), {NAME: {"thoughtSignature": signature}} if signature else {})]
        if signature:
            return [Opaque(NAME, {"text": "", "thoughtSignature": signature})]
        return []
    return [_media(part)]


def _media(part: Mapping[str, Any]) -> Part:
    inline = part.get("inlineData")
    if isinstance(inline, Mapping) and isinstance(inline.get("data"), str):
        mime = str(inline.get("mimeType") or "")
        for kind in ("image", "audio", "video"):
            if mime.startswith(kind):
                try:
                    return Media(kind, mime, b64decode(inline["data"]))
                except BadBase64:
                    break
    return Opaque(NAME, part)


def read_usage(usage: Any) -> Usage | None:
    """Return the usage; reasoning tokens are not part of the candidates' tokens, so they are added.

    >>> read_usage({"promptTokenCount": 3, "candidatesTokenCount": 2, "thoughtsTokenCount": 5}).output
    7
    """
    if not isinstance(usage, Mapping) or not usage:
        return None
    usage = camel_keys(usage)
    prompt = count(usage.get("promptTokenCount"))
    tool = count(usage.get("toolUsePromptTokenCount"))
    candidate_tokens = count(usage.get("candidatesTokenCount"))
    thought_tokens = count(usage.get("thoughtsTokenCount"))
    output = None
    if candidate_tokens is not None or thought_tokens is not None:
        output = (candidate_tokens or 0) + (thought_tokens or 0)
    return usage_of(
        None if prompt is None else prompt + (tool or 0),
        output,
        count(usage.get("cachedContentTokenCount")),
        thought_tokens,
        count(usage.get("totalTokenCount")),
    )


class GeminiEvents:
    """Reads the events of a stream: each is an answer that contains only the new parts."""

    __slots__ = ("_calls", "_extra", "_has_finish", "_partial", "_unfinished", "ended", "fault")

    text_key = arguments_key = b""

    def __init__(self) -> None:
        self.ended = False
        self.fault: UpstreamError | None = None
        self._calls = 0
        self._partial: PartialCall | None = None
        self._unfinished: set[int] = set()
        """The candidates without a finish reason so far."""
        self._has_finish = False
        self._extra: dict[str, Any] = {}

    def read(self, name: str | None, data: Any) -> list[CompletionChunk]:
        """Return the chunks of one event."""
        if data.get("error"):
            self.fault = fault_error(data, status=None, kind=name or "")
            return []
        data = camel_keys(data)
        chunks = [
            chunk
            for candidate in data.get("candidates") or ()
            if isinstance(candidate, Mapping)
            for chunk in self._candidate_chunks(camel_keys(candidate), str(data.get("responseId") or ""))
        ]
        reason = camel_keys(data.get("promptFeedback") or {}).get("blockReason")
        if reason is not None and not chunks:
            self.ended = True
            chunks.append(CompletionChunk(finish="content_filter", raw_finish=str(reason)))
        if chunks:
            chunks[0] = chunks[0]._replace(model=data.get("modelVersion"), id=data.get("responseId"))
        return [*chunks, *self._changed_fields(data)]

    def finish(self, _done: bool) -> list[CompletionChunk]:
        """Return nothing: no chunk is pending at the end."""
        return []

    def _changed_fields(self, data: Mapping[str, Any]) -> list[CompletionChunk]:
        """Return usage, names and vendor fields that have changed."""
        extra = extras(data)
        if extra == self._extra:
            return []
        self._extra = extra
        usage = read_usage(data.get("usageMetadata"))
        return [CompletionChunk(usage=usage, model=data.get("modelVersion"), id=data.get("responseId"), extra=extra)]

    def _candidate_chunks(self, candidate: Mapping[str, Any], answer_id: str) -> list[CompletionChunk]:
        """Return the chunks of one candidate of an event; the stream ends when each candidate has its finish reason."""
        index = candidate.get("index") or 0
        chunks: list[CompletionChunk] = []
        for item in camel_keys(candidate.get("content") or {}).get("parts") or ():
            chunks.extend(self._part(camel_keys(item), index, answer_id))
        finish_reason = finish_text(candidate.get("finishReason"))
        extra = _rest(candidate)
        if finish_reason:
            self._has_finish = True
            self._unfinished.discard(index)
            self.ended = not self._unfinished
            finish = FINISH.get(finish_reason, "unknown")
            chunks.append(CompletionChunk(finish=finish, raw_finish=finish_reason, choice=index, extra=extra))
            return chunks
        extra.pop("safetyRatings", None)  # every event repeats them; the last ones count
        if extra:
            chunks.append(CompletionChunk(choice=index, extra=extra))
        if not self._has_finish:
            self._unfinished.add(index)
        return chunks

    def _part(self, item: Mapping[str, Any], index: int, answer_id: str) -> list[CompletionChunk]:
        """Return the chunks of a part of an event."""
        call = item.get("functionCall")
        if isinstance(call, Mapping) and (self._partial is not None or call.get("willContinue")):
            return self._piece(item, camel_keys(call), index, answer_id)
        chunks: list[CompletionChunk] = []
        for part in read_part(item, self._calls, answer_id):
            if isinstance(part, Text):
                signed = part.extra.get(NAME)
                alone = (Opaque(NAME, {"text": "", **signed}),) if signed else ()
                chunks.append(CompletionChunk(part.text, choice=index, parts=alone))
            elif isinstance(part, ToolCall):
                delta = ToolDelta(self._calls, part.id, part.name, part.arguments, part.extra)
                self._calls += 1
                chunks.append(CompletionChunk(tool_calls=(delta,), choice=index))
            elif isinstance(part, Reasoning):
                chunks.append(CompletionChunk(reasoning=part.text, parts=(part,), choice=index))
            elif isinstance(part, (Media, Opaque)):
                chunks.append(CompletionChunk(parts=(part,), choice=index))
        return chunks

    def _piece(
        self, item: Mapping[str, Any], call: Mapping[str, Any], index: int, answer_id: str
    ) -> list[CompletionChunk]:
        """Return the chunks of a piece of a call with streamed arguments, which are returned once they are whole."""
        chunks: list[CompletionChunk] = []
        partial = self._partial
        if partial is None:
            named = {**item, "functionCall": {**call, "args": ""}}
            (started,) = (part for part in read_part(named, self._calls, answer_id) if isinstance(part, ToolCall))
            partial = self._partial = PartialCall(self._calls)
            self._calls += 1
            delta = ToolDelta(partial.index, started.id, started.name, "", started.extra)
            chunks.append(CompletionChunk(tool_calls=(delta,), choice=index))
        partial.add(call.get("partialArgs") or ())
        if not call.get("willContinue"):
            self._partial = None
            whole = ToolDelta(partial.index, arguments=partial.arguments)
            chunks.append(CompletionChunk(tool_calls=(whole,), choice=index))
        return chunks
