"""Edit a value mechanically until it is valid, and record every edit: `patch`.

A valid value is not touched. An edit is kept only if the validator confirms that it helps. Nothing is invented: a
missing value stays missing.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from slipform.enforce.coercion import (
    ABSENT,
    NUMBER_AS_TEXT,
    OUT_OF_LIST,
    UNIONS,
    Accepted,
    Fix,
    PatchEdit,
    SchemaReader,
    Switches,
    at,
    branch_fixes,
    coercions,
    folded,
    json_size,
    validation_work,
    without_grouping,
)
from slipform.schema import Schema, Violation
from slipform.schema.document import PathSteps, followed, join_pointer, locate, split_pointer, with_plain_references
from slipform.text.reasoning import call_arguments
from slipform.text.strict import parse
from slipform.text.work import bounded_work, current_budget


class PatchContext:
    """The input of one round of patching: a value, its schema, and the allowed kinds of edits."""

    __slots__ = ("_keys_by_spelling", "reader", "switches", "value")

    def __init__(self, value: Any, reader: SchemaReader, switches: Switches) -> None:
        self.value = value
        self.reader = reader
        self.switches = switches
        self._keys_by_spelling: dict[int, dict[str, list[str]]] = {}

    def keys_like(self, name: str, holder: Mapping[str, Any]) -> list[str]:
        """Return the keys of an object that are variant spellings of this name."""
        spellings = self._keys_by_spelling.get(id(holder))
        if spellings is None:
            spellings = {}
            for key in holder:
                spellings.setdefault(folded(key), []).append(key)
            self._keys_by_spelling[id(holder)] = spellings
        return spellings.get(folded(name), [])


def fixes(violation: Violation, context: PatchContext) -> Iterator[Fix]:
    """Yield the edits that may fix this violation, best first; each has to be tried."""
    steps = violation.steps or ()
    switches = context.switches
    document = context.reader.document
    current = at(context.value, steps)
    if violation.keyword in ("additionalProperties", "unevaluatedProperties", "falseSchema"):
        if switches.drop_extra:
            yield from _drop(violation, steps, current, context.reader)
        return
    path = violation.schema_path.rpartition("/")[0]
    holder = locate(document, path)
    if current is ABSENT or not isinstance(holder, Mapping):
        return
    if violation.keyword == "required":
        yield from _missing(violation, current, holder, context)
        return
    is_null_member = current is None and steps and isinstance(steps[-1], str)
    if is_null_member and switches.drop_nulls and _is_optional(violation, document):
        yield (PatchEdit("remove", steps, "null for an optional key"),)
    accepted = context.reader.accepted(path)
    if switches.coerce:
        yield from _listed_value_fix(steps, current, accepted)
        for each in coercions(current, accepted.types, units=switches.units):
            yield (PatchEdit("replace", steps, each.reason, each.risk, each.value),)
    if switches.wrap_scalars and "array" in accepted.types and not isinstance(current, list):
        yield (PatchEdit("replace", steps, "one value as an array", "medium", [current]),)


def _drop(violation: Violation, steps: PathSteps, current: Any, reader: SchemaReader) -> Iterator[Fix]:
    if violation.keyword == "additionalProperties":
        yield (_dropped(steps, current),)
    elif isinstance(current, dict):
        # The validator reports the object, not its keys: drop those that the schema never mentions.
        extra = [key for key in current if key not in reader.property_names]
        if extra:
            yield tuple(_dropped((*steps, key), current[key]) for key in extra)


def _dropped(steps: PathSteps, dropped: Any) -> PatchEdit:
    """Return the edit that drops a key; its kind says whether the key contained whole records."""
    if isinstance(dropped, dict | list) and dropped:
        return PatchEdit("remove", steps, "a key the schema forbids, with the data it holds", "high")
    return PatchEdit("remove", steps, "a key the schema forbids")


def _missing(violation: Violation, current: Any, holder: Mapping[str, Any], context: PatchContext) -> Iterator[Fix]:
    """Yield fixes for a missing key: a key with a similar name, or a value that the schema provides."""
    if not isinstance(current, Mapping):
        return
    steps = violation.steps or ()
    switches = context.switches
    properties = holder.get("properties")
    declared = properties if isinstance(properties, Mapping) else {}
    absent = [name for name in holder.get("required", ()) if name not in current]
    for name in absent:
        if f'"{name}"' not in violation.message:
            continue
        alike = [key for key in context.keys_like(name, current) if key not in declared]
        if switches.rename_keys and len(alike) == 1:
            reason = "a key spelled another way"
            yield (PatchEdit("move", (*steps, name), reason, "medium", source=(*steps, alike[0])),)
        yield from _schema_value_fixes((*steps, name), declared.get(name), switches)


def _schema_value_fixes(steps: PathSteps, shape: Any, switches: Switches) -> Iterator[Fix]:
    """Yield the value that the schema provides for a missing key: its only allowed value, or its default."""
    if not isinstance(shape, Mapping):
        return
    only = [shape["const"]] if "const" in shape else shape.get("enum")
    if switches.fill_constants and isinstance(only, list) and len(only) == 1:
        yield (PatchEdit("add", steps, "the one value the schema allows here", "low", only[0]),)
    if switches.fill_defaults and "default" in shape:
        yield (PatchEdit("add", steps, "the schema's default", "medium", shape["default"]),)


def _is_optional(violation: Violation, document: Mapping[str, Any]) -> bool:
    """Return whether the key that holds the value may be omitted, as far as the surrounding object schema says."""
    path = violation.schema_path.rpartition("/")[0]
    around, _, last = path.rpartition("/properties/")
    name = split_pointer("/" + last)
    holder = None
    if last and len(name) == 1:
        holder = locate(document, around)
    if not isinstance(holder, Mapping):
        return True  # reached by a reference or a union: dropping it is tried, and kept only if the result validates
    return name[0] not in holder.get("required", ())


def _listed_value_fix(steps: PathSteps, current: Any, accepted: Accepted) -> Iterator[Fix]:
    """Yield the one listed value that a text matches except for its spelling; nothing where several match."""
    if not isinstance(current, str):
        return
    matches = accepted.matching_members(current)
    if len(matches) == 1:
        yield (PatchEdit("replace", steps, "a listed value, spelled as listed", "medium", matches[0]),)


_MOST_ROUNDS = 6
_MOST_TRIED = 200
_MOST_WRAPPED = 4
"""How many nested keys may wrap the whole answer."""
_EDIT_WORK = 20
_ORDER = {"move": 0, "add": 1, "replace": 2, "remove": 3}  # a key to be renamed must not have been dropped before


class Patched(msgspec.Struct, frozen=True):
    """A value, the edits that produced it, and its remaining violations.

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
        """Return the edits as JSON Patch (RFC 6902)."""
        return [_operation(edit) for edit in self.edits]


def patch(value: Any, schema: Schema[Any], switches: Switches | None = None) -> Patched:
    """Patch the mechanical faults of a value.

    An edit is kept if it lowers the number of violations. One that only moves a violation deeper, where the next edit
    may reach it (a renamed key whose value is a number written as text), is kept if the whole then becomes valid. Edits
    that would take too much work to try are skipped.
    """
    violations = schema.validate(value)
    if not violations:
        return Patched(value)
    with bounded_work(json_size(value)):
        return _patch_invalid(Patched(value, (), tuple(violations)), schema, switches or Switches(), 0)


def patch_as_written(value: Any, source: str, schema: Schema[Any], switches: Switches | None = None) -> Patched:
    """Call `patch`; a number converted to text keeps its spelling in `source`, the JSON text of the value.

    >>> patch_as_written([1.1], "[1.10]", Schema.of({"items": {"type": "string"}})).value
    ['1.10']
    """
    patched = patch(value, schema, switches)
    if not source or not any(edit.reason == NUMBER_AS_TEXT for edit in patched.edits):
        return patched
    try:
        spellings = json.loads(source, parse_int=_Spelling, parse_float=_Spelling)
    except (ValueError, RecursionError):
        return patched
    edits = [_with_spelling(edit, patched.edits[:place], spellings) for place, edit in enumerate(patched.edits)]
    written, made = apply(value, edits)
    left = tuple(schema.validate(written))
    if len(left) <= len(patched.violations):
        return Patched(written, made, left)
    return patched


class _Spelling(str):
    """A number of a JSON text, as written there."""

    __slots__ = ()


def _with_spelling(edit: PatchEdit, before: Sequence[PatchEdit], spellings: Any) -> PatchEdit:
    """Return the edit with the number's original spelling, if the number can be located in the text."""
    if edit.reason != NUMBER_AS_TEXT:
        return edit
    steps = edit.steps
    for earlier in reversed(before):
        count = len(earlier.steps)
        if steps[:count] != earlier.steps or earlier.op == "remove":
            continue
        if earlier.source:
            steps = (*earlier.source, *steps[count:])
        elif earlier.reason == OUT_OF_LIST:
            steps = (*earlier.steps, 0, *steps[count:])
        else:
            return edit
    spelling = at(spellings, steps)
    if isinstance(spelling, _Spelling):
        return dataclasses.replace(edit, value=str(spelling), risk="low")
    return edit


def _patch_invalid(start: Patched, schema: Schema[Any], allowed: Switches, wrapped: int) -> Patched:
    """Patch a value whose violations are known; `wrapped` counts the keys that were unwrapped around it."""
    trials = _Trials(schema, start)
    if not trials.charge(start.violations):
        return start
    if (
        allowed.unwrap
        and wrapped < _MOST_WRAPPED
        and (unwrapped := _unwrapped(start.value, schema, allowed, wrapped)) is not None
    ):
        return unwrapped
    reader = SchemaReader(schema.document)
    for _ in range(_MOST_ROUNDS):
        if not trials.has_budget or not _try_fixes(trials, reader, allowed):
            break
    return trials.best


def patch_for_type(value: Any, schema: Schema[Any], violations: Sequence[Violation]) -> Patched | None:
    """Patch a value that is valid but does not fit its Python type; None if that is not possible.

    In JSON Schema a `Decimal` may be a number or any text: grouped digits in a text are read as for a number.
    """
    edits = []
    for violation in violations:
        current = at(value, violation.steps or ())
        plain = None
        if isinstance(current, str) and violation.keyword.startswith("decimal"):
            plain = without_grouping(current)
        if plain is None:
            return None
        edits.append(PatchEdit("replace", violation.steps or (), "grouped digits as number", "medium", plain))
    edited, made = apply(value, edits)
    if schema.fits(edited):
        return Patched(edited, made)
    return None


def _unwrapped(value: Any, schema: Schema[Any], allowed: Switches, wrapped: int) -> Patched | None:
    """Patch the inside of a value like `{"invoice": {…}}`, or the arguments of a tool call around it."""
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
    violations = schema.validate(inner)
    edit = PatchEdit("replace", (), f"the whole answer stood under the key {key!r}", "medium", inner, (key,))
    if not violations:
        return Patched(inner, (edit,))
    patched = _patch_invalid(Patched(inner, (), tuple(violations)), schema, allowed, wrapped + 1)
    if patched.violations:
        return None
    return Patched(patched.value, (edit, *patched.edits))


def _try_fixes(trials: _Trials, reader: SchemaReader, allowed: Switches) -> bool:
    """Try the edits that may fix the current violations; return whether one helped."""
    context = PatchContext(trials.current.value, reader, allowed)
    choices = []
    for violation in trials.current.violations[:_MOST_TRIED]:
        options = _options(violation, context)
        if (first := next(options, None)) is not None:
            choices.append((violation, first, options))
    choices.sort(key=lambda choice: _ORDER[choice[1][0].op])
    refused = trials.keep([(violation, first) for violation, first, _ in choices])
    others = {violation: options for violation, _, options in choices}
    any_kept = len(refused) < len(choices)
    for violation, _ in refused:
        if not trials.has_budget:
            break
        any_kept |= any(not trials.keep([(violation, other)]) for other in others[violation])
    return any_kept


def _options(violation: Violation, context: PatchContext) -> Iterator[Fix]:
    if violation.keyword in UNIONS:
        yield from branch_fixes(violation, context.value, context.reader, context.switches, patch)
    yield from fixes(violation, context)


class _Trials:
    """A value, and the edits confirmed so far."""

    def __init__(self, schema: Schema[Any], start: Patched) -> None:
        self.schema = schema
        self.current = start
        self.best = start
        """The state with the fewest violations: the current one, or the one before a chain of edits that only moved a
        violation."""
        self._budget = current_budget()
        self._size = json_size(start.value)

    @property
    def has_budget(self) -> bool:
        """Whether the work budget allows further trials."""
        return self._budget.allows_trials

    def charge(self, violations: Sequence[Violation], edits: int = 0) -> bool:
        """Count one validation; return whether the work budget allows another."""
        self._budget.spend_on_trial(validation_work(self._size, len(violations)) + _EDIT_WORK * edits)
        return self.has_budget

    def keep(self, choices: Sequence[tuple[Violation, Fix]]) -> list[tuple[Violation, Fix]]:
        """Apply those of the edits that help, and return the others.

        All are tried together, then the halves of a set that did not help: usually all help, and trying hundreds one by
        one costs as many validations of the whole.
        """
        if not choices or not self.has_budget:
            return list(choices)
        value, made = apply(self.current.value, [edit for _, fix in choices for edit in fix])
        if not made:
            return list(choices)
        tried = Patched(value, (*self.current.edits, *made), tuple(self.schema.validate(value)))
        self.charge(tried.violations, len(tried.edits))
        if _helps(self.current.violations, tried.violations, choices):
            self.current = tried
            if len(tried.violations) < len(self.best.violations):
                self.best = tried
            return []
        if len(choices) == 1:
            return list(choices)
        middle = len(choices) // 2
        return [*self.keep(choices[:middle]), *self.keep(choices[middle:])]


def _helps(before: Sequence[Violation], after: Sequence[Violation], choices: Sequence[tuple[Violation, Fix]]) -> bool:
    """Return whether each edit removes a violation, or all new violations are inside the edited values."""
    if not after or len(after) <= len(before) - len(choices):
        return True
    still = set(after)
    if any(violation in still for violation, _ in choices):
        return False
    earlier = set(before)
    below = {edit.steps for _, fix in choices for edit in fix if edit.op != "remove"}
    new = [violation.steps or () for violation in after if violation not in earlier]
    return all(any(steps[:length] in below for length in range(len(steps) + 1)) for steps in new)


def apply(value: Any, edits: Sequence[PatchEdit]) -> tuple[Any, tuple[PatchEdit, ...]]:
    """Return the value with these edits applied, and those of them that had an effect.

    Parts that no edit touches are shared with the original, which stays unchanged.

    >>> apply({"a": {"b": 1}, "c": 2}, [PatchEdit("remove", ("a", "b"), "because")])[0]
    {'a': {}, 'c': 2}
    """
    edited = _Edited(value)
    made = [edit for edit in edits if edited.apply(edit)]
    return edited.value, tuple(made)


class _Edited:
    """A value under edit; containers shared with the original are copied before their first change."""

    def __init__(self, value: Any) -> None:
        self.value = value
        self._copied: dict[int, dict[str, Any] | list[Any]] = {}
        """The copied containers, by identity."""

    def apply(self, edit: PatchEdit) -> bool:
        """Apply an edit; return whether it had an effect."""
        if edit.op == "move":
            return self._move(edit)
        return self._put(edit.steps, ABSENT if edit.op == "remove" else edit.value)

    def _move(self, edit: PatchEdit) -> bool:
        """Rename a key in place, which preserves the order of the keys."""
        holder = at(self.value, edit.source[:-1])
        if not isinstance(holder, dict) or edit.source[-1] not in holder:
            return False
        old = edit.source[-1]
        new = edit.steps[-1]
        return self._put(edit.source[:-1], {(new if key == old else key): each for key, each in holder.items()})

    def _put(self, steps: PathSteps, new: Any) -> bool:
        """Write the value at a path, or remove it if the value is ABSENT; return whether that had an effect."""
        if not steps:
            is_same = new is self.value
            self.value = new
            return not is_same
        holder = at(self.value, steps[:-1])
        step = steps[-1]
        if isinstance(holder, list):
            if not isinstance(step, int) or step >= len(holder) or new is ABSENT or holder[step] is new:
                return False
        elif not isinstance(holder, dict) or holder.get(step, ABSENT) is new:
            return False
        holder = self._owned_container(steps[:-1])
        if new is ABSENT:
            del holder[step]
        else:
            holder[step] = new
        return True

    def _owned_container(self, steps: PathSteps) -> Any:
        """Return the container at a path; it and its parents are copied if they are shared with the original."""
        self.value = container = self._copy_once(self.value)
        for step in steps:
            inner = self._copy_once(container[step])
            container[step] = inner
            container = inner
        return container

    def _copy_once(self, container: Any) -> Any:
        if id(container) in self._copied:
            return container
        copied = list(container) if isinstance(container, list) else dict(container)
        self._copied[id(copied)] = copied
        return copied


def _operation(edit: PatchEdit) -> dict[str, Any]:
    operation: dict[str, Any] = {"op": edit.op, "path": join_pointer(edit.steps)}
    if edit.op == "move":
        operation["from"] = join_pointer(edit.source)
    elif edit.op != "remove":
        operation["value"] = edit.value
    return operation
