"""The states of the character machine."""

from __future__ import annotations

from typing import Final

# Between tokens: what may come next.
VALUE: Final = 0
FIRST_ITEM: Final = 1
ITEM: Final = 2
FIRST_KEY: Final = 3
KEY: Final = 4
COLON: Final = 5
AFTER: Final = 6
DONE: Final = 7
# Inside a token.
STRING: Final = 8
ESCAPE: Final = 9
HEX: Final = 10
HIGH: Final = 11
HIGH_ESCAPE: Final = 12
NUMBER: Final = 13
LITERAL: Final = 14
FAILED: Final = 15
# States from here on belong to the lenient machine.
OTHER: Final = 16

EXPECTED: Final = {
    VALUE: "a value",
    FIRST_ITEM: "a value or ']'",
    ITEM: "a value",
    FIRST_KEY: "a quoted key or '}'",
    KEY: "a quoted key",
    COLON: "':'",
    AFTER: "',' or the closing bracket",
    DONE: "nothing after the JSON",
}
"""What a reader of an error is told was due between two tokens."""
