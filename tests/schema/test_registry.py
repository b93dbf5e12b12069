from __future__ import annotations

from pathlib import Path

import pytest

from slipform.errors import AdditionalPropertiesNotFalse, ConfigError, RequestError
from slipform.schema import Registry, strict_findings


@pytest.mark.covers("S1-19", "S1-20", "C22")
def test_minimal_object_is_built_in_and_admits_only_the_empty_object() -> None:
    schema = Registry.load().get("minimal_object")
    assert schema.document == {"type": "object", "additionalProperties": False}
    assert schema.validate({}) == []
    assert schema.validate({"a": 1}) != []
    assert strict_findings(schema.document) == []


@pytest.mark.covers("S1-19", "S1-21", "C21", "C22")
def test_generic_list_is_built_in_and_fails_the_strict_rules() -> None:
    schema = Registry.load().get("generic_list")
    assert schema.document == {"type": "array", "items": {"type": "object"}}
    assert schema.validate([{"a": 1}]) == []
    assert strict_findings(schema.document) == [AdditionalPropertiesNotFalse("$.items")]


@pytest.mark.covers("S1-19")
def test_an_unknown_name_is_told_the_known_ones() -> None:
    with pytest.raises(RequestError, match="generic_list, minimal_object"):
        Registry.load().get("nope")


@pytest.mark.covers("S1-22")
def test_a_folder_and_python_types_are_loaded_by_name(tmp_path: Path) -> None:
    (tmp_path / "user.json").write_text('{"type": "object", "title": "Other"}')
    (tmp_path / "score.yaml").write_text("type: integer\nminimum: 0\n")
    (tmp_path / "size.yml").write_text("enum: [small, large]\n")
    (tmp_path / ".hidden.json").write_text("{")
    (tmp_path / "notes.txt").write_text("not a schema")
    registry = Registry.load(tmp_path, {"pair": "tests.schema.test_python_types:Pair"})
    assert sorted(registry.names) == ["generic_list", "minimal_object", "pair", "score", "size", "user"]
    assert registry.get("user").name == "user"
    assert registry.get("score").validate(-1) != []
    assert registry.get("pair").to_python([1, "a"]) == (1, "a")


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("bad.json", "{", "cannot be read"),
        ("bad.yaml", "a: [", "cannot be read"),
        ("bad.json", "[1]", "object at the top level"),
        ("bad.yaml", "type: strnig", "strnig"),
        ("bad.yaml", "const: 2024-01-01", "Python date"),
        ("bad.json", '{"$ref": "http://example.com/x"}', "http://example.com/x"),
        ("minimal_object.json", "{}", "built in"),
        ("bomb.yaml", "a0: &a0 [x]\n" + "".join(f"a{n + 1}: &a{n + 1} [*a{n}, *a{n}]\n" for n in range(30)), "aliases"),
    ],
)
def test_a_bad_file_is_named(tmp_path: Path, name: str, text: str, words: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError) as caught:
        Registry.load(tmp_path)
    assert name in str(caught.value)
    assert words in str(caught.value)


def test_two_files_of_one_name_are_both_named(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("{}")
    (tmp_path / "a.yaml").write_text("{}")
    with pytest.raises(ConfigError, match=r"a\.json and .*a\.yaml"):
        Registry.load(tmp_path)


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nowhere"):
        Registry.load(tmp_path / "nowhere")


@pytest.mark.parametrize("reference", ["json", "json:", "no.such.module:X", "json:Nope", "socket:socket", ":X"])
def test_a_bad_reference_is_named(reference: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Registry.load(references={"x": reference})
    assert reference in str(caught.value)
