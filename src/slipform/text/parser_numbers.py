"""The grammar of JSON numbers as a table, and what they are in Python."""

from __future__ import annotations

from typing import Final

MAX_INT_DIGITS: Final = 4300
"""Python refuses to read or write longer integers, so neither does the parser."""

TOO_LONG: Final = f"An integer of more than {MAX_INT_DIGITS} digits"


def _steps() -> list[dict[str, int]]:
    digits = "0123456789"
    exponent = {"e": 6, "E": 6}
    return [
        {"-": 1, "0": 2, **dict.fromkeys("123456789", 3)},  # 0: at its start
        {"0": 2, **dict.fromkeys("123456789", 3)},  # 1: after the minus
        {".": 4, **exponent},  # 2: after a leading zero
        {".": 4, **exponent, **dict.fromkeys(digits, 3)},  # 3: in the integer
        dict.fromkeys(digits, 5),  # 4: after the point
        {**exponent, **dict.fromkeys(digits, 5)},  # 5: in the fraction
        {"+": 7, "-": 7, **dict.fromkeys(digits, 8)},  # 6: after the e
        dict.fromkeys(digits, 8),  # 7: after its sign
        dict.fromkeys(digits, 8),  # 8: in the exponent
    ]


NUMBER_STEPS: Final = _steps()
"""For each state, the characters that go on with the number and the state they lead to."""

NUMBER_ENDS: Final = frozenset((2, 3, 5, 8))
"""The states in which a number may end."""

LAST_INTEGER: Final = 3
"""A number that ends in this state or an earlier one is an integer."""

INFINITE: Final = (float("inf"), float("-inf"))


def integer_value(digits: str) -> int | None:
    """The integer, with all its digits, or None when it has more than Python takes."""
    if len(digits) > MAX_INT_DIGITS + digits.startswith("-"):
        return None
    try:
        return int(digits)
    except ValueError:  # the interpreter was set to a lower limit
        return None
