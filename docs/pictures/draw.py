"""Draws the pictures of the documents: ``python docs/pictures/draw.py``.

Each is a list of boxes and arrows on a grid, or bars of the benchmarks' results; a test compares
them with the files.
"""

from __future__ import annotations

import json
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).parent
RESULTS = HERE.parents[1] / "benchmarks" / "results"
BLUE, GOLD, GREEN, GREY = "#e8f1fb", "#fdf3df", "#e7f5ec", "#f1f3f5"
_EDGES = {BLUE: "#7fa8d4", GOLD: "#dcae57", GREEN: "#7dbb94", GREY: "#a9b4bf"}
_STYLE = """\
text { font-family: system-ui, "Segoe UI", Roboto, sans-serif; fill: #1b2733; text-anchor: middle }
.name { font-size: 15px; font-weight: 600 } .note { font-size: 12px; fill: #475666 }
.line { stroke: #475666; stroke-width: 1.6; fill: none; marker-end: url(#tip) }"""

_OF_BARS = """\
.left { text-anchor: end } .right { text-anchor: start }
.goal { stroke: #b3412e; stroke-width: 2 } .one { stroke: #475666; stroke-dasharray: 4 3 }"""


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


class Bar(NamedTuple):
    """One bar of a plot."""

    name: str
    value: float
    shown: str
    fill: str
    goal: float | None = None


def bars(title: str, about: str, rows: list[Bar | str], *, most: float, one: bool = False) -> str:
    """Return a plot of *rows*, the texts among them being headings.

    Values are drawn up to *most*; with *one* a dashed line stands at 1.
    """
    left, wide, tall = 290, 500, 26
    height = tall * len(rows) + 20
    parts = [f"<style>\n{_OF_BARS}\n</style>"]
    for at, row in enumerate(rows):
        y = 10 + tall * at
        if isinstance(row, str):
            parts.append(f'<text class="name right" x="24" y="{y + 18}">{escape(row)}</text>')
            continue
        width = round(wide * min(row.value, most) / most)
        end = max(width, round(wide / most) if one else 0)
        parts += [
            f'<text class="note left" x="{left - 8}" y="{y + 17}">{escape(row.name)}</text>',
            (
                f'<rect x="{left}" y="{y + 4}" width="{width}" height="{tall - 8}" rx="3"'
                f' fill="{row.fill}" stroke="{_EDGES[row.fill]}"/>'
            ),
            f'<text class="note right" x="{left + end + 8}" y="{y + 17}">{row.shown}</text>',
        ]
        if row.goal is not None:
            x = left + round(wide * row.goal / most)
            parts.append(f'<path class="goal" d="M{x} {y + 2}v{tall - 4}"/>')
    if one:
        x = left + round(wide / most)
        parts.append(f'<path class="one" d="M{x} 10V{height - 10}"/>')
    head, _, tail = svg(title, about, height, []).rpartition("</svg>")
    return "\n".join([head.rstrip("\n"), *parts, f"</svg>{tail}"])


def _result(name: str) -> Any:
    return json.loads((RESULTS / f"{name}.json").read_text())


def first_token() -> str:
    """Return the time to the first token in vLLM, by its cache."""
    names = {"prefix": "vLLM's prefix cache", "example": "ExampleConnector", "hexkv": "hexkv"}
    rows: list[Bar | str] = []
    for file, place in {"vllm_ttft_memory_tail": "memory", "vllm_ttft_cold": "a cold disk"}.items():
        found = _result(file)
        rows.append(f"{found['prompt_tokens']:,} tokens, KV in {place}, {found['date'][:10]}")
        for connector, sides in found["connectors"].items():
            for side, fill in {"miss": GREY, "hit": GREEN}.items():
                spent = sides[side]["ttft_seconds"]["median"]
                name = f"{side}: {names[connector]}"
                rows.append(Bar(name, spent, f"{1000 * spent:,.0f} ms", fill))
    most = max(row.value for row in rows if isinstance(row, Bar))
    about = "Median milliseconds to the first token in vLLM on two CPU cores, for misses and hits."
    return bars("Time to the first token in vLLM", about, rows, most=most)


def speeds() -> str:
    """Return the speed of each tier, as a share of the bare copy beside it."""
    sections, rows = _result("whole")["sections"], []
    for section in ("memory", "disk", "direct", "redis", "lmserver", "peers"):
        judged = [it for it in sections[section]["result"]["results"] if it["goal"] is not None]
        for it in judged:
            if it["kind"] == "speed":
                value, fill = it["ratio"]["median"], GREEN if it["reached"] else GOLD
                name = f"peers: {it['name']}" if section == "peers" else it["name"]
                rows.append(Bar(name, value, f"{value:.2f}", fill, it["goal"]))
    about = (
        "Stores and retrieves of the whole engine beside the bare copy, which is 1, and the goal of"
        " each, a red line; yellow where it is missed."
    )
    return bars("Speed of each tier beside the bare copy", about, rows, most=2.0, one=True)


def serdes() -> str:
    """Return how much smaller each serde makes KV."""
    exact = ("zstd", "zstd, level 1", "rans")
    rows: list[Bar | str] = [
        Bar(it["serde"], it["ratio"], f"{it['ratio']:.2f}", BLUE if it["serde"] in exact else GOLD)
        for it in _result("serdes")["rows"]
        if it["kv"] == "GQA, 8 heads of 128" and "numpy" not in it["serde"]
    ]
    about = "Bytes of KV of 8 heads of 128, divided by those of its payload; blue loses nothing."
    return bars("How much smaller serdes make KV", about, rows, most=10.0, one=True)


PICTURES = {
    "first-token": first_token,
    "speeds": speeds,
    "serdes": serdes,
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
