"""Clients of agents through the proxy, by the requests they send: what they show while the model writes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from slipform.ir import ModelResponse, ToolCall, Usage
from slipform.testing import Answer, FakeVendor
from tests.peers.record import recording
from tests.proxy.agent_wire import Said
from tests.proxy.test_live_tools import ROWS, Confirmed, proxied, streamed, written_before

CLIENTS: dict[str, tuple[str, str]] = {
    "claude_code": ("messages", '{"file_path":"/src/a.py","old_string":"x = 1\\n","new_string":"x = 2  # by hand\\n"}'),
    "codex": ("responses", '{"cmd":"ls -la && git status --short","workdir":"/src"}'),
    "cline": ("chat", '{"commands":["ls -la && git status --short"]}'),
}
"""Programs whose requests were recorded, the API they speak, and a call of the tool that they were recorded with."""


@pytest.mark.parametrize("row", ["openai-compatible", "anthropic", "responses"])
@pytest.mark.parametrize("client", CLIENTS)
def test_coding_agents_see_words_and_arguments_while_the_model_writes(client: str, row: str) -> None:
    api, arguments = CLIENTS[client]
    said, sent = recording(client)
    request, tool = next(each for each in sent if each["body"]), str(said["tool"])
    words = "I will do that in one step now."
    kind, name, model = ROWS[row]
    answer = ModelResponse(
        text=words,
        tool_calls=(ToolCall("call_1", tool, arguments),),
        reasoning="Just do it.",
        finish="tool_calls",
        usage=Usage(input=3, output=5, total=8),
    )
    texts, calls = written_before(kind, answer, words), written_before(kind, answer, arguments)

    def needs(number: int) -> int:
        """The text at once, a beginning of the arguments within three events; keys wait for their values after that."""
        return texts[number] + max(calls[max(0, number - 6)], min(1, calls[max(0, number - 3)]))

    gate = Confirmed(needs)

    def confirm(heard: Said) -> None:
        gate.confirm(len(heard.text) + len(heard.arguments))

    with FakeVendor([Answer(answer, gate=gate)], api=kind) as vendor, proxied(vendor, name, model) as address:
        heard = streamed(address, api, {**request["body"], "model": "fast"}, request["path"], confirm)
    assert (heard.thought, heard.text, heard.calls) == ("Just do it.", words, [(tool, arguments)])


INSTRUCTOR: dict[str, Any] = {
    "model": "fast",
    "messages": [{"role": "user", "content": "Ada is 36, Bob is 7"}],
    "tools": [
        {
            "type": "function",
            "function": {
                "name": "IterableUser",
                "description": "Correct segmentation of `User` tasks",
                "parameters": {
                    "$defs": {
                        "User": {
                            "properties": {
                                "name": {"title": "Name", "type": "string"},
                                "age": {"title": "Age", "type": "integer"},
                            },
                            "required": ["name", "age"],
                            "title": "User",
                            "type": "object",
                        }
                    },
                    "properties": {
                        "tasks": {
                            "description": "Correctly segmented list of `User` tasks",
                            "items": {"$ref": "#/$defs/User"},
                            "title": "Tasks",
                            "type": "array",
                        }
                    },
                    "type": "object",
                    "required": ["tasks"],
                },
            },
        }
    ],
    "tool_choice": {"type": "function", "function": {"name": "IterableUser"}},
    "stream": True,
}
"""What Instructor 1.3.2 sends for `create_iterable`, recorded on loopback."""


def objects_after_the_bracket(pieces: Iterator[str]) -> Iterator[Any]:
    """The objects of the list as Instructor 1.3.2 finds them: it looks only once a piece has followed the bracket's."""
    text, begun = "", False
    for piece in pieces:
        if not begun:
            begun = "[" in piece
            text = piece.partition("[")[2]
            continue
        text += piece
        while (start := text.find("{")) >= 0 and (end := text.find("}", start)) >= 0:
            yield json.loads(text[start : end + 1])
            text = text[end + 1 :]


@pytest.mark.parametrize("row", ["openai-compatible", "anthropic", "gemini"])
@pytest.mark.parametrize("spoilt", [False, True], ids=["right", "ages in quotes"])
def test_instructors_iterable_finds_its_objects(row: str, spoilt: bool) -> None:
    tasks: list[Any] = [{"name": "Ada", "age": 36}, {"name": "Bob", "age": 7}]
    written = [{**task, "age": str(task["age"])} for task in tasks] if spoilt else tasks
    kind, name, model = ROWS[row]
    said = ModelResponse(
        tool_calls=(ToolCall("c1", "IterableUser", json.dumps({"tasks": written})),), finish="tool_calls"
    )
    with FakeVendor([said], api=kind) as vendor, proxied(vendor, name, model) as address:
        heard = streamed(address, "chat", INSTRUCTOR, "/v1/chat/completions")
    assert list(objects_after_the_bracket(piece for _, piece in heard.sequence)) == tasks
