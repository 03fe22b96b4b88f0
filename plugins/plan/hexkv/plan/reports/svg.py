"""Two plain drawings as SVG: lines over a scale, and stacked bars.

Each line has a colour, dashes, and a letter at its end; each part of a bar a colour, an edge and a
letter. So they can be distinguished without colours, and a legend beside names the letters. Lines
of equal values lie side by side, a little off their values. Colours are classes, which a page sets
for light and for dark; :func:`standalone` includes its own.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from html import escape
from typing import NamedTuple

COLOURS = ("#4477aa", "#ee6677", "#228833", "#b8860b", "#0e8fb3", "#aa3377", "#777777", "#a65628")
"""After Paul Tol's bright scheme, which colour-blind readers can tell apart; darker where a line
would be hard to see on white paper."""

_DASHES = ("", "7 3", "2 3", "9 3 2 3", "12 4", "4 2", "1 2", "9 2 2 2 2 2")
_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _FOOT = 440, 270, 52, 24, 12, 46
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_ROW = 34
_LINE = 13.0
"""The least distance of two letters."""


_BESIDE = 3.0
"""The least distance of two lines, so that both are seen."""


class ChartLine(NamedTuple):
    """One line: a value for each place."""

    name: str
    values: Sequence[float]
    limit: bool = False
    """True if no line can be above it."""


class Bar(NamedTuple):
    """One bar of several parts, from the left."""

    name: str
    parts: Sequence[float]
    """As many as the drawing has names of parts; zero for those it lacks."""


def style(dark: bool = False) -> str:
    """Return the rules for all drawings of a page."""
    paper, ink, grid = (
        ("#16191d", "#e6e6e6", "#3a3f45") if dark else ("#ffffff", "#1b1b1b", "#dddddd")
    )
    rules = [
        f".drawing text{{font:12px sans-serif;fill:{ink}}}",
        f".drawing .paper{{fill:{paper}}}",
        f".drawing .grid{{stroke:{grid};fill:none}}",
        f".drawing .limit{{stroke:{ink};fill:none}}",
        f".drawing .over{{stroke:{paper};stroke-width:3px;paint-order:stroke}}",
        f".drawing .on{{fill:{paper};font-weight:bold}}",
    ]
    for number, colour in enumerate(COLOURS):
        shade = _lighter(colour) if dark else colour
        rules.append(f".drawing .l{number}{{stroke:{shade};fill:none}}")
        rules.append(f".drawing .b{number}{{fill:{shade};stroke:{paper}}}")
    return "".join(rules)


def lines(
    series: Sequence[ChartLine],
    places: Sequence[float],
    *,
    title: str,
    below: str,
    beside: str,
    at: Callable[[float], str] = "{:,.0f}".format,
    of: Callable[[float], str] = "{:.3g}".format,
    logarithmic: bool = False,
) -> str:
    """Return a drawing of values by place. Places ascend; values begin at zero.

    Args:
        series: the lines.
        places: of the values of each.
        title: for readers who cannot see it.
        below: the name of the places.
        beside: the name of the values.
        at: formats a place.
        of: formats a value.
        logarithmic: whether equal factors of places are equally far apart.
    """
    levels = ticks(max((value for line in series for value in line.values), default=0.0))
    most = levels[-1]
    scale = math.log if logarithmic else float
    low = scale(places[0])
    span = (scale(places[-1]) - low) or 1.0
    inner, tall = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _FOOT

    def x(place: float) -> float:
        return _LEFT + inner * (scale(place) - low) / span

    def y(value: float) -> float:
        return _TOP + tall * (1 - value / most)

    out = []
    for value in levels:
        out.append(f'<path class="grid" d="M{_LEFT} {y(value):.1f}h{inner}"/>')
        out.append(_text(_LEFT - 6, y(value) + 4, of(value), "end"))
    taken = -math.inf
    marks = places if logarithmic else [t for t in ticks(places[-1]) if t <= places[-1]]
    for place in marks:
        label = at(place)
        half = 3.5 * len(label)
        if place >= places[0] and x(place) - half > taken:
            out.append(_text(min(x(place), _WIDTH - half), _HEIGHT - _FOOT + 17, label, "middle"))
            taken = x(place) + half
    out.append(_text(_LEFT + inner / 2, _HEIGHT - 8, f"{beside}, by {below}", "middle"))
    columns = [_beside([y(value) for value in at]) for at in zip(*_values(series), strict=True)]
    for number, line in enumerate(series):
        spots = zip(places, columns, strict=True)
        points = " ".join(f"{x(place):.1f},{column[number]:.1f}" for place, column in spots)
        out.append(f'<polyline points="{points}" {_stroke(number, limit=line.limit)}/>')
    middle = _most_apart(series, len(places))
    for place, left in {middle: x(places[middle]) + 6, -1: _LEFT + inner + 8}.items():
        if place:
            for number, height in enumerate(_apart([y(line.values[place]) for line in series])):
                mark = _text(left, height + 4, letter(number), "start")
                out.append(mark.replace("<text", '<text class="over"', 1))
    return _drawing(title, _WIDTH, _HEIGHT, out)


def bars(
    rows: Sequence[Bar], parts: Sequence[str], *, title: str, of: Callable[[float], str]
) -> str:
    """Return a drawing of stacked bars, one below the other, to one scale from zero.

    Args:
        rows: the bars.
        parts: names of their parts.
        title: for readers who cannot see it.
        of: formats a value.
    """
    most = max((sum(row.parts) for row in rows), default=0.0) or 1.0
    inner = _WIDTH - 80
    out = []
    for number, row in enumerate(rows):
        top = _TOP + number * 2 * _ROW
        out.append(_text(4, top + 8, row.name, "start"))
        left = 4.0
        for kind, value in enumerate(row.parts):
            width = inner * value / most
            if width <= 0:
                continue
            colour = kind % len(COLOURS)
            box = f'x="{left:.1f}" y="{top + 14}" width="{width:.1f}" height="{_ROW - 10}"'
            out.append(f'<rect class="b{colour}" {box}><title>{escape(parts[kind])}</title></rect>')
            if width >= 14:
                mark = _text(left + width / 2, top + 31, letter(kind), "middle")
                out.append(mark.replace("<text", '<text class="on"', 1))
            left += width
        out.append(_text(left + 6, top + 31, of(sum(row.parts)), "start"))
    return _drawing(title, _WIDTH, _TOP + len(rows) * 2 * _ROW, out)


def ticks(most: float) -> list[float]:
    """Return four to six round numbers from zero to *most*, or a little beyond."""
    most = most if most > 1e-300 else 1.0
    power = 10.0 ** math.floor(math.log10(most / 4))
    step = next(step * power for step in (1, 2, 2.5, 5, 10) if most / (step * power) <= 5)
    return [step * number for number in range(math.ceil(most / step - 1e-9) + 1)]


def letter(number: int) -> str:
    """Return the letter of the line or the part *number* in a drawing."""
    return _LETTERS[number] if number < len(_LETTERS) else str(number)


def swatch(number: int, *, limit: bool = False, box: bool = False) -> str:
    """Return a piece of line *number*, or of a bar's part, for a legend."""
    mark = (
        f'<rect class="b{number % len(COLOURS)}" x="1" y="2" width="26" height="9"/>'
        if box
        else f'<path d="M0 7h28" {_stroke(number, limit=limit)}/>'
    )
    return f'<svg class="drawing" width="28" height="14" aria-hidden="true">{mark}</svg>'


def standalone(drawing: str, names: Sequence[tuple[str, bool]]) -> str:
    """Return a drawing as a file of its own, on white, with the *names* of its lines below.

    Of each line its name, and whether it is a limit.
    """
    height = _HEIGHT + 18 * len(names)
    legend = [
        f'<path d="M{_LEFT} {_HEIGHT + 18 * at + 4}h28" {_stroke(at, limit=limit)}/>'
        + _text(_LEFT + 36, _HEIGHT + 18 * at + 8, f"{letter(at)} {name}", "start")
        for at, (name, limit) in enumerate(names)
    ]
    head, _, rest = drawing.partition(">")
    head = head.replace(f'viewBox="0 0 {_WIDTH} {_HEIGHT}"', f'viewBox="0 0 {_WIDTH} {height}"')
    paper = f'<rect class="paper" width="{_WIDTH}" height="{height}"/>'
    body = rest.removesuffix("</svg>") + "".join(legend)
    return f"{head}><style>{style()}</style>{paper}{body}</svg>\n"


def _drawing(title: str, width: int, height: int, parts: Sequence[str]) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="drawing" role="img"'
        f' viewBox="0 0 {width} {height}"><title>{escape(title)}</title>{"".join(parts)}</svg>'
    )


def _stroke(number: int, *, limit: bool) -> str:
    kind = "limit" if limit else f"l{number % len(COLOURS)}"
    dash = _DASHES[(number + number // len(COLOURS)) % len(_DASHES)]
    dashes = f' stroke-dasharray="{dash}"' if dash else ""
    return f'class="{kind}" stroke-width="{1.5 if limit else 2.5}"{dashes}'


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _most_apart(series: Sequence[ChartLine], places: int) -> int:
    """Return the place between the ends where the lines differ most; 0 if there is none."""

    def gap(at: int) -> float:
        values = sorted({line.values[at] for line in series})
        return min((b - a for a, b in itertools.pairwise(values)), default=0.0) * len(values)

    return max(range(1, places - 1), key=gap, default=0)


def _values(series: Sequence[ChartLine]) -> list[Sequence[float]]:
    return [line.values for line in series]


def _beside(heights: Sequence[float]) -> list[float]:
    """Return *heights* in which lines that would cover each other lie side by side."""
    order = sorted(range(len(heights)), key=heights.__getitem__)
    moved = list(heights)
    start = 0
    for end in range(1, len(order) + 1):
        if end < len(order) and heights[order[end]] - heights[order[end - 1]] < _BESIDE:
            continue
        bundle = sorted(order[start:end])
        middle = sum(heights[at] for at in bundle) / max(1, len(bundle))
        for number, at in enumerate(bundle):
            if len(bundle) > 1:
                moved[at] = middle + _BESIDE * (number - (len(bundle) - 1) / 2)
        start = end
    return moved


def _apart(heights: Sequence[float]) -> list[float]:
    """Return *heights* moved as little as needed for no two to be closer than a line of text."""
    order = sorted(range(len(heights)), key=heights.__getitem__)
    placed = list(heights)
    floor = -math.inf
    for at in order:
        placed[at] = max(placed[at], floor)
        floor = placed[at] + _LINE
    ceiling = float(_HEIGHT - _FOOT)
    for at in reversed(order):
        placed[at] = min(placed[at], ceiling)
        ceiling = placed[at] - _LINE
    return placed


def _lighter(colour: str) -> str:
    """Return *colour*, half way to white."""
    parts = [int(colour[at : at + 2], 16) for at in (1, 3, 5)]
    return "#" + "".join(f"{(part + 255) // 2:02x}" for part in parts)
