"""Decide the verdict on an answer: `judge`."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

import msgspec
import orjson

from slipform.enforce.coercion import Switches, json_size, validation_work
from slipform.enforce.doubts import doubt, dropped_data, first_doubt
from slipform.enforce.options import Validator, complaints
from slipform.enforce.patching import Patched, patch, patch_as_written, patch_for_type
from slipform.errors import (
    EmptyAnswerError,
    EnforcementError,
    JsonEnforcementError,
    RefusalError,
    RunawayError,
    SchemaViolationError,
    TruncatedError,
    WorkLimitError,
)
from slipform.ir import RESERVED_TOOL, FinishReason, ModelNote, ModelResponse, ModelWarning, Opaque, ToolCall
from slipform.schema import Schema, Violation
from slipform.schema.document import followed, lookup, reference_of, with_plain_references
from slipform.text.loads import UNFINISHED_REASONING, Loaded, LoadWarning, encode_answer, left_out, load, type_of
from slipform.text.repair.tokens import RepairEdit
from slipform.text.runaway import Runaway, is_periodic, runaway_in
from slipform.text.strict import compact_json, parse
from slipform.text.work import bounded_work, current_budget

_MOST_NODES = 100
_LONGEST_EXCERPT = 40
_REPEATED_ROWS = 256
_REPEATED_CHARS = 16_384


class SchemaHint:
    """A schema as the text search sees it: which roots it allows, and how many violations a value has.

    `lift` converts a value from the vendor's shape to the caller's.

    >>> SchemaHint(Schema.of({"type": "array"})).root_types
    frozenset({'array'})
    """

    __slots__ = ("_counted", "_lift", "_root_types", "_schema", "_switches")

    def __init__(
        self, schema: Schema[Any], lift: Callable[[Any], Any] | None = None, switches: Switches | None = None
    ) -> None:
        self._schema = schema
        self._lift = lift
        self._switches = switches
        self._counted: tuple[Any, int] | None = None
        """The value whose violations were counted last, and the count."""
        self._root_types: frozenset[str] | None = frozenset()
        """The allowed JSON types; empty until they are needed."""

    @property
    def root_types(self) -> frozenset[str] | None:
        """Return the JSON types that a value itself may have; for most answers this is never computed."""
        if self._root_types is not None and not self._root_types:
            self._root_types = None if self._lift else root_types(self._schema.document)
        return self._root_types

    def fits(self, value: Any) -> bool:
        """Return whether a value is valid."""
        current_budget().spend(json_size(value) // 10)
        return self._schema.fits(lifted(value, self._lift))

    def violations(self, value: Any) -> int:
        """Return the number of violations of a value."""
        if self._counted is None or self._counted[0] is not value:
            count = len(self._schema.validate(lifted(value, self._lift)))
            current_budget().spend(validation_work(json_size(value), count) if count else json_size(value) // 10)
            self._counted = (value, count)
        return self._counted[1]

    def remaining(self, value: Any) -> int:
        """Return the number of violations that remain after patching."""
        return len(patch(lifted(value, self._lift), self._schema, self._switches).violations)


def lifted(value: Any, lift: Callable[[Any], Any] | None) -> Any:
    """Return the value in the caller's shape; unchanged if it cannot be converted."""
    if lift is None:
        return value
    try:
        return lift(value)
    except (TypeError, ValueError, KeyError, AttributeError, IndexError):
        return value


def root_types(document: Mapping[str, Any]) -> frozenset[str] | None:
    """Return the JSON types that a schema's root may have, or None if they cannot be read from the schema.

    >>> sorted(root_types({"anyOf": [{"type": "object"}, {"type": ["null", "string"]}]}))
    ['null', 'object', 'string']
    """
    document = with_plain_references(document)
    types: set[str] = set()
    pending: list[Any] = [document]
    for _ in range(_MOST_NODES):
        if not pending:
            return frozenset(types)
        node = pending.pop()
        if not isinstance(node, Mapping):
            return None
        kind = node.get("type")
        union = node.get("anyOf", node.get("oneOf"))
        reference = reference_of(node)
        members = [node["const"]] if "const" in node else node.get("enum")
        if isinstance(members, list):
            types.update(type_of(each) for each in members)
        elif isinstance(kind, str):
            types.add(kind)
        elif isinstance(kind, list):
            types.update(each for each in kind if isinstance(each, str))
        elif isinstance(union, list):
            pending.extend(union)
        elif reference is not None:
            pending.append(lookup(document, reference))
        else:
            return None
    return None


NOT_TYPED: Final = object()
"""Marks a missing object of the schema's Python type; None may be a value of that type."""


@dataclass(frozen=True, slots=True)
class Requirement:
    """What answers are validated against: a schema of the content (None for any text), and one for each tool."""

    schema: Schema[Any] | None
    tools: Mapping[str, Schema[Any]] = field(default_factory=dict)
    switches: Switches = field(default_factory=Switches)
    repair: bool = True
    validators: tuple[Validator, ...] = ()
    """The caller's own checks of the typed value."""
    must_call: tuple[str, ...] = ()
    """The model must call one of these tools; empty if it need not call any."""
    calls: bool = True
    """Whether tools were offered; without tools, the arguments of a call are read as text."""
    strict_trailing: bool = False
    """Whether text around the JSON makes an answer invalid."""
    checks: tuple[Callable[[Any], Sequence[Violation]], ...] = ()
    """Checks of the JSON value by slipform itself."""
    answer_tool: str | None = RESERVED_TOOL
    """The reserved tool whose arguments are the answer; None if the caller has a tool of this name."""
    loads_tools: bool = False
    """Whether the vendor may call tools that it has loaded itself, whose schemas are unknown."""


class Verdict(msgspec.Struct, frozen=True):
    """The result of validating one answer: a valid value, or the error that explains why there is none."""

    value: Any = None
    candidate: str = ""
    """The text that was validated: the value's JSON if there is one, else the model's text."""
    repairs: tuple[RepairEdit, ...] = ()
    patched: Patched | None = None
    violations: tuple[Violation, ...] = ()
    warnings: tuple[ModelWarning, ...] = ()
    error: EnforcementError | None = None
    doubt: Violation | None = None
    """Why a valid value may not be what the model meant: it is accepted only if no attempt remains."""
    typed: Any = NOT_TYPED
    """The value as an object of the schema's Python type, if it is valid."""
    hopeless: bool = False
    """Whether a retry is pointless: the model refused."""
    tool_calls: tuple[ToolCall, ...] = ()
    """The model's calls of the caller's tools, with their arguments patched."""
    wrong_calls: Mapping[str, tuple[Violation, ...]] = msgspec.field(default_factory=dict)
    """The calls with invalid arguments, each with its violations."""
    doubtful_calls: Mapping[str, tuple[Violation, ...]] = msgspec.field(default_factory=dict)
    """The calls whose arguments are in doubt, each with the reason."""
    is_changed: bool = False
    """Whether the value is valid, but differs from the text already sent."""
    is_cut: bool = False
    """Whether slipform stopped the answer, so that the value lacks the part the model had not written yet."""

    def doubted(self) -> Verdict:
        """Return the same verdict as a failure; its violations repeat its warnings."""
        violations = (self.doubt,) if self.doubt is not None else ()
        return msgspec.structs.replace(
            self,
            violations=violations,
            error=violation_error(violations) if violations else None,
            warnings=tuple([warning for warning in self.warnings if warning.informs]),
            doubt=None,
            typed=NOT_TYPED,
            wrong_calls=self.doubtful_calls,
        )

    def changed(self) -> Verdict:
        """Return the same verdict as a failure, because the value differs from the text already sent."""
        return msgspec.structs.replace(self, error=changed_after_release(), typed=NOT_TYPED, is_changed=True)

    @property
    def ok(self) -> bool:
        """Whether there is a valid value."""
        return self.error is None


_DEPTH = 50


def is_whole(text: str, loaded: Loaded, document: Mapping[str, Any], lift: Callable[[Any], Any] | None = None) -> bool:
    """Return whether only closing brackets are missing, and the schema requires nothing before them.

    Then closing the brackets loses nothing. An open array might have had more items, and an object the keys that it
    lacks: those were cut off.

    >>> from slipform.text.loads import load
    >>> shape = {"type": "object", "properties": {"a": {"type": "string"}}}
    >>> is_whole('{"a": "b"', load('{"a": "b"'), shape)
    True
    >>> is_whole('[1, 2', load('[1, 2'), {"type": "array"})
    False
    """
    if lift is not None or {edit.kind for edit in loaded.edits} != {"missing_bracket"} or not _ends_closed(text):
        return False
    document = with_plain_references(document)
    value = loaded.value
    node = followed(document, document)
    for _ in range(_DEPTH):  # along the last branch: the missing brackets are among these
        if isinstance(value, dict):
            properties = node.get("properties")
            open_ended = node.get("additionalProperties", False) is not False or "patternProperties" in node
            if not isinstance(properties, Mapping) or open_ended or any(name not in value for name in properties):
                return False
            last: Any = next(reversed(value)) if value else None
            value, node = (value[last], followed(properties.get(last), document)) if value else (None, node)
        elif isinstance(value, list):
            if not isinstance(node.get("maxItems"), int) or len(value) < node["maxItems"]:
                return False
            value, node = (value[-1], followed(node.get("items"), document)) if value else (None, node)
        else:
            return True
    return False


def _ends_closed(text: str) -> bool:
    """Return whether the text ends with a finished value: digits and letters might have continued."""
    return text.rstrip()[-1:] in ('"', "}", "]")


__all__ = [
    "NOT_TYPED",
    "Requirement",
    "Validator",
    "Verdict",
    "answer_text",
    "judge",
    "judge_arguments",
    "judge_value",
    "violation_error",
]


SMALL_ANSWER: Final = 4_096
"""Characters of an answer that is validated quickly, whatever its content."""
LONG_ANSWER: Final = 1 << 18
"""Characters of an answer that takes milliseconds to judge even if it is valid."""
_FEW_CALLS: Final = 8
TRIALS_ON_LOOP: Final = 200_000
"""Units of work for patches tried on an event loop, while an answer grows."""


def is_quickly_judged(response: ModelResponse, standard: Requirement) -> bool:
    """Return whether an answer is validated quickly: it is small, or valid as written.

    >>> ints = Requirement(Schema.of(list[int]))
    >>> [is_quickly_judged(ModelResponse(text=text), ints) for text in ("[1", "[" + "1," * 3_000 + "1]", "[" * 5_000)]
    [True, True, False]
    """
    text = answer_text(response, standard.answer_tool)
    calls = [call for call in response.tool_calls if call.name != standard.answer_tool]
    size = len(text) + sum([len(call.arguments) for call in calls])
    if size < SMALL_ANSWER and len(calls) <= _FEW_CALLS:
        return True
    if size >= LONG_ANSWER:
        return False
    if calls:
        return all(
            is_valid_as_written(call.arguments, standard.tools[call.name])
            for call in calls
            if call.name in standard.tools
        )
    if standard.schema is None:
        return not standard.must_call
    return is_valid_as_written(text, standard.schema, response.lift)


def is_valid_as_written(text: str, schema: Schema[Any], lift: Callable[[Any], Any] | None = None) -> bool:
    """Return whether a text is JSON that fits, with nothing around it."""
    try:
        return schema.fits(lifted(parse(text), lift))
    except ValueError:
        return False


def judge(response: ModelResponse, standard: Requirement) -> Verdict:
    """Find the JSON in an answer, repair it, validate it against the full schema, and patch mechanical faults.

    >>> judge(ModelResponse(text='{"a": "1",}'), Requirement(Schema.of(dict[str, int]))).value
    {'a': 1}
    """
    text = response.text
    answers: list[str] = []
    own_calls: list[ToolCall] = []
    if response.tool_calls:
        text, answers, own_calls = _split_calls(response, standard)
    if response.stopped is not None:
        return _judge_stopped(response, text, response.stopped, standard)
    failed = _refusal_verdict(response, text)
    if isinstance(failed, EmptyAnswerError) and standard.calls and not own_calls and _calls_vendor_tool(response):
        return Verdict(value="", candidate="")
    if failed is not None and not (own_calls and isinstance(failed, EmptyAnswerError)):
        return Verdict(candidate=text, error=failed, hopeless=isinstance(failed, RefusalError))
    if own_calls:
        return _judge_calls(response, own_calls, standard)
    if standard.must_call:
        return _judge_missing_call(text, response, standard)
    if standard.schema is None:
        return Verdict(value=text, candidate=text)
    verdict = _judge_text(text, response, standard, standard.schema)
    if len(answers) > 1 and verdict.ok:
        return _with_other_calls(verdict, answers)
    return verdict


def _with_other_calls(verdict: Verdict, answers: Sequence[str]) -> Verdict:
    """Return the verdict on the first of several calls that each contain the answer; in doubt if they differ."""
    if all(_parsed_or_text(each) == _parsed_or_text(answers[0]) for each in answers[1:]):
        return verdict
    warning = ModelWarning("several_calls", f"The model gave {len(answers)} different answers; this is the first.")
    return msgspec.structs.replace(verdict, warnings=(*verdict.warnings, warning), doubt=doubt("several_calls"))


def _parsed_or_text(text: str) -> Any:
    """Return the value of a JSON text; for any other text, the text."""
    try:
        return parse(text)
    except ValueError:
        return text


def _calls_vendor_tool(response: ModelResponse) -> bool:
    """Return whether an answer without text is a call of a tool, or the result of one, that only its vendor knows."""
    unknown = (part.data for part in response.parts if isinstance(part, Opaque))
    return any(data.get("type") != "message" and not {"text", "tool_plan"} & data.keys() for data in unknown)


def judge_value(value: Any, standard: Requirement) -> Verdict:
    """Validate a value that is already parsed, in the same way as `judge`."""
    if standard.schema is None:
        return Verdict(value=value, candidate=compact_json(value))
    try:
        return _validate_and_patch(value, Loaded(value, 0, 0), standard, standard.schema)
    except JsonEnforcementError as error:
        return Verdict(value=value, error=error)


def _split_calls(response: ModelResponse, standard: Requirement) -> tuple[str, list[str], list[ToolCall]]:
    """Return the text of an answer, the arguments of calls that are the answer, and the calls of other tools.

    Without offered tools, a call of any tool is accepted as the answer if the text is empty.
    """
    answers = [call.arguments for call in response.tool_calls if call.name == standard.answer_tool]
    own_calls = [call for call in response.tool_calls if call.name != standard.answer_tool]
    text = answers[0] if answers else response.text
    if not own_calls or standard.calls:
        return text, answers, own_calls
    if not text.strip():
        answers = [call.arguments for call in own_calls]
        text = answers[0]
    return text, answers, []


def _judge_stopped(response: ModelResponse, text: str, error: EnforcementError, standard: Requirement) -> Verdict:
    """Return the verdict on a stopped answer; if it was endless, a value closed before that is the answer."""
    if isinstance(error, RunawayError):
        verdict = judge(response.replace(stopped=None, finish="length"), standard)
        if verdict.ok:
            return verdict
    return Verdict(candidate=text, error=error)


def _unreadable(text: str, response: ModelResponse, error: JsonEnforcementError) -> Verdict:
    """Return the verdict on a text without readable JSON."""
    if response.finish != "length" and error.details.get("reason") == UNFINISHED_REASONING:
        # Unfinished reasoning is neither shown to the model again nor given to a formatter.
        return Verdict(violations=(_UNFINISHED,), error=error)
    return Verdict(
        candidate=text, error=_runaway_error(text) or (was_truncated() if response.finish == "length" else error)
    )


def _judge_text(text: str, response: ModelResponse, standard: Requirement, schema: Schema[Any]) -> Verdict:
    """Return the verdict on an answer's text: find the JSON, repair it, lift it, patch it and validate it."""
    hint = SchemaHint(schema, response.lift, standard.switches)
    try:
        loaded = load(text, hint)
        if loaded.edits and not standard.repair:
            load(text[loaded.start : loaded.end], strict=True)  # raises: it is not valid as written
    except JsonEnforcementError as error:
        return _unreadable(text, response, error)
    if response.finish == "length" and loaded.edits and not is_whole(text, loaded, schema.document, response.lift):
        return _cut(text, loaded, was_truncated())
    if loaded.edits and _is_cut(text, loaded):
        return _cut(text, loaded, _cut_short())
    try:
        value = loaded.value if response.lift is None else lifted(loaded.value, response.lift)
        verdict = _validate_and_patch(value, loaded, standard, schema)
    except JsonEnforcementError as error:
        return Verdict(candidate=text, error=error)
    if len(text) >= _REPEATED_CHARS and verdict.ok and (count := _equal_rows(text, verdict.value)):
        message = f"{count} equal objects follow one another in a list; the model may have repeated itself."
        verdict = msgspec.structs.replace(verdict, warnings=(*verdict.warnings, ModelWarning("repeated_rows", message)))
    if loaded.start == 0 and loaded.end == len(text):
        return verdict
    return _without_surroundings(verdict, text, left_out(text, loaded.start, loaded.end), standard)


_UNFINISHED = Violation("", "", "reasoning", "the answer ended in its reasoning: reason briefly, then write the JSON")


def _without_surroundings(
    verdict: Verdict, text: str, spans: Sequence[tuple[int, int]], standard: Requirement
) -> Verdict:
    """Return the verdict with a note about the text that was left out; `strict_trailing` makes that text a fault."""
    if not spans:
        return verdict
    shown = " and ".join(f"characters {start} to {end} ({_excerpt(text[start:end])})" for start, end in spans)
    if standard.strict_trailing and verdict.ok:
        error = JsonEnforcementError(
            "There is text around the JSON",
            where=shown,
            hint="Ask for JSON only, or turn `strict_trailing` off.",
            details={"spans": [list(span) for span in spans]},
        )
        return Verdict(candidate=text, repairs=verdict.repairs, error=error)
    path = ",".join(f"{start}:{end}" for start, end in spans)
    note = ModelNote("text_left_out", f"Text around the JSON was left out: {shown}.", path)
    return msgspec.structs.replace(verdict, warnings=(*verdict.warnings, note))


def _excerpt(text: str) -> str:
    words = " ".join(text.split())
    return json.dumps(words if len(words) <= _LONGEST_EXCERPT else words[:_LONGEST_EXCERPT] + "…", ensure_ascii=False)


def _equal_rows(text: str, value: Any) -> int:
    """Return the length of a run of equal objects in a list if it is long enough to suggest a loop; else 0."""
    block = _REPEATED_CHARS // 2
    starts = range(0, len(text) - block, block)
    if not any(is_periodic(text[start : start + block], block, block // 2) for start in starts):
        return 0
    longest = 0
    pending = [value]
    while pending:
        each = pending.pop()
        if isinstance(each, dict):
            pending += each.values()
        elif isinstance(each, list):
            run = 1
            for before, after in pairwise(each):
                run = run + 1 if isinstance(after, dict) and after == before else 1
                longest = max(longest, run)
            pending += each
    return longest if longest >= _REPEATED_ROWS else 0


def _cut(text: str, loaded: Loaded, error: EnforcementError) -> Verdict:
    if (endless := _runaway_error(text)) is not None:
        return Verdict(candidate=text, error=endless)
    return Verdict(candidate=text, repairs=loaded.edits, error=error)


def _runaway_error(text: str) -> RunawayError | None:
    """Return the error for an unreadable text that repeats itself to its end; None for any other text."""
    runaway = runaway_in(text)
    return None if runaway is None else runaway_error(runaway)


def runaway_error(runaway: Runaway, where: str = "text") -> RunawayError:
    """Return the error for an answer that repeats itself endlessly."""
    what = {"blanks": "blanks", "digits": "the digits of one number", "string": "one phrase in a string"}
    return RunawayError(
        f"The model wrote {what.get(runaway.kind, 'one phrase')} without end",
        where=f"character {runaway.length} of its {where}",
        hint="Retry, or use another model; vLLM has the server option `disable_any_whitespace`."
        if runaway.kind == "blanks"
        else "Ask again with a `frequency_penalty`, or ask another model.",
        details={"kind": runaway.kind, "position": runaway.length},
    )


def _is_cut(text: str, loaded: Loaded) -> bool:
    """Return whether a value was cut in the middle.

    Closing open brackets is safe; half a value is not what the model meant. A number at the end of the text may have
    had more digits; one with a blank after it is whole.
    """
    kinds = {edit.kind for edit in loaded.edits}
    return "truncated" in kinds or ("missing_bracket" in kinds and text[-1:].isdigit())


def _patched_for_type(
    value: Any, schema: Schema[Any], violations: Sequence[Violation], before: Patched | None
) -> Patched | None:
    """Return the patches so far and those that make a value fit the schema's Python type."""
    coerced = patch_for_type(value, schema, violations)
    if coerced is None or before is None:
        return coerced or before
    return Patched(coerced.value, (*before.edits, *coerced.edits))


def _validate_and_patch(value: Any, loaded: Loaded, standard: Requirement, schema: Schema[Any]) -> Verdict:
    """Validate a loaded value; raises `JsonEnforcementError` for one that is too deep, or takes too much work."""
    patched: Patched | None = None
    violations: Sequence[Violation] = ()
    if not schema.fits(value):
        # A lifted value has other paths than the text.
        source = loaded.source if value is loaded.value else ""
        patched = patch_as_written(value, source, schema, standard.switches)
        value = patched.value
        violations = patched.violations
    candidate, text = _encoded(value)
    notes = loaded.notes
    # A value that reads the same when written again has no duplicate key, and this one no escape.
    if candidate != loaded.source or "\\" in candidate:
        notes = loaded.warnings_for(text if value is loaded.value else None)
    if patched is not None:
        notes = (*notes, *dropped_data(patched))
    typed = NOT_TYPED
    if not violations:
        typed, violations = schema.read(value, text)
        if violations and standard.switches.coerce:
            patched = _patched_for_type(value, schema, violations, patched)
            value = value if patched is None else patched.value
            candidate, text = _encoded(value)
            typed, violations = schema.read(value, text)
        if not violations and (standard.checks or standard.validators):
            violations = _run_checks(value, typed, standard)
    error = None
    doubt_left = None
    if violations:
        typed = NOT_TYPED
        error = violation_error(violations)
    elif notes:
        doubt_left = first_doubt(notes, loaded.source, patched)
    return Verdict(
        value,
        candidate,
        loaded.edits,
        patched if patched is not None and patched.edits else None,
        tuple(violations),
        tuple(map(_warning_of, notes)),
        error,
        doubt_left,
        typed,
    )


def _warning_of(note: LoadWarning) -> ModelWarning:
    return ModelWarning(note.kind, note.message)


def _run_checks(value: Any, typed: Any, standard: Requirement) -> list[Violation]:
    """Return the violations that slipform's checks and the caller's validators find in a valid, typed value."""
    violations = [violation for check in standard.checks for violation in check(value)]
    return violations or complaints(standard.validators, typed, value)


def _judge_calls(response: ModelResponse, calls: Sequence[ToolCall], standard: Requirement) -> Verdict:
    """Repair, validate and patch the arguments of the caller's tools like any other answer."""
    patched_calls: list[ToolCall] = []
    wrong: dict[str, tuple[Violation, ...]] = {}
    doubtful: dict[str, tuple[Violation, ...]] = {}
    warnings: tuple[ModelWarning, ...] = ()
    repairs: tuple[RepairEdit, ...] = ()
    for call in calls:
        if call.name not in standard.tools:
            patched_calls.append(call)
            if standard.tools and not standard.loads_tools:
                names = ", ".join(standard.tools)
                wrong[call.id] = (Violation("", "", "tool", f"unknown tool {call.name!r}; the tools are {names}"),)
            continue
        # The token limit cuts only the last call.
        verdict = judge_arguments(call.name, call.arguments, standard, response.finish if call is calls[-1] else "stop")
        repairs += verdict.repairs
        if verdict.ok:
            warnings += tuple([warning for warning in verdict.warnings if not warning.informs])
            if verdict.doubt is not None:
                doubtful[call.id] = (verdict.doubt,)
            patched_calls.append(
                dataclasses.replace(call, arguments=verdict.candidate, arguments_resolved=verdict.value)
            )
        else:
            violations = verdict.violations or (Violation("", "", "json", str(verdict.error), steps=()),)
            wrong[call.id] = violations
            patched_calls.append(call)
    violations = tuple(violation for each in wrong.values() for violation in each)
    error = None
    if violations:
        error = violation_error(violations, what="A tool call's arguments are")
    cut = response.finish == "length" and error is not None
    return Verdict(
        candidate=response.text,
        repairs=repairs,
        violations=violations,
        warnings=warnings,
        error=was_truncated() if cut else error,
        doubt=next(iter(doubtful.values()))[0] if doubtful and error is None else None,
        tool_calls=tuple(patched_calls),
        wrong_calls=wrong,
        doubtful_calls=doubtful,
    )


def judge_arguments(name: str, arguments: str, standard: Requirement, finish: FinishReason = "stop") -> Verdict:
    """Validate the arguments of one call against its tool's schema; missing arguments are an empty object."""
    plain = dataclasses.replace(standard, validators=(), checks=())
    return _judge_text(arguments or "{}", ModelResponse(finish=finish), plain, standard.tools[name])


def _judge_missing_call(text: str, response: ModelResponse, standard: Requirement) -> Verdict:
    """Return the verdict where a call was required and the model wrote text; arguments of one tool count as a call."""
    try:
        with bounded_work(len(text)):
            return _find_call(text, response, standard)
    except WorkLimitError as error:
        return Verdict(candidate=text, error=error)


def _find_call(text: str, response: ModelResponse, standard: Requirement) -> Verdict:
    """Return a verdict with the tool call whose arguments the text contains, if exactly one tool accepts them."""
    plain = dataclasses.replace(standard, validators=(), checks=())
    unlifted = response.replace(lift=None)
    verdicts = {name: _judge_text(text, unlifted, plain, standard.tools[name]) for name in standard.must_call}
    fitting = {name: verdict for name, verdict in verdicts.items() if verdict.ok} or _written_call(text, plain)
    if len(fitting) == 1:
        name, verdict = next(iter(fitting.items()))
        call = ToolCall("call_1", name, verdict.candidate, arguments_resolved=verdict.value)
        warning = ModelWarning(
            "tool_call_from_text", f"The model wrote the arguments of {name!r} instead of calling it."
        )
        warnings = (*verdict.warnings, warning)
        return msgspec.structs.replace(verdict, value=None, candidate="", warnings=warnings, tool_calls=(call,))
    first = next(iter(verdicts.values()))
    if response.finish == "length" or len(verdicts) == 1:
        return first
    names = " or ".join(standard.must_call)
    violations = (Violation("", "", "tool", f"no tool was called; {names} has to be", steps=()),)
    return Verdict(candidate=text, violations=violations, error=violation_error(violations, what="The answer is"))


def _written_call(text: str, standard: Requirement) -> dict[str, Verdict]:
    """Return the call written as `{"name": …, "arguments": {…}}`, by the tool's name."""
    try:
        written = load(text).value
    except JsonEnforcementError:
        return {}
    name = written.get("name") if isinstance(written, dict) else None
    if name not in standard.must_call:
        return {}
    arguments = next((written[key] for key in ("arguments", "parameters", "input") if key in written), None)
    verdict = judge_value(arguments, dataclasses.replace(standard, schema=standard.tools[name]))
    return {name: verdict} if verdict.ok else {}


def violation_error(violations: Sequence[Violation], what: str = "The answer is JSON but") -> SchemaViolationError:
    """Return the error for JSON that violates its schema."""
    first = violations[0]
    rest = f" (and {len(violations) - 1} more)" if len(violations) > 1 else ""
    return SchemaViolationError(
        f"{what} not valid: {first.message}{rest}",
        where=first.json_path,
        hint="Allow more attempts, relax the schema, or ask a stronger model.",
        details={"validation_errors": [violation.to_dict() for violation in violations]},
    )


def answer_text(response: ModelResponse, answer_tool: str | None = RESERVED_TOOL) -> str:
    """Return the text that contains the answer: the arguments of the answer tool if it was called, else the content."""
    if not response.tool_calls:
        return response.text
    return next((call.arguments for call in response.tool_calls if call.name == answer_tool), response.text)


def _encoded(value: Any) -> tuple[str, bytes | None]:
    """Return compact JSON and its bytes; the bytes are None for values that strict encoders refuse."""
    try:
        text = orjson.dumps(value)
    except TypeError:
        return encode_answer(value), None
    return text.decode(), text


def _refusal_verdict(response: ModelResponse, text: str) -> EnforcementError | None:
    """Return the verdict on a refusal, a filtered or an empty answer: these are never parse errors."""
    if response.refusal is not None or response.finish == "refusal":
        return RefusalError(f"The model refused: {response.refusal or text}", hint="Change the request.")
    if response.finish == "content_filter":
        details = {"filtered": True}
        return RefusalError("A safety filter stopped the answer", hint="Change the request.", details=details)
    if not text.strip():
        if response.finish == "length":
            return was_truncated()
        return EmptyAnswerError("The model gave back nothing", hint="Retry, or use another model.")
    return None


def was_truncated() -> TruncatedError:
    """Return the error for an answer that was cut off by its token limit."""
    return TruncatedError(
        "The answer was cut off by the token limit before its JSON closed", hint="Raise `max_tokens`."
    )


def changed_after_release() -> JsonEnforcementError:
    """Return the error for a valid answer that contradicts the part of it, or of an earlier attempt, already sent."""
    return JsonEnforcementError(
        "The answer had to be changed where it had already been sent",
        hint="Ask without `stream`, or with the stream mode `buffer`.",
    )


def _cut_short() -> TruncatedError:
    return TruncatedError("The answer ends in the middle of a value", hint="Retry, or use another model.")
