"""The parts of ``make gpu``: what each runs, needs, and may take. Standard library alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

TOTAL = 550
"""Seconds of all parts together, on a machine that has a GPU."""


@dataclass(frozen=True, slots=True)
class Part:
    """One of them, a process of its own."""

    name: str
    title: str
    seconds: int
    """After which it is ended; what it has measured by then counts."""

    needs: tuple[str, ...] = ()
    """Modules besides torch."""

    tests: tuple[str, ...] = ()
    """Files for pytest; a part without is one of :mod:`benchmarks.gpu.measure`."""

    marks: str = "not thorough"
    """Of the tests, on a GPU: which are run."""

    script: tuple[str, ...] = ()
    """A program and its arguments, for machines without a GPU if its share of time is zero."""

    triton: bool = True
    """Whether it runs Triton's kernels, which without a GPU are interpreted."""

    def command(self, device: str, lines: str, *, here: bool) -> list[str]:
        """What to run behind ``python``; *here*: on a GPU, at full size."""
        if self.script:
            return [*self.script]
        if self.tests:
            ini = [
                "-q",
                "-p",
                "no:cacheprovider",
                "-m",
                self.marks if here else "not (thorough or gpu)",
            ]
            return ["-m", "pytest", *ini, "-W", "default", *self.tests]
        size = [] if here else ["--tiny"]
        told = ["--device", device, "--lines", lines, "--seconds", str(self.seconds)]
        return ["-m", "benchmarks.gpu.measure", self.name, *told, *size]


_TESTING = ("pytest", "hypothesis", "numba", "pydantic")
_BUILDING = ("pydantic", "pluggy", "yaml", "xxhash")
"""What an engine is configured with."""

PARTS = (
    Part("device", "what the machine is", 20, triton=False),
    Part("copies", "paged gather and scatter, bulk, beside a pinned copy", 50),
    Part("layers", "the same layer by layer", 25),
    Part("pieces", "the same in runs of 16 B to 32 MiB", 40),
    Part("coding", "CacheGen, int8, fp8, int4, rANS and RoPE beside memory and bus", 50),
    Part("loading", "encoded chunks decoded on the device while they are loaded", 40),
    Part("engines", "vLLM's and SGLang's memory, by stand-ins", 35, (*_BUILDING, "zmq")),
    Part("cache", "retrieve and store by a cache, beside a pinned copy", 45, _BUILDING),
    Part("tiers", "hits from disk, past the host, and from a node", 35, (*_BUILDING, "typer")),
    Part(
        "hf",
        "a model of transformers, with hexkv-hf",
        30,
        (*_BUILDING, "transformers", "safetensors"),
    ),
    Part("ttft", "time to the first token of 32k tokens, with and without cache", 75, _BUILDING),
    Part(
        "kernels",
        "all kernels against their references",
        70,
        _TESTING,
        tests=("kernels/tests/interpreted",),
    ),
    Part(
        "cuda",
        "hexkv-cuda: windows, streams, memory",
        45,
        _TESTING,
        tests=("adapters/cuda/tests",),
        marks="",
    ),
    Part(
        "compiled",
        "all kernels compiled for sm_80, sm_90 and sm_100",
        0,
        script=("kernels/tests/interpreted/compiling.py", "80", "90", "100"),
        triton=False,
    ),
)


def chosen(names: Sequence[str], *, gpu: bool) -> list[Part]:
    """The parts of these names; without any, those that this machine takes."""
    if names:
        return [part for part in PARTS if part.name in names]
    return [part for part in PARTS if part.seconds or not gpu]
