"""Write the prompts that ask for JSON: whole answers, parts of one, and small models.

A small model copies a schema that it is shown, and the placeholders of an example generated from it; it follows worked
examples of other shapes, and a list of the keys with their types.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from slipform.enforce.coercion import ABSENT, PatchEdit, at, is_portable
from slipform.enforce.patching import apply
from slipform.ir import Message, ModelRequest, ModelResponse, ModelWarning, Part, Text, ToolResult
from slipform.schema import JsonSchemaSpec, OutputStrategy, ResponseFormat, Schema, Violation
from slipform.schema.document import DEFINITIONS, PathSteps, followed, locate, with_plain_references
from slipform.schema.examples import example
from slipform.schema.shape import Shape, to_text
from slipform.schema.summary import SchemaSummary, summarize
from slipform.schema.violations import json_path

SMALL = 2_000
"""Shorter answers are requested again as a whole: that is simpler, and costs almost nothing."""
_MOST_PARTS = 8


@dataclass(frozen=True, slots=True)
class Parts:
    """The locations of a value that are retried, each by the name it has in the question."""

    value: Any
    places: Mapping[str, PathSteps]
    schema: dict[str, Any]
    """The schema of the answer: one key per location."""

    def merged(self, answer: Any) -> Any:
        """Return the value with the new parts inserted; parts without an answer stay unchanged."""
        if not isinstance(answer, Mapping):
            return self.value
        edits = [
            PatchEdit("replace", steps, "asked again", value=answer[name])
            for name, steps in self.places.items()
            if name in answer
        ]
        return apply(self.value, edits)[0]

    def format(self, whole: ResponseFormat) -> ResponseFormat:
        """Return the response format for the parts, in place of the whole."""
        spec = JsonSchemaSpec(f"{whole.json_schema.name[:57]}_parts", self.schema)
        return dataclasses.replace(whole, json_schema=spec)


def parts_of(value: Any, violations: Sequence[Violation], document: Mapping[str, Any]) -> Parts | None:
    """Return the invalid locations of a large value if they are few; None if the whole should be retried."""
    document = with_plain_references(document)
    places: dict[str, PathSteps] = {}
    shapes: dict[str, Any] = {}
    for violation in violations:
        place = _place(violation, value, document)
        if place is None:
            return None
        steps, shape = place
        places[json_path(steps)] = steps
        shapes[json_path(steps)] = shape
    if not places or len(places) > _MOST_PARTS:
        return None
    schema = {
        **{name: document[name] for name in DEFINITIONS if name in document},
        "type": "object",
        "properties": shapes,
        "required": list(shapes),
        "additionalProperties": False,
    }
    return Parts(value, places, schema)


def _place(violation: Violation, value: Any, document: Mapping[str, Any]) -> tuple[PathSteps, Any] | None:
    """Return the path to replace for a violation, and the schema of the replacement."""
    steps = violation.steps
    holder = locate(document, violation.schema_path.rpartition("/")[0])
    if steps is None or not violation.schema_path or not isinstance(holder, Mapping):
        return None  # a Python type or a validator reported it, and the schema does not constrain that location
    if violation.keyword == "required":
        missing = [name for name in holder.get("required", ()) if f'"{name}"' in (violation.expected or "")]
        shape = None
        if len(missing) == 1:
            shape = (holder.get("properties") or {}).get(missing[0])
        if shape is not None and is_portable(shape):
            return ((*steps, missing[0]), shape)
        return None
    if not steps or at(value, steps) is ABSENT or not is_portable(holder):
        return None
    return steps, holder


def parts_request(first: ModelRequest, answer: str, parts: Parts, violations: Sequence[Violation]) -> ModelRequest:
    """Return the request for only the invalid parts, each under its path."""
    wrong = "\n".join(f"- {violation.json_path}: {violation.message}" for violation in violations)
    names = ", ".join(f'"{name}"' for name in parts.places)
    question = (
        f"Parts of that JSON are not valid:\n{wrong}\n"
        f"Return one JSON object with only the corrected values, under the keys {names}. No prose. No code fences."
    )
    response_format = None
    if first.response_format is not None:
        response_format = parts.format(first.response_format)
    return first.replace(
        messages=(*first.messages, Message.assistant(answer), Message.user(question)), response_format=response_format
    )


KEYS_AND_KINDS: Final = "Reply in JSON with the keys: {keys}."
KIND_ONLY: Final = "Reply in JSON with: {kind}."
_MOST_CHARS: Final = 1_200
_DEPTH: Final = 5
_SHORTEST: Final = 4
"""Characters that the type of a part takes at least."""
_KINDS: Final = {"string": "text", "integer": "whole number", "number": "number", "boolean": "true or false"}
_WORKED: Final = (
    (
        "Zubin found 2 gimlets and 1 sextant.",
        'goods (list of {"what": text, "count": whole number})',
        '{"goods": [{"what": "gimlets", "count": 2}, {"what": "sextant", "count": 1}]}',
    ),
    ("I hated the trip.", 'mood ("happy" or "sad")', '{"mood": "sad"}'),
    (
        "Ottilie is 7 and she can swim.",
        "child (text), years (whole number), swims (true or false)",
        '{"child": "Ottilie", "years": 7, "swims": true}',
    ),
)
_THEIR_WORDS: Final = ("zubin", "gimlet", "sextant", "ottilie")


def worked_examples() -> tuple[Message, ...]:
    """Return example turns that answer such questions well; no caller uses their shapes, so copies are recognised.

    >>> worked_examples()[-1].text
    '{"child": "Ottilie", "years": 7, "swims": true}'
    """
    turns: list[Message] = []
    for question, keys, answer in _WORKED:
        turns += (Message.user(f"{question}\n{KEYS_AND_KINDS.format(keys=keys)}"), Message.assistant(answer))
    return tuple(turns)


def repeats_prompt(value: Any, messages: Sequence[Message]) -> Sequence[Violation]:
    """Return violations if an answer contains a word that occurs only in the worked examples.

    >>> repeats_prompt({"item": "gimlets"}, (Message.user("Two pens, please."),))[0].message
    'the answer copies "gimlet" from an example that was shown'
    """
    answer = json.dumps(value, ensure_ascii=False).casefold()
    words = [word for word in _THEIR_WORDS if word in answer]
    prompt_text = ""
    if words:
        prompt_text = "".join(message.text for message in messages).casefold()
    word = next((word for word in words if word not in prompt_text), None)
    if word is None:
        return ()
    return (Violation("", "", "validator", f'the answer copies "{word}" from an example that was shown', steps=()),)


def wanted_keys(schema: Mapping[str, Any]) -> str:
    """Return the sentence that tells a small model what to reply with.

    >>> wanted_keys({"type": "object", "properties": {"age": {"type": "integer"}}})
    'Reply in JSON with the keys: age (whole number).'
    """
    schema = with_plain_references(schema)
    shape = followed(schema, schema)
    properties = shape.get("properties")
    room = [_MOST_CHARS]
    if not isinstance(properties, Mapping) or not properties:
        return KIND_ONLY.format(kind=_kind(shape, schema, 0, room)[:_MOST_CHARS])
    keys = ", ".join(f"{name} ({_kind(each, schema, 0, room)})" for name, each in properties.items())
    return KEYS_AND_KINDS.format(keys=keys if len(keys) <= _MOST_CHARS else ", ".join(properties)[:_MOST_CHARS])


def _kind(node: Any, document: Mapping[str, Any], depth: int, room: list[int]) -> str:
    """Return the type of a value in few words that read like the requested JSON.

    `room` holds the number of characters left: references may lead to far more parts than a schema has.
    """
    room[0] -= _SHORTEST
    if room[0] <= 0:
        return "anything"
    shape = followed(node, document)
    listed = [shape["const"]] if "const" in shape else shape.get("enum")
    if isinstance(listed, list):
        return " or ".join(json.dumps(member, ensure_ascii=False) for member in listed)
    union = shape.get("anyOf", shape.get("oneOf"))
    if isinstance(union, list) and depth < _DEPTH:
        return " or ".join(dict.fromkeys(_kind(branch, document, depth + 1, room) for branch in union))
    kind = shape.get("type")
    if isinstance(kind, list):
        return " or ".join(_KINDS.get(each, str(each)) for each in kind)
    if kind == "array" and depth < _DEPTH:
        return f"list of {_kind(shape.get('items', {}), document, depth + 1, room)}"
    properties = shape.get("properties")
    if isinstance(properties, Mapping) and depth < _DEPTH:
        inner = (f"{json.dumps(name)}: {_kind(each, document, depth + 1, room)}" for name, each in properties.items())
        return "{" + ", ".join(inner) + "}"
    return _KINDS.get(str(kind), str(kind or "anything"))


def misnamed_keys(value: Any, violations: Sequence[Violation], document: Mapping[str, Any]) -> Parts | None:
    """Return the missing or wrong keys of an object, to be requested alone; None if the whole should be.

    A shorter question is an easier one: valid keys stay, and only the others are requested.
    """
    document = with_plain_references(document)
    shape = followed(document, document)
    properties = shape.get("properties")
    if not isinstance(value, Mapping) or not isinstance(properties, Mapping):
        return None
    names = [name for name in properties if any(_concerns(violation, name) for violation in violations)]
    if not names or all(name in names for name in properties):
        return None
    if any(violation.steps == () and violation.keyword != "required" for violation in violations):
        return None
    schema = {
        **{name: document[name] for name in DEFINITIONS if name in document},
        "type": "object",
        "properties": {name: properties[name] for name in names},
        "required": names,
    }
    return Parts(value, {name: (name,) for name in names}, schema)


def _concerns(violation: Violation, name: str) -> bool:
    if violation.steps:
        return violation.steps[0] == name
    return violation.keyword == "required" and f'"{name}"' in violation.message


FIRST_WITH_SCHEMA = "Return ONLY valid JSON matching this schema: {schema}. No prose."
FIRST_WITHOUT_SCHEMA = "Return JSON only."
EXAMPLE = "An example of the form, with made-up values: {example}"
_LONGEST_EXAMPLE: Final = 500
_PENALTY: Final = 0.3
"""The frequency penalty of a retry after an endless answer."""
_LARGEST_EXEMPLIFIED: Final = 20_000
"""Bytes of the largest schema for which an example is generated."""
SCHEMA = "The answer must be JSON matching this schema: {schema}."
REPAIR = "Return ONLY valid compact JSON. No markdown, no prose."
REASK = "Return corrected JSON only. No prose. No code fences."
KEYS = "Reply in JSON with the keys: {keys}."
TOO_LONG = "Your last answer was cut off because it was too long. " + REPAIR
ENDLESS = "Your last answer repeated itself without end. Write each value once and no blank lines. " + REPAIR
FORMAT = "Re-shape the text into JSON. Use only what the text says; leave out what it does not say."
CALL_KEPT = "This call is valid and is kept. Do not repeat it: its result follows once the other calls are valid, too."
CALL_AGAIN = "The arguments are not valid:\n{faults}\nCall the tool again with corrected arguments."


@dataclass(frozen=True, slots=True)
class Wording:
    """How the prompt describes the schema."""

    list_keys: bool = False
    """Whether the prompt lists the keys although the channel carries the schema: small models need it. Without such a
    channel, the prompt also has the types and worked examples."""
    max_schema_chars: int = 2000
    descriptions: bool = False
    """Whether a schema in the prompt keeps its descriptions."""
    schema_in_prompt: bool = False
    """Whether the prompt shows the schema although the channel carries it: some servers hide it from the model."""
    shown: bool = False
    """Whether the caller's own messages show the schema, so that the prompt does not repeat it."""
    wraps_root: bool = False
    """Whether a root that is not an object is requested under the key `value`: JSON modes allow only objects."""
    prefills: bool = False
    """Whether a cut-off answer is continued by sending its beginning, if only the prompt asks for JSON."""


class Worded:
    """A request with additions to its prompt, and the warnings about them for the caller."""

    __slots__ = ("request", "warnings")

    def __init__(self, request: ModelRequest, warnings: tuple[ModelWarning, ...] = ()) -> None:
        self.request: Final = request
        self.warnings: Final = warnings


def first_request(request: ModelRequest, strategy: OutputStrategy, wording: Wording) -> Worded:
    """Return the request with the description of the schema that this strategy needs."""
    if wording.shown:
        return Worded(request.replace(tells_schema=True))
    schema = None
    if request.response_format:
        schema = request.response_format.json_schema.schema
    if strategy is OutputStrategy.PROMPTED and (schema is not None or request.json_mode):
        return _prompted(request, schema, wording)
    if wording.schema_in_prompt and schema is not None and strategy is OutputStrategy.NATIVE:
        return _prompted(request, schema, dataclasses.replace(wording, list_keys=False))
    if wording.list_keys and schema is not None and (keys := _keys(schema)):
        return Worded(_append_to_last_user(request, KEYS.format(keys=", ".join(keys))))
    return Worded(request)


def reask_request(
    base: ModelRequest,
    answer: str,
    violations: Sequence[Violation],
    unseen: Schema[Any] | None = None,
    wording: Wording | None = None,
) -> ModelRequest:
    """Return the request again, with its answer and the violations.

    `unseen` is the schema if the model may not have seen it yet. It goes after the conversation, whose beginning the
    vendor may have cached.
    """
    correction = f"That JSON is not valid:\n{faults(violations)}\n{REASK}" if violations else REPAIR
    shows_schema = wording is None or wording.schema_in_prompt or wording.list_keys or wording.shown
    if unseen is not None and wording is not None and not shows_schema:
        correction = f"{SCHEMA.format(schema=_summary(unseen.document, wording).text)}\n{correction}"
    previous = (Message.assistant(answer),) if answer.strip() else ()
    return base.replace(messages=(*base.messages, *previous, Message.user(correction)))


def shorter_request(base: ModelRequest) -> ModelRequest:
    """Return the request again after an answer that exceeded the token limit, without showing that long answer."""
    return base.replace(messages=(*base.messages, Message.user(TOO_LONG)))


def ending_request(base: ModelRequest) -> ModelRequest:
    """Return the request again after an endless answer, worded differently and with a penalty on repetition."""
    sampling = base.sampling
    if sampling.frequency_penalty is None:
        sampling = dataclasses.replace(sampling, frequency_penalty=_PENALTY)
    return base.replace(messages=(*base.messages, Message.user(ENDLESS)), sampling=sampling)


def ask_plainly(request: ModelRequest, wording: Wording) -> ModelRequest:
    """Return only the question again, for a small model that could not follow the schema."""
    schema = None
    if request.response_format:
        schema = request.response_format.json_schema.schema
    if schema is None:
        return first_request(request, OutputStrategy.PROMPTED, wording).request
    return _for_a_small_model(request, schema, FIRST_WITHOUT_SCHEMA)


def call_again_request(
    base: ModelRequest, response: ModelResponse, wrong: Mapping[str, Sequence[Violation]]
) -> ModelRequest:
    """Return the request again, with the model's tool calls and the violations of their arguments as results."""
    results = tuple(
        ToolResult(call.id, (Text(_call_result(wrong.get(call.id, ()))),), is_error=call.id in wrong, name=call.name)
        for call in response.tool_calls
    )
    return base.replace(messages=(*base.messages, response.message, Message("tool", results)))


def formatter_request(request: ModelRequest, model: str, text: str) -> ModelRequest:
    """Return a request for another model to reformat the first one's answer."""
    return request.replace(
        model=model, messages=(Message.system(FORMAT), Message.user(text)), tools=(), tool_choice=None
    )


def faults(violations: Sequence[Violation]) -> str:
    """Return the violations, one per line: location, expected and actual value."""
    return "\n".join(f"- {violation.json_path}: {violation.message}" for violation in violations)


def _call_result(violations: Sequence[Violation]) -> str:
    if not violations:
        return CALL_KEPT
    return CALL_AGAIN.format(faults=faults(violations))


def _prompted(request: ModelRequest, schema: Mapping[str, Any] | None, wording: Wording) -> Worded:
    """Return the request with the schema, an example and instructions in its prompt."""
    instruction = FIRST_WITHOUT_SCHEMA
    warnings = tuple[ModelWarning, ...]()
    if schema is not None:
        if wording.wraps_root:
            schema = wrapped_root(schema)
        summary = _summary(schema, wording)
        instruction = FIRST_WITH_SCHEMA.format(schema=summary.text)
        warnings = (_CUT,) if summary.cut else ()
    if wording.list_keys and schema is not None:
        return Worded(_for_a_small_model(request, schema, instruction), warnings)
    if schema is not None and (example := _short_example(schema)) is not None:
        instruction = f"{instruction}\n{EXAMPLE.format(example=example)}"
    return Worded(request.replace(messages=_with_system(instruction, request.messages), tells_schema=True), warnings)


def wrapped_root(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema of an object with a value of this schema under the key `value`.

    >>> wrapped_root({"type": "array"})["properties"]
    {'value': {'type': 'array'}}
    """
    definitions = {name: schema[name] for name in DEFINITIONS if name in schema}
    inner = {name: value for name, value in schema.items() if name not in definitions}
    shape = {"type": "object", "properties": {"value": inner}, "required": ["value"], "additionalProperties": False}
    return {**definitions, **shape}


def _summary(schema: Mapping[str, Any], wording: Wording) -> SchemaSummary:
    return summarize(schema, max_chars=wording.max_schema_chars, descriptions=wording.descriptions)


def _short_example(schema: Mapping[str, Any]) -> str | None:
    """Return a valid instance as JSON, if a short one is found."""
    key = to_text(schema)
    if len(key) > _LARGEST_EXEMPLIFIED:
        return None
    return Shape.of_text(key).derived("short example", lambda: _example_text(schema), len) or None


def _example_text(schema: Mapping[str, Any]) -> str:
    instance = example(schema)
    if instance is None or len(instance.text) > _LONGEST_EXAMPLE:
        return ""
    return instance.text


def _with_system(instruction: str, messages: Sequence[Message]) -> tuple[Message, ...]:
    """Return the messages with this instruction in one system message at their start: many templates allow only one."""
    if not messages or messages[0].role != "system":
        return (Message.system(instruction), *messages)
    parts: tuple[Part, ...] = messages[0].parts
    if parts and isinstance(parts[0], Text) and not parts[0].extra:  # one text: some servers refuse a list of parts
        parts = (Text(f"{instruction}\n\n{parts[0].text}"), *parts[1:])
    else:
        parts = (Text(f"{instruction}\n\n" if parts else instruction), *parts)
    return (messages[0].replace(parts=parts), *messages[1:])


def _for_a_small_model(request: ModelRequest, schema: Mapping[str, Any], instruction: str) -> ModelRequest:
    """Return the instruction, the worked examples, and the question with the keys of its answer."""
    is_system = [message.role == "system" for message in request.messages]
    start = is_system.index(False) if False in is_system else len(is_system)
    with_keys = _append_to_last_user(request, wanted_keys(schema)).messages
    messages = (Message.system(instruction), *with_keys[:start], *worked_examples(), *with_keys[start:])
    return request.replace(messages=messages, tells_schema=True)


_CUT = ModelWarning(
    "schema_summary_cut",
    "The schema shown to the model was shortened to fit the prompt; the answer is validated against the full schema.",
)


def _keys(schema: Mapping[str, Any]) -> list[str]:
    """Return the key names for a small model: they are faster and more accurate than showing the schema."""
    document = with_plain_references(schema)
    shape = followed(document, document)
    if isinstance(items := shape.get("items"), Mapping):
        shape = followed(items, document)
    properties = shape.get("properties")
    if isinstance(properties, Mapping):
        return list(properties)
    return []


def _append_to_last_user(request: ModelRequest, sentence: str) -> ModelRequest:
    messages = list(request.messages)
    for index in range(len(messages) - 1, -1, -1):
        if messages[index].role == "user":
            parts = (*messages[index].parts, Text(f"\n{sentence}"))
            messages[index] = messages[index].replace(parts=parts)
            return request.replace(messages=tuple(messages))
    return request.replace(messages=(*messages, Message.user(sentence)))
