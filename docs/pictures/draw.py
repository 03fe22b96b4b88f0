"""Draws the pictures of the documents: ``python docs/pictures/draw.py``.

Each is a list of boxes and arrows on a grid; a test compares them with the files.
"""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent
BLUE, GOLD, GREEN, GREY = "#e8f1fb", "#fdf3df", "#e7f5ec", "#f1f3f5"
_EDGES = {BLUE: "#7fa8d4", GOLD: "#dcae57", GREEN: "#7dbb94", GREY: "#a9b4bf"}
_STYLE = """\
text { font-family: system-ui, "Segoe UI", Roboto, sans-serif; fill: #1b2733; text-anchor: middle }
.name { font-size: 15px; font-weight: 600 } .note { font-size: 12px; fill: #475666 }
.line { stroke: #475666; stroke-width: 1.6; fill: none; marker-end: url(#tip) }"""


class Box(NamedTuple):
    """A box at a place, with a name and a note below it."""

    x: int
    y: int
    width: int
    name: str
    note: str = ""
    fill: str = BLUE
    height: int = 56


class Arrow(NamedTuple):
    """An arrow, with a note beside its middle, which *dx* and *dy* move."""

    start: tuple[int, int]
    end: tuple[int, int]
    note: str = ""
    dx: int = 0
    dy: int = -6


def svg(title: str, about: str, height: int, parts: list[Box | Arrow], width: int = 880) -> str:
    """Return a picture with *parts*."""
    lines = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}"'
            f' width="{width}" height="{height}" role="img" aria-labelledby="title text">'
        ),
        f'<title id="title">{escape(title)}</title>',
        f'<desc id="text">{escape(about)}</desc>',
        f"<style>\n{_STYLE}\n</style>",
        (
            '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8"'
            ' markerHeight="8" orient="auto"><path d="M0 0L8 4L0 8z" fill="#475666"/>'
            "</marker></defs>"
        ),
        f'<rect width="{width}" height="{height}" rx="14" fill="#ffffff"/>',
    ]
    for part in parts:
        lines += _box(part) if isinstance(part, Box) else _arrow(part)
    return "\n".join([*lines, "</svg>", ""])


def _box(box: Box) -> list[str]:
    middle, line = box.x + box.width // 2, box.y + box.height // 2
    lines = [
        (
            f'<rect x="{box.x}" y="{box.y}" width="{box.width}" height="{box.height}" rx="8"'
            f' fill="{box.fill}" stroke="{_EDGES[box.fill]}" stroke-width="1.4"/>'
        )
    ]
    if box.name:
        y = line - 3 if box.note else line + 5
        lines.append(f'<text class="name" x="{middle}" y="{y}">{escape(box.name)}</text>')
    if box.note:
        y = line + 15 if box.name else line + 4
        lines.append(f'<text class="note" x="{middle}" y="{y}">{escape(box.note)}</text>')
    return lines


def _arrow(arrow: Arrow) -> list[str]:
    (x, y), (to_x, to_y) = arrow.start, arrow.end
    lines = [f'<path class="line" d="M{x} {y}L{to_x} {to_y}"/>']
    if arrow.note:
        at_x, at_y = (x + to_x) // 2 + arrow.dx, (y + to_y) // 2 + arrow.dy
        lines.append(f'<text class="note" x="{at_x}" y="{at_y}">{escape(arrow.note)}</text>')
    return lines


def request() -> str:
    """Return the life of a request."""
    return svg(
        "The life of a request",
        "A prompt is cut into chunks and looked up; what is found is loaded, the rest is computed,"
        " and new chunks are stored behind the answer.",
        250,
        [
            Box(24, 40, 128, "prompt", "token ids", GREY),
            Box(200, 40, 128, "keys", "chunks of 256"),
            Box(376, 40, 128, "lookup", "longest prefix"),
            Box(552, 40, 128, "load", "tiers to device", GOLD),
            Box(728, 40, 128, "compute", "the rest", GREEN),
            *(Arrow((at, 68), (at + 46, 68)) for at in (153, 329, 505, 681)),
            Box(376, 160, 304, "tiers", "memory, compressed, disk, peers, remote", GOLD),
            Arrow((440, 97), (440, 158), "which?", 26, 4),
            Arrow((616, 158), (616, 98), "KV", 16, 4),
            Arrow((792, 97), (684, 188), "stored behind the answer", 60, 22),
        ],
    )


def tiers() -> str:
    """Return how chunks move between tiers."""
    rows = [
        ("memory", "leased in place, microseconds", BLUE),
        ("compressed memory", "the same KV in fewer bytes", BLUE),
        ("disk", "read while the model computes", GOLD),
        ("peers", "the memory of other nodes", GOLD),
        ("remote", "Redis, S3, servers: all nodes share them", GREY),
    ]
    boxes = [Box(250, 24 + 76 * i, 380, *row) for i, row in enumerate(rows)]
    return svg(
        "Tiers",
        "Chunks are written to the tiers in order, evicted ones go down, and hits copy them up.",
        412,
        [
            *boxes,
            Arrow((200, 60), (200, 350), "evicted chunks go down", -85, 0),
            Arrow((680, 350), (680, 60), "hits are copied up", 75, 0),
        ],
    )


def node() -> str:
    """Return a node and its engines."""
    return svg(
        "A node",
        "Engines of one machine map the pool of a node and copy KV into and out of it.",
        290,
        [
            *(Box(24 + 288 * i, 24, 256, f"engine {i + 1}", "maps the pool") for i in range(3)),
            *(Arrow((152 + 288 * i, 82), (152 + 288 * i, 128)) for i in range(3)),
            Box(24, 132, 832, "pool", "shared memory: one copy of each chunk", GREEN),
            Box(24, 210, 400, "hexkv node", "owns pool, tiers and budgets", GOLD),
            Box(456, 210, 400, "disk and remote tiers", "read and written by the node", GREY),
            Arrow((425, 238), (454, 238)),
        ],
    )


def fleet() -> str:
    """Return nodes, their directory and a router."""
    return svg(
        "A fleet",
        "Nodes report their chunks to a directory, a router asks it, nodes read from each other.",
        320,
        [
            Box(312, 24, 256, "router", "sends a prompt to its chunks", GREY),
            Box(312, 124, 256, "directory", "which node has which chunk", GOLD),
            Arrow((440, 82), (440, 122), "events, or a question", 78, 4),
            *(Box(24 + 288 * i, 236, 256, f"node {i + 1}", "engines and pool") for i in range(3)),
            Arrow((152, 234), (330, 183), "reports", -40, 0),
            Arrow((440, 234), (440, 183)),
            Arrow((728, 234), (550, 183), "reports", 40, 0),
            Arrow((281, 264), (310, 264)),
            Arrow((569, 264), (598, 264)),
            Arrow((310, 280), (281, 280)),
            Arrow((598, 280), (569, 280)),
        ],
    )


def handed_over() -> str:
    """Return disaggregated prefill and decode."""
    return svg(
        "Prefill and decode",
        "A prefiller computes a prompt and announces its chunks; they are pushed to the decoder's"
        " node while the rest is computed.",
        260,
        [
            Box(312, 24, 256, "proxy", "one request, two engines", GREY),
            Box(24, 124, 256, "prefiller", "computes the prompt", GREEN),
            Box(600, 124, 256, "decoder", "generates the answer"),
            Arrow((330, 82), (200, 122), "first", -30, 0),
            Arrow((550, 82), (680, 122), "then", 30, 0),
            Arrow((281, 152), (598, 152), "chunks are pushed as they are computed"),
            Box(24, 184, 256, "node", "announces keys", GOLD),
            Box(600, 184, 256, "node", "waits for them", GOLD),
            Arrow((598, 212), (281, 212), "asks for what it waits for", 0, 18),
        ],
    )


def timeline() -> str:
    """Return where the time of one request goes."""
    rows = [
        ("without", [("compute all tokens", 0, 620, GREEN), ("decode", 620, 120, BLUE)]),
        ("a hit", [("lookup", 0, 70, GREY), ("load", 70, 110, GOLD), ("rest", 180, 70, GREEN)]),
        ("layers", [("lookup", 0, 70, GREY), ("load and compute", 70, 130, GOLD)]),
    ]
    ends = {"a hit": 250, "layers": 200}
    parts: list[Box | Arrow] = []
    for number, (name, spans) in enumerate(rows):
        y = 24 + 64 * number
        parts.append(Box(16, y, 96, name, "", GREY, 44))
        parts += [Box(120 + at, y, wide, "", what, fill, 44) for what, at, wide, fill in spans]
        if name in ends:
            parts.append(Box(120 + ends[name], y, 120, "", "decode", BLUE, 44))
    parts.append(Arrow((120, 232), (866, 232), "time", 0, 20))
    return svg(
        "A timeline of one request",
        "Without a hit all tokens are computed; with one they are loaded, layer by layer beside"
        " the computation. Lengths are drawn, not measured.",
        270,
        parts,
    )


PICTURES = {
    "request": request,
    "tiers": tiers,
    "node": node,
    "fleet": fleet,
    "prefill-decode": handed_over,
    "timeline": timeline,
}

if __name__ == "__main__":
    for file, drawn in PICTURES.items():
        (HERE / f"{file}.svg").write_text(drawn())
