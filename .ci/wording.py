"""Count names, phrases and statements that are hard to read in the sources; fail where a count is above its ceiling.

python .ci/wording.py            # compare with the ceilings
python .ci/wording.py --lower    # write the counts of now as ceilings; none may rise
"""

from __future__ import annotations

import ast
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
SOURCES = ROOT / "src" / "slipform"
CEILINGS = Path(__file__).with_suffix(".json")
PAST = frozenset(
    [
        "told", "said", "asked", "given", "found", "seen", "held", "kept", "marks", "lessons", "lesson", "learn",
        "learned", "taught", "spelled", "spoken", "settled", "dressed", "aimed", "hear", "heard", "way", "ways",
        "begun", "over", "known", "wanted", "worded",
    ]
)  # fmt: skip
"""Names that tell the past of a thing instead of what it is."""
MAX_COMPLEXITY = 18
PHRASES = {
    "is_no": re.compile(r"(?<![Tt]here )\b(?:is|are) no (?!longer|more|less|such)[a-z]"),
    "bare_who": re.compile(r"\b(?:for|by|to|of) who [a-z]"),
}


def bound_names(tree: ast.Module) -> Iterator[str]:
    """Yield the names that a module binds: variables, parameters, attributes, functions and classes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name


def is_parallel(node: ast.AST) -> bool:
    """Whether a statement assigns several values to several names, and is not a swap."""
    if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Tuple):
        return False
    target = node.targets[0]
    if not isinstance(target, ast.Tuple) or len(target.elts) != len(node.value.elts):
        return False
    return sorted(map(ast.unparse, target.elts)) != sorted(map(ast.unparse, node.value.elts))


def is_nested(node: ast.AST) -> bool:
    """Whether a conditional expression is part of another."""
    return isinstance(node, ast.IfExp) and any(isinstance(child, ast.IfExp) for child in ast.iter_child_nodes(node))


def own_nodes(function: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a function without those of functions and classes inside it."""
    pending = list(ast.iter_child_nodes(function))
    while pending:
        node = pending.pop()
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node
            pending.extend(ast.iter_child_nodes(node))


def complexity(function: ast.AST) -> int:
    """Return the cyclomatic complexity as radon counts it: operators, conditionals and comprehensions included."""
    total = 1
    for node in own_nodes(function):
        if isinstance(node, ast.Try):
            total += len(node.handlers) + bool(node.orelse)
        elif isinstance(node, ast.BoolOp):
            total += len(node.values) - 1
        elif isinstance(node, ast.If | ast.IfExp | ast.Assert):
            total += 1
        elif isinstance(node, ast.For | ast.While | ast.AsyncFor):
            total += 1 + bool(node.orelse)
        elif isinstance(node, ast.comprehension):
            total += 1 + len(node.ifs)
        elif isinstance(node, ast.Match):
            total += len(node.cases)
    return total


def is_complex(node: ast.AST) -> bool:
    """Whether a function is too complex to be read at once."""
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and complexity(node) > MAX_COMPLEXITY


STATEMENTS = {
    "parallel_assignments": is_parallel,
    "nested_conditionals": is_nested,
    "complex_functions": is_complex,
}


def count() -> dict[str, int]:
    """Return how often each oddity occurs."""
    counts = dict.fromkeys(["past_names", *STATEMENTS, *PHRASES], 0)
    for path in sorted(SOURCES.rglob("*.py")):
        text = path.read_text("utf-8")
        tree = ast.parse(text)
        counts["past_names"] += sum(name.strip("_") in PAST for name in bound_names(tree))
        for name, is_odd in STATEMENTS.items():
            counts[name] += sum(map(is_odd, ast.walk(tree)))
        for name, pattern in PHRASES.items():
            counts[name] += len(pattern.findall(text))
    return counts


def main() -> int:
    """Print the counts beside their ceilings; return 1 where one is above."""
    counts = count()
    ceilings = json.loads(CEILINGS.read_text("utf-8")) if CEILINGS.exists() else counts
    if "--lower" in sys.argv[1:]:
        lowered = {name: min(value, ceilings.get(name, value)) for name, value in counts.items()}
        CEILINGS.write_text(json.dumps(lowered, indent=2) + "\n", "utf-8")
        ceilings = lowered
    risen = [f"{name}: {n}, at most {ceilings[name]}" for name, n in counts.items() if n > ceilings.get(name, n)]
    for line in risen:
        sys.stderr.write(f"wording: {line}\n")
    return 1 if risen else 0


if __name__ == "__main__":
    sys.exit(main())
