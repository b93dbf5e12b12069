"""Write the report of an evaluation as one HTML file: a table, three pictures, and the mistakes."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from slipform.addons.evaluation.changes import RunChange, Shift, side_by_side
from slipform.addons.evaluation.page import OWN, whole_page
from slipform.addons.evaluation.pictures import MOST_FIELDS, cost_picture, heat_map, run_name, score_picture, shade
from slipform.addons.evaluation.run import Evaluation
from slipform.addons.evaluation.scoring import RunScore, all_fields, separation
from slipform.files.replacing import replacing
from slipform.files.tables import as_json
from slipform.prices import amount_text

_SHOWN_MISTAKES = 100
_LONGEST = 160
_NONE = "–"
_IN_SOURCE = {None: _NONE, True: "yes", False: "no"}
_HEADER = """<header class="top"><span class="brand">slipform eval</span><span class="file">{name}</span>
<span class="space"></span><button id="theme">light / dark</button></header><main id="main">"""


def write_report(evaluation: Evaluation, page: Path) -> None:
    """Write the page; the element `report` contains the figures as JSON."""
    done = [run for run in evaluation.runs if run.rows]
    values = max((run.values for run in done), default=0)
    body = [
        _HEADER.format(name=html.escape(evaluation.data.name)),
        f"<h1>{html.escape(evaluation.data.name)}</h1><p>{_counts_text(evaluation, values)}</p>",
        _summary(evaluation),
    ]
    if done:
        picture, axis = cost_picture(done)
        body += [
            _card(_fields_title(len(all_fields(done))), heat_map(done, all_fields(done)), _FIELDS_NOTE),
            _card(f"Accuracy against {axis}", picture),
            *(_change(change, str(evaluation.against)) for change in evaluation.changes),
            *_side_by_side(evaluation.runs),
            _score_card(done),
            *(_mistakes(run) for run in done),
        ]
    body.append("</main>")
    data = {"report": [as_json(evaluation.to_dict())]}
    title = f"{evaluation.data.name} · slipform eval"
    parts = whole_page(
        title, "\n".join(body), styles=[f"{OWN}/page.css", f"{OWN}/report.css"], scripts=[f"{OWN}/theme.js"], data=data
    )
    with replacing(page) as file:
        for part in parts:
            file.write(part)


_FIELDS_NOTE = (
    "Worst fields first. A value counts as right if it is the expected one, however it is written (numbers, dates, "
    "case, blanks, names); items of lists are paired by what they say. Values that are missing or too many are wrong, "
    "and so are all values of a row without a valid answer."
)
_SCORE_NOTE = (
    "Each bar: how many of the values with such a score were right; the wider, the more values. AUROC is the chance "
    "that a right value has a higher score than a wrong one: 1 is perfect, 0.5 is chance. Its interval (95 %) takes "
    "the values of a row together. A score is not a probability of being right."
)


def _counts_text(evaluation: Evaluation, values: int) -> str:
    runs = len(evaluation.runs)
    return f"{evaluation.rows:,} rows, {values:,} values, {runs} {'run' if runs == 1 else 'runs'}."


def _fields_title(fields: int) -> str:
    if fields <= MOST_FIELDS:
        return "Accuracy of each field"
    return f"Accuracy of the worst {MOST_FIELDS} of {fields} fields"


def _card(title: str, inside: str, note: str = "") -> str:
    paragraph = f'<p class="muted">{html.escape(note)}</p>' if note else ""
    scroll = f'<div class="scroll" tabindex="0" role="region" aria-label="{html.escape(title)}">{inside}</div>'
    return f'<section class="card"><h2>{html.escape(title)}</h2>{scroll}{paragraph}</section>'


_HEADS = (
    "model",
    "strategy",
    "values right",
    "rows right",
    "valid",
    "calls",
    "tokens in / out",
    "cost",
    "p50",
    "p95",
    "AUROC (95 %)",
)


def _summary(evaluation: Evaluation) -> str:
    best = max((run.accuracy for run in evaluation.runs if run.rows), default=None)
    heads = "".join(f'<th scope="col">{head}</th>' for head in _HEADS)
    rows = "".join(_summary_row(run, is_best=run.accuracy == best and run.rows > 0) for run in evaluation.runs)
    return _card("Runs", f"<table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>")


def _summary_row(run: RunScore, *, is_best: bool) -> str:
    names = f'<th scope="row">{html.escape(run.model)}{" ★" if is_best else ""}</th><td>{html.escape(run.setup)}</td>'
    if run.error:
        return f'<tr>{names}<td colspan="9" class="bad">{html.escape(run.error)}</td></tr>'
    score = separation(run.leaves)
    auroc = _NONE
    if score.auroc is not None:
        interval = "" if score.low is None or score.high is None else f" ({score.low:.2f}–{score.high:.2f})"
        auroc = f"{score.auroc:.2f}{interval}, n={score.right + score.wrong:,}"
    fill, ink = shade(run.accuracy)
    share = (
        f'<svg class="share" viewBox="0 0 64 22" width="64" role="img" aria-label="{_percent(run.accuracy)}">'
        f'<rect width="64" height="22" rx="4" fill="{fill}"></rect>'
        f'<text x="32" y="15.5" text-anchor="middle" fill="{ink}" class="cell">{_percent(run.accuracy)}</text></svg>'
    )
    cells = (
        share,
        f"{run.exact:,} of {run.rows:,}",
        _percent(run.valid / run.rows) if run.rows else _NONE,
        f"{run.calls:,}",
        f"{run.input_tokens:,} / {run.output_tokens:,}",
        _NONE if run.cost is None else amount_text(run.cost),
        _seconds(run.latency(0.5)),
        _seconds(run.latency(0.95)),
        auroc,
    )
    return f"<tr>{names}{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"


def _change(change: RunChange, against: str) -> str:
    """Return the changes since an earlier evaluation: fields, then rows, the worse ones first."""
    shifts = [("all values", change.values), *((name or "(the value)", each) for name, each in change.fields.items())]
    fields = [
        (f"<code>{_text(name)}</code>", shift.verdict, shift.better, shift.worse, shift.rows, _interval(shift))
        for name, shift in shifts
    ]
    rows = [
        (
            _text(row["key"]),
            f"{row['gain']:+d}",
            f"<code>{_text(name)}</code>",
            *map(_answer, (step["before"], step["after"])),
        )
        for row in change.rows[:_SHOWN_MISTAKES]
        for name, step in row["fields"].items()
    ]
    heads = ("field", "verdict", "rows better", "rows worse", "rows", "95 %")
    body = _table_of(heads, fields) + _table_of(("row", "values", "field", "before", "now"), rows)
    return _card(f"{run_name(change.after)}, against {against}", body, _CHANGE_NOTE)


_CHANGE_NOTE = (
    "Rows with more right values than before are better, those with fewer worse. The interval is of the share that got "
    "better less the share that got worse; a verdict is clear where it does not hold 0."
)


def _interval(shift: Shift) -> str:
    low, high = shift.interval
    return f"{100 * low:+.1f} to {100 * high:+.1f} %"


def _answer(wrong: str | None) -> str:
    return "✓" if wrong is None else f"<code>{_text(wrong)}</code>"


def _side_by_side(runs: Sequence[RunScore]) -> list[str]:
    """Return a card with the rows that the runs answer differently; empty for one run."""
    done = [run for run in runs if run.rows]
    rows = side_by_side(done)
    if not rows:
        return []
    cells = [(_text(row["key"]), *map(_wrong_fields, row["wrong"])) for row in rows[:_SHOWN_MISTAKES]]
    title = f"{len(rows):,} rows that the runs answer differently"
    return [_card(title, _table_of(("row", *(html.escape(run_name(run)) for run in done)), cells))]


def _wrong_fields(wrong: Mapping[str, str] | None) -> str:
    if wrong is None:
        return '<span class="bad">no valid answer</span>'
    return "<br>".join(f"<code>{_text(name)}</code> {_answer(answer)}" for name, answer in wrong.items()) or "✓"


def _table_of(heads: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Return a table of cells that are already HTML."""
    head = "".join(f'<th scope="col">{each}</th>' for each in heads)
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _seconds(seconds: float | None) -> str:
    if seconds is None:
        return _NONE
    if seconds < 1:
        return f"{1000 * seconds:.0f} ms"
    return f"{seconds:.1f} s"


def _score_card(runs: list[RunScore]) -> str:
    """Return the card that shows, for each run, how well its scores predict which values are correct."""
    figure_elements = []
    for run in runs:
        name = html.escape(run_name(run))
        figures = run.to_dict()["score"]
        if not figures["values"]:
            reason = html.escape(figures["reason"] or "no value has a score")
            figure_elements.append(f'<figure><figcaption>{name}</figcaption><p class="muted">{reason}</p></figure>')
            continue
        low, high = figures["interval"]
        interval = "" if low is None else f" ({low:.2f} to {high:.2f})"
        if figures["auroc"] is None:
            summary = "no AUROC: " + figures["reason"]
        else:
            summary = f"AUROC {figures['auroc']:.2f}{interval}"
        caption = f"{name}<br><strong>{html.escape(summary)}</strong>, {figures['values']:,} values"
        figure_elements.append(f"<figure><figcaption>{caption}</figcaption>{score_picture(run)}</figure>")
    row = f'<div class="figures-row">{"".join(figure_elements)}</div>'
    return _card("Score against correctness", row, _SCORE_NOTE)


def _mistakes(run: RunScore) -> str:
    if not run.mistakes:
        return f'<section class="card"><h2>{html.escape(run_name(run))}: nothing was wrong</h2></section>'
    shown = run.mistakes[:_SHOWN_MISTAKES]
    more = f", the first {len(shown)} here" if run.mistaken > len(shown) else ""
    heads = "".join(
        f'<th scope="col">{head}</th>'
        for head in ("row", "field", "verdict", "expected", "answered", "score", "in the source")
    )
    rows = "".join(_mistake_row(each) for each in shown)
    title = html.escape(f"{run_name(run)}: {run.mistaken:,} wrong{more}")
    table = f"<table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>"
    label = html.escape(f"Mistakes of {run_name(run)}")
    scroll = f'<div class="scroll" tabindex="0" role="region" aria-label="{label}">{table}</div>'
    return f'<details class="card"><summary>{title}</summary>{scroll}</details>'


def _mistake_row(mistake: dict[str, Any]) -> str:
    if "error" in mistake:
        return f'<tr><td>{_text(mistake["key"])}</td><td colspan="6" class="bad">{_text(mistake["error"])}</td></tr>'
    score = mistake.get("score")
    source = mistake.get("in_source")
    cells = (
        _text(mistake["key"]),
        f"<code>{_text(mistake['field'] or '(the value)')}</code>",
        mistake["verdict"],
        _NONE if mistake["verdict"] == "extra" else _json(mistake["expected"]),
        _NONE if mistake["verdict"] == "missing" else _json(mistake["answered"]),
        _NONE if score is None else f"{score:.2f}",
        _IN_SOURCE[source],
    )
    return f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"


def _json(value: Any) -> str:
    return (
        f"<code>{_text(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str))}</code>"
    )


def _text(text: Any) -> str:
    """Return text from the data as HTML: shortened, without invisible characters or changes of direction."""
    excerpt = str(text)
    if len(excerpt) > _LONGEST:
        excerpt = excerpt[:_LONGEST] + "…"
    return html.escape("".join(each if each.isprintable() else _visible(each) for each in excerpt))


def _visible(char: str) -> str:
    if char.isspace():
        return " "
    return "\N{REPLACEMENT CHARACTER}"
