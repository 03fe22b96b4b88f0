"""The tables of the documents, from a result: ``python -m benchmarks.gpu_vllm.page JSON``."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

_NAMES = {
    ("hexkv", "memory"): "hexkv, memory, with a disk below",
    ("hexkv", "disk"): "hexkv, from that disk where it is sooner",
    ("disk", "disk"): "hexkv, disk, loaded in any case",
    ("node", "node"): "hexkv, a node's memory",
    ("offloading", "memory"): "vLLM's OffloadingConnector",
}


def tables(result: Mapping[str, Any]) -> str:
    """Times to the first token, misses beside vLLM alone, and every goal, in Markdown."""
    return "\n".join([*_times(result), "", *_goals(result)])


def _times(result: Mapping[str, Any]) -> Iterator[str]:
    lengths = result["lengths"]
    yield f"Milliseconds to the first token, median; {result['machine']['device']}:"
    yield ""
    yield "| | " + " | ".join(f"{int(n):,} tokens: miss, hit" for n in lengths) + " |"
    yield "| --- " * (len(lengths) + 1) + "|"
    for names, label in ((None, "vLLM alone: computed, its own prefix cache"), *_NAMES.items()):
        cells = [_cell(length["sides"], names) for length in lengths.values()]
        if any(cells):
            yield f"| {label} | " + " | ".join(cells) + " |"
    copies = [length.get("bare_copy_ms") for length in lengths.values()]
    bare = [f"{copy['median']:g}" if copy else "" for copy in copies]
    yield "| a bare copy of the KV | " + " | ".join(bare) + " |"


def _cell(sides: Mapping[str, Any], names: tuple[str, str] | None) -> str:
    if names is None:
        first = next((side for side in sides.values() if side["miss"]), None)
        return f"{first['alone']['median']:g}, {first['own']['median']:g}" if first else ""
    name, place = names
    hit = sides.get(name, {}).get("hits", {}).get(place)
    if not hit:
        return ""
    miss = "-" if (name, place) == ("hexkv", "disk") else f"{sides[name]['miss']['median']:g}"
    return f"{miss}, {hit['median']:g}" + ("" if any(hit["cached"]) else " (computed)")


def _goals(result: Mapping[str, Any]) -> Iterator[str]:
    yield "| tokens | side | what | median (quartiles) | goal | |"
    yield "| --- | --- | --- | --- | --- | --- |"
    words = {None: "", True: "reached", False: "**missed**"}
    for row in result["compared"]:
        side = row["side"] + (f", {row['place']}" if "place" in row else "")
        found = f"{row['median']:g}" + (
            f" ({row['low']:g} to {row['high']:g})" if "low" in row else ""
        )
        bound = "" if row["goal"] is None else f"{row['goal']:g}"
        yield (
            f"| {row['tokens']:,} | {side} | {row['what']} | {found} | {bound} |"
            f" {words[row['reached']]} |"
        )


if __name__ == "__main__":
    print(tables(json.loads(Path(sys.argv[1]).read_text())))
