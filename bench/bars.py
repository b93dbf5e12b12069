"""Draw the figures of a run as bars beside the peers: an SVG for wide screens and one for narrow ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from bench.page import Run

FOLDER: Final = Path(__file__).resolve().parent.parent / "docs" / "assets"
WIDTHS: Final = {"benchmarks.svg": 960, "benchmarks-narrow.svg": 360}
_OURS: Final = "slipform"
_STYLE: Final = """\
svg{--paper:#fff;--ink:#14212b;--soft:#4a5b67;--ours:#0b6b63;--theirs:#b6c1c8}
@media (prefers-color-scheme:dark){svg{--paper:#10181e;--ink:#e3eaee;--soft:#a3b3bd;--ours:#5ad1c1;--theirs:#4b5a64}}
text{font:13px system-ui,sans-serif;fill:var(--ink)}
.title{font-size:15px;font-weight:600}.note{fill:var(--soft)}.ours{font-weight:600}"""
_ROW: Final = 24
_HEAD: Final = 52
_GAP: Final = 28
_LABEL: Final = 118
_FIGURE: Final = 78


class Chart(NamedTuple):
    """Bars of one kind: the title, what longer or shorter means, and the values with the text of each."""

    title: str
    note: str
    bars: Sequence[tuple[str, float, str]]

    @property
    def height(self) -> int:
        """How many pixels it takes."""
        return _HEAD + _ROW * len(self.bars)


def charts(run: Run) -> list[Chart]:
    """Return the charts of a run; what was not measured has no bar, and a chart without peers is left out."""
    from bench.page import short

    def timed(values: Mapping[str, float | None], unit: str) -> list[tuple[str, float, str]]:
        measured = [(name, value) for name, value in values.items() if value]
        return [(name, value, short(value, unit)) for name, value in sorted(measured, key=lambda each: each[1])]

    asks = {
        "slipform": "slipform ask",
        "BAML": "baml",
        "openai .parse": "openai .parse",
        "Instructor": "instructor JSON_SCHEMA",
        "LangChain": "langchain json_schema",
        "pydantic-ai": "pydantic-ai native",
    }
    proxies = {
        "slipform": "slipform",
        "bare, uvicorn": "bare, on uvicorn",
        "vllm-router": "vllm-router",
        "TensorZero": "TensorZero",
        "Portkey": "Portkey",
        "LiteLLM": "LiteLLM, validating",
    }
    enforced = {shown: run.proxy_us("enforced 1 KB, 64 at a time", name) for shown, name in proxies.items()}
    streams = {
        "slipform": "slipform stream",
        "openai .stream": "openai .stream",
        "Instructor": "instructor async partial",
        "BAML": "baml stream",
    }
    measured = run.part("client").get("stream", {})
    partial = {shown: measured.get(name, {}).get("seconds") for shown, name in streams.items()}
    recovered = sorted(((name, int(count)) for name, count in run.faults("without").items()), key=lambda each: -each[1])
    found = [
        Chart(
            "Faults put right without a second call",
            "of 14; more is better",
            [(name, count, str(count)) for name, count in recovered],
        ),
        Chart(
            "CPU time that a library adds to a call",
            "less is better",
            timed({shown: run.ask_ms(name) for shown, name in asks.items()}, " ms"),
        ),
        Chart("CPU time of a proxy for 1 KB enforced", "less is better", timed(enforced, " µs")),
        Chart(
            "22 KB of partial values, as they grow",
            "less is better",
            timed(partial, " s"),
        ),
    ]
    return [chart for chart in found if len(chart.bars) > 1]


def drawn(run: Run, width: int) -> str:
    """Return the charts of a run as SVG: two columns where there is room, else one."""
    shown = charts(run)
    columns = 2 if width > 700 else 1
    column = (width - _GAP * (columns - 1)) // columns
    parts: list[str] = []
    top = 0
    for first in range(0, len(shown), columns):
        row = shown[first : first + columns]
        for place, chart in enumerate(row):
            parts.append(_chart(chart, place * (column + _GAP), top, column))
        top += max(chart.height for chart in row) + _GAP
    height = top - _GAP
    described = [f"{chart.title}: {', '.join(f'{name} {text}' for name, _, text in chart.bars)}" for chart in shown]
    label = escape("; ".join(described))
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" aria-label="{label}">',
        f"<style>\n{_STYLE}\n</style>",
        f'<rect width="{width}" height="{height}" fill="var(--paper)"/>',
        *parts,
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _chart(chart: Chart, left: int, top: int, width: int) -> str:
    longest = max(value for _, value, _ in chart.bars)
    room = width - _LABEL - _FIGURE
    lines = [
        f'<text class="title" x="{left}" y="{top + 18}">{escape(chart.title)}</text>',
        f'<text class="note" x="{left}" y="{top + 37}">{escape(chart.note)}</text>',
    ]
    for number, (name, value, text) in enumerate(chart.bars):
        y = top + _HEAD + number * _ROW
        kind = "ours" if name == _OURS else "theirs"
        length = max(2, round(room * value / longest))
        lines.append(
            f'<text class="{kind}" x="{left}" y="{y + 12}">{escape(name)}</text>'
            f'<rect x="{left + _LABEL}" y="{y}" width="{length}" height="16" rx="2" fill="var(--{kind})"/>'
            f'<text class="{kind}" x="{left + _LABEL + length + 6}" y="{y + 12}">{escape(text)}</text>'
        )
    return "\n".join(lines)


def write(run: Run) -> None:
    """Write the pictures of a run into the docs."""
    for name, width in WIDTHS.items():
        (FOLDER / name).write_text(drawn(run, width), encoding="utf-8")
