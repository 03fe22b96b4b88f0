"""A cache under names of its own, on the tiers and in the calls of an engine."""

from __future__ import annotations

from dataclasses import dataclass

from hexkv.core.engine.calls import Calls, Deadlines
from hexkv.core.engine.naming import Naming
from hexkv.core.requests.pipeline import Pipeline
from hexkv.ports import HashFunction


@dataclass(frozen=True, slots=True)
class EngineParts:
    """The parts of an engine that such a cache shares. Not the engine, which may be dropped."""

    naming: Naming
    requests: Pipeline
    calls: Calls
    deadlines: Deadlines
    chunk_tokens: int
    algorithm: HashFunction
