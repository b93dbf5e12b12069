"""Callers' regular expressions: one engine, a bounded cost, and nothing of theirs in Python's `re`."""

from __future__ import annotations

import ast
import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import slipform
from slipform.addons.local.decoding.constrain import constrain
from slipform.addons.local.decoding.cost import widths
from slipform.enforce import ReleaseGate, Switches
from slipform.enforce.patching import patch
from slipform.errors import SchemaError, SlipformError
from slipform.schema import Schema, example
from slipform.schema import patterns as engine
from slipform.schema.lowering.lowered import lower
from slipform.schema.patterns import counting, is_pattern, matcher_for, parsed, places_alive, search
from slipform.schema.validator import compile_schema, violations
from slipform.text.parser import Parser
from slipform.text.resolve import ResolveCache, resolve
from slipform.text.tracker import Mismatch

SOURCE = Path(slipform.__file__).parent
ENGINE = "schema/patterns.py"

OWN_PATTERNS = {
    ("schema/lowering/dialects.py", "fit_name"): "the alphabet of a dialect's names",
    ("prices.py", "_fits"): "the operator's price table, escaped but for its stars",
    ("addons/server/calls/endpoints.py", "_pattern"): "our own table of endpoints",
    ("providers/catalog.py", "_glob"): "the operator's and the catalog's globs",
    ("text/reasoning.py", "_closing"): "our own table of markers, and tags of the text, escaped",
    ("codecs/tool_names.py", "__post_init__"): "our own table of the vendors' alphabets",
    ("codecs/tool_names.py", "encode"): "our own table of the vendors' alphabets",
    ("text/repair/fast_paths.py", "_patterns"): "our own tables, compiled on first use",
    ("addons/evidence/source_index.py", "_row_of"): "the sign between the cells of a table, escaped",
    ("addons/evidence/dates.py", "_months_in"): "our own table of months, escaped",
    ("addons/evidence/folding.py", "_longer_or_shorter"): "characters of the source in a class, escaped",
    ("addons/records/coverage.py", "_pattern"): "forms of values in the source, escaped",
    ("addons/evidence/folding.py", "_run_of"): "characters of the source in a class, escaped",
    ("addons/evidence/occurrences.py", "_other_spellings"): "a web address, escaped",
}

HOSTILE = [
    r"(a+)+$",
    r"(.*)*x",
    r"((a|aa)*)*!",
    r"^(([a-z])+.)+[A-Z]([a-z])+$",
    r"(a*)*\1!",  # steps back without end
    r"(?=.*x)y",  # each step reads the whole text
    r"(?:(?=[ab]*x)a|a)*!",
    r"[ab]*a[ab]{5000}!",  # an automaton with 5,000 places alive at once
]
LONG = "ab" * 10 + "a" * 1_000_000
SHORT = "a" * 60


def uses_of_re(path: Path) -> Iterator[tuple[str, int]]:
    """The functions of a module that hand something other than a literal to `re`, with the line."""
    text = path.read_text()
    if "import re\n" not in text and "from re import" not in text:
        return
    tree = ast.parse(text)
    imported = {
        name.asname or name.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module == "re"
        for name in node.names
    }
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    for function in functions:
        literal = {
            id(call.func)
            for call in ast.walk(function)
            if isinstance(call, ast.Call) and call.args and isinstance(call.args[0], ast.Constant)
        }
        for node in ast.walk(function):
            named = isinstance(node, ast.Name) and node.id in imported
            of_re = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "re"
            if of_re and isinstance(node, ast.Attribute) and (node.attr.isupper() or node.attr in HARMLESS):
                continue
            if (named or of_re) and id(node) not in literal:
                yield function.name, getattr(node, "lineno", 0)


HARMLESS = {"escape", "error", "Pattern", "Match"}


def modules() -> list[Path]:
    return [path for path in sorted(SOURCE.rglob("*.py")) if path.relative_to(SOURCE).as_posix() != ENGINE]


def test_no_module_but_one_hands_python_s_re_a_pattern_that_is_not_its_own() -> None:
    found = {
        (path.relative_to(SOURCE).as_posix(), function): line
        for path in modules()
        for function, line in uses_of_re(path)
    }
    assert set(found) == set(OWN_PATTERNS), {name: line for name, line in found.items() if name not in OWN_PATTERNS}


def test_the_walk_over_the_source_finds_a_pattern_in_a_variable(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text(
        "import re\nfrom re import search\nOWN = re.compile('a' + 'b')\n"
        "def f(p): return re.search(p, 'x')\ndef g(p): return search(p, 'x')\n"
        "def h(p): return list(map(re.compile, p))\ndef i(): return re.search('a', 'b', re.I)\n"
    )
    assert [name for name, _ in uses_of_re(module)] == ["f", "g", "h"]


def test_no_module_but_one_reaches_for_another_engine_or_for_the_parser_of_re() -> None:
    for path in modules():
        text = path.read_text()
        assert not any(word in text for word in ("re._parser", "vars(re)", "sre_parse", "import regex", "import re2"))
        if path.name != "validator.py":
            assert "import jsonschema_rs" not in text, path


def object_with(pattern: str) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {"s": {"type": "string", "pattern": pattern}, "t": {"not": {"pattern": pattern}}},
        "patternProperties": {pattern: {"type": "integer"}},
        "propertyNames": {"anyOf": [{"pattern": pattern}, {"maxLength": 2_000_000}]},
        "required": ["s"],
        "additionalProperties": {"type": "string"},
    }


def value_with(text: str) -> dict[str, Any]:
    return {"s": text, "t": text, SHORT: 1, SHORT + "b": "x", **{f"{SHORT}{n}": 1 for n in range(3)}}


def loads_it(pattern: str, text: str) -> None:
    ends(lambda: slipform.loads("Here: " + json.dumps(value_with(text)), schema=object_with(pattern)))


def resolves_it(pattern: str, text: str) -> None:
    written = json.dumps(value_with(text))
    parser, cache = Parser(), ResolveCache()
    for start in range(0, len(written), max(1, len(written) // 50)):
        parser = parser.feed(written[start : start + max(1, len(written) // 50)])
        resolve(object_with(pattern), parser, cache)


def streams_it(pattern: str, text: str) -> None:
    live = ReleaseGate(Schema("test", object_with(pattern)), Switches())
    written = json.dumps(value_with(text))
    for start in range(0, len(written), 1_000):
        ends(lambda start=start: live.feed(written[start : start + 1_000]))  # type: ignore[misc]


def patches_it(pattern: str, text: str) -> None:
    patch({**value_with(text), "n": "42"}, Schema("test", object_with(pattern)))


def lowers_it(pattern: str) -> None:
    document = object_with(pattern)
    document["properties"][SHORT] = {"type": "integer"}
    for dialect in ("openai-strict", "gemini", "anthropic", "llguidance"):
        ends(lambda dialect=dialect: lower(document, dialect))  # type: ignore[misc]


def constrains_it(pattern: str) -> None:
    document = object_with(pattern)
    document["properties"][SHORT] = {"type": "integer"}
    ends(lambda: constrain(document, 500))
    widths({"pattern": pattern})


def exemplifies_it(pattern: str) -> None:
    example(object_with(pattern))


def explains_it(pattern: str, text: str) -> None:
    assert violations(object_with(pattern), value_with(text))


def writes_it(pattern: str) -> None:
    from slipform.addons.batch.parquet import arrow_type

    arrow_type(object_with(pattern))


def ends(work: Callable[[], object]) -> None:
    """Whether a hostile pattern is refused or passed over is the consumer's business; that it ends is ours."""
    with suppress(SlipformError):
        work()


@pytest.mark.timeout(30)
@pytest.mark.parametrize("text", [SHORT, LONG], ids=["short", "1MB"])
@pytest.mark.parametrize("pattern", HOSTILE)
@pytest.mark.parametrize(
    "consumer",
    [
loads_it, resolves_it, streams_it, patches_it, explains_it
    ],
)  # fmt: skip
def test_a_hostile_pattern_costs_no_consumer_much(
    consumer: Callable[[str, str], None], pattern: str, text: str
) -> None:
    consumer(pattern, text)


@pytest.mark.timeout(30)
@pytest.mark.parametrize("pattern", HOSTILE)
@pytest.mark.parametrize("consumer", [lowers_it, constrains_it, exemplifies_it, writes_it])
def test_a_hostile_pattern_costs_no_reader_of_schemas_much(consumer: Callable[[str], None], pattern: str) -> None:
    consumer(pattern)


@pytest.mark.timeout(30)
@pytest.mark.parametrize("pattern", HOSTILE)
def test_a_hostile_pattern_over_many_strings_or_names_ends(pattern: str) -> None:
    strings = [f"{SHORT}{number}" for number in range(20_000)]
    violations({"items": {"pattern": pattern}}, strings)
    violations({"patternProperties": {pattern: False}}, dict.fromkeys(strings, 1))
    violations({"allOf": [{"pattern": f"{pattern}{number}"} for number in range(50)]}, "ab" * 20_000)


@pytest.mark.parametrize("pattern", [r"^(a{1,100}){1,100}$", r"(?=.*x)y"])
def test_names_that_would_hold_the_validator_up_are_given_up_before_it_sees_them(pattern: str) -> None:
    # With a keyword of ours the validator holds the interpreter's lock: nobody else would have a turn meanwhile.
    names = {"a" * (1200 + number) + "!": 1 for number in range(80)}
    for closed in ({}, {"additionalProperties": False}, {"unevaluatedProperties": False}):
        compiled = compile_schema({"patternProperties": {pattern: {}}, **closed})
        assert not compiled.is_valid(names)
        assert not compiled.is_valid([{"deep": names}])


def test_very_many_honest_names_are_held_against_a_pattern_with_look_around() -> None:
    schema = {"patternProperties": {"^(?!_)[a-z0-9]+$": {"type": "integer"}}, "additionalProperties": False}
    names = {f"key{number}": number for number in range(20_000)}
    assert compile_schema(schema).is_valid(names)
    assert not compile_schema(schema).is_valid({**names, "_one": 1})


def test_a_match_is_given_up_by_the_work_it_would_take_not_by_the_clock() -> None:
    assert search("(?=.*x)y", "a" * 100_000) is None
    assert search("[ab]*a[ab]{5000}!", "ab" * 50_000) is None
    assert search("(?=.*x)x", "a" * 50 + "x") is True
    assert search(r"^(?=.*[A-Z])(?=.*\d).{8,}$", "Passw0rd" * 10_000) is True


@pytest.mark.parametrize(
    ("pattern", "text", "found"),
    [
        ("^a", "ab", True),
        ("b$", "ab\n", False),  # Python's `$` would
        (r"^\d$", "٣", False),  # Python's `\d` would
        (r"^\cJ$", "\n", True),  # Python cannot read it
        ("^(?<year>[0-9]{4})$", "2024", True),
        (r"(a)\1", "aa", True),
        ("(", "(", None),
        ("^.$", "\ud800", None),
    ],
)
def test_a_pattern_is_read_as_the_validator_reads_it(pattern: str, text: str, found: bool | None) -> None:
    assert search(pattern, text) is found


def test_streams_and_validator_agree_on_which_keys_a_pattern_names() -> None:
    schema = {"type": "object", "patternProperties": {r"^\d$": {"type": "integer"}}, "additionalProperties": False}
    assert violations(schema, {"٣": 1})
    assert isinstance(resolve(schema, Parser().feed('{"٣": 1}'), ResolveCache()), Mismatch)


def test_a_key_that_no_one_can_tell_of_is_left_to_the_validator() -> None:
    schema = {"type": "object", "patternProperties": {"(?=.*x)y": {"type": "integer"}}, "additionalProperties": False}
    answer = resolve(schema, Parser().feed(json.dumps({"a" * 100_000: "text"})), ResolveCache())
    assert not isinstance(answer, Mismatch)


def test_what_cannot_be_told_is_not_valid_even_where_it_is_negated() -> None:
    text = "a" * 100_000
    assert not compile_schema({"pattern": "(?=.*x)y"}).is_valid(text)
    assert not compile_schema({"not": {"pattern": "(?=.*x)y"}}).is_valid(text)
    assert violations({"not": {"pattern": "(?=.*x)y"}}, text)


def test_an_honest_pattern_with_look_around_holds_over_many_strings() -> None:
    schema = {"items": {"pattern": r"^(?=.*[A-Z])(?=.*\d).{8,}$"}}
    strings = [f"Passw0rd{number}" for number in range(5_000)]
    assert compile_schema(schema).is_valid(strings)
    (found,) = violations(schema, [*strings, "password"])
    assert found.instance_path == "/5000"


def test_long_texts_under_a_long_count_are_still_validated() -> None:
    schema = {"pattern": "^[a-z ]{1,5000}$"}
    assert compile_schema({"items": schema}).is_valid(["word " * 999] * 100)


def test_a_budget_is_one_for_all_that_is_inside_and_ends_with_it() -> None:
    with counting() as outer:
        with counting() as inner:
            assert search("(?=a)a", "a")
        assert inner is outer
        assert outer.left < engine.MAX_VALUE_WORK
    with counting() as fresh:
        assert fresh.left == engine.MAX_VALUE_WORK


def test_compiled_patterns_are_kept_within_a_number_of_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    small_cache = type(engine.PATTERNS)("test", entries=2_000, max_bytes=200_000)
    monkeypatch.setattr(engine, "PATTERNS", small_cache)
    for number in range(200):
        assert search(f"^[a-z]{{1,100}}{number}$", "a") is False
    assert 0 < small_cache.held_bytes <= 200_000


def test_a_live_string_that_wears_the_engine_out_is_left_to_the_validator() -> None:
    matcher = matcher_for("^[ab]*a[ab]{1000}!$")
    assert matcher is not None
    text = "".join("ab"[(n * n // 7) % 2] for n in range(20_000))
    assert all(matcher.feed(text[start : start + 100]) for start in range(0, len(text), 100))


def test_patterns_are_parsed_to_be_read_and_never_run() -> None:
    assert parsed("^(?<a>x{2,3})$").getwidth() == (2, 3)
    assert parsed("(") is None
    assert parsed("[[a]") is None
    assert not is_pattern("(")
    assert places_alive("^a{3}[b-d]{1,9}$") < places_alive("a{3}[b-d]{1,9}$")


@pytest.mark.parametrize(
    ("pattern", "fits", "not_so"),
    [
        ("^[][]+$", "][", "a"),
        ("^[][!#]+$", "]#[", "a"),
        ("^[^][]+$", "ab", "a]"),
        ("^a]b$", "a]b", "ab"),
        ("^[^]]+$", "ab", "a]"),
        ("^{[a-z]+}$", "{ab}", "ab"),
        ("^x{2}{$", "xx{", "xx"),
        ("^a{,2}$", "aa", "aaa"),
        (r"^[\w-.]+$", "a-b.c", "a b"),
        (r"^[.-\d]+$", "1-2.", "a"),
        (r"^ab\Z", "ab", "abc"),
        (r"^\p{L}]$", "é]", "é"),
    ],
)
def test_a_pattern_is_taken_as_people_mean_it(pattern: str, fits: str, not_so: str) -> None:
    assert (search(pattern, fits), search(pattern, not_so)) == (True, False)
    for schema in ({"type": "string", "pattern": pattern}, {"type": "object", "patternProperties": {pattern: False}}):
        shape = Schema.of({"title": "t", **schema})
        good, bad = (fits, not_so) if schema["type"] == "string" else ({not_so: 1}, {fits: 1})
        assert (shape.fits(good), shape.fits(bad)) == (True, False)
        assert shape.validate(bad)


def test_a_pattern_that_means_nothing_is_still_refused() -> None:
    with pytest.raises(SchemaError, match="not a regular expression"):
        Schema.of({"title": "t", "type": "string", "pattern": "(["})
