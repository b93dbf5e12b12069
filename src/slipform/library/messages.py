"""Read prompts: texts, images, files, messages, dicts in a vendor's format, templates, examples."""

from __future__ import annotations

import mimetypes
import re
import string
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

from slipform.codecs import find_api
from slipform.codecs.request_fields import media_from_url
from slipform.enforce.judging import violation_error
from slipform.errors import RequestError
from slipform.ir import Media, Message, Text
from slipform.ir.messages import Opaque
from slipform.schema import Schema
from slipform.schema.summary import summarize
from slipform.text.strict import compact_json

PromptPart: TypeAlias = str | Text | Media
Prompt: TypeAlias = PromptPart | Message | Mapping[str, Any] | Sequence[PromptPart | Message | Mapping[str, Any]]
"""A prompt: a text, an image or file, a message, or a list of them."""
_Kind: TypeAlias = Literal["image", "audio", "file"]

_MAGIC: Final = (
    (b"\x89PNG\r\n\x1a\n", "image/png"), (b"\xff\xd8\xff", "image/jpeg"), (b"GIF8", "image/gif"),
    (b"%PDF-", "application/pdf"), (b"ID3", "audio/mpeg"), (b"\xff\xfb", "audio/mpeg"), (b"\xff\xf3", "audio/mpeg"),
    (b"OggS", "audio/ogg"), (b"fLaC", "audio/flac"),
)  # fmt: skip
_IN_RIFF: Final = {b"WEBP": "image/webp", b"WAVE": "audio/wav"}
_ADDRESS: Final = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]+:")
_FORMATS: Final = ("openai-chat", "anthropic", "openai-responses", "gemini")
"""The APIs whose message formats are accepted, the most common first."""
_HINT: Final = 'Write messages like {"role": "user", "content": "…"}, or use `Message.user("…")`.'


def image(source: str | Path | bytes, *, mime_type: str | None = None) -> Media:
    """Return an image for a prompt, from a file's path, its bytes, or its URL.

    >>> image("https://example.com/cat.png").url
    'https://example.com/cat.png'
    """
    return _media("image", source, mime_type)


def audio(source: str | Path | bytes, *, mime_type: str | None = None) -> Media:
    """Return a recording for a prompt, from a file's path, its bytes, or its URL.

    >>> audio(b"RIFF....WAVE").mime_type
    'audio/wav'
    """
    return _media("audio", source, mime_type)


def file(source: str | Path | bytes, *, mime_type: str | None = None, name: str | None = None) -> Media:
    """Return a document for a prompt, such as a PDF, from a file's path, its bytes, or its URL.

    >>> file(b"%PDF-1.7", name="invoice.pdf").mime_type
    'application/pdf'
    """
    return _media("file", source, mime_type, name)


def attachment(source: str) -> Text | Media:
    """Return a file or URL as a part of a prompt: text as text, anything else as an image, audio or a document.

    >>> attachment("https://example.com/cat.png").kind
    'image'
    """
    guessed = mimetypes.guess_type(source)[0] or ""
    if _is_address(source):
        return _media(_kind_of(guessed), source, None)
    path = Path(source)
    data = _bytes_of("file", path)
    mime_type = sniff(data) or guessed
    kind = _kind_of(mime_type)
    if kind == "file" and sniff(data) is None and b"\0" not in data:
        try:
            return Text(f"{path.name}:\n\n{data.decode()}")
        except UnicodeDecodeError:
            pass
    return _media(kind, data, mime_type or None, path.name)


def _media(kind: _Kind, source: object, mime_type: str | None, name: str | None = None) -> Media:
    """Return a part from a URL, bytes or a file; raises `RequestError` if its type cannot be determined."""
    if isinstance(source, str) and _is_address(source):
        read = media_from_url(source, kind, name)
        if mime_type is None:
            return read
        return Media(kind, mime_type, read.data, read.url, name=name)
    if isinstance(source, bytes | bytearray):
        data = bytes(source)
    elif isinstance(source, str | Path):
        path = Path(source)
        data = _bytes_of(kind, path)
        name = name or path.name
    else:
        raise RequestError(
            f"{kind}() takes a path, bytes or an address, not {type(source).__name__}",
            hint=f"Write {kind}(Path(…)), {kind}(data) or {kind}('https://…').",
        )
    mime_type = mime_type or sniff(data) or (mimetypes.guess_type(name)[0] if name else None)
    if mime_type is None:
        raise RequestError(f"It is not clear what kind of {kind} this is", hint=f"Say it: {kind}(…, mime_type=…).")
    return Media(kind, mime_type, data, name=name if kind == "file" else None)


def _bytes_of(kind: _Kind, path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise RequestError(
            f"The {kind} {str(path)!r} cannot be read: {error.strerror}",
            hint="Give a path, bytes, or an address that begins with https://.",
        ) from error


def _kind_of(mime_type: str) -> _Kind:
    if mime_type.startswith("image/"):
        return "image"
    return "audio" if mime_type.startswith("audio/") else "file"


def _is_address(source: str) -> bool:
    is_drive = source[1:3] in (":\\", ":/")
    return _ADDRESS.match(source) is not None and not is_drive


def sniff(data: bytes) -> str | None:
    """Return the MIME type of these bytes by their signature; None if it is unknown."""
    if data[:4] == b"RIFF":
        return _IN_RIFF.get(data[8:12])
    return next((mime for magic, mime in _MAGIC if data.startswith(magic)), None)


def messages_of(prompt: Prompt) -> tuple[Message, ...]:
    """Return a prompt as messages; adjacent texts and media become one user message.

    Raises `RequestError`, which names the invalid item of the list.

    >>> messages_of("Hello")[0].role
    'user'
    >>> [message.text for message in messages_of([{"role": "system", "content": "Be brief."}, "Hello"])]
    ['Be brief.', 'Hello']
    """
    if isinstance(prompt, str):
        return (Message.user(prompt),)
    items: Any = [prompt] if isinstance(prompt, Text | Media | Message | Mapping) else prompt
    if not isinstance(items, Sequence) or isinstance(items, bytes | bytearray):
        raise RequestError(f"A prompt is a text or a list of messages, not {type(prompt).__name__}", hint=_HINT)
    if not items:
        raise RequestError("The list of messages is empty", hint=_HINT)
    messages: list[Message] = []
    parts: list[Text | Media] = []
    for index, item in enumerate(items):
        if isinstance(item, PromptPart):
            parts.append(Text(item) if isinstance(item, str) else item)
            continue
        if parts:
            messages.append(Message("user", tuple(parts)))
            parts = []
        messages.extend([item] if isinstance(item, Message) else _read(item, f"messages[{index}]"))
    if parts:
        return (*messages, Message("user", tuple(parts)))
    return tuple(messages)


def _read(item: object, where: str) -> tuple[Message, ...]:
    """Return a message given as a dict, or as a message object of a vendor's SDK."""
    from pydantic import BaseModel

    if isinstance(item, BaseModel):
        item = item.model_dump(exclude_none=True)
    if not isinstance(item, Mapping):
        raise RequestError(f"A message cannot be of type {type(item).__name__}", where=where, hint=_HINT)
    content = item.get("content")
    if isinstance(content, list | tuple) and any(isinstance(part, PromptPart) for part in content):
        return _read_mixed(item, content, where)
    return _read_in_any_format(item, where)


def _read_in_any_format(item: Mapping[str, Any], where: str) -> tuple[Message, ...]:
    """Return the messages of a mapping in the first format that understands all of it."""
    first: RequestError | None = None
    was_read = False
    for name in _FORMATS:
        try:
            read = _decode(name, item)
        except RequestError as error:
            first = first or error
            continue
        if read and all(_is_fully_read(message) for message in read):
            return read
        was_read = True
    if first is None or (was_read and (first.where or "").endswith(".role")):  # another format may know the role
        raise RequestError(f"The message has no content that can be read: {_brief(item)}", where=where, hint=_HINT)
    raise RequestError(first.message, where=_moved(first.where, where), hint=first.hint or _HINT) from first


def _read_mixed(item: Mapping[str, Any], content: Sequence[Any], where: str) -> tuple[Message, ...]:
    """Return a message whose content mixes slipform's texts and media with the vendor's parts."""
    parts: list[Any] = []
    shell = {key: value for key, value in item.items() if key != "content"}
    for index, part in enumerate(content):
        if isinstance(part, PromptPart):
            parts.append(Text(part) if isinstance(part, str) else part)
        else:
            for message in _read({**shell, "content": [part]}, f"{where}.content[{index}]"):
                parts.extend(message.parts)
    (message,) = _read({**shell, "content": "x"}, where)
    return (message.replace(parts=tuple(parts)),)


def _decode(name: str, item: Mapping[str, Any]) -> tuple[Message, ...]:
    field = {"openai-responses": "input", "gemini": "contents"}.get(name, "messages")
    body: dict[str, Any] = {"model": "any", "max_tokens": 1} if name == "anthropic" else {"model": "any"}
    return tuple(find_api(name).decode_request({**body, field: [dict(item)]}).request.messages)


def _is_fully_read(message: Message) -> bool:
    """Return whether the format understood every part of a message."""
    return bool(message.parts) and not any(isinstance(part, Opaque) for part in message.parts)


def _moved(place: str | None, where: str) -> str:
    """Return a path in a list of one message as a path in the caller's list."""
    return re.sub(r"^(?:messages|input|contents)\[0\]", where, place or "") or where


def _brief(item: Mapping[str, Any]) -> str:
    return ", ".join(f"{key}={value!r:.60}" for key, value in item.items()) or "it is empty"


def example_messages(examples: Sequence[tuple[Any, Any]], schema: Schema[Any] | None) -> tuple[Message, ...]:
    """Return example pairs as turns of the conversation; the answers must match the schema.

    >>> [message.text for message in example_messages([("Ada is 36", {"age": 36})], None)]
    ['Ada is 36', '{"age":36}']
    """
    from pydantic_core import to_jsonable_python

    messages: list[Message] = []
    for index, pair in enumerate(examples):
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise RequestError(
                "An example is a pair of a prompt and its answer", where=f"examples[{index}]", hint="Write (…, …)."
            )
        prompt, answer = pair
        value = answer if schema is None and isinstance(answer, str) else to_jsonable_python(answer)
        if schema is not None and (violations := schema.check(value)):
            error = violation_error(violations, what="The answer of an example is")
            raise RequestError(error.message, where=f"examples[{index}]", hint="Correct the example.")
        text = value if schema is None and isinstance(value, str) else compact_json(value)
        messages += (*messages_of(prompt), Message.assistant(text))
    return tuple(messages)


def fill(template: str, shape: Any, /, **values: object) -> str:
    """Return a prompt built from a template; `{schema}` in it becomes the shortened JSON Schema of the shape.

    Raises `RequestError` for a name without a value, and for a value that the template does not use.

    >>> fill("Which mood? {schema} Text: {text}", bool, text="I am {happy}.")
    'Which mood? {"type":"boolean"} Text: I am {happy}.'
    """
    try:
        names = {name for _, name, _, _ in string.Formatter().parse(template) if name is not None}
    except ValueError as error:
        raise RequestError(f"The template cannot be read: {error}", hint="Write {{ and }} for braces.") from error
    fields = {**values, "schema": ""}
    if wrong := sorted(names - set(fields)) or sorted(set(values) - names):
        what = "has no value for" if wrong[0] in names else "does not use"
        raise RequestError(
            f"The template {what} {wrong[0]!r}",
            hint=f"It has {', '.join(sorted(names)) or 'no names'}; write {{{{ for a brace.",
        )
    fields["schema"] = summarize(Schema.of(shape).document, descriptions=True).text if "schema" in names else ""
    return template.format_map({name: str(value) for name, value in fields.items()})
