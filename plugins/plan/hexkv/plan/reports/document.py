"""A self-contained page: headings, words, drawings with legends, and tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

from hexkv.plan.reports import svg

_STYLE = (
    ":root{color-scheme:light dark}"
    "body{font:16px/1.5 system-ui,sans-serif;margin:0 auto;padding:1rem;max-width:60rem;"
    "color:#1b1b1b;background:#fff;overflow-wrap:anywhere}"
    "h1{font-size:1.5rem}h2{font-size:1.2rem;margin-top:2.5rem}"
    "figure{margin:1rem 0 0;max-width:35rem}figure>svg{width:100%;height:auto}"
    "figcaption{font-size:.9rem}figcaption span{display:inline-block;margin-right:1.2rem}"
    "figcaption svg{vertical-align:middle}"
    ".wide{overflow-x:auto}table{border-collapse:collapse;font-size:.9rem;margin:.8rem 0}"
    "th,td{padding:.15rem .7rem .15rem 0;text-align:right;border-bottom:1px solid #8884;"
    "white-space:nowrap;font-variant-numeric:tabular-nums}"
    "th:first-child,td:first-child{text-align:left}"
    "@media print{.wide{overflow:visible}}"
)
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
_DARK = "body{color:#e6e6e6;background:#16191d}"


def page(title: str, parts: Iterable[str]) -> str:
    """Return a whole document of *parts*: HTML that needs nothing else, and may load nothing."""
    dark = f"@media(prefers-color-scheme:dark){{{_DARK}{svg.style(dark=True)}}}"
    head = [
        '<meta charset="utf-8"/>',
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}"/>',
        '<meta name="viewport" content="width=device-width, initial-scale=1"/>',
        f"<title>{escape(title)}</title>",
        f"<style>{_STYLE}{svg.style()}{dark}</style>",
    ]
    body = [f"<h1>{escape(title)}</h1>", *parts]
    lines = ["<!doctype html>", '<html lang="en"><head>', *head, "</head><body>", *body]
    return "\n".join([*lines, "</body></html>", ""])


def write(path: Path, text: str) -> None:
    """Write *text* into a file that only its owner may read: it describes the use of a service.

    Raises:
        OSError: that is not possible.
    """
    path.touch(mode=0o600)
    path.write_text(text, encoding="utf-8")


def heading(text: str) -> str:
    """Return the heading of a section."""
    return f"<h2>{escape(text)}</h2>"


def words(text: str) -> str:
    """Return a paragraph."""
    return f"<p>{escape(text)}</p>"


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; its first column is words, and the others are numbers."""
    head = "".join(f'<th scope="col">{escape(column)}</th>' for column in columns)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows
    )
    rows_ = f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody>"
    return f'<div class="wide"><table>{rows_}</table></div>'


def folded(title: str, part: str) -> str:
    """Return *part* folded behind its title."""
    return f"<details><summary>{escape(title)}</summary>{part}</details>"


def figure(
    drawing: str, names: Sequence[str], limits: Sequence[bool] = (), *, boxes: bool = False
) -> str:
    """Return a drawing with a legend: the names of its lines, or parts of its bars, by letter."""
    entries = []
    for number, name in enumerate(names):
        limit = number < len(limits) and limits[number]
        mark = svg.swatch(number, limit=limit, box=boxes)
        entries.append(f"<span>{mark} <b>{svg.letter(number)}</b> {escape(name)}</span>")
    return f"<figure>{drawing}<figcaption>{' '.join(entries)}</figcaption></figure>"
