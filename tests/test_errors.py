"""The error tree: stable codes, HTTP statuses, and messages that say what to do."""

from __future__ import annotations

import inspect
import pickle
import re
from pathlib import Path

import pytest

from slipform import errors
from slipform.errors import (
    AdditionalPropertiesNotFalse,
    RateLimitError,
    RequiredMissingProperties,
    SchemaViolationError,
    SlipformError,
)

CLASSES = dict(inspect.getmembers(errors, inspect.isclass))
ALL = [kind for name, kind in CLASSES.items() if issubclass(kind, SlipformError) and name == kind.__name__]
"""Without `StructuredOutputFailed`, which is another name of one of them."""


def test_every_error_has_a_code_of_its_own() -> None:
    codes = [kind.code for kind in ALL]
    assert len(set(codes)) == len(codes)


def test_the_reference_lists_every_code_and_status() -> None:
    page = (Path(__file__).resolve().parent.parent / "docs" / "reference.md").read_text(encoding="utf-8")
    tree = page.partition("## Error codes")[2].partition("\n## ")[0]
    documented = set(re.findall(r"^[│├└─ ]*(\w+) +([a-z_]+) +(\d{3})", tree, re.MULTILINE))
    assert documented == {(kind.__name__, kind.code, str(kind.http_status)) for kind in ALL}


@pytest.mark.covers("C31")
@pytest.mark.parametrize(
    ("kind", "status"),
    [
        (errors.RequestError, 400),
        (errors.SchemaError, 400),
        (errors.AuthenticationError, 401),
        (errors.UnknownModelError, 404),
        (errors.TooLargeError, 413),
        (errors.SchemaViolationError, 422),
        (errors.RefusalError, 422),
        (errors.RateLimitError, 429),
        (errors.UpstreamError, 502),
        (errors.UpstreamTimeout, 504),
    ],
)
def test_an_error_knows_its_http_status(kind: type[SlipformError], status: int) -> None:
    assert kind.http_status == status


def test_the_message_says_what_where_and_what_to_do() -> None:
    error = SlipformError("The age is no integer.", where="$.age", hint="Ask again.", details={"n": 1})
    assert str(error) == "The age is no integer, at $.age. Ask again."
    assert error.to_dict() == {
        "code": "slipform_error",
        "message": str(error),
        "where": "$.age",
        "hint": "Ask again.",
        "details": {"n": 1},
    }


@pytest.mark.covers("S2-68")
@pytest.mark.parametrize(
    "kind", [SchemaViolationError, errors.RunawayError, errors.RefusalError, errors.TruncatedError]
)
def test_an_answer_that_is_not_valid_always_lists_its_errors(kind: type[errors.EnforcementError]) -> None:
    (listed,) = kind("It is wrong.", details={"n": 1}).to_dict()["details"]["validation_errors"]
    assert (listed["path"], listed["keyword"], listed["message"]) == ("$", kind.code, "It is wrong.")
    own = kind("It is wrong.", details={"validation_errors": []})
    assert own.to_dict()["details"] == {"validation_errors": []}


def test_an_error_without_place_or_hint_is_just_its_message() -> None:
    assert SlipformError("No.").to_dict() == {"code": "slipform_error", "message": "No."}


@pytest.mark.covers("S4-46")
def test_strict_errors_are_comparable_values() -> None:
    assert AdditionalPropertiesNotFalse("$.a") == AdditionalPropertiesNotFalse("$.a")
    assert AdditionalPropertiesNotFalse("$.a") != AdditionalPropertiesNotFalse("$.b")
    assert RequiredMissingProperties("$", ["a"]) != RequiredMissingProperties("$", ["b"])
    assert len({RequiredMissingProperties("$", ["a"]), RequiredMissingProperties("$", ["a"])}) == 1
    assert AdditionalPropertiesNotFalse("$") != RequiredMissingProperties("$", [])


@pytest.mark.parametrize(
    "error",
    [
        RateLimitError("Slow down", retry_after=1.5, status=429, hint="Wait."),
        RequiredMissingProperties("$", ["a", "b"]),
        SchemaViolationError("Bad", details={"validation_errors": []}),
    ],
)
def test_an_error_survives_the_way_to_another_process(error: SlipformError) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert copy.to_dict() == error.to_dict()
    assert vars(copy) == vars(error)
