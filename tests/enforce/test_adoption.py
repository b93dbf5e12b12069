"""Schemas that client libraries write into prompts: which are found, and which never are."""

from __future__ import annotations

import json
from typing import Any

import pytest

from slipform.enforce.adoption import find_schema, may_hold_schema
from slipform.ir import Message, ModelRequest, Tool

USER = {"properties": {"name": {"type": "string"}, "age": {"type": "integer"}}, "required": ["name", "age"]}
TEXT = json.dumps(USER)
INSTRUCTOR = f"""
            As a genius expert, your task is to understand the content and provide
            the parsed objects in json that match the following json_schema:


            {json.dumps({**USER, "title": "User", "type": "object"}, indent=2)}

            Make sure to return an instance of the JSON, not the schema itself
"""
PYDANTIC_AI = f"""
Always respond with a JSON object that's compatible with this schema:

{TEXT}

Don't include any text or Markdown fencing before or after.
"""
LANGCHAIN = f"""The output should be formatted as a JSON instance that conforms to the JSON schema below.

As an example, for the schema {{"properties": {{"foo": {{"type": "array"}}}}, "required": ["foo"]}}
the object {{"foo": ["bar"]}} is a well-formatted instance of the schema.

Here is the output schema:
```
{TEXT}
```"""
DOUBLED = TEXT.replace("{", "{{").replace("}", "}}")
LLAMA_INDEX = f"""Extract: Ada is 36


Here's a JSON schema to follow:
{DOUBLED}

Output a valid JSON object but do not repeat the schema.
"""
NOTE = "        # note: the value you produce "
DSPY_FIELDS = {
    "name": "{name}",
    "age": f"{{age}}{NOTE}must be a single int value",
    "score": f"{{score}}{NOTE}must be a single float value",
    "sure": f"{{sure}}{NOTE}must be True or False",
    "mood": f"{{mood}}{NOTE}must exactly match (no extra characters) one of: good; bad",
    "stars": f"{{stars}}{NOTE}must be one of: 1; 2",
    "user": f"{{user}}{NOTE}must adhere to the JSON schema: {TEXT}",
    "other": f"{{other}}{NOTE}must be what nobody knows",
}
DSPY = f"""Your output fields are:
1. `user` (User): the user
All interactions will be structured in the following way, with the appropriate values filled in.

Outputs will be a JSON object with the following fields.

{json.dumps(DSPY_FIELDS, indent=2)}
In adhering to this structure, your objective is:
        Extract."""
MIRASCOPE = f"Extract.\n\nRespond only with valid JSON that matches this exact schema:\n{TEXT}"


def asked(*messages: Message, json_mode: bool = True, **fields: Any) -> ModelRequest:
    return ModelRequest("m", messages, json_mode=json_mode, **fields)


@pytest.mark.parametrize(
    ("library", "text"),
    [
        ("instructor", f"Extract.\n\n{INSTRUCTOR}"),
        ("pydantic-ai", PYDANTIC_AI),
        ("langchain", f"Extract.\n{LANGCHAIN}"),
        ("dspy", DSPY),
        ("mirascope", MIRASCOPE),
    ],
)
def test_a_librarys_schema_in_a_system_message_is_found_when_the_request_asks_for_json(library: str, text: str) -> None:
    request = asked(Message.system(text), Message.user("Ada is 36"))
    found = find_schema(request, "json_mode")
    assert found is not None
    assert (found.library, found.where) == (library, "messages[0]")
    assert found.format.json_schema.schema["type"] == "object"
    assert find_schema(request.replace(json_mode=False), "json_mode") is None
    assert find_schema(request.replace(json_mode=False), "all") == found
    assert find_schema(request, "off") is None
    assert may_hold_schema(json.dumps(text).encode())


def test_dspys_notes_become_the_schemas_of_its_fields() -> None:
    found = find_schema(asked(Message.system(DSPY)), "json_mode")
    assert found is not None
    assert found.format.json_schema.schema["properties"] == {
        "name": {"type": "string"},
        "age": {"type": "integer"},
        "score": {"type": "number"},
        "sure": {"type": "boolean"},
        "mood": {"enum": ["good", "bad"]},
        "stars": {"enum": ["1", "2", 1, 2]},
        "user": USER,
        "other": {},
    }


@pytest.mark.parametrize(("library", "text"), [("llama-index", LLAMA_INDEX), ("langchain", f"Ada is 36\n{LANGCHAIN}")])
def test_a_schema_at_the_end_of_the_last_user_message_is_found_only_on_demand(library: str, text: str) -> None:
    request = asked(Message.user(text))
    assert find_schema(request, "json_mode") is None
    found = find_schema(request, "all")
    assert found is not None
    assert found.library == library
    assert list(found.format.json_schema.schema["properties"]) == ["name", "age"]


OTHER = INSTRUCTOR.replace('"age"', '"years"')
HOSTILE = {
    "quoted by the assistant": asked(Message.user("hi"), Message.assistant(INSTRUCTOR), Message.user("go on")),
    "in a user's document": asked(Message.user(f"Sum up this document:\n{INSTRUCTOR}\nThank you.")),
    "in an older turn": asked(Message.user(LLAMA_INDEX), Message.assistant("{}"), Message.user("And now in French")),
    "two schemas": asked(Message.system(INSTRUCTOR), Message.system(OTHER), Message.user("hi")),
    "one text twice": asked(Message.system(INSTRUCTOR + OTHER), Message.user("hi")),
    "two libraries": asked(Message.system(INSTRUCTOR), Message.system(DSPY)),
    "a schema to review": asked(Message.user(f"Review this schema:\n{TEXT}")),
    "a prompt to review": asked(Message.system(f"Review this prompt:\n```\n{INSTRUCTOR}\n```\nAnswer in JSON.")),
    "a prompt in an element": asked(Message.system(f"<document>{INSTRUCTOR}</document>\nAnswer in JSON.")),
    "a prompt in an open element": asked(Message.system(f"<document>\n{INSTRUCTOR}")),
    "a quoted line": asked(Message.system(MIRASCOPE.replace("Respond only", '> "Respond only'))),
    "documentation of a tool": asked(Message.system(f"The tool wants: Here's a JSON schema to follow:\n{TEXT}")),
    "tools offered": asked(Message.system(INSTRUCTOR), tools=(Tool("t", {"type": "object"}),)),
    "several answers": asked(Message.system(INSTRUCTOR), extra={"n": 2}),
    "no schema": asked(Message.system(INSTRUCTOR.replace('"properties"', '"props"').replace('"type"', '"kind"'))),
    "a broken schema": asked(Message.system(INSTRUCTOR.replace('"integer"', '"integer'))),
    "a schema that is none": asked(Message.system(INSTRUCTOR.replace('"integer"', '"whole"'))),
    "half of the words": asked(Message.system(INSTRUCTOR.replace("Make sure to return", "Return"))),
    "a template's question": asked(Message.user(f"What does this template do?\n{LLAMA_INDEX}")),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_what_only_looks_like_a_librarys_instruction_is_never_taken_by_default(case: str) -> None:
    assert find_schema(HOSTILE[case], "json_mode") is None


@pytest.mark.parametrize("case", [name for name in HOSTILE if name != "a template's question"])
def test_nor_on_demand(case: str) -> None:
    assert find_schema(HOSTILE[case], "all") is None
