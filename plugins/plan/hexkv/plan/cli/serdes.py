"""``hexkv serdes``: how fast each serde is here, and the best one for each link."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from math import inf
from random import Random
from statistics import NormalDist
from struct import pack
from typing import Annotated

import typer

from hexkv.core.tiers.runtime import RAW
from hexkv.core.tiers.stores.bandwidth import Encoding
from hexkv.plugins.cli.output import (
    Json,
    aside,
    installed,
    named,
    new_app,
    print_json,
    print_table,
    run_app,
    size_option,
    time_option,
)
from hexkv.plugins.cli.serving import size_in
from hexkv.plugins.clock import SystemClock
from hexkv.plugins.spec import OpenContext
from hexkv.ports import DType, KVLayout, Serde

_LAYOUT = KVLayout.attention(DType.BFLOAT16, layers=2, heads=8, key_width=128)
_TOKENS = 256


@dataclass(frozen=True, slots=True)
class Decision:
    """The form to load, and the time that it takes."""

    serde: str | None
    """The form to load; ``None``: recompute the tokens."""

    seconds: float


def choose(
    forms: Iterable[Encoding],
    *,
    size: int,
    tokens: int,
    link_rate: float,
    prefill_rate: float,
    within: float,
) -> Decision:
    """Return the first of *forms* that arrives in time, or else the fastest choice.

    After CacheGen (arXiv 2310.07240, section 5.3), which takes the best quality that a deadline
    allows, and recomputes the tokens that a link would bring too late.

    Args:
        forms: in the order of their fidelity, the best first.
        size: bytes of KV.
        tokens: the number of tokens of this KV.
        link_rate: bytes per second that the tier brings.
        prefill_rate: tokens per second that the model computes.
        within: seconds in which the KV should arrive; zero asks for the fastest.
    """
    again = fastest = Decision(None, tokens / prefill_rate)
    for form in forms:
        decision = Decision(form.serde, form.seconds(size, link_rate))
        # A form slower than computing is not loaded, however long the deadline.
        if decision.seconds <= min(within, again.seconds):
            return decision
        if decision.seconds < fastest.seconds:
            fastest = decision
    return fastest


def serdes(
    links: Annotated[
        str, typer.Option("--links", help="Bytes per second of links, with units.")
    ] = "10MB,100MB,1250MB,3GB,12500MB",
    tokens: Annotated[int, typer.Option(min=1, help="Tokens to load.")] = 8192,
    row: Annotated[str, size_option("Bytes of KV of a token.", "--row")] = "128KiB",
    prefill: Annotated[float, typer.Option(min=1e-3, help="Tokens computed per second.")] = 10_000,
    threads: Annotated[int, typer.Option(min=1, help="Threads that decode.")] = 4,
    within: Annotated[float, time_option("Time there is; 0: the shortest.")] = 0,
    patience: Annotated[float, time_option("Time to measure a serde.", least=0.01)] = 2,
    as_json: Json = False,
) -> None:
    """Measure the installed serdes on made-up KV, and say what to load over which link."""
    with named("--links"):
        rates = [size_in(link) for link in links.split(",")]
    with named("--row"):
        size = tokens * size_in(row)
    with aside():
        forms = measured(patience, threads)
    chosen = [
        choose(forms, size=size, tokens=tokens, link_rate=rate, prefill_rate=prefill, within=within)
        for rate in rates
    ]
    if as_json:
        answers = zip(rates, map(asdict, chosen), strict=True)
        print_json(
            {
                "forms": [asdict(form) for form in forms[1:]],
                "links": [{"bytes_per_second": rate} | answer for rate, answer in answers],
            }
        )
        return
    print_table(
        ["serde", "ratio ", f"decodes, {threads} threads "],
        [(f.serde, f"{f.ratio:.2f}", f"{f.decode_rate / 1e9:.2f} GB/s") for f in forms[1:]],
    )
    typer.echo(f"\n{tokens:,} tokens, {size / 1e6:,.0f} MB of KV:\n")
    print_table(
        ["link ", "load", "seconds "],
        [
            (f"{rate / 1e6:,.0f} MB/s", best.serde or "nothing: compute", f"{best.seconds:.3f}")
            for rate, best in zip(rates, chosen, strict=True)
        ],
    )


def measured(patience: float, threads: int) -> list[Encoding]:
    """Return raw KV and every serde that opens here: lossless first, then the larger first."""
    registry, context = installed(), OpenContext(SystemClock())
    found: list[tuple[bool, Encoding]] = []
    for name, serde in registry.open_all("serde", context):
        found.append((not serde.lossless, _measure(name, serde, patience, threads)))
    found.sort(key=lambda one: (one[0], one[1].ratio))
    return [Encoding(RAW, 1.0, inf), *(form for _, form in found)]


def _measure(name: str, serde: Serde, patience: float, threads: int) -> Encoding:
    """Return the best of many runs, without the first, in which a serde may be compiled."""
    chunk = _made_up()
    into = memoryview(bytearray(serde.bound(len(chunk))))
    back = memoryview(bytearray(len(chunk)))
    payload = into[: serde.encode(chunk, _LAYOUT, _TOKENS, into)]
    serde.decode(payload, _LAYOUT, _TOKENS, back)
    best, end = inf, time.monotonic() + patience
    while best == inf or time.monotonic() < end:
        start = time.thread_time()
        serde.decode(payload, _LAYOUT, _TOKENS, back)
        best = min(best, time.thread_time() - start)
    return Encoding(name, len(chunk) / len(payload), threads * len(chunk) / best)


def _made_up() -> memoryview:
    """Return a chunk whose elements have the magnitudes of Gaussian ones: KV of no model."""
    size = _LAYOUT.chunk_bytes(_TOKENS)
    normal = NormalDist()
    high = bytes(pack("<f", normal.inv_cdf((i + 0.5) / 256))[3] for i in range(256))
    random = Random(0)  # noqa: S311 - nothing here is secret
    chunk = bytearray(random.randbytes(size))
    chunk[1::2] = random.randbytes(size // 2).translate(high)
    return memoryview(chunk)


def run(arguments: Sequence[str]) -> int:
    """Run the command, as a plugin does."""
    app = new_app("Measure the serdes, and say what to load over which link.")
    app.command()(serdes)
    return run_app(app, "hexkv serdes", arguments)
