"""Write the figures of the last run into docs/benchmarks.md, README.md and docs/index.md: `python -m bench.page`.

The figures are in docs/assets/benchmarks.json. A page holds them between `<!-- figures: NAME -->` and `<!-- end -->`;
whatever else stands on the page is written by hand.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bench import bars

ROOT = Path(__file__).resolve().parent.parent
FIGURES = ROOT / "docs" / "assets" / "benchmarks.json"
PAGES = tuple(ROOT / name for name in ("README.md", "docs/index.md", "docs/benchmarks.md"))
_REGION = re.compile(r"(<!-- figures: ([\w ]+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)
_ROW = re.compile(r"^\| ([^|]+?) \|.*\|$", re.MULTILINE)


class Run:
    """The figures of a run, part by part."""

    def __init__(self, data: dict[str, Any]) -> None:
        self.data = data

    def part(self, name: str) -> dict[str, Any]:
        """Return the figures of a part; empty if it was never run."""
        found: dict[str, Any] = self.data["parts"].get(name, {}).get("figures", {})
        return found

    def ask_ms(self, name: str) -> float | None:
        """Return the CPU milliseconds that a library adds to one call."""
        micros = self.part("client").get("ask_us", {}).get(name)
        return None if micros is None else micros / 1000

    def proxy_us(self, case: str, name: str) -> float | None:
        """Return a proxy's CPU microseconds for a request or an event; None where it was not measured, or failed."""
        figures = self.part("proxy").get(case, {}).get(name, {})
        return figures.get("us") if figures and not figures.get("failed") else None

    def faults(self, label: str) -> dict[str, str]:
        """Return how many of the faults each library recovers, by the label of the total."""
        totals: dict[str, dict[str, str]] = self.part("faults").get("totals", {})
        return next((counts for name, counts in totals.items() if label in name), {})


def short(value: float | None, unit: str = "") -> str:
    """Return a figure with two significant digits, three from 100 on; a dash for none.

    >>> [short(value, " ms") for value in (0.1312, 4.43, 19.17, 263.4, 13267.0, None)]
    ['0.13 ms', '4.4 ms', '19 ms', '263 ms', '13,300 ms', '–']
    """
    if value is None:
        return "–"
    if abs(value) >= 100:
        digits = 10 ** max(0, len(str(int(abs(value)))) - 3)
        return f"{round(value / digits) * digits:,}{unit}"
    rounded = float(f"{value:.2g}")
    return f"{rounded:.0f}{unit}" if abs(rounded) >= 10 else f"{rounded:g}{unit}"


def times(value: float | None, base: float | None) -> str:
    """Return how often the base goes into a value; a dash where one is missing."""
    return "–" if not value or not base else f"{short(value / base)} ×"


def table(rows: Sequence[Sequence[str]]) -> str:
    """Return rows as a Markdown table, the first as its head."""
    head, *rest = rows
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rest]) + "\n"


def circumstances(run: Run) -> str:
    """Return when, where and with what the figures were measured."""
    data = run.data
    build = "compiled" if data["compiled"] else "plain Python, not compiled"
    text = (
        f"{data['date']}, slipform {data['slipform']} ({data['commit'] or 'no commit'}, {build}), "
        f"Python {data['python']}. {data['machine']}; load {data['load']} when it began.\n"
    )
    if data["quick"]:
        text += "\n**A quick run, to see that everything works: short rounds, so the figures are rough.**\n"
    others = {part["date"] for part in data["parts"].values()} - {data["date"]}
    if others:
        older = [name for name, part in data["parts"].items() if part["date"] != data["date"]]
        text += f"\nFrom an earlier run ({', '.join(sorted(others))}): {', '.join(f'`{name}`' for name in older)}.\n"
    versions = ", ".join(f"{name} {number}" for name, number in sorted(data["versions"].items()))
    return f"{text}\nVersions: {versions}.\n"


def summary(run: Run) -> str:
    """Return the table of all parts."""
    repair, stream, valid = run.part("text_repair"), run.part("text_stream"), run.part("validate")
    sizes = [value for name, value in repair.items() if name.startswith("valid")]
    largest = max((int(name.partition(", ")[2]) for name in repair if name.startswith("valid")), default=0)
    records = stream.get("records", {})
    invoice = {name.partition(": ")[2]: value for name, value in valid.items() if "invoice (2 KB)" in name}
    lower, codecs, batch = run.part("lowering"), run.part("codecs"), run.part("batch")
    auto, sdk = lower.get("slipform → openai, open objects auto", {}), lower.get("openai SDK → openai", {})
    agent = lower.get("pydantic-ai → openai", {})
    partial = run.part("client").get("stream", {})
    rates = {name: {who: 1 / rate for who, rate in found.items()} for name, found in batch.items()}
    shares = {name: _share(found) for name, found in rates.items()}
    situations = run.part("situations")
    rows = [
        ["what", "slipform", "others", "`bench.`"],
        [
            f"`loads` of valid JSON, 1 to {largest // 1000:,} KB",
            f"{min(sizes):.2f}–{max(sizes):.2f} × the speed of `orjson.loads`" if sizes else "–",
            "",
            "`text_repair`",
        ],
        [
            "repairing broken JSON, geometric mean over kinds and sizes",
            _repaired(repair),
            f"{short(repair.get('fast_json_repair, broken'))} × that of `fast_json_repair` (Rust), where that is right",
            "`text_repair`",
        ],
        [
            "100 KB of records in 4-character chunks, value read after each",
            short(records.get("seconds"), " s"),
            _streamed(records),
            "`text_stream`",
        ],
        [
            "validating 2 KB, schema compiled",
            f"{short(invoice.get('slipform Schema.validate'))} × bare `jsonschema-rs`",
            f"{short(invoice.get('jsonschema is_valid'))} × with `jsonschema`",
            "`validate`",
        ],
        [
            "300 real-world schemas in OpenAI's strict dialect: accepted, valid answers kept",
            _kept(auto),
            f"openai SDK {_kept(sdk)}; pydantic-ai {_kept(agent)}",
            "`lowering`",
        ],
        [
            "decoding and folding a vendor's stream",
            short(codecs.get("slipform"), " chunks/s"),
            f"openai SDK {short(codecs.get('openai'))}",
            "`codecs`",
        ],
        [
            "CPU time that one `ask` adds to the bare HTTP call",
            short(run.ask_ms("slipform ask"), " ms"),
            ", ".join(f"{shown} {short(run.ask_ms(name), ' ms')}" for shown, name in _CLIENTS.items()),
            "`client`",
        ],
        [
            "22 KB of partial values in 4-character chunks",
            f"{_seconds(partial, 'slipform stream')}, finished parts identical",
            ", ".join(f"{name} {_seconds(partial, name)}" for name in partial if not name.startswith("slipform")),
            "`client`",
        ],
        [
            "a batch against a vendor that takes 20 ms, of what the HTTP client alone can do",
            f"{shares.get('20 ms', '–')} ({shares.get('0 ms', '–')} where the vendor takes no time)",
            "",
            "`batch`",
        ],
        [
            "of 14 faults in an answer: right without a second call / with one",
            _both(run, "slipform"),
            ", ".join(f"{name} {_both(run, name)}" for name in run.faults("without") if name != "slipform"),
            "[`faults`](#faults-in-an-answer)",
        ],
        [
            "200 situations behind a proxy (20 faults × 5 schemas, whole and streamed): recovered; wrong but 200",
            _situation(situations.get("slipform")),
            ", ".join(f"{name}: {_situation(found)}" for name, found in situations.items() if name != "slipform"),
            "`situations`",
        ],
    ]
    return table(rows)


_CLIENTS = {
    "BAML": "baml",
    "openai `.parse`": "openai .parse",
    "Instructor": "instructor JSON_SCHEMA",
    "LangChain": "langchain json_schema",
    "pydantic-ai": "pydantic-ai native",
}


def _repaired(repair: dict[str, float]) -> str:
    broken, wrapped = (short(repair.get(f"json_repair, {kind}")) for kind in ("broken", "wrapped"))
    return f"{broken} × the speed of `json_repair` ({wrapped} × where valid JSON is only wrapped)"


def _streamed(records: dict[str, float]) -> str:
    jiter, river = (times(records.get(name), records.get("seconds")) for name in ("jiter", "jsonriver"))
    return f"{jiter} as long re-parsing with jiter, {river} with jsonriver"


def _kept(counts: dict[str, float]) -> str:
    return f"{counts['acceptable']:.0f}, {counts['kept']:.0f} %" if counts else "–"


def _seconds(partial: dict[str, Any], name: str) -> str:
    return short(partial.get(name, {}).get("seconds"), " s")


def _share(seconds: dict[str, float]) -> str:
    alone = [value for name, value in seconds.items() if name.startswith("slipform")]
    return f"{100 * alone[0] / seconds['batch']:.0f} %" if alone and "batch" in seconds else "–"


def _both(run: Run, name: str) -> str:
    once, again = run.faults("without").get(name), run.faults("on a retry").get(name)
    return f"{once} / {again}" if once else "–"


def _situation(found: dict[str, int] | None) -> str:
    return f"{found['recovered']} of {found['of']}, {found['wrong']} wrong" if found else "–"


_PROXIES = {
    "slipform": "slipform",
    "bare, uvicorn and pyreqwest": "bare, with pyreqwest",
    "bare, slipform's own": "bare forwarder",
    "relay in C": "relay in C",
    "LiteLLM": "LiteLLM",
    "LiteLLM, validating": "LiteLLM, validating",
    "Portkey": "Portkey",
    "vllm-router": "vllm-router",
    "sglang-router": "sglang-router",
    "TensorZero": "TensorZero",
}
_CASES = {
    "a request passed through, 64 at a time": "pass-through, 64 at a time",
    "an enforced 1 KB answer, 64 at a time": "enforced 1 KB, 64 at a time",
    "a request passed through, 1 at a time": "pass-through, 1 at a time",
    "an enforced 1 KB answer, 1 at a time": "enforced 1 KB, 1 at a time",
    "the same with 20 tools offered, 64 at a time": "enforced, 20 tools, 64 at a time",
    "embeddings, 64 at a time": "embeddings, 64 at a time",
    "an event passed through, in a burst": "stream, pass-through, burst, 32",
    "an event passed through, every 5 ms": "stream, pass-through, paced, 32",
    "an enforced event, in a burst": "stream, enforced, burst, 32",
    "an enforced event, every 5 ms": "stream, enforced, paced, 32",
}


def proxy(run: Run) -> str:
    """Return the table of proxies, with the ratio to slipform's figure in each cell."""
    rows = [["CPU time", *_PROXIES]]
    for shown, case in _CASES.items():
        ours = run.proxy_us(case, "slipform")
        row = [shown]
        for name in _PROXIES.values():
            value = run.proxy_us(case, name)
            ratio = f" ({times(value, ours)})" if name != "slipform" and value and ours else ""
            row.append(f"{short(value, ' µs')}{ratio}")
        rows.append(row)
    latency = ["latency added to one request, p50: passed through, enforced"]
    for name in _PROXIES.values():
        added = [
            run.part("proxy").get(f"{case}, 1 at a time", {}).get(name, {}).get("added_ms")
            for case in ("pass-through", "enforced 1 KB")
        ]
        latency.append(", ".join(short(value, " ms") for value in added))
    notes = run.part("proxy").get("start and memory", [])
    rows += [
        latency,
        _noted("ready after", notes, r"ready in ([\d.]+ s)"),
        _noted("memory after the load", notes, r"(\d+ MB) after"),
    ]
    return table(rows)


def _noted(label: str, notes: list[str], pattern: str) -> list[str]:
    """Return a row of what the notes say of each proxy."""
    row = [label]
    for name in _PROXIES.values():
        found = [re.search(pattern, note) for note in notes if note[:22].strip() == name]
        row.append(next((match[1] for match in found if match), "–"))
    return row


def tools(run: Run) -> str:
    """Return the table of streams with tools."""
    cases = run.part("stream_tools")
    rows = [[name, short(found["us"], " µs"), f"{found['ratio']:.2f}"] for name, found in cases.items()]
    return table([["an event of a paced stream", "CPU time", "of the first row"], *rows])


def faults(run: Run) -> str:
    """Return the table of faults."""
    lines: list[list[str]] = run.part("faults").get("table", [["fault"]])
    totals = run.part("faults").get("totals", {})
    return table([[f"**{line[0]}**", *line[1:]] if line[0] in totals else line for line in lines])


def judge(run: Run) -> str:
    """Return the table of public data."""
    counts = run.part("judge")
    rows = [[name, f"{right:,}", f"{total:,}", f"{100 * right / total:.2f}"] for name, (right, total) in counts.items()]
    return table([["what", "right", "of", "%"], *rows])


def headline(run: Run) -> str:
    """Return the three figures of the home page."""
    others = run.faults("without")
    best = max((int(count) for name, count in others.items() if name != "slipform"), default=0)
    ours, agent, instructor = (
        run.ask_ms(name) for name in ("slipform ask", "pydantic-ai native", "instructor JSON_SCHEMA")
    )
    enforced = {name: run.proxy_us("enforced 1 KB, 64 at a time", name) for name in ("slipform", "LiteLLM, validating")}
    proxied = {name: None if value is None else value / 1000 for name, value in enforced.items()}
    theirs = short(proxied["LiteLLM, validating"])
    cards = [
        (
            f"{others.get('slipform', '–')} of 14",
            f"faults in an answer put right without a second call; the best of five others gets {best}.",
            "faults",
        ),
        (
            short(ours, " ms"),
            f"of CPU time added to a call; pydantic-ai adds {short(agent)}, Instructor {short(instructor)}.",
            "client",
        ),
        (
            short(proxied["slipform"], " ms"),
            f"of CPU time for an enforced 1 KB answer through the proxy; LiteLLM takes {theirs}.",
            "proxy",
        ),
    ]
    boxes = [
        f"<div markdown>\n**{figure}**\n{text}\n\n`python -m bench.{name}`\n</div>\n" for figure, text, name in cards
    ]
    return f'\n<div class="figures" markdown>\n{"".join(boxes)}</div>\n\n'


REGIONS: dict[str, Callable[[Run], str]] = {
    "circumstances": lambda run: f"\n{circumstances(run)}\n",
    "summary": lambda run: f"\n{summary(run)}\n",
    "proxy": lambda run: f"\n{proxy(run)}\n",
    "tools": lambda run: f"\n{tools(run)}\n",
    "faults": lambda run: f"\n{faults(run)}\n",
    "judge": lambda run: f"\n{judge(run)}\n",
    "headline": headline,
}


def readme_rows(run: Run) -> dict[str, str]:
    """Return the rows of figures in the README's table, by their first cell."""
    names = ("slipform", "Instructor", "pydantic-ai", "BAML", "", "openai .parse")
    counts = ["–" if not name else _both(run, name) for name in names]
    asks = ("slipform ask", "instructor JSON_SCHEMA", "pydantic-ai native", "baml", "", "openai .parse")
    added = [short(run.ask_ms(name), " ms") for name in asks]
    enforced = [run.proxy_us("enforced 1 KB, 64 at a time", name) for name in ("slipform", "LiteLLM, validating")]
    ours, theirs = (short(None if value is None else value / 1000, " ms") for value in enforced)
    rows = {
        "of 14 faults in an answer: right in one call / with retries": counts,
        "CPU time added to one call": added,
        "CPU time of the proxy for an enforced 1 KB answer": [ours, "–", "–", "–", theirs, "–"],
    }
    return {label: f"| {label} | " + " | ".join(cells) + " |" for label, cells in rows.items()}


def written(text: str, run: Run) -> str:
    """Return a page with the figures of a run in place of those it had."""
    rows = readme_rows(run)
    text = _ROW.sub(lambda row: rows.get(row[1], row[0]), text)
    return _REGION.sub(lambda region: region[1] + REGIONS[region[2]](run) + region[4], text)


def write_pages() -> None:
    """Rewrite the figures of every page."""
    run = Run(json.loads(FIGURES.read_text(encoding="utf-8")))
    for page in PAGES:
        page.write_text(written(page.read_text(encoding="utf-8"), run), encoding="utf-8")
    bars.write(run)


if __name__ == "__main__":
    write_pages()
