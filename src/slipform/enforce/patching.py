"""Which recorded mechanical edits make a value valid: `patch`.

A value that is valid is not touched. An edit is kept only if it helps, as the validator says, and never invents: what
is missing stays missing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from slipform.enforce.coercion import (
    ABSENT,
    UNIONS,
    Fix,
    PatchEdit,
    Steps,
    Switches,
    at,
    bare,
    branch_fixes,
    coercions,
    folded,
    without_grouping,
)
from slipform.schema import Schema, Violation
from slipform.schema.document import (
    followed,
    join_pointer,
    locate,
    lookup,
    reference_of,
    split_pointer,
    with_plain_references,
)
from slipform.text.reasoning import call_arguments
from slipform.text.strict import parse


def fixes(violation: Violation, value: Any, document: Mapping[str, Any], switches: Switches) -> Iterator[Fix]:
    """The edits that may mend this violation of `value`, best first; each is to be tried, none to be trusted."""
    steps = violation.steps or ()
    found = at(value, steps)
    if violation.keyword in ("additionalProperties", "unevaluatedProperties", "falseSchema"):
        if switches.drop_extra:
            yield from _drop(violation, steps, found, document)
        return
    holder = locate(document, violation.schema_path.rpartition("/")[0])
    if found is ABSENT or not isinstance(holder, Mapping):
        return
    if violation.keyword == "required":
        yield from _missing(violation, steps, found, holder, switches)
        return
    if found is None and steps and isinstance(steps[-1], str) and _is_optional(violation, document):
        yield (PatchEdit("remove", steps, "null for an optional key"),)
    accepted = _Accepted.under(holder, document)
    if switches.coerce:
        yield from _members(steps, found, accepted)
        for each in coercions(found, accepted.types, units=switches.units):
            yield (PatchEdit("replace", steps, each.reason, each.risk, each.value),)
    if switches.wrap_scalars and "array" in accepted.types and not isinstance(found, list):
        yield (PatchEdit("replace", steps, "one value as an array", "medium", [found]),)


def _drop(violation: Violation, steps: Steps, found: Any, document: Mapping[str, Any]) -> Iterator[Fix]:
    if violation.keyword == "additionalProperties":
        yield (PatchEdit("remove", steps, "a key the schema forbids"),)
    elif isinstance(found, dict):
        # The validator names the object, not its keys: those that the schema nowhere speaks of go.
        spoken = _all_property_names(document)
        extra = [key for key in found if key not in spoken]
        if extra:
            yield tuple(PatchEdit("remove", (*steps, key), "a key the schema forbids") for key in extra)


def _missing(
    violation: Violation, steps: Steps, found: Any, holder: Mapping[str, Any], switches: Switches
) -> Iterator[Fix]:
    if not isinstance(found, Mapping):
        return
    properties = holder.get("properties")
    known = properties if isinstance(properties, Mapping) else {}
    absent = [name for name in holder.get("required", ()) if name not in found]
    for name in absent:
        if f'"{name}"' not in violation.message:
            continue
        alike = [key for key in found if key not in known and folded(key) == folded(name)]
        if switches.rename_keys and len(alike) == 1:
            reason = "a key spelled another way"
            yield (PatchEdit("move", (*steps, name), reason, "medium", source=(*steps, alike[0])),)
        yield from _given_by_the_schema((*steps, name), known.get(name), switches)


def _given_by_the_schema(steps: Steps, shape: Any, switches: Switches) -> Iterator[Fix]:
    if not isinstance(shape, Mapping):
        return
    only = [shape["const"]] if "const" in shape else shape.get("enum")
    if switches.fill_constants and isinstance(only, list) and len(only) == 1:
        yield (PatchEdit("add", steps, "the one value the schema allows here", "low", only[0]),)
    if switches.fill_defaults and "default" in shape:
        yield (PatchEdit("add", steps, "the schema's default", "medium", shape["default"]),)


def _is_optional(violation: Violation, document: Mapping[str, Any]) -> bool:
    """Whether the key that holds the value may be left out, as far as the object schema around it says."""
    path = violation.schema_path.rpartition("/")[0]
    around, _, last = path.rpartition("/properties/")
    name = split_pointer("/" + last)
    holder = locate(document, around) if last and len(name) == 1 else None
    if not isinstance(holder, Mapping):
        return True  # reached by a reference or a union: leaving it out is tried, and kept only if that validates
    return name[0] not in holder.get("required", ())


@dataclass(frozen=True, slots=True)
class _Accepted:
    """What a schema takes, as far as it can be read off: types by name, and listed members."""

    types: frozenset[str]
    members: tuple[Any, ...]

    @classmethod
    def under(cls, schema: Any, document: Mapping[str, Any]) -> _Accepted:
        types: set[str] = set()
        members: list[Any] = []
        pending, seen = [schema], 0
        while pending and seen < 200:
            node = pending.pop()
            seen += 1
            if not isinstance(node, Mapping):
                continue
            kinds = node.get("type")
            types.update([kinds] if isinstance(kinds, str) else kinds if isinstance(kinds, list) else [])
            if isinstance(listed := node.get("enum"), list):
                members += listed
            if "const" in node:
                members.append(node["const"])
            for union in ("anyOf", "oneOf", "allOf"):
                if isinstance(branches := node.get(union), list):
                    pending.extend(branches)
            if (reference := reference_of(node)) is not None:
                pending.append(lookup(document, reference))
        return cls(frozenset(types), tuple(members))


def _members(steps: Steps, found: Any, accepted: _Accepted) -> Iterator[Fix]:
    """A listed member in another case, with blanks around it, or with a number written as text."""
    if not isinstance(found, str):
        return
    for spelled in (_in_case, _in_letters):
        wanted = spelled(found)
        fitting = [member for member in accepted.members if wanted and spelled(_as_text(member)) == wanted]
        if fitting:
            if len(fitting) == 1:
                yield (PatchEdit("replace", steps, "a listed value, spelled as listed", "medium", fitting[0]),)
            return


def _in_case(text: str) -> str:
    return text.strip().casefold()


def _in_letters(text: str) -> str:
    """Also without quotes, marks of emphasis and the stop around it, and with one mark between words."""
    return bare(text)


def _as_text(member: Any) -> str:
    if isinstance(member, str):
        return member.strip()
    if isinstance(member, bool):
        return "true" if member else "false"
    return str(member) if isinstance(member, int) else ""


def _all_property_names(document: Any) -> set[str]:
    names: set[str] = set()
    pending = [document]
    while pending:
        node = pending.pop()
        if isinstance(node, Mapping):
            if isinstance(properties := node.get("properties"), Mapping):
                names.update(properties)
            pending.extend(node.values())
        elif isinstance(node, list):
            pending.extend(node)
    return names


_MOST_ROUNDS = 6
_MOST_TRIED = 200
_MOST_WORK = 5_000
_TRIAL_COST = 25
"""What one validation of a value with edits on trial costs, beside one for each violation it finds."""
_ORDER = {"move": 0, "add": 1, "replace": 2, "remove": 3}  # what is renamed must not have been dropped before


class Patched(msgspec.Struct, frozen=True):
    """A value, the edits that made it, and what is still wrong with it.

    >>> schema = Schema.of({"type": "object", "properties": {"n": {"type": "integer"}}})
    >>> patched = patch({"n": "42"}, schema)
    >>> patched.value, patched.operations
    ({'n': 42}, [{'op': 'replace', 'path': '/n', 'value': 42}])
    """

    value: Any
    edits: tuple[PatchEdit, ...] = ()
    violations: tuple[Violation, ...] = ()

    @property
    def operations(self) -> list[dict[str, Any]]:
        """The edits as JSON Patch (RFC 6902)."""
        return [_operation(edit) for edit in self.edits]


def patch(value: Any, schema: Schema[Any], switches: Switches | None = None) -> Patched:
    """Mend what can be mended mechanically.

    An edit counts if it lowers the number of violations. One that only moves a violation deeper, where the next edit
    may reach it (a key renamed, whose value is a number written as text), counts if the whole then becomes valid.
    """
    allowed = switches or Switches()
    found = schema.validate(value)
    if not found:
        return Patched(value)
    if (unwrapped := _unwrapped(value, schema, allowed)) is not None:
        return unwrapped
    trials = _Trials(schema, Patched(value, (), tuple(found)))
    for _ in range(_MOST_ROUNDS):
        if trials.left <= 0 or not _round(trials, allowed):
            break
    return trials.best


def patch_for_type(value: Any, schema: Schema[Any], said: Sequence[Violation]) -> Patched | None:
    """Mend what fits the schema and not its Python type; None where that cannot be.

    A `Decimal` may be a number or any text in JSON Schema: grouped digits in a text are read as for a number.
    """
    edits = []
    for violation in said:
        found = at(value, violation.steps or ())
        plain = without_grouping(found) if isinstance(found, str) and violation.keyword.startswith("decimal") else None
        if plain is None:
            return None
        edits.append(PatchEdit("replace", violation.steps or (), "grouped digits as number", "medium", plain))
    mended, made = apply(value, edits)
    return Patched(mended, made) if schema.fits(mended) else None


def _unwrapped(value: Any, schema: Schema[Any], allowed: Switches) -> Patched | None:
    """`{"invoice": {…}}` where the inside is the answer, or a tool call whose arguments are."""
    for name, inner in call_arguments(value):
        if isinstance(inner, str):
            try:
                inner = parse(inner)
            except ValueError:
                continue
        if schema.fits(inner):
            return Patched(inner, (PatchEdit("replace", (), f"the {name!r} of a tool call", "medium", inner),))
    if not isinstance(value, dict) or len(value) != 1:
        return None
    (key, inner), *_ = value.items()
    document = with_plain_references(schema.document)
    properties = followed(document, document).get("properties")
    if not isinstance(inner, dict | list) or (isinstance(properties, dict) and key in properties):
        return None
    found = schema.validate(inner)
    edit = PatchEdit("replace", (), f"the whole answer stood under the key {key!r}", "medium", inner)
    if not found:
        return Patched(inner, (edit,))
    mended = patch(inner, schema, allowed)
    return None if mended.violations else Patched(mended.value, (edit, *mended.edits))


def _round(trials: _Trials, allowed: Switches) -> bool:
    """Try the edits that may mend what is wrong now; whether any counted."""
    value, document = trials.now.value, with_plain_references(trials.schema.document)
    choices = []
    for violation in trials.now.violations[:_MOST_TRIED]:
        options = _options(violation, value, document, allowed)
        if (first := next(options, None)) is not None:
            choices.append((violation, first, options))
    choices.sort(key=lambda choice: _ORDER[choice[1][0].op])
    refused = trials.keep([(violation, first) for violation, first, _ in choices])
    others = {violation: options for violation, _, options in choices}
    any_kept = len(refused) < len(choices)
    for violation, _ in refused:
        any_kept |= any(not trials.keep([(violation, other)]) for other in others[violation])
    return any_kept


def _options(violation: Violation, value: Any, document: Mapping[str, Any], allowed: Switches) -> Iterator[Fix]:
    if violation.keyword in UNIONS:
        yield from branch_fixes(violation, value, document, allowed, patch)
    yield from fixes(violation, value, document, allowed)


class _Trials:
    """A value, and the edits that have proved good on it so far."""

    def __init__(self, schema: Schema[Any], start: Patched) -> None:
        self.schema = schema
        self.now = start
        self.best = start
        """The state with the fewest violations: the end, or where edits that only led deeper began."""
        self.left = _MOST_WORK

    def keep(self, choices: Sequence[tuple[Violation, Fix]]) -> list[tuple[Violation, Fix]]:
        """Make those of the edits that help, and return the others.

        All are tried together, then the halves of what did not help together: most often all help, and to try hundreds
        one by one costs as many validations of the whole.
        """
        if not choices or self.left <= 0:
            return list(choices)
        value, made = apply(self.now.value, [edit for _, fix in choices for edit in fix])
        if not made:
            return list(choices)
        tried = Patched(value, (*self.now.edits, *made), tuple(self.schema.validate(value)))
        self.left -= _TRIAL_COST + len(tried.violations)
        if _helps(self.now.violations, tried.violations, choices):
            self.now = tried
            if len(tried.violations) < len(self.best.violations):
                self.best = tried
            return []
        if len(choices) == 1:
            return list(choices)
        middle = len(choices) // 2
        return [*self.keep(choices[:middle]), *self.keep(choices[middle:])]


def _helps(before: Sequence[Violation], after: Sequence[Violation], choices: Sequence[tuple[Violation, Fix]]) -> bool:
    """Whether the edits lower the number of violations by one each, or leave only new ones inside what they wrote."""
    if not after or len(after) <= len(before) - len(choices):
        return True
    still = set(after)
    if any(violation in still for violation, _ in choices):
        return False
    known = set(before)
    below = {edit.steps for _, fix in choices for edit in fix if edit.op != "remove"}
    new = [violation.steps or () for violation in after if violation not in known]
    return all(any(steps[:length] in below for length in range(len(steps) + 1)) for steps in new)


def apply(value: Any, edits: Sequence[PatchEdit]) -> tuple[Any, tuple[PatchEdit, ...]]:
    """The value with these edits made, and those of them that changed something.

    What is not on their paths is shared; nothing is changed in place.

    >>> apply({"a": {"b": 1}, "c": 2}, [PatchEdit("remove", ("a", "b"), "because")])[0]
    {'a': {}, 'c': 2}
    """
    made: list[PatchEdit] = []
    for edit in edits:
        if edit.op == "move":
            changed = _moved(value, edit)
        else:
            changed = _put(value, edit.steps, edit.value if edit.op != "remove" else ABSENT)
        if changed is not value:
            value = changed
            made.append(edit)
    return value, tuple(made)


def _moved(value: Any, edit: PatchEdit) -> Any:
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


def _operation(edit: PatchEdit) -> dict[str, Any]:
    operation: dict[str, Any] = {"op": edit.op, "path": join_pointer(edit.steps)}
    if edit.op == "move":
        operation["from"] = join_pointer(edit.source)
    elif edit.op != "remove":
        operation["value"] = edit.value
    return operation
