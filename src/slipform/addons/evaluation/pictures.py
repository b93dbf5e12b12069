"""Draw the pictures of an evaluation as SVG: fields by run, cost against accuracy, score against correctness.

Neutral colours come from the page's style (classes); a share has the same colour in light and dark mode, and its
figure beside or on it.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, pairwise

from slipform.addons.evaluation.scoring import BINS, FieldScore, RunScore

_STOPS = ((0.0, (142, 36, 32)), (0.5, (236, 178, 76)), (0.8, (226, 217, 150)), (1.0, (11, 107, 99)))
_GRID_STEPS = ((0.7, 0.05), (0.4, 0.1), (0.0, 0.2))
"""The distance of grid lines, by the accuracy at which the axis begins."""
MOST_FIELDS = 60
"""The most fields in the heat map; the report has the figures of the others."""


def _element(name: str, text: str = "", /, **attributes: object) -> str:
    """Return an element; attributes are keywords (`stroke_width`, `class_`), text must be escaped already."""
    attribute_text = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{html.escape(_short(value))}"' for key, value in attributes.items()
    )
    return f"<{name}{attribute_text}>{text}</{name}>"


def _short(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.2f}".rstrip("0").rstrip(".")
    return str(value)


def _picture(width: float, height: float, label: str, parts: Iterable[str], look: str = "") -> str:
    inside = "".join(parts)
    box = f"0 0 {_short(width)} {_short(height)}"
    return _element("svg", inside, viewBox=box, width=width, role="img", aria_label=label, class_=look)


def _label(text: str, x: float, y: float, look: str = "", anchor: str = "start") -> str:
    return _element("text", html.escape(text), x=x, y=y, class_=look, text_anchor=anchor)


def shade(share: float) -> tuple[str, str]:
    """Return the colour of a share, and a text colour for it: from dark red for 0 through yellow to teal for 1.

    >>> shade(1.0)
    ('#0b6b63', '#ffffff')
    """
    share = min(1.0, max(0.0, share))
    for (low, low_colour), (high, high_colour) in pairwise(_STOPS):
        if share <= high:
            part = (share - low) / (high - low)
            colour = [round(a + (b - a) * part) for a, b in zip(low_colour, high_colour, strict=True)]
            break
    # Relative luminance and contrast: https://www.w3.org/TR/WCAG22/#dfn-contrast-ratio
    luminance = sum(weight * _linear(channel) for weight, channel in zip((0.2126, 0.7152, 0.0722), colour, strict=True))
    contrast_of_white = 1.05 / (luminance + 0.05)
    contrast_of_dark = (luminance + 0.05) / 0.0575
    text_colour = "#ffffff" if contrast_of_white > contrast_of_dark else "#14212b"
    return "#" + "".join(f"{channel:02x}" for channel in colour), text_colour


def _linear(channel: int) -> float:
    share = channel / 255
    return share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4


def run_name(run: RunScore) -> str:
    """Return the label of a run."""
    return f"{run.model} · {run.setup}"


def cut(text: str, size: int) -> str:
    """Return a text cut to `size` characters; the end of a name is more distinctive than its beginning."""
    if len(text) <= size:
        return text
    return "…" + text[1 - size :]


def heat_map(runs: Sequence[RunScore], fields: Sequence[str]) -> str:
    """Draw the share of right values of every field in every run, the fields with most errors first."""
    worst = sorted(fields, key=lambda name: min(run.fields[name].accuracy for run in runs if name in run.fields))
    shown = worst[:MOST_FIELDS]
    left = 18 + 8.2 * max((len(cut(name, 34)) for name in shown), default=4)
    top = 62.0
    high = 30.0
    wide = max(74.0, min(120.0, 640.0 / max(1, len(runs))))
    parts = []
    for column, run in enumerate(runs):
        parts.append(_label(run.setup, left + (column + 0.5) * wide, top - 8, "soft", "middle"))
    for model, first, count in _groups(runs):
        x = left + first * wide
        span = count * wide
        parts.append(_label(cut(model, int(span / 7.4)), x + span / 2, top - 36, "name", "middle"))
        parts.append(_element("line", x1=x + 5, x2=x + span - 5, y1=top - 27, y2=top - 27, class_="leader"))
    for line, name in enumerate(shown):
        y = top + line * high
        parts.append(_label(cut(name, 34) or "(the value)", left - 10, y + 19, "name", "end"))
        for column, run in enumerate(runs):
            parts.append(_cell(run, name, left + column * wide, y, wide, high))
    width = left + len(runs) * wide + 4
    height = top + len(shown) * high + 6
    return _picture(width, height, "Accuracy of each field by model and strategy", parts)


def _groups(runs: Sequence[RunScore]) -> Iterator[tuple[str, int, int]]:
    """Group adjacent runs of one model: the model, the index of its first run, and their number."""
    first = 0
    for model, group in groupby(runs, key=lambda run: run.model):
        count = len(list(group))
        yield model, first, count
        first += count


def _cell(run: RunScore, name: str, x: float, y: float, wide: float, high: float) -> str:
    score = run.fields.get(name)
    box: dict[str, object] = {"x": x + 1, "y": y + 1, "width": wide - 2, "height": high - 2, "rx": 4}
    if score is None:
        return _element("rect", class_="nothing", **box) + _label("–", x + wide / 2, y + 19, "soft", "middle")
    fill, ink = shade(score.accuracy)
    title = f"{run_name(run)}, {name or 'the value'}: {score.right} of {score.total} right"
    number = _element(
        "text",
        f"{100 * score.accuracy:.0f} %",
        x=x + wide / 2,
        y=y + 19.5,
        fill=ink,
        text_anchor="middle",
        class_="cell",
    )
    return _element("g", _element("title", html.escape(title)) + _element("rect", fill=fill, **box) + number)


def cost_picture(runs: Sequence[RunScore]) -> tuple[str, str]:
    """Draw accuracy against the cost of a thousand rows, or against the tokens of a row without prices.

    Returns the picture and the label of its axis. Points are numbered, best first, and a list beside the picture has
    the names: beside the points they would overlap, and not fit on a narrow screen.
    """
    priced = all(run.cost is not None for run in runs)
    axis = "cost of 1,000 rows" if priced else "tokens of a row, in and out"
    left = 56.0
    top = 18.0
    inner_width = 380.0
    inner_height = 250.0
    most = _round_up(max((_cost_per_row(run, priced=priced) for run in runs), default=1.0))
    least = max(0.0, math.floor((min(run.accuracy for run in runs) - 0.02) * 10) / 10)
    step = next(step for bound, step in _GRID_STEPS if least >= bound)
    least = math.floor(least / step + 1e-9) * step

    def y_of(share: float) -> float:
        return top + inner_height * (1 - (share - least) / (1 - least))

    parts = []
    names = []
    for number in range(round((1 - least) / step) + 1):
        share = 1 - number * step
        parts.append(_element("line", x1=left, x2=left + inner_width, y1=y_of(share), y2=y_of(share), class_="grid"))
        parts.append(_label(f"{100 * share:.0f} %", left - 8, y_of(share) + 4, "soft", "end"))
    for number in range(6):
        x = left + inner_width * number / 5
        parts.append(_label(f"{most * number / 5:,.4g}", x, top + inner_height + 20, "soft", "middle"))
    parts.append(_label(axis, left + inner_width / 2, top + inner_height + 38, "soft", "middle"))
    colours = {model: number % 6 for number, model in enumerate(dict.fromkeys(run.model for run in runs))}
    for number, run in enumerate(sorted(runs, key=lambda run: -run.accuracy), 1):
        spent = _cost_per_row(run, priced=priced)
        look = f"dot{colours[run.model]}"
        title = f"{run_name(run)}: {100 * run.accuracy:.1f} % right, {axis} {spent:,.4g}"
        at = left + inner_width * spent / most, y_of(run.accuracy)
        parts.append(_dot(number, *at, look, title))
        dot = _element("svg", _dot(number, 10, 10, look, title), viewBox="0 0 20 20", width=20, aria_hidden="true")
        names.append(_element("li", f"{dot}{html.escape(run_name(run))}, {100 * run.accuracy:.0f} %"))
    label = f"Accuracy against {axis}"
    picture = _picture(left + inner_width + 20, top + inner_height + 46, label, parts, "fits")
    beside = _element("ul", "".join(names), class_="dots")
    return _element("div", picture + beside, class_="beside"), axis


def _cost_per_row(run: RunScore, *, priced: bool) -> float:
    rows = max(1, run.rows)
    if priced:
        return 1000 * (run.cost or 0.0) / rows
    return (run.input_tokens + run.output_tokens) / rows


def _dot(number: int, x: float, y: float, look: str, title: str) -> str:
    circle = _element("circle", cx=x, cy=y, r=9, class_=look)
    figure = _element("text", str(number), x=x, y=y + 4, class_="number", text_anchor="middle")
    return _element("g", _element("title", html.escape(title)) + circle + figure)


def _round_up(value: float) -> float:
    """Return the next round number: 1, 2 or 5 with zeros.

    >>> _round_up(0.3), _round_up(7)
    (0.5, 10.0)
    """
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(float(f"{step * power:.6g}") for step in (1, 2, 5, 10) if step * power >= value * 0.999999)


def score_picture(run: RunScore) -> str:
    """Draw the share of right values in each tenth of the score; a narrow bar means few values."""
    width = 310.0
    height = 190.0
    left = 44.0
    top = 10.0
    bottom = 40.0
    inner_width = width - left - 14
    inner_height = height - top - bottom
    bins = run.bins()
    most = max((each.total for each in bins), default=0)
    parts = []
    for step in range(5):
        y = top + inner_height * step / 4
        parts.append(_element("line", x1=left, x2=width - 14, y1=y, y2=y, class_="grid"))
        parts.append(_label(f"{100 - 25 * step} %", left - 6, y + 4, "soft", "end"))
    parts.append(_element("line", x1=left, y1=top + inner_height, x2=width - 14, y2=top, class_="diagonal"))
    slot = inner_width / BINS
    for number, each in enumerate(bins):
        if each.total:
            parts.append(_bar(number, each, left + number * slot, slot, top, inner_height, each.total / most))
    parts += [
        _label(f"{number / BINS:.1f}", left + number * slot, height - bottom + 16, "soft", "middle")
        for number in range(0, BINS + 1, 2)
    ]
    parts.append(_label("score", left + inner_width / 2, height - 5, "soft", "middle"))
    return _picture(width, height, f"Share of right values by score, {run_name(run)}", parts)


def _bar(number: int, each: FieldScore, x: float, slot: float, top: float, inner_height: float, weight: float) -> str:
    wide = (slot - 3) * max(0.18, math.sqrt(weight))
    high = max(1.5, inner_height * each.accuracy)
    title = f"score {number / BINS:.1f} to {(number + 1) / BINS:.1f}: {each.right} of {each.total} right"
    box = _element(
        "rect", x=x + (slot - wide) / 2, y=top + inner_height - high, width=wide, height=high, rx=2, class_="bar-right"
    )
    return _element("g", _element("title", html.escape(title)) + box)
