"""Run the caller's own checks of a valid answer: what they may say, and what is refused when they are given."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from slipform.errors import ConfigError
from slipform.schema.violations import Violation, path_steps, violation_at

Place: TypeAlias = str | Sequence[str | int]
"""A place in the answer's JSON: `items[0].price`, or its steps `("items", 0, "price")`."""
Complaint: TypeAlias = str | tuple[Place, str]
"""What is wrong with an answer, with or without the place."""
Validator: TypeAlias = Callable[[Any], Complaint | Sequence[Complaint] | None]
"""A check of a valid answer: gets the typed value, returns what is wrong or None, or raises `ValueError`."""


def checked_validators(validators: object) -> tuple[Validator, ...]:
    """Return the validators as a tuple; raises `ConfigError` for what cannot be one.

    >>> checked_validators([print]) == (print,)
    True
    """
    if not isinstance(validators, list | tuple):
        raise ConfigError("`validators` is a list of functions", hint="Write `validators=[check]`.")
    for validator in validators:
        if not callable(validator):
            raise ConfigError(f"A validator must be a function, not {validator!r:.80}")
        if inspect.iscoroutinefunction(validator):
            raise ConfigError(
                f"The validator {_name(validator)} is async, and validators are plain functions",
                hint="Check what has to be awaited after the call.",
            )
        try:
            inspect.signature(validator).bind(None)
        except TypeError as error:
            raise ConfigError(
                f"The validator {_name(validator)} cannot be called with the answer alone: {error}",
                hint="It takes one argument, the typed answer.",
            ) from error
        except ValueError:  # some built-in functions have no signature
            continue
    return tuple(validators)


def complaints(validators: Sequence[Validator], typed: Any, value: Any) -> list[Violation]:
    """Return what the validators say of an answer, given as its typed object and as its JSON value.

    >>> [found.json_path for found in complaints([lambda age: ("$", "too young")], 3, 3)]
    ['$']
    """
    violations: list[Violation] = []
    for validator in validators:
        try:
            returned = validator(typed)
        except (ValueError, AssertionError) as error:
            returned = str(error) or type(error).__name__
        except Exception as error:
            error.add_note(f"It was raised by the validator {_name(validator)}, which gets a {type(typed).__name__}.")
            raise
        violations += [_violation(each, validator, value) for each in _as_list(returned)]
    return violations


def _as_list(returned: Any) -> Sequence[Any]:
    if returned is None:
        return ()
    if isinstance(returned, list):
        return returned
    pair = isinstance(returned, tuple) and len(returned) == 2 and isinstance(returned[1], str)
    if isinstance(returned, tuple) and not pair:
        return returned
    return (returned,)


def _violation(complaint: Any, validator: Validator, value: Any) -> Violation:
    if isinstance(complaint, str):
        return violation_at((), "validator", complaint, value)
    place, message = complaint if isinstance(complaint, tuple) and len(complaint) == 2 else (None, None)
    if isinstance(place, str | tuple | list) and isinstance(message, str):
        steps = path_steps(place) if isinstance(place, str) else tuple(place)
        return violation_at(steps, "validator", message, value)
    raise TypeError(
        f"The validator {_name(validator)} returned {complaint!r:.80}; "
        "return None, a text that says what is wrong, or a pair of the place and the text"
    )


def _name(validator: Any) -> str:
    return repr(getattr(validator, "__name__", type(validator).__name__))
