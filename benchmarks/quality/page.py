"""The table in ``docs/quality.md``, from the JSON that a run wrote."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "quality.md"
RESULT = ROOT / "benchmarks" / "results" / "quality.json"
START, END = "<!-- by make quality: start -->\n", "<!-- by make quality: end -->\n"

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


def filled(page: str, run: Mapping[str, Any]) -> str:
    """*page* with the table of *run* between its markers."""
    before, _, rest = page.partition(START)
    _, _, after = rest.partition(END)
    return f"{before}{START}{table(run)}{END}{after}"
