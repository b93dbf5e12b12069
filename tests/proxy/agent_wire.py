"""The four APIs as an agent's client uses them: requests with tools, and what their answers say in the same words."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

APIS = ("chat", "responses", "messages", "gemini")
_QUESTION = "What is the weather?"
_FINISH = {
    "end_turn": "stop", "tool_use": "tool_calls", "max_tokens": "length", "STOP": "stop", "MAX_TOKENS": "length",
    "completed": "stop", "incomplete": "length",
}  # fmt: skip


def agent_request(
    api: str,
    tools: Mapping[str, Any],
    *,
    model: str = "fast",
    stream: bool = False,
    choice: str | None = None,
    answer: Any = None,
) -> tuple[str, dict[str, Any]]:
    """The path and body of a request that offers these tools; `choice` is "required" or the name of one."""
    named = None if choice in (None, "required") else choice
    body: dict[str, Any]
    if api == "chat":
        path, body = "/v1/chat/completions", {"model": model, "messages": [{"role": "user", "content": _QUESTION}]}
        body["tools"] = [
            {"type": "function", "function": {"name": name, "parameters": schema}} for name, schema in tools.items()
        ]
        if choice:
            body["tool_choice"] = {"type": "function", "function": {"name": named}} if named else "required"
        if answer:
            shape = {"name": "answer", "schema": answer, "strict": True}
            body["response_format"] = {"type": "json_schema", "json_schema": shape}
    elif api == "responses":
        path, body = "/v1/responses", {"model": model, "input": _QUESTION}
        body["tools"] = [
            {"type": "function", "name": name, "parameters": schema, "strict": False} for name, schema in tools.items()
        ]
        if choice:
            body["tool_choice"] = {"type": "function", "name": named} if named else "required"
        if answer:
            body["text"] = {"format": {"type": "json_schema", "name": "answer", "schema": answer, "strict": True}}
    elif api == "messages":
        path, body = "/v1/messages", {"model": model, "max_tokens": 500}
        body["messages"] = [{"role": "user", "content": _QUESTION}]
        body["tools"] = [{"name": name, "input_schema": schema} for name, schema in tools.items()]
        if choice:
            body["tool_choice"] = {"type": "tool", "name": named} if named else {"type": "any"}
        if answer:
            body["output_config"] = {"format": {"type": "json_schema", "schema": answer}}
    else:
        method = "streamGenerateContent?alt=sse" if stream else "generateContent"
        path = f"/v1beta/models/{model}:{method}"
        body = {"contents": [{"role": "user", "parts": [{"text": _QUESTION}]}]}
        functions = [{"name": name, "parametersJsonSchema": schema} for name, schema in tools.items()]
        body["tools"] = [{"functionDeclarations": functions}]
        if choice:
            chosen: dict[str, Any] = {"mode": "ANY", **({"allowedFunctionNames": [named]} if named else {})}
            body["toolConfig"] = {"functionCallingConfig": chosen}
        if answer:
            body["generationConfig"] = {"responseMimeType": "application/json", "responseJsonSchema": answer}
    if stream and api != "gemini":
        body["stream"] = True
    return path, body


@dataclass(slots=True)
class Said:
    """An answer in no API's words."""

    sequence: list[tuple[Any, ...]] = field(default_factory=list)
    """As it came: ("think", words), ("text", words), (number of the call, arguments)."""
    calls: list[tuple[str, str]] = field(default_factory=list)
    """Name and arguments of each call."""
    ids: list[str] = field(default_factory=list)
    finish: str | None = None
    error: str | None = None
    """What the API calls the error that it ended with."""

    @property
    def text(self) -> str:
        return "".join(words for kind, words in self.sequence if kind == "text")

    @property
    def thought(self) -> str:
        return "".join(words for kind, words in self.sequence if kind == "think")

    @property
    def arguments(self) -> str:
        return "".join(arguments for _, arguments in self.calls)

    def add(self, kind: str, words: str | None) -> None:
        if words:
            self.sequence.append((kind, words))

    def open_call(self, identity: str, name: str) -> int:
        self.calls.append((name, ""))
        self.ids.append(identity)
        return len(self.calls) - 1

    def add_arguments(self, at: int, arguments: str) -> None:
        if arguments:
            name, so_far = self.calls[at]
            self.calls[at] = (name, so_far + arguments)
            self.sequence.append((at, arguments))


def compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def read_whole(api: str, status: int, body: Any) -> Said:
    """An answer that came whole."""
    said = Said()
    if status != 200:
        error = body["error"]
        said.error = str(error.get("code") if api == "chat" else error.get("type") or error.get("status"))
        return said
    if api == "chat":
        choice = body["choices"][0]
        said.add("think", choice["message"].get("reasoning_content"))
        said.add("text", choice["message"]["content"])
        for call in choice["message"].get("tool_calls", ()):
            said.add_arguments(said.open_call(call["id"], call["function"]["name"]), call["function"]["arguments"])
        said.finish = choice["finish_reason"]
    elif api == "responses":
        for item in body["output"]:
            if item["type"] == "reasoning":
                said.add("think", "".join(part["text"] for part in item["summary"]))
            elif item["type"] == "message":
                said.add("text", "".join(part["text"] for part in item["content"]))
            else:
                said.add_arguments(said.open_call(item["call_id"], item["name"]), item["arguments"])
        said.finish = _FINISH[body["status"]]
    elif api == "messages":
        for block in body["content"]:
            if block["type"] == "tool_use":
                said.add_arguments(said.open_call(block["id"], block["name"]), compact(block["input"]))
            else:
                said.add("think" if block["type"] == "thinking" else "text", block.get("thinking") or block.get("text"))
        said.finish = _FINISH[body["stop_reason"]]
    else:
        _read_gemini(said, body)
    return said


def _read_gemini(said: Said, body: Any) -> None:
    candidate = body["candidates"][0]
    for part in candidate.get("content", {}).get("parts", ()):
        if "functionCall" in part:
            call = part["functionCall"]
            said.add_arguments(said.open_call(call["id"], call["name"]), compact(call["args"]))
        else:
            said.add("think" if part.get("thought") else "text", part["text"])
    if "finishReason" in candidate:
        said.finish = _FINISH[candidate["finishReason"]]


class StreamReader:
    """Reads the events of one stream, as its client would, and holds the API to its own order of events."""

    def __init__(self, api: str) -> None:
        self.api = api
        self.said = Said()
        self._blocks: dict[int, Any] = {}
        self._open: int | None = None

    def read(self, events: Sequence[Any]) -> Said:
        for event in events:
            self.feed(event)
        return self.said

    def feed(self, event: Any) -> None:
        """One event's data."""
        assert self.said.error is None, "nothing follows an error"
        if event == "[DONE]":
            assert self.said.finish is not None
        else:
            {"chat": self._chat, "responses": self._responses, "messages": self._messages, "gemini": self._gemini}[
                self.api
            ](event)

    def _chat(self, event: Any) -> None:
        if "error" in event:
            self.said.error = event["error"]["code"]
            return
        for choice in event["choices"]:
            delta = choice["delta"]
            self.said.add("think", delta.get("reasoning_content"))
            self.said.add("text", delta.get("content"))
            for call in delta.get("tool_calls", ()):
                if "id" in call:
                    assert call["index"] == self.said.open_call(call["id"], call["function"]["name"])
                self.said.add_arguments(call["index"], call["function"]["arguments"])
            self.said.finish = choice["finish_reason"] or self.said.finish

    def _responses(self, event: Any) -> None:
        kind, at = event["type"], event.get("output_index")
        if kind == "error":
            self.said.error = event["code"]
        elif kind == "response.output_item.added":
            assert at == len(self._blocks)
            item = event["item"]
            is_call = item["type"] == "function_call"
            self._blocks[at] = self.said.open_call(item["call_id"], item["name"]) if is_call else item["type"]
        elif kind == "response.output_text.delta":
            assert self._blocks[at] == "message"
            self.said.add("text", event["delta"])
        elif kind == "response.reasoning_summary_text.delta":
            self.said.add("think", event["delta"])
        elif kind == "response.function_call_arguments.delta":
            self.said.add_arguments(self._blocks[at], event["delta"])
        elif kind == "response.function_call_arguments.done":
            assert event["arguments"] == self.said.calls[self._blocks[at]][1]
        elif kind in ("response.completed", "response.incomplete"):
            self.said.finish = _FINISH[event["response"]["status"]]

    def _messages(self, event: Any) -> None:
        kind = event["type"]
        if kind == "error":
            self.said.error = event["error"]["type"]
        elif kind == "content_block_start":
            assert self._open is None, "blocks do not overlap"
            self._open, block = event["index"], event["content_block"]
            is_call = block["type"] == "tool_use"
            self._blocks[event["index"]] = self.said.open_call(block["id"], block["name"]) if is_call else block["type"]
        elif kind == "content_block_delta":
            assert self._open == event["index"]
            delta, block = event["delta"], self._blocks[event["index"]]
            if delta["type"] == "input_json_delta":
                self.said.add_arguments(block, delta["partial_json"])
            elif delta["type"] != "signature_delta":
                assert delta["type"] == f"{block}_delta"
                self.said.add("think" if block == "thinking" else "text", delta[block])
        elif kind == "content_block_stop":
            assert self._open == event["index"]
            self._open = None
        elif kind == "message_delta":
            assert self._open is None
            self.said.finish = _FINISH[event["delta"]["stop_reason"]]

    def _gemini(self, event: Any) -> None:
        if "error" in event:
            self.said.error = event["error"]["status"]
        else:
            _read_gemini(self.said, event)


def data_of(lines: Iterator[bytes]) -> Iterator[Any]:
    """The data of the events in these lines, as they come."""
    for line in lines:
        if line.startswith(b"data: "):
            data = line[6:].strip()
            yield "[DONE]" if data == b"[DONE]" else json.loads(data)
