"""The tables in ``docs/quality.md``, from the JSON that runs wrote."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "quality.md"
RESULT = ROOT / "benchmarks" / "results" / "quality.json"
HELD_OUT = ROOT / "benchmarks" / "results" / "quality_held_out.json"
SHIPPED_TABLE = "make quality"
"""What writes the table of the models that come along."""

HELD_OUT_TABLE = "make quality-held-out"
"""What writes the table of the judges."""

CHOICE_TABLE = "make quality-held-out, levels"
"""What writes the table by which the default level is chosen."""

_HEAD = (
    ("serde", "---"),
    ("bytes per token", "--:"),
    ("ratio", "--:"),
    ("perplexity", "--:"),
    ("KL, text", "--:"),
    ("same next byte", "--:"),
    ("KL, recall", "--:"),
    ("same answer", "--:"),
    ("right answers", "--:"),
)


def table(run: Mapping[str, Any]) -> str:
    """One line for each serde, in the order of the run. Divergences are in thousandths of a nat."""
    rows = [[name for name, _ in _HEAD], [line for _, line in _HEAD]]
    for row in run["rows"]:
        text, recall = row["text"], row["recall"]
        change, error = text["perplexity_change"], text["perplexity_change_error"]
        rows.append(
            [
                f"`{row['serde']}`",
                f"{text['bytes_per_token']:,.0f}",
                f"{text['ratio']:.2f}",
                f"{1e2 * change:+.3f} ± {1e2 * error:.3f} %" if error else "0",
                f"{1e3 * text['kl']:.3f} ± {1e3 * text['kl_error']:.3f}" if text["kl"] else "0",
                f"{text['agreement']:.2%}",
                f"{1e3 * recall['kl']:.2f} ± {1e3 * recall['kl_error']:.2f}"
                if recall["kl"]
                else "0",
                f"{recall['agreement']:.2%}",
                f"{recall['right']:.2%}",
            ]
        )
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def held_out_table(run: Mapping[str, Any]) -> str:
    """One line for each serde: its divergence in thousandths of a nat at the worst judges."""
    judges = [recipe["judge"] for recipe in run["judges"]]
    head = ["serde", "ratio, least", "worst judge, 95 %", "", "2.5"]
    head += ["worst that only judges, 95 %", "same answer, least", *judges]
    rows = [head, ["---", "--:", "--:", "---", "---", "--:", "--:", *["--:"] * len(judges)]]
    for row in run["rows"]:
        worst, judging = row["worst"], row["judging"]
        each = [row["judges"][judge] for judge in judges]
        rows.append(
            [
                f"`{row['serde']}`",
                f"{worst['ratio']:.2f}",
                f"**{_interval(worst['kl'], worst['kl_95'])}**",
                worst["judge"] if worst["kl"] else "",
                row["bar"],
                _interval(judging["kl"], judging["kl_95"]),
                f"{worst['agreement']:.2%}",
                *(f"{1e3 * one['kl']:.2f} ± {1e3 * one['kl_error']:.2f}" for one in each),
            ]
        )
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def choice_table(run: Mapping[str, Any]) -> str:
    """One line for each level: what the judges that levels may be chosen by state."""
    rows = [["levels, early / late", "ratio, least", "worst, 95 %", "", ""]]
    rows += [["---", "--:", "--:", "---", "---"]]
    rows += [
        [
            row["level"],
            f"{row['worst']['ratio']:.2f}",
            _interval(row["worst"]["kl"], row["worst"]["kl_95"]),
            row["worst"]["judge"],
            "the default" if row["chosen"] else "",
        ]
        for row in run["levels"]
    ]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _interval(value: float, half: float) -> str:
    return f"{1e3 * value:.2f} ({max(0, 1e3 * (value - half)):.2f} to {1e3 * (value + half):.2f})"


def filled(page: str, written_by: str, table: str) -> str:
    """*page* with *table* between the markers of the command that it is *written_by*."""
    start, end = (f"<!-- by {written_by}: {which} -->\n" for which in ("start", "end"))
    before, _, rest = page.partition(start)
    _, _, after = rest.partition(end)
    return f"{before}{start}{table}{end}{after}"


def recipe_of(name: str) -> dict[str, object]:
    """How the model *name* that comes along was made."""
    path = files("hexkv.adapters.hf") / "models" / name / "recipe.json"
    recipe: dict[str, object] = json.loads(path.read_text(encoding="utf-8"))
    return recipe
