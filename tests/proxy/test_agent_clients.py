"""Clients of agents through the proxy, by the requests they send: what they show while the model writes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from slipform.ir import ModelResponse, ToolCall, Usage
from slipform.testing import Answer, FakeVendor
from tests.proxy.agent_wire import Said
from tests.proxy.test_live_tools import ROWS, Confirmed, proxied, streamed, written_before

DRAFT = "http://json-schema.org/draft-07/schema#"


def closed(properties: dict[str, Any], *required: str) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
        "$schema": DRAFT,
    }


TEXT: dict[str, Any] = {"type": "string"}
CACHED = {"cache_control": {"type": "ephemeral"}}
CLAUDE_CODE: dict[str, Any] = {
    "model": "fast",
    "max_tokens": 32000,
    "stream": True,
    "thinking": {"type": "enabled", "budget_tokens": 31999},
    "metadata": {"user_id": "user_0_account__session_0"},
    "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    "system": [
        {"type": "text", "text": "You are a coding agent that works in a terminal.", **CACHED},
        {"type": "text", "text": "Working directory: /src", **CACHED},
    ],
    "messages": [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "<system-reminder>The list of todos is empty.</system-reminder>"},
                {"type": "text", "text": "Set x to 2 in a.py", **CACHED},
            ],
        }
    ],
    "tools": [
        {
            "name": "Bash",
            "description": "Runs a command.",
            "input_schema": closed({"command": TEXT, "timeout": {"type": "number"}, "description": TEXT}, "command"),
        },
        {
            "name": "Edit",
            "description": "Replaces a string in a file.",
            "input_schema": closed(
                {
                    "file_path": TEXT,
                    "old_string": TEXT,
                    "new_string": TEXT,
                    "replace_all": {"type": "boolean", "default": False},
                },
                "file_path",
                "old_string",
                "new_string",
            ),
        },
        {
            "name": "TodoWrite",
            "description": "Keeps the list of todos.",
            "input_schema": closed(
                {
                    "todos": {
                        "type": "array",
                        "items": {
                            "type": "object",
                            "properties": {
                                "content": {"type": "string", "minLength": 1},
                                "status": {"type": "string", "enum": ["pending", "in_progress", "completed"]},
                            },
                            "required": ["content", "status"],
                            "additionalProperties": False,
                        },
                    }
                },
                "todos",
            ),
        },
    ],
}
EDIT = ("Edit", '{"file_path":"/src/a.py","old_string":"x = 1\\n","new_string":"x = 2  # set by hand\\n"}')
CODEX: dict[str, Any] = {
    "model": "fast",
    "instructions": "You are a coding agent running in a terminal.",
    "input": [
        {
            "type": "message",
            "role": "user",
            "content": [{"type": "input_text", "text": "<environment_context><cwd>/src</cwd></environment_context>"}],
        },
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "List the files"}]},
    ],
    "tools": [
        {
            "type": "function",
            "name": "shell",
            "description": "Runs a command and returns its output.",
            "strict": False,
            "parameters": {
                "type": "object",
                "properties": {
                    "command": {"type": "array", "items": {"type": "string"}},
                    "workdir": {"type": "string"},
                    "timeout_ms": {"type": "number"},
                },
                "required": ["command"],
                "additionalProperties": False,
            },
        }
    ],
    "tool_choice": "auto",
    "parallel_tool_calls": False,
    "reasoning": {"effort": "medium", "summary": "auto"},
    "store": False,
    "stream": True,
    "include": ["reasoning.encrypted_content"],
    "prompt_cache_key": "0199c6b5-0000-7000-8000-000000000000",
}
SHELL = ("shell", '{"command":["bash","-lc","ls -la && git status --short"],"workdir":"/src"}')
CLIENTS: dict[str, tuple[str, str, dict[str, Any], tuple[str, str]]] = {
    "claude code": ("messages", "/v1/messages?beta=true", CLAUDE_CODE, EDIT),
    "codex": ("responses", "/v1/responses", CODEX, SHELL),
}


@pytest.mark.parametrize("row", ["openai-compatible", "anthropic", "responses"])
@pytest.mark.parametrize("client", CLIENTS)
def test_coding_agents_see_words_and_arguments_while_the_model_writes(client: str, row: str) -> None:
    api, path, body, (tool, arguments) = CLIENTS[client]
    words = "I will do that in one step now."
    kind, name, model = ROWS[row]
    said = ModelResponse(
        text=words,
        tool_calls=(ToolCall("call_1", tool, arguments),),
        reasoning="Just do it.",
        finish="tool_calls",
        usage=Usage(input=3, output=5, total=8),
    )
    texts, calls = written_before(kind, said, words), written_before(kind, said, arguments)

    def needs(number: int) -> int:
        """The text at once, a beginning of the arguments within three events; keys wait for their values after that."""
        return texts[number] + max(calls[max(0, number - 6)], min(1, calls[max(0, number - 3)]))

    gate = Confirmed(needs)

    def confirm(heard: Said) -> None:
        gate.confirm(len(heard.text) + len(heard.arguments))

    with FakeVendor([Answer(said, gate=gate)], api=kind) as vendor, proxied(vendor, name, model) as address:
        heard = streamed(address, api, body, path, confirm)
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
