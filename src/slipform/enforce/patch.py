"""`patch`: a well-formed value → a valid one, by recorded mechanical edits that lose nothing.

A value that is valid is not touched. An edit is kept only if it lowers the number of violations, and never invents:
what is missing stays missing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from slipform.enforce.branches import UNIONS, branch_fixes
from slipform.enforce.fixes import ABSENT, Edit, Fix, Steps, Switches, at, fixes
from slipform.ir.quick import quick
from slipform.schema import Schema, Violation
from slipform.schema.violations import pointer

_MOST_ROUNDS = 4
_MOST_TRIALS = 200
_ORDER = {"move": 0, "add": 1, "replace": 2, "remove": 3}  # what is renamed must not have been dropped before


@quick
@dataclass(frozen=True, slots=True)
class Patched:
    """A value, the edits that made it, and what is still wrong with it.

    >>> schema = Schema.of({"type": "object", "properties": {"n": {"type": "integer"}}})
    >>> patched = patch({"n": "42"}, schema)
    >>> patched.value, patched.operations
    ({'n': 42}, [{'op': 'replace', 'path': '/n', 'value': 42}])
    """

    value: Any
    edits: tuple[Edit, ...] = ()
    violations: tuple[Violation, ...] = ()

    @property
    def operations(self) -> list[dict[str, Any]]:
        """The edits as JSON Patch (RFC 6902)."""
        return [_operation(edit) for edit in self.edits]


def patch(value: Any, schema: Schema[Any], switches: Switches | None = None) -> Patched:
    """Mend what can be mended mechanically."""
    allowed = switches or Switches()
    found = schema.validate(value)
    if not found:
        return Patched(value)
    if (unwrapped := _unwrapped(value, schema, allowed)) is not None:
        return unwrapped
    edits: tuple[Edit, ...] = ()
    for _ in range(_MOST_ROUNDS):
        mended = _round(value, found, schema, allowed)
        if mended is None:
            break
        value, found, made = mended
        edits += made
        if not found:
            break
    return Patched(value, edits, tuple(found))


def _unwrapped(value: Any, schema: Schema[Any], allowed: Switches) -> Patched | None:
    """`{"invoice": {…}}` where the inside is the answer."""
    if not isinstance(value, dict) or len(value) != 1:
        return None
    (key, inner), *_ = value.items()
    properties = schema.document.get("properties")
    if not isinstance(inner, dict | list) or (isinstance(properties, dict) and key in properties):
        return None
    found = schema.validate(inner)
    edit = Edit("replace", (), f"the whole answer stood under the key {key!r}", "medium", inner)
    if not found:
        return Patched(inner, (edit,))
    mended = patch(inner, schema, allowed)
    return None if mended.violations else Patched(mended.value, (edit, *mended.edits))


def _round(
    value: Any, found: Sequence[Violation], schema: Schema[Any], allowed: Switches
) -> tuple[Any, list[Violation], tuple[Edit, ...]] | None:
    """One pass over the violations: all first choices together when that mends everything, else one by one."""
    choices = [_options(violation, value, schema.document, allowed) for violation in found[:_MOST_TRIALS]]
    choices.sort(key=lambda options: _ORDER[options[0][0].op] if options else 0)
    if all(choices) and len(found) <= _MOST_TRIALS:
        trial, made = apply(value, [edit for options in choices for edit in options[0]])
        if made and not (left := schema.validate(trial)):
            return trial, left, made
    return _one_by_one(value, list(found), choices, schema)


def _options(violation: Violation, value: Any, document: Mapping[str, Any], allowed: Switches) -> list[Fix]:
    if violation.keyword not in UNIONS:
        return list(fixes(violation, value, document, allowed))
    within = branch_fixes(violation, value, document, allowed, patch)
    return [*within, *fixes(violation, value, document, allowed)]


def _one_by_one(
    value: Any, found: list[Violation], choices: list[list[Fix]], schema: Schema[Any]
) -> tuple[Any, list[Violation], tuple[Edit, ...]] | None:
    kept: tuple[Edit, ...] = ()
    for options in choices:
        for fix in options:
            trial, made = apply(value, fix)
            if made and len(left := schema.validate(trial)) < len(found):
                value, found, kept = trial, left, (*kept, *made)
                break
    return (value, found, kept) if kept else None


def apply(value: Any, edits: Sequence[Edit]) -> tuple[Any, tuple[Edit, ...]]:
    """The value with these edits made, and those of them that changed something.

    What is not on their paths is shared; nothing is changed in place.

    >>> apply({"a": {"b": 1}, "c": 2}, [Edit("remove", ("a", "b"), "because")])[0]
    {'a': {}, 'c': 2}
    """
    made: list[Edit] = []
    for edit in edits:
        if edit.op == "move":
            changed = _moved(value, edit)
        else:
            changed = _put(value, edit.steps, edit.value if edit.op != "remove" else ABSENT)
        if changed is not value:
            value = changed
            made.append(edit)
    return value, tuple(made)


def _moved(value: Any, edit: Edit) -> Any:
    """A key renamed in place, so that the order of the keys stays."""
    holder = at(value, edit.source[:-1])
    if not isinstance(holder, dict) or edit.source[-1] not in holder:
        return value
    old, new = edit.source[-1], edit.steps[-1]
    renamed = {(new if key == old else key): each for key, each in holder.items()}
    return _put(value, edit.source[:-1], renamed)


def _put(value: Any, steps: Steps, new: Any) -> Any:
    if not steps:
        return new
    step, rest = steps[0], steps[1:]
    if isinstance(value, list) and isinstance(step, int) and step < len(value) and (rest or new is not ABSENT):
        part = _put(value[step], rest, new)
        return value if part is value[step] else [*value[:step], part, *value[step + 1 :]]
    if not isinstance(value, dict) or (step not in value and (rest or new is ABSENT)):
        return value
    if not rest and new is ABSENT:
        return {key: each for key, each in value.items() if key != step}
    part = _put(value.get(str(step)), rest, new)
    return value if step in value and part is value[step] else {**value, step: part}


def _operation(edit: Edit) -> dict[str, Any]:
    operation: dict[str, Any] = {"op": edit.op, "path": pointer(edit.steps)}
    if edit.op == "move":
        operation["from"] = pointer(edit.source)
    elif edit.op != "remove":
        operation["value"] = edit.value
    return operation
