"""Whether what is written so far is a JSON number, or may become one."""

from __future__ import annotations

from typing import Final

NO_NUMBER: Final = 0
BEGUN: Final = 1
INTEGER: Final = 2
FRACTION: Final = 3

_START: Final = 0
_SIGNED: Final = 1
_NOUGHT: Final = 2
_WHOLE: Final = 3
_POINTED: Final = 4
_DECIMALS: Final = 5
_EXPONENT: Final = 6
_EXPONENT_SIGNED: Final = 7
_POWER: Final = 8
_PLUS: Final = 43
_MINUS: Final = 45
_POINT: Final = 46
_ZERO: Final = 48
_NINE: Final = 57
_UPPER_E: Final = 69
_LOWER_E: Final = 101


def number_so_far(word: str) -> int:
    """What the word is: no number, the begin of one, an integer, or a number with a fraction or an exponent.

    >>> [number_so_far(word) for word in ("-", "12", "1.5", "1e9", "1.", "01", "x")]
    [1, 2, 3, 3, 1, 0, 0]
    """
    state = _START
    for at in range(len(word)):
        state = _after(ord(word[at]), state)
        if state < 0:
            return NO_NUMBER
    if state in (_NOUGHT, _WHOLE):
        return INTEGER
    return FRACTION if state in (_DECIMALS, _POWER) else BEGUN


def _after(sign: int, state: int) -> int:
    """The state after one more character; less than nothing where it may not stand."""
    if _ZERO <= sign <= _NINE:
        return _after_digit(sign, state)
    if sign == _POINT:
        return _POINTED if state in (_NOUGHT, _WHOLE) else -1
    if sign in (_LOWER_E, _UPPER_E):
        return _EXPONENT if state in (_NOUGHT, _WHOLE, _DECIMALS) else -1
    if sign == _MINUS and state == _START:
        return _SIGNED
    return _EXPONENT_SIGNED if sign in (_PLUS, _MINUS) and state == _EXPONENT else -1


def _after_digit(sign: int, state: int) -> int:
    if state in (_START, _SIGNED):
        return _NOUGHT if sign == _ZERO else _WHOLE
    if state == _NOUGHT:
        return -1
    if state == _WHOLE:
        return _WHOLE
    return _DECIMALS if state <= _DECIMALS else _POWER
