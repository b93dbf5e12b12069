"""Compare validators on the official suite and on real schemas. Run: `python -m bench.schema_suite`.

The suite is the one that `make test` installs, the schemas are in a `shared` folder beside the project; what is missing
is left out with a note.
"""

from __future__ import annotations

import importlib
import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema_rs
from tests.schema.data import SUITE, remotes

from slipform.schema.validator import compile_schema, find_violations

SHARED = Path(__file__).resolve().parents[1] / ".." / "shared"
DRAFTS = {
    "draft7": ("http://json-schema.org/draft-07/schema#", jsonschema_rs.Draft7),
    "draft2020-12": ("https://json-schema.org/draft/2020-12/schema", jsonschema_rs.Draft202012),
}

Judge = Callable[[dict[str, Any]], Callable[[Any], bool]]
Case = tuple[dict[str, Any], list[tuple[Any, bool]]]


def suite(draft: str) -> Iterator[Case]:
    for path in sorted((SUITE / "tests" / draft).glob("*.json")):
        for group in json.loads(path.read_text("utf-8")):
            schema = group["schema"] if isinstance(group["schema"], dict) else {"allOf": [group["schema"]]}
            tests = [(test["data"], test["valid"]) for test in group["tests"]]
            yield {"$schema": DRAFTS[draft][0], **schema}, tests


def real_world() -> Iterator[Case]:
    with (SHARED / "schemas" / "real_world.jsonl").open(encoding="utf-8") as lines:
        for entry in map(json.loads, lines):
            yield entry["schema"], [(test["data"], test["valid"]) for test in entry["tests"]]


def our_judge(known: dict[str, Any], *, formats: bool) -> Judge:
    """Return slipform's verdicts; `known` are the documents that schemas may refer to."""

    def judge(schema: dict[str, Any]) -> Callable[[Any], bool]:
        compiled = compile_schema(schema, formats="json" if formats else "ignored", resources=known)
        return lambda value: not find_violations(compiled, value)

    return judge


def judges(known: dict[str, Any], draft: int | None, *, formats: bool) -> dict[str, Judge]:
    registry = jsonschema_rs.Registry(known.items(), draft=draft) if known else None

    def bare(schema: dict[str, Any]) -> Callable[[Any], bool]:
        return jsonschema_rs.validator_for(schema, registry=registry, validate_formats=formats, offline=True).is_valid

    found: dict[str, Judge] = {"slipform": our_judge(known, formats=formats), "jsonschema-rs, bare": bare}
    if classic := peer("jsonschema"):
        found["jsonschema"] = lambda schema: _classic(classic, schema, known, formats=formats)
    if fast := peer("fastjsonschema"):
        found["fastjsonschema"] = lambda schema: _fast(fast, schema, known)
    return found


def _classic(module: Any, schema: dict[str, Any], known: dict[str, Any], *, formats: bool) -> Callable[[Any], bool]:
    referencing = importlib.import_module("referencing")
    default = module.validators.validator_for(schema)
    plain = importlib.import_module("referencing.jsonschema").specification_with(default.META_SCHEMA["$schema"])
    resources = [
        (uri, referencing.Resource.from_contents(body, default_specification=plain)) for uri, body in known.items()
    ]
    registry = referencing.Registry().with_resources(resources)
    checker = module.FormatChecker() if formats else None
    validator = default(schema, registry=registry, format_checker=checker)
    return lambda value: bool(validator.is_valid(value))


def _fast(module: Any, schema: dict[str, Any], known: dict[str, Any]) -> Callable[[Any], bool]:
    run = module.compile(schema, handlers={"http": lambda uri: known[uri]})

    def judge(value: Any) -> bool:
        try:
            run(value)
        except module.JsonSchemaException:
            return False
        return True

    return judge


def peer(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        print(f"({name} is not installed: left out)")
        return None


def score(cases: list[Case], judge: Judge) -> Counter[str]:
    result: Counter[str] = Counter()
    for schema, tests in cases:
        try:
            verdict = judge(schema)
        except Exception:
            result["schema refused"] += len(tests)
            continue
        for value, valid in tests:
            try:
                result["right" if verdict(value) == valid else "wrong"] += 1
            except Exception:
                result["error"] += 1
    return result


def report(title: str, cases: list[Case], judge_by_name: dict[str, Judge]) -> None:
    total = sum(len(tests) for _, tests in cases)
    print(f"\n{title}: {len(cases)} schemas, {total} values")
    for name, judge in judge_by_name.items():
        result = score(cases, judge)
        rest = ", ".join(f"{count} {kind}" for kind, count in sorted(result.items()) if kind != "right")
        print(f"  {name:<22} {result['right']:>6} right  {100 * result['right'] / total:>6.2f} %  {rest}")


def main() -> None:
    if SUITE.is_dir():
        for draft, (_, number) in DRAFTS.items():
            known = remotes(draft)
            report(f"official suite, {draft}, required", list(suite(draft)), judges(known, number, formats=False))
    else:
        print("(the official suite is not there: left out)")
    if (SHARED / "schemas" / "real_world.jsonl").is_file():
        report("real schemas, formats asserted", list(real_world()), judges({}, None, formats=True))
    else:
        print("(the real schemas are not there: left out)")


if __name__ == "__main__":
    main()
