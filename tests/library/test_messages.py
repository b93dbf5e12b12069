"""Prompts as people have them: dicts of every API, images and files, examples, templates; mistakes are named."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from slipform import Client, Media, Message, ModelRequest, audio, file, fill, image
from slipform.codecs import CODECS, BoundCodec, Capabilities, find_codec
from slipform.errors import RequestError
from slipform.ir import Text
from slipform.library.messages import messages_of
from slipform.providers.router import Router
from slipform.testing import FakeModel

PNG = b"\x89PNG\r\n\x1a\n...."
PICTURE = Media("image", "image/png", PNG)


class Person(BaseModel):
    name: str
    age: int


def shown(prompt: Any) -> list[tuple[str, list[str]]]:
    return [
        (message.role, [part.text if isinstance(part, Text) else type(part).__name__ for part in message.parts])
        for message in messages_of(prompt)
    ]


@pytest.mark.parametrize(
    ("prompt", "read"),
    [
        ("Hi", [("user", ["Hi"])]),
        ({"role": "user", "content": "Hi"}, [("user", ["Hi"])]),
        (["Look:", PICTURE], [("user", ["Look:", "Media"])]),
        (PICTURE, [("user", ["Media"])]),
        ([Message.system("Be brief."), "Hi", PICTURE], [("system", ["Be brief."]), ("user", ["Hi", "Media"])]),
        (
            [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}],
            [("system", ["Be brief."]), ("user", ["Hi"])],
        ),
        ([{"role": "developer", "content": "Be brief."}], [("system", ["Be brief."])]),
        ([{"role": "user", "content": ["Look:", PICTURE]}], [("user", ["Look:", "Media"])]),
        (
            [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "https://x/y.png"}}]}],
            [("user", ["Media"])],
        ),
        (
            [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "https://x/y.png"}}, PICTURE]}],
            [("user", ["Media", "Media"])],
        ),
        (
            [{"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": "https://x/y.png"}}]}],
            [("user", ["Media"])],
        ),
        ([{"role": "user", "content": [{"type": "input_text", "text": "Hi"}]}], [("user", ["Hi"])]),
        ([{"role": "model", "parts": [{"text": "Hi"}]}], [("assistant", ["Hi"])]),
        (
            [
                {"role": "assistant", "tool_calls": [
                    {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
                {"role": "tool", "tool_call_id": "c", "content": "3"},
            ],
            [("assistant", ["ToolCall"]), ("tool", ["ToolResult"])],
        ),
    ],
)  # fmt: skip
def test_prompts_are_read_in_every_common_form(prompt: Any, read: list[Any]) -> None:
    assert shown(prompt) == read


@pytest.mark.parametrize(
    ("prompt", "says"),
    [
        ([], "empty"),
        (None, "not NoneType"),
        (3, "not int"),
        (b"Hi", "not bytes"),
        ([3], r"cannot be of type int, at messages\[0\]"),
        (["Hi", ("user", "Hi")], r"cannot be of type tuple, at messages\[1\]"),
        ([{"role": "usr", "content": "Hi"}], r"Unknown role 'usr', at messages\[0\].role"),
        (["Hi", {"role": "usr", "content": "Hi"}], r"messages\[1\].role"),
        ([{"rol": "user", "content": "Hi"}], r"messages\[0\]"),
        ([{"role": "user"}], r"no content that can be read"),
        ([{"role": "user", "content": 3}], r"found int, at messages\[0\].content"),
        ([{"role": "user", "content": [{"typ": "text", "text": "Hi"}]}], r"messages\[0\]"),
        ([{"role": "user", "content": [{"type": "text"}, PICTURE]}], r"messages\[0\].content\[0\]"),
        ([{"role": "assistant", "tool_calls": [{"id": 1}]}], r"no content that can be read: role='assistant'"),
        ([{}], r"messages\[0\]"),
    ],
)
def test_a_mistake_in_a_prompt_is_named(prompt: Any, says: str) -> None:
    client = Client("fake/m", router=Router({"fake": FakeModel(["1"])}))
    with pytest.raises(RequestError, match=says):
        client.ask(int, prompt)


def test_media_come_from_paths_bytes_and_addresses(tmp_path: Path) -> None:
    (tmp_path / "cat.png").write_bytes(PNG)
    (tmp_path / "notes.txt").write_text("hello")
    assert image(tmp_path / "cat.png") == image(str(tmp_path / "cat.png")) == image(PNG) == PICTURE
    assert image("https://x/cat.png") == Media("image", url="https://x/cat.png")
    assert image("data:image/png;base64,AAAA").data == b"\0\0\0"
    assert audio(b"ID3....").mime_type == "audio/mpeg"
    assert file(tmp_path / "notes.txt") == Media("file", "text/plain", b"hello", name="notes.txt")
    assert file(b"%PDF-", name="a.pdf").name == "a.pdf"
    assert image(b"????", mime_type="image/x-raw").mime_type == "image/x-raw"
    for wrong, says in ((tmp_path / "dog.png", "No such file"), (b"????", "mime_type"), (3, "not int")):
        with pytest.raises(RequestError, match=says):
            image(wrong)  # type: ignore[arg-type]


def test_examples_stand_as_turns_before_the_prompt() -> None:
    model = FakeModel(['{"name": "Ada", "age": 36}'])
    client = Client("fake/m", router=Router({"fake": model}))
    client.ask(
        Person,
        "Ada is 36",
        system="Read.",
        examples=[("Bob is 4", Person(name="Bob", age=4)), ("Z", {"name": "Z", "age": 1})],
    )
    assert [(each.role, each.text) for each in model.requests[0].messages][1:] == [
        ("user", "Bob is 4"), ("assistant", '{"name":"Bob","age":4}'),
        ("user", "Z"), ("assistant", '{"name":"Z","age":1}'), ("user", "Ada is 36"),
    ]  # fmt: skip
    with pytest.raises(RequestError, match=r"expected integer.*examples\[0\]"):
        client.ask(Person, "Ada is 36", examples=[("Bob", {"name": "Bob", "age": "four"})])
    with pytest.raises(RequestError, match="pair of a prompt"):
        client.ask(Person, "Ada is 36", examples=["Bob"])  # type: ignore[list-item]


def test_a_template_takes_the_schema_and_refuses_names_it_does_not_know() -> None:
    prompt = fill("Read {text!s} {{so}}: {schema}", Person, text="{x}")
    assert prompt.startswith('Read {x} {so}: {"properties"')
    with pytest.raises(RequestError, match="no value for 'txt'"):
        fill("{txt}", Person)
    with pytest.raises(RequestError, match="cannot be read"):
        fill("{schema} {", Person)
    with pytest.raises(RequestError, match="does not use 'text'"):
        fill("{schema}", Person, text="x")


def test_the_docs_say_what_each_vendor_takes() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "messages.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (image|file|audio), ([^|]*) \|(.*)\|$", page, re.MULTILINE)
    assert len(rows) == 6
    for kind, source, cells in rows:
        data = None if source == "address" else b"x"
        media = Media(kind, data and "image/png", data, None if data else "https://x/y")  # type: ignore[arg-type]
        request = ModelRequest("m", (Message("user", (media,)),))
        for name, cell in zip(CODECS, cells.split("|"), strict=True):
            taken = "yes"
            try:
                BoundCodec(find_codec(name), Capabilities()).encode_request(request, stream=False)
            except RequestError:
                taken = "no"
            assert taken == cell.strip(), (kind, source, name)
