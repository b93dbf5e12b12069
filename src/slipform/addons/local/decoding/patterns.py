"""Spell formats and regular expressions for the engine, and check grammars with its compiler.

The engine contains an llguidance that is older than the one on PyPI: a schema that compiles with the newer one (a
`format: uri`, for example) may not compile there, and then the engine silently continues unconstrained. Its C
functions are exported, so the code that will decode is called. Where they are not, the Python package is used.
"""

from __future__ import annotations

import ctypes
import json
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from slipform.addons.local.engine import engine_folder
from slipform.addons.local.llama import limit_spin_waits
from slipform.errors import LocalModelError
from slipform.schema.document import Pointer, replaced, subschemas
from slipform.schema.patterns import PATTERNS, parsed

_NAME = "[a-zA-Z0-9]{1,20}(-[a-zA-Z0-9]{1,10}){0,3}"
_PATH = "([a-zA-Z0-9._~!$&'()*+,;=:@/-]|%[0-9A-F]{2})*"
_TAIL = r"(\?[a-zA-Z0-9._~!$&'()*+,;=:@/?-]*)?(#[a-zA-Z0-9._~!$&'()*+,;=:@/?-]*)?"
_URI = rf"^[a-zA-Z][a-zA-Z0-9+.-]*:(//{_NAME}(\.{_NAME})*(:[0-9]{{1,4}})?(/{_PATH})?|[a-zA-Z0-9]{_PATH}){_TAIL}$"
_REFERENCE = rf"^/?[a-zA-Z0-9._~-]+(/[a-zA-Z0-9._~-]+)*/?{_TAIL}$"
SPELLINGS = {
    "uri": _URI,
    "iri": _URI,
    "uri-reference": _REFERENCE,
    "iri-reference": _REFERENCE,
    "idn-email": rf"^[a-zA-Z0-9]{{1,12}}([._+-][a-zA-Z0-9]{{1,12}}){{0,3}}@{_NAME}(\.{_NAME}){{1,3}}$",
    "idn-hostname": rf"^{_NAME}(\.{_NAME}){{0,3}}$",
    "json-pointer": r"^(/[a-zA-Z0-9_.-]*)*$",
    "relative-json-pointer": r"^(0|[1-9][0-9]{0,3})(/[a-zA-Z0-9_.-]*)*$",
}
"""Patterns of formats that the engine does not know: their usual texts, in letters that every validator accepts."""
PLAINEST = {"regex": r"^\^?[a-zA-Z0-9 _-]*\$?$", "uri-template": _REFERENCE}
"""Patterns of texts that certainly have the format, but are only a small part of them."""
_LEAP_DAY = "([0-9]{2}(0[48]|[2468][048]|[13579][26])|([02468][048]|[13579][26])00)-02-29"
_DAY = f"^({_LEAP_DAY}|[0-9]{{4}}-(02-([01][0-9]|2[0-8])|(0[13-9]|1[0-2])-[0-3][0-9]))"
_NO_LEAP_SECOND = "[0-9:]{6}[0-5]"
_BESIDES = {
    "date": _DAY,
    "time": f"^{_NO_LEAP_SECOND}",
    "date-time": f"{_DAY}[Tt]{_NO_LEAP_SECOND}",
    "email": "^[^@]{1,64}@",
}
"""Further patterns of formats: the engine accepts 29 February in any year, and second 60 at any time."""


def format_pattern(pattern: str, sub: Mapping[str, Any]) -> dict[str, Any]:
    """Return a schema with a pattern in place of its format.

    >>> format_pattern("^/", {"type": "string", "format": "json-pointer", "pattern": "a"})
    {'type': 'string', 'pattern': 'a', 'allOf': [{'pattern': '^/'}]}
    """
    return _also({key: value for key, value in sub.items() if key != "format"}, pattern)


def with_whole_formats(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema with its formats as strict as validators check them.

    >>> with_whole_formats({"format": "email"})
    {'format': 'email', 'pattern': '^[^@]{1,64}@'}
    """
    result: Any = schema
    for at, sub in list(subschemas(schema)):
        if (besides := _BESIDES.get(str(sub.get("format")))) is not None:
            result = replaced(result, at, _also(sub, besides))
    return dict(result)


def _also(sub: Mapping[str, Any], pattern: str) -> dict[str, Any]:
    if "pattern" in sub:
        return {**sub, "allOf": [*sub.get("allOf", ()), {"pattern": pattern}]}
    return {**sub, "pattern": pattern}


_PLACE = re.compile(r"^at \d+\(\d+\): (?:failed to compile JSON schema: )?")
_EXCERPT = re.compile(r"\n\s*\d+ \| .*", re.DOTALL)
_END = b"\xff<end>"


# On one line, spaced like most JSON. If it can choose, a small model may write blanks endlessly: a grammar that
# allows some allows more after them. Without any (`{"a":1}`) answers get worse; with these they do not.
_STYLE = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


def json_rule(schema: Mapping[str, Any]) -> str:
    """Return the rule for the values of a schema, in the engine's format."""
    return "%json " + json.dumps({**with_twins(schema), "x-guidance": _STYLE})


def grammar_problem(grammar: str) -> str | None:
    r"""Return why the engine would not decode under a grammar; None when it will.

    >>> grammar_problem("%llguidance {}\nstart: /a/") is None
    True
    """
    checker = _checker()
    problem = checker.problem(grammar) if checker else _python_problem(grammar)
    if problem is None:
        return None
    return _EXCERPT.sub("", _PLACE.sub("", problem)).strip()


class _TokenizerInit(ctypes.Structure):
    _fields_ = (
        ("vocab_size", ctypes.c_uint32),
        ("end", ctypes.c_uint32),
        ("lengths", ctypes.c_void_p),
        ("tokens", ctypes.c_void_p),
        ("tokenizer_json", ctypes.c_void_p),
        ("assumes_string", ctypes.c_bool),
        ("tokenize", ctypes.c_void_p),
        ("greedy", ctypes.c_bool),
        ("user_data", ctypes.c_void_p),
        ("slices", ctypes.c_void_p),
        ("room", ctypes.c_byte * 256),
    )


class _ConstraintInit(ctypes.Structure):
    _fields_ = (
        ("tokenizer", ctypes.c_void_p),
        ("log_buffer_level", ctypes.c_uint32),
        ("log_stderr_level", ctypes.c_uint32),
        ("room", ctypes.c_byte * 256),
    )


def _declare_functions(library: ctypes.CDLL) -> None:
    """Declare the types of the library's functions."""
    pointer = ctypes.c_void_p
    text = ctypes.c_char_p
    size = ctypes.c_size_t
    library.llg_new_tokenizer.restype = pointer
    library.llg_new_tokenizer.argtypes = [pointer, text, size]
    library.llg_constraint_init_set_defaults.argtypes = [pointer, pointer]
    library.llg_new_matcher.restype = pointer
    library.llg_new_matcher.argtypes = [pointer, text, text]
    library.llg_matcher_get_error.restype = text
    library.llg_matcher_get_error.argtypes = [pointer]
    library.llg_matcher_compute_mask.argtypes = [pointer]
    library.llg_free_matcher.argtypes = [pointer]


class _Checker:
    """The engine's grammar compiler with a vocabulary of single bytes, which is sufficient and fast."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        _declare_functions(library)
        tokens = bytes(range(256)) + _END
        self._tokens = ctypes.create_string_buffer(tokens, len(tokens))
        self._lengths = (ctypes.c_uint32 * 257)(*[1] * 256, len(_END))
        tokenizer = _TokenizerInit(
            vocab_size=257,
            end=256,
            lengths=ctypes.addressof(self._lengths),
            tokens=ctypes.addressof(self._tokens),
            greedy=True,
        )
        error_buffer = ctypes.create_string_buffer(500)
        tokenizer_handle = library.llg_new_tokenizer(ctypes.byref(tokenizer), error_buffer, len(error_buffer))
        if not tokenizer_handle:
            raise OSError(error_buffer.value.decode(errors="replace"))
        self._setup = _ConstraintInit()
        library.llg_constraint_init_set_defaults(ctypes.byref(self._setup), tokenizer_handle)
        self._setup.log_buffer_level = self._setup.log_stderr_level = 0

    def problem(self, grammar: str) -> str | None:
        matcher = self._library.llg_new_matcher(ctypes.byref(self._setup), b"lark", grammar.encode())
        try:
            error = self._library.llg_matcher_get_error(matcher)
            if error is None:
                # A grammar that is too large fails at the first token.
                self._library.llg_matcher_compute_mask(matcher)
                error = self._library.llg_matcher_get_error(matcher)
            if error is None:
                return None
            return str(error.decode(errors="replace"))
        finally:
            self._library.llg_free_matcher(matcher)


@cache
def _checker() -> _Checker | None:
    limit_spin_waits()
    try:
        folder = Path(engine_folder(), "xllamacpp")
    except LocalModelError:  # another engine decodes with the grammars of the Python package
        return None
    for path in sorted(folder.glob("*.so")):
        try:
            return _Checker(ctypes.CDLL(str(path)))
        except (OSError, AttributeError):
            continue
    return None


def _python_problem(grammar: str) -> str | None:
    try:
        from llguidance import LLMatcher
    except ImportError:
        raise LocalModelError(
            "The embedded model needs llguidance, which is not installed", hint="Run `pip install 'slipform[local]'`."
        ) from None
    failed, messages = LLMatcher.validate_grammar_with_warnings(grammar)
    return "; ".join(messages) if failed else None


_PIECE = re.compile(
    r"""\\(?:x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|u\{[0-9a-fA-F]+\}|[pP]\{[^}]*\}|c.|.)   # an escape
      | \[\^?\]?(?:\\.|[^\]\\])*\]                                                     # a class
      | \{\d+(?:,\d*)?\}                                                                # a count
      | \(\?(?:[:=!]|<[=!]|P?<\w+>)                                                     # the opening of a group
      | .""",
    re.VERBOSE | re.DOTALL,
)
_ESCAPED_IN_JSON = frozenset({"\\\\", '"', '\\"', "\\n", "\\r", "\\t", "\\f", "\\x5c", "\\x5C", "\\x22", "\\u005c"})
_REPEATED = re.compile(r"\{(\d+),(\d*)\}")
_LOOK_AROUND = ("(?=", "(?!", "(?<=", "(?<!")
_LAST_CHARACTER = 0x10FFFF
_BLANKS = (
    (0x20, 0x20),
    (0x85, 0x85),
    (0xA0, 0xA0),
    (0x1680, 0x1680),
    (0x2000, 0x200A),
    (0x2028, 0x2029),
    (0x202F, 0x202F),
    (0x205F, 0x205F),
    (0x3000, 0x3000),
    (0xFEFF, 0xFEFF),
)
_UNUSED = ("\ue000", "\ue001")
"""Characters that no model writes and no pattern contains."""


def pieces(pattern: str) -> Iterator[str]:
    r"""Yield the parts of a pattern: characters, escapes, classes, counts, brackets.

    >>> list(pieces(r"^\d{2,}[a-z]$"))
    ['^', '\\d', '{2,}', '[a-z]', '$']
    """
    return (match[0] for match in _PIECE.finditer(pattern))


def twins(pattern: str) -> tuple[str, str] | None:
    r"""Return two patterns that together mean the same as this one; None where one is sufficient.

    The engine loses the text after a character that JSON escapes: `^C:\\.*$` ends at the backslash. A class of two
    characters is not affected, and the intersection of two such classes is that one character.

    >>> [found.encode("ascii", "replace") for found in twins('^"a+$')]
    [b'^["?]a+$', b'^["?]a+$']
    """
    parts = list(pieces(pattern))
    if not any(_is_escaped(part) for part in parts):
        return None
    first, second = ("".join(_widened(part, other) for part in parts) for other in _UNUSED)
    return first, second


def with_twins(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema with its patterns in a form that the engine enforces."""
    result: Any = schema
    for at, sub in list(subschemas(schema)):
        if not isinstance(sub.get("pattern"), str):
            continue
        pattern = with_positive_classes(sub["pattern"])
        rest = {key: value for key, value in sub.items() if key != "pattern"}
        if both := twins(pattern):
            rest["allOf"] = [*rest.get("allOf", ()), *({"pattern": each} for each in both)]
            result = replaced(result, at, rest)
        elif pattern != sub["pattern"]:
            result = replaced(result, at, {**rest, "pattern": pattern})
    return dict(result)


def with_positive_classes(pattern: str) -> str:
    r"""Return the pattern with negated classes around a quote or backslash written as positive ones.

    The engine accepts the escape of a character that the class excludes: `\\\\` under `[^\\]`. No control characters.

    >>> with_positive_classes(r'^[^"]+\d$')
    '^[\\x{20}-\\x{21}\\x{23}-\\x{10ffff}]+\\d$'
    """
    if "[^" in pattern:
        return "".join(map(_positive, pieces(pattern)))
    return pattern


def _positive(part: str) -> str:
    """Return a class that excludes a quote or backslash as a class of the characters that it includes."""
    tree = parsed(part) if part.startswith("[^") else None
    if tree is None or len(tree) != 1:
        return part
    excluded = sorted(_excluded(tree[0]))
    if not any(low <= each <= high for low, high in excluded for each in (0x22, 0x5C)) or (-1, -1) in excluded:
        return part
    included: list[str] = []
    at = 0x20
    for low, high in [*excluded, (_LAST_CHARACTER + 1, _LAST_CHARACTER + 1)]:
        if low > at:
            included.append(f"\\x{{{at:x}}}-\\x{{{low - 1:x}}}")
        at = max(at, high + 1)
    return f"[{''.join(included)}]" if included else part


def _excluded(node: tuple[Any, Any]) -> Iterator[tuple[int, int]]:
    """Yield the ranges of characters that a negated class excludes; (-1, -1) for an unknown one."""
    operation = str(node[0])
    argument = node[1]
    if operation == "NOT_LITERAL":
        yield argument, argument
    for kind, member in argument[1:] if operation == "IN" else ():
        if str(kind) == "LITERAL":
            yield member, member
        elif str(kind) == "RANGE":
            yield member
        elif str(member) == "CATEGORY_DIGIT":
            yield 0x30, 0x39
        elif str(member) == "CATEGORY_SPACE":
            yield from _BLANKS
        else:
            yield -1, -1


def without_escapes(schema: Mapping[str, Any]) -> tuple[dict[str, Any], list[Pointer]]:
    """Return the schema without the patterns that the engine would enforce only partly, and their places."""
    result: Any = schema
    pointers = [at for at, sub in subschemas(schema) if isinstance(sub.get("pattern"), str) and twins(sub["pattern"])]
    for at in pointers:
        result = replaced(result, (*at, "pattern"), None)
    return dict(result), [(*at, "pattern") for at in pointers]


def _is_escaped(part: str) -> bool:
    return part in _ESCAPED_IN_JSON or (part[:1] == "[" and part[1:-1] in _ESCAPED_IN_JSON)


def _widened(part: str, other: str) -> str:
    if not _is_escaped(part):
        return part
    inside = part[1:-1] if part[:1] == "[" else part
    return f"[{inside}{other}]"


def without_inner_anchors(pattern: str) -> str | None:
    r"""Return a stricter pattern without anchors inside; None where there are none.

    >>> without_inner_anchors(r"^([a-z]+(/|$))+$")
    '^([a-z]+(/))+$'
    """
    parts = list(pieces(pattern))
    remaining = list(parts)
    for at in range(len(parts) - 2, 0, -1):
        if parts[at] in ("^", "$"):
            if parts[at - 1].startswith("(") and parts[at + 1] == "|":
                remaining[at] = remaining[at + 1] = ""
            elif parts[at - 1] == "|" and parts[at + 1] in ("|", ")"):
                remaining[at] = remaining[at - 1] = ""
    return "".join(remaining) if remaining != parts else None


def without_look_around(pattern: str) -> str | None:
    r"""Return the pattern without its look-around, which matches the same and more; None where it has none.

    >>> without_look_around("^(?!@@)[a-z@]+$")
    '^[a-z@]+$'
    """
    remaining: list[str] = []
    depth = 0
    for part in pieces(pattern):
        if depth:
            depth += part.startswith("(") - (part == ")")
        elif part in _LOOK_AROUND:
            depth = 1
        else:
            remaining.append(part)
    looser = "".join(remaining)
    if depth or looser == pattern:
        return None
    return looser


def are_apart(one: str, other: str) -> bool:
    """Return whether no text matches both patterns, as far as the engine can decide from the names in a map.

    >>> are_apart("^a+$", "^b"), are_apart("^a+$", "a")
    (True, False)
    """
    key = ("apart", one, other)
    is_apart: bool | None = PATTERNS.get(key)
    if is_apart is None:
        named = {"type": "object", "patternProperties": {one: {}, other: {}}, "additionalProperties": False}
        is_apart = one != other and grammar_problem("%llguidance {}\nstart: %json " + json.dumps(named)) is None
        PATTERNS.put(key, is_apart, 500 + 4 * (len(one) + len(other)))
    return is_apart


def bounded(pattern: str, most: int) -> str:
    r"""Return a stricter pattern with bounded repetitions, for names and texts in which a model could get stuck.

    >>> bounded(r"^[a-z]+(\.[a-z]+)*$", 9), bounded("^x-", 9), bounded(".*", 9)
    ('^[a-z]{1,9}(\\.[a-z]{1,9}){0,9}$', '^x-.{0,9}$', '^.{0,9}$')
    """
    parts = [_ended(part, most) for part in pieces(pattern)]
    if "|" in parts and _depth_of_first(parts, "|") == 0:
        return "".join(parts)
    opened = parts[:1] == ["^"]
    closed = parts[-1:] == ["$"]
    loose = not closed and not (parts and parts[-1].startswith("{"))
    start = "" if opened else "^"
    end = "" if closed else "$"
    filler = f".{{0,{most}}}" if loose else ""
    return f"{start}{''.join(parts)}{filler}{end}"


def _ended(part: str, most: int) -> str:
    if part in "+*" and part:
        least = 1 if part == "+" else 0
        return f"{{{least},{most}}}"
    if match := _REPEATED.fullmatch(part):
        least = int(match[1])
        own = int(match[2] or most)
        return f"{{{least},{max(least, min(own, most))}}}"
    return part


def _depth_of_first(parts: list[str], target: str) -> int:
    depth = 0
    for part in parts:
        if part == target:
            return depth
        depth += part.startswith("(")
        depth -= part == ")"
    return depth
