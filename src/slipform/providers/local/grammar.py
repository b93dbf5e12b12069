"""Whether the engine will take a grammar, asked of the engine itself.

The engine carries an llguidance of its own, older than the one on PyPI: a schema that compiles with the newer one (a
`format: uri`, say) may not compile there, and then the engine goes on unconstrained and says nothing. Its C functions
are exported, so the very code that will decode is asked. Where they are not, the Python package has to do.
"""

from __future__ import annotations

import ctypes
import re
from functools import cache
from pathlib import Path

from slipform.errors import LocalModelError
from slipform.providers.local.engine import engine_folder
from slipform.providers.local.llama import rest_at_barriers

_PLACE = re.compile(r"^at \d+\(\d+\): (?:failed to compile JSON schema: )?")
_EXCERPT = re.compile(r"\n\s*\d+ \| .*", re.DOTALL)
_END = b"\xff<end>"


def grammar_problem(grammar: str) -> str | None:
    r"""Why the engine would not decode under a grammar; None when it will.

    >>> grammar_problem("%llguidance {}\nstart: /a/") is None
    True
    """
    checker = _checker()
    said = checker.problem(grammar) if checker else _python_problem(grammar)
    return None if said is None else _EXCERPT.sub("", _PLACE.sub("", said)).strip()


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


class _Checker:
    """The engine's grammar compiler, with a vocabulary of single bytes: enough to compile, and quick."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        pointer, text, size = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t
        library.llg_new_tokenizer.restype = pointer
        library.llg_new_tokenizer.argtypes = [pointer, text, size]
        library.llg_constraint_init_set_defaults.argtypes = [pointer, pointer]
        library.llg_new_matcher.restype = pointer
        library.llg_new_matcher.argtypes = [pointer, text, text]
        library.llg_matcher_get_error.restype = text
        library.llg_matcher_get_error.argtypes = [pointer]
        library.llg_matcher_compute_mask.argtypes = [pointer]
        library.llg_free_matcher.argtypes = [pointer]
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
        said = ctypes.create_string_buffer(500)
        made = library.llg_new_tokenizer(ctypes.byref(tokenizer), said, len(said))
        if not made:
            raise OSError(said.value.decode(errors="replace"))
        self._setup = _ConstraintInit()
        library.llg_constraint_init_set_defaults(ctypes.byref(self._setup), made)
        self._setup.log_buffer_level = self._setup.log_stderr_level = 0

    def problem(self, grammar: str) -> str | None:
        matcher = self._library.llg_new_matcher(ctypes.byref(self._setup), b"lark", grammar.encode())
        try:
            said = self._library.llg_matcher_get_error(matcher)
            if said is None:
                # What is too large to decode under shows at the first token.
                self._library.llg_matcher_compute_mask(matcher)
                said = self._library.llg_matcher_get_error(matcher)
            return None if said is None else str(said.decode(errors="replace"))
        finally:
            self._library.llg_free_matcher(matcher)


@cache
def _checker() -> _Checker | None:
    rest_at_barriers()
    try:
        folder = Path(engine_folder(), "xllamacpp")
    except LocalModelError:  # another engine decodes, under the Python package's grammars
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
