"""Two plain charts of hit rates: a bar for terminals, lines as SVG."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

_COLOURS = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#bbbbbb")
"""Paul Tol's bright scheme, which colour-blind readers can tell apart."""

_WIDTH, _HEIGHT, _LEFT, _TOP, _LEGEND = 520, 320, 60, 20, 180
_EIGHTHS = " ▏▎▍▌▋▊▉"


@dataclass(frozen=True, slots=True)
class Series:
    """One line: a rate for each size."""

    name: str
    rates: Sequence[float]
    limit: bool = False
    """Drawn dashed: nothing can be above it."""


def bar(value: float, most: float, width: int) -> str:
    """*value* as a bar, where *most* would be *width* characters; finer than a character."""
    eighths = round(value / most * width * 8) if most > 0 else 0
    return ("█" * (eighths // 8) + _EIGHTHS[eighths % 8]).rstrip()


def to_svg(series: Sequence[Series], sizes: Sequence[int]) -> str:
    """A drawing of rates by size, with sizes to a logarithmic scale. Sizes ascend."""
    most = max((rate for line in series for rate in line.rates), default=0.0) or 1.0
    low, span = math.log(sizes[0]), math.log(sizes[-1] / sizes[0]) or 1.0

    def x(size: int) -> float:
        return _LEFT + _WIDTH * (math.log(size) - low) / span

    def y(rate: float) -> float:
        return _TOP + _HEIGHT * (1 - rate / most)

    width, height = _LEFT + _WIDTH + _LEGEND, _TOP + _HEIGHT + 50
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}">',
        "<style>text { font: 12px sans-serif }</style>",
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    for part in range(5):
        rate = most * part / 4
        out += [
            f'<path d="M{_LEFT} {y(rate):.1f}h{_WIDTH}" stroke="#dddddd"/>',
            f'<text x="{_LEFT - 6}" y="{y(rate) + 4:.1f}" text-anchor="end">{rate:.3f}</text>',
        ]
    foot = _TOP + _HEIGHT
    out += [
        f'<text x="{x(size):.1f}" y="{foot + 18}" text-anchor="middle">{size:,}</text>'
        for size in sizes
    ]
    middle = _LEFT + _WIDTH / 2
    out.append(
        f'<text x="{middle}" y="{foot + 40}" text-anchor="middle">blocks (token hit rate)</text>'
    )
    for at, line in enumerate(series):
        colour = "#000000" if line.limit else _COLOURS[at % len(_COLOURS)]
        dash = ' stroke-dasharray="5 3"' if line.limit else ""
        points = " ".join(
            f"{x(size):.1f},{y(rate):.1f}" for size, rate in zip(sizes, line.rates, strict=True)
        )
        style = f'fill="none" stroke="{colour}" stroke-width="2"{dash}'
        key = _TOP + 10 + 18 * at
        out += [
            f'<polyline points="{points}" {style}/>',
            f'<path d="M{_LEFT + _WIDTH + 16} {key}h24" {style}/>',
            f'<text x="{_LEFT + _WIDTH + 46}" y="{key + 4}">{escape(line.name)}</text>',
        ]
    return "\n".join([*out, "</svg>", ""])
