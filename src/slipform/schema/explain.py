"""Find every violation in a value, place by place.

`jsonschema-rs` gives every verdict here; only the walk is our own. The library's error iterator copies the value into
each error and follows every branch of every union, so its cost is the product of errors and value size, and
exponential for recursive unions. This walk asks for a verdict first and only descends into invalid parts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from slipform.schema import violations as wording
from slipform.schema.document import IN_PLACE_LISTS, REF, REFERENCES, PathSteps, SubSchema, join_pointer
from slipform.schema.patterns import MatchBudget, counting, search
from slipform.schema.violations import Violation, excerpt_of

if TYPE_CHECKING:
    from slipform.schema.validator import Compiled

MAX_VIOLATIONS = 1_000
"""The most violations of one value: a longer list does not help anyone."""
_MAX_FRAMES = 150  # four Python frames each
_SHOWN_CLOSEST = 3
_MAX_SEPARATE = 20
_MAX_WORK = 1_000_000
_UNION_COST = 100
"""The cost of trying one alternative, in verdicts."""
_UNEXPLAINED = "does not fit; to say why would take too long"


def explain(compiled: Compiled, value: Any) -> list[Violation]:
    """Return the violations of an invalid value, as many as a bounded amount of work finds."""
    with counting() as budget:
        walk = _Explainer(_Work(compiled, budget), deep=True)
        with suppress(_SpentError, _FullError):
            walk.explain(compiled.index.root, value, ())
    return walk.violations or [_violation(compiled.index.root, "", "schema", (), _UNEXPLAINED)]


class _SpentError(Exception):
    """The work allowed for one explanation is used up."""


class _FullError(Exception):
    """The requested number of violations was found."""


class _Work:
    """Counts verdicts on parts, of which unions and patterns may need very many."""

    def __init__(self, compiled: Compiled, budget: MatchBudget) -> None:
        self.compiled = compiled
        self.budget = budget
        self.left = _MAX_WORK

    def spend(self, units: int) -> None:
        self.left -= units
        if self.left < 0:
            raise _SpentError

    def fits(self, place: SubSchema, value: Any) -> bool:
        self.spend(1)
        return self._within_budget(self.compiled.fits(place, value))

    def holds(self, place: SubSchema, keyword: str, value: Any) -> bool:
        return self._within_budget(self.compiled.holds(place, keyword, value))

    def matches(self, pattern: str, name: str) -> bool:
        self.spend(1)
        return self._within_budget(bool(search(pattern, name)))

    def _within_budget(self, verdict: bool) -> bool:
        if self.budget.is_spent:  # a pattern that was not tried counts as one that does not match
            raise _SpentError
        return verdict


class _Explainer:
    """One walk over a value. With `deep` off, violations inside unions are not collected, which is enough to rank them.

    Violations are collected, not yielded: passing each through the generators of all levels would cost its depth.
    """

    def __init__(self, work: _Work, *, deep: bool, frames: int = 0, most: int = MAX_VIOLATIONS) -> None:
        self.work = work
        self.compiled = work.compiled
        self.deep = deep
        self.frames = frames
        self.most = most
        self.violations: list[Violation] = []

    def add(self, violation: Violation) -> None:
        self.violations.append(violation)
        if len(self.violations) >= self.most:
            raise _FullError

    def explain(self, place: SubSchema, value: Any, steps: PathSteps) -> None:
        """Add the violations of `value`, which does not fit the subschema at `place`."""
        node = place.node
        if node is False:
            self.add(_violation(place, "", "falseSchema", steps, "no value is allowed here", found=excerpt_of(value)))
            return
        if not isinstance(node, dict):
            return
        if self.frames >= _MAX_FRAMES:
            self.add(_violation(place, "", "depth", steps, "does not fit, and is nested too deeply to say why"))
            return
        self.frames += 1
        count = len(self.violations)
        self._keywords(place, value, steps)
        self.frames -= 1
        if len(self.violations) == count:
            self._add_validator_error(place, value, steps)

    def _keywords(self, place: SubSchema, value: Any, steps: PathSteps) -> None:
        """Add the violations of a place, keyword by keyword; before draft 2019-09, `$ref` hides its siblings."""
        node = place.node
        if REF in node and self.compiled.reference_hides_siblings:
            _reference(self, place, value, steps, REF)
            return
        for keyword in node:
            if keyword in wording.ASSERTIONS:
                self._assertion(place, value, steps, keyword)
            elif (handler := _HANDLERS.get(keyword)) and self.compiled.knows(keyword):
                handler(self, place, value, steps, keyword)

    def _assertion(self, place: SubSchema, value: Any, steps: PathSteps, keyword: str) -> None:
        if self.work.holds(place, keyword, value):
            return
        expected = wording.expected(keyword, place.node)
        actual = wording.found(keyword, value)
        message = f"expected {expected}, found {actual}"
        self.add(_violation(place, join_pointer([keyword]), keyword, steps, message, expected=expected, found=actual))

    def check(self, place: SubSchema, value: Any, steps: PathSteps) -> None:
        """Add the violations of a subschema, if there are any."""
        if not self.work.fits(place, value):
            self.explain(place, value, steps)

    def below(self, place: SubSchema, *steps: str | int) -> SubSchema:
        return self.compiled.index.child(place, *steps)

    def _add_validator_error(self, place: SubSchema, value: Any, steps: PathSteps) -> None:
        """Add the validator's errors for keywords that need the whole schema (`unevaluatedProperties` and others)."""
        keyword, message, inner = self.compiled.first_error(place, value)
        full = (*steps, *inner)
        self.add(_violation(place, "", keyword, full, message, found=excerpt_of(follow(value, inner))))

    def violations_of(self, place: SubSchema, value: Any, steps: PathSteps, *, deep: bool) -> list[Violation]:
        """Return the first violations of a subschema, without adding them."""
        walk = _Explainer(self.work, deep=deep, frames=self.frames, most=_MAX_SEPARATE)
        with suppress(_FullError):
            walk.explain(place, value, steps)
        return walk.violations


Handler: TypeAlias = Callable[[_Explainer, SubSchema, Any, PathSteps, str], None]


def follow(value: Any, steps: PathSteps) -> Any:
    """Return the part of a value at a path."""
    for step in steps:
        value = value[step]
    return value


def _violation(
    place: SubSchema,
    below: str,
    keyword: str,
    steps: PathSteps,
    message: str,
    *,
    expected: str | None = None,
    found: str | None = None,
    closest: tuple[Violation, ...] = (),
) -> Violation:
    return Violation(join_pointer(steps), place.path + below, keyword, message, expected, found, steps, closest)


def _reference(walk: _Explainer, place: SubSchema, value: Any, steps: PathSteps, keyword: str) -> None:
    targets = {target.path: target for target in walk.compiled.index.targets(place, keyword)}
    if len(targets) == 1:  # only the validator knows the anchor of a dynamic reference
        walk.check(next(iter(targets.values())), value, steps)


def _all_of(walk: _Explainer, place: SubSchema, value: Any, steps: PathSteps, keyword: str) -> None:
    for number in range(len(place.node[keyword])):
        walk.check(walk.below(place, keyword, number), value, steps)


def _union(walk: _Explainer, place: SubSchema, value: Any, steps: PathSteps, keyword: str) -> None:
    """Add the violation of a union: several alternatives match, or none; then also the distance of the nearest."""
    branches = [walk.below(place, keyword, number) for number in range(len(place.node[keyword]))]
    walk.work.spend(len(branches) * _UNION_COST)
    fitting = [number + 1 for number, branch in enumerate(branches) if walk.work.fits(branch, value)]
    at = join_pointer([keyword])
    if len(fitting) > 1 and keyword == "oneOf":
        names = " and ".join(map(str, fitting[:5]))
        message = f"fits the alternatives {names}, but must fit exactly one of {len(branches)}"
        walk.add(
            _violation(place, at, keyword, steps, message, expected="exactly one alternative", found=excerpt_of(value))
        )
    if fitting:
        return
    if not walk.deep:
        walk.add(_violation(place, at, keyword, steps, "fits none of the alternatives"))
        return
    tried = [walk.violations_of(branch, value, steps, deep=False) for branch in branches]
    kinds = [_root_type(violations, steps) for violations in tried]
    if all(kinds):
        expected = wording.joined(list(dict.fromkeys(kind for kind in kinds if kind)))
        message = f"expected {expected}, found {excerpt_of(value)}"
        walk.add(_violation(place, at, keyword, steps, message, expected=expected, found=excerpt_of(value)))
        return
    best = min(range(len(branches)), key=lambda number: _distance(tried[number], steps))
    closest = tuple(walk.violations_of(branches[best], value, steps, deep=True))
    message = nearest_alternative(f"{_NONE_FITS.format(len(branches))}{best + 1}: ", closest, steps)
    walk.add(
        _violation(
            place,
            at,
            keyword,
            steps,
            message,
            expected="one of the alternatives",
            found=excerpt_of(value),
            closest=closest,
        )
    )


def _root_type(violations: list[Violation], steps: PathSteps) -> str | None:
    """Return the expectation of a branch that only fails by the type of the value, or by the value itself."""
    wrong = next((one for one in violations if one.steps == steps and one.keyword in {"type", "const", "enum"}), None)
    return wrong.expected if wrong else None


def _distance(violations: list[Violation], steps: PathSteps) -> tuple[int, int, int]:
    """Return the distance of a branch: a wrong type of value, then a wrong tag, then the number of violations."""
    wrong_kind = sum(one.steps == steps and one.keyword in {"type", "const", "enum"} for one in violations)
    wrong_tag = sum(
        one.keyword in {"const", "enum"} and one.steps is not None and len(one.steps) == len(steps) + 1
        for one in violations
    )
    return wrong_kind, wrong_tag, len(violations)


_NONE_FITS: Final = "fits none of the {} alternatives; nearest is number "


def nearest_alternative(message: str, closest: tuple[Violation, ...], steps: PathSteps) -> str:
    """Return the message of a union that nothing matches, with the nearest alternative and its violations.

    >>> wrong = Violation("/a", "", "type", "expected integer", steps=("a",))
    >>> nearest_alternative("fits none of the 2 alternatives; nearest is number 1: x", (wrong,), ())
    'fits none of the 2 alternatives; nearest is number 1: $.a: expected integer'
    """
    return f"{message.partition(': ')[0]}: {_brief(closest, steps)}"


def _brief(closest: tuple[Violation, ...], steps: PathSteps) -> str:
    """Describe the nearest alternative in one line; for a nested union, by its own nearest alternative."""
    leaves = [leaf for one in closest for leaf in _leaves(one)]
    parts = [(f"{one.json_path}: " if one.steps != steps else "") + one.message for one in leaves[:_SHOWN_CLOSEST]]
    more = len(leaves) - len(parts)
    return "; ".join(part[:300] for part in parts) + (f"; and {more} more" if more else "")


def _leaves(violation: Violation) -> Iterator[Violation]:
    if not violation.closest:
        yield violation
    for one in violation.closest:
        yield from _leaves(one)


def _not(walk: _Explainer, place: SubSchema, value: Any, steps: PathSteps, keyword: str) -> None:
    if walk.work.fits(walk.below(place, keyword), value):
        message = f"found {excerpt_of(value)}, which the schema excludes"
        walk.add(_violation(place, join_pointer([keyword]), keyword, steps, message, found=excerpt_of(value)))


def _condition(walk: _Explainer, place: SubSchema, value: Any, steps: PathSteps, keyword: str) -> None:
    branch = "then" if walk.work.fits(walk.below(place, keyword), value) else "else"
    if branch in place.node:
        walk.check(walk.below(place, branch), value, steps)


def _required(walk: _Explainer, place: SubSchema, value: Any, steps: PathSteps, keyword: str) -> None:
    if isinstance(value, Mapping) and isinstance(place.node[keyword], list):
        _missing(walk, place, join_pointer([keyword]), value, steps, place.node[keyword])


def _missing(
    walk: _Explainer, place: SubSchema, below: str, value: Mapping[str, Any], steps: PathSteps, names: list[Any]
) -> None:
    for name in names:
        if name not in value:
            key = f"the key {excerpt_of(name)}"
            walk.add(
                _violation(place, below, "required", steps, f"{key} is missing", expected=key, found=excerpt_of(value))
            )


def _dependent(walk: _Explainer, place: SubSchema, value: Any, steps: PathSteps, keyword: str) -> None:
    if not isinstance(value, Mapping):
        return
    for name, rule in place.node[keyword].items():
        if name not in value:
            continue
        if isinstance(rule, list):
            _missing(walk, place, join_pointer([keyword, name]), value, steps, rule)
        else:
            names = [rule] if isinstance(rule, str) else []
            _missing(walk, place, join_pointer([keyword, name]), value, steps, names)
            walk.check(walk.below(place, keyword, name), value, steps)


def _properties(walk: _Explainer, place: SubSchema, value: Any, steps: PathSteps, keyword: str) -> None:
    if isinstance(value, Mapping):
        for name in place.node[keyword]:
            if name in value:
                walk.check(walk.below(place, keyword, name), value[name], (*steps, name))


def _pattern_properties(walk: _Explainer, place: SubSchema, value: Any, steps: PathSteps, keyword: str) -> None:
    if isinstance(value, Mapping):
        for pattern in place.node[keyword]:
            for name in value:
                if walk.work.matches(pattern, name):
                    walk.check(walk.below(place, keyword, pattern), value[name], (*steps, name))


def _additional_properties(walk: _Explainer, place: SubSchema, value: Any, steps: PathSteps, keyword: str) -> None:
    """Add a violation for each key that is not allowed, and those inside keys that are neither listed nor matched."""
    if not isinstance(value, Mapping):
        return
    declared = place.node.get("properties") or {}
    patterns = list(place.node.get("patternProperties") or {})
    rule = walk.below(place, keyword)
    for name in value:
        if name in declared or any(walk.work.matches(pattern, name) for pattern in patterns):
            continue
        if rule.node is False:
            allowed = ""
            if declared:
                allowed = f"; the keys are {wording.alternatives(list(declared))}"
            message = f"the key {excerpt_of(name)} is not allowed{allowed}"
            walk.add(
                _violation(
                    place, join_pointer([keyword]), keyword, (*steps, name), message, found=excerpt_of(value[name])
                )
            )
        else:
            walk.check(rule, value[name], (*steps, name))


def _property_names(walk: _Explainer, place: SubSchema, value: Any, steps: PathSteps, keyword: str) -> None:
    if isinstance(value, Mapping):
        rule = walk.below(place, keyword)
        for name in value:
            for wrong in () if walk.work.fits(rule, name) else walk.violations_of(rule, name, (), deep=walk.deep):
                message = f"the key {excerpt_of(name)} is not allowed: {wrong.message}"
                walk.add(
                    _violation(place, join_pointer([keyword]), keyword, (*steps, name), message, found=excerpt_of(name))
                )


def _items(walk: _Explainer, place: SubSchema, value: Any, steps: PathSteps, keyword: str) -> None:
    """Add the violations of an array's items, for both spellings of tuples."""
    if not isinstance(value, (list, tuple)):
        return
    if isinstance(place.node[keyword], list):
        for number in range(min(len(place.node[keyword]), len(value))):
            walk.check(walk.below(place, keyword, number), value[number], (*steps, number))
        return
    before = place.node.get("prefixItems") if keyword == "items" else place.node.get("items")
    if keyword == "additionalItems" and not isinstance(before, list):
        return
    rule = walk.below(place, keyword)
    start = len(before) if isinstance(before, list) else 0
    for number in range(start, len(value)):
        if rule.node is False:
            message = f"this item is not allowed; {start} may be given"
            at = join_pointer([keyword])
            walk.add(_violation(place, at, keyword, (*steps, number), message, found=excerpt_of(value[number])))
            continue
        walk.check(rule, value[number], (*steps, number))


def _contains(walk: _Explainer, place: SubSchema, value: Any, steps: PathSteps, keyword: str) -> None:
    """Add the violation of too few, or too many, items that fit `contains`."""
    if not isinstance(value, (list, tuple)):
        return
    rule = walk.below(place, keyword)
    count = sum(walk.work.fits(rule, item) for item in value)
    least = place.node.get("minContains", 1)
    most = place.node.get("maxContains")
    if walk.compiled.counts_contains and most is not None and count > most:
        words = f"at most {most}"
        at = "maxContains"
    elif count < (least if walk.compiled.counts_contains else 1):
        words = f"at least {least if walk.compiled.counts_contains else 1}"
        at = keyword
    else:
        return
    expected = f"{words} {'item that fits' if words.endswith(' 1') else 'items that fit'} `contains`"
    walk.add(
        _violation(
            place,
            join_pointer([at]),
            at,
            steps,
            f"expected {expected}, found {count}",
            expected=expected,
            found=str(count),
        )
    )


_HANDLERS: dict[str, Handler] = {
    **dict.fromkeys(REFERENCES, _reference),
    "allOf": _all_of,
    **dict.fromkeys(IN_PLACE_LISTS[1:], _union),
    "not": _not,
    "if": _condition,
    "required": _required,
    **dict.fromkeys(("dependentRequired", "dependentSchemas", "dependencies"), _dependent),
    "properties": _properties,
    "patternProperties": _pattern_properties,
    "additionalProperties": _additional_properties,
    "propertyNames": _property_names,
    **dict.fromkeys(("prefixItems", "items", "additionalItems"), _items),
    "contains": _contains,
}
