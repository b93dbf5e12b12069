"""Keep the valid calls of an answer whose other calls are retried, and merge both answers."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence

from slipform.ir import ModelResponse, ToolCall
from slipform.ir.parts import with_content
from slipform.text.strict import compact_json, parse

_BETWEEN = "\n\n"


def with_kept_calls(before: ModelResponse, wrong: Collection[str], again: ModelResponse) -> ModelResponse:
    """Return the new answer with the valid calls of the earlier one, which the model need not repeat.

    A new call takes the place, and the id, of a wrong one: the one in the same position if the model made all its calls
    again, else the first of the same name. Remaining new calls are added; one that equals a kept call is dropped.
    Without a kept call, or without new calls, the new answer is returned unchanged.

    >>> first = ModelResponse(tool_calls=(ToolCall("a", "look", '{"at":1}'), ToolCall("b", "look", "{")))
    >>> again = ModelResponse(tool_calls=(ToolCall("c", "look", '{"at":2}'),))
    >>> [(call.id, call.arguments) for call in with_kept_calls(first, {"b"}, again).tool_calls]
    [('a', '{"at":1}'), ('b', '{"at":2}')]
    """
    calls = before.tool_calls
    valid = [call for call in calls if call.id not in wrong]
    if not valid or not (again.tool_calls or again.text.strip()) or len({call.id for call in calls}) < len(calls):
        return again
    replacements, new = _match_calls(calls, wrong, list(again.tool_calls))
    final = {call.id: call for call in valid}
    final |= {identity: dataclasses.replace(call, id=identity) for identity, call in replacements.items()}
    new_text = "" if again.tool_calls else again.text
    text = before.text + (_BETWEEN if before.text and new_text else "") + new_text
    merged = (*[final[call.id] for call in calls if call.id in final], *with_unique_ids(new, final))
    parts = with_content(before.parts, text, merged) if before.parts else ()
    return again.replace(text=text, tool_calls=merged, reasoning=before.reasoning, parts=parts)


def with_unique_ids(calls: Sequence[ToolCall], taken: Collection[str]) -> list[ToolCall]:
    """Return the calls with ids that no other call has: some servers restart their numbers with every answer.

    >>> [call.id for call in with_unique_ids([ToolCall("call_0", "look", "{}")], {"call_0"})]
    ['call_0_1']
    """
    out: list[ToolCall] = []
    used = set(taken)
    for call in calls:
        identity = call.id
        number = 1
        while identity in used:
            identity = f"{call.id}_{number}"
            number = number + 1
        used.add(identity)
        out.append(call if identity == call.id else dataclasses.replace(call, id=identity))
    return out


def _match_calls(
    calls: Sequence[ToolCall], wrong: Collection[str], new: list[ToolCall]
) -> tuple[dict[str, ToolCall], list[ToolCall]]:
    """Return the new calls that replace wrong ones, by the ids of those, and the remaining new calls."""
    if [call.name for call in new] == [call.name for call in calls]:
        pairs = zip(calls, new, strict=True)
        return {call.id: each for call, each in pairs if call.id in wrong}, []
    meanings = {_normalised(call) for call in calls if call.id not in wrong}
    left = [call for call in new if _normalised(call) not in meanings]
    replacements = _by_name([call for call in calls if call.id in wrong], left)
    return replacements, left


def _by_name(calls: Sequence[ToolCall], new: list[ToolCall]) -> dict[str, ToolCall]:
    """Remove from `new` the replacement of each of these calls; return the replacements by the id they replace."""
    made: dict[str, ToolCall] = {}
    for call in calls:
        match = next((each for each in new if each.name == call.name), None)
        if match is not None:
            made[call.id] = match
            new.remove(match)
    return made


def _normalised(call: ToolCall) -> tuple[str, str]:
    """Return a call's name and normalised arguments, for comparison."""
    try:
        return call.name, compact_json(parse(call.arguments or "{}"))
    except ValueError:
        return call.name, call.arguments
