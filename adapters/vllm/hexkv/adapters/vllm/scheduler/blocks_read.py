"""The blocks that saves may still read, for vLLM's scheduler."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hexkv.adapters.vllm.messages import Reused, Step
from hexkv.adapters.vllm.scheduler.requests import Scheduled


@dataclass(slots=True)
class _Reading:
    """A save under way."""

    request: str
    blocks: frozenset[int]
    keeps: bool = True
    """False once its request has other blocks."""


class BlocksRead:
    """The saves under way, by the steps that planned them. For one thread.

    Args:
        block: tokens in a block.
        ranks: the number of ranks that save.
        within: True if a step ends with its saves.
    """

    def __init__(self, block: int, ranks: int, *, within: bool) -> None:
        self._block = block
        self._ranks = ranks
        self._within = within
        self._steps: dict[int, list[_Reading]] = {}
        self._over: defaultdict[int, int] = defaultdict(int)

    def plan(self, step: Step) -> None:
        """Note the saves of *step*."""
        if step.saves and not self._within:
            block = self._block
            self._steps[step.number] = [
                _Reading(save.request, frozenset(save.blocks[save.start // block :]))
                for save in step.saves
            ]

    def give(self, scheduled: Sequence[Scheduled], step: Step) -> None:
        """Note the blocks that *scheduled* requests get in *step*, which writes to them."""
        for part in scheduled:
            known = part.computed // self._block if part.replaces else 0
            self.write(part.blocks[known:], step)

    def write(self, blocks: Sequence[int], step: Step) -> None:
        """Note that *step* writes to *blocks*, which vLLM gives to a request: it voids saves."""
        if not self._steps or not blocks:
            return
        for number, saves in self._steps.items():
            for save in saves:
                if not save.blocks.isdisjoint(blocks):
                    save.keeps, save.blocks = False, frozenset()
                    step.reused.append(Reused(number, save.request))

    def keeps(self, request: str) -> bool:
        """True if a request that ends must keep its blocks."""
        return any(save.keeps for save in self._of(request))

    def moved(self, request: str) -> None:
        """Note that *request* was preempted: it has, or gets, other blocks."""
        for save in self._of(request):
            save.keeps = False

    def over(self, steps: Mapping[int, int]) -> None:
        """Take in the numbers of steps whose saves are over, and on how many ranks."""
        for number, ranks in steps.items():
            self._over[number] += ranks
            if self._over[number] >= self._ranks:
                del self._over[number]
                self._steps.pop(number, None)

    def _of(self, request: str) -> list[_Reading]:
        return [one for saves in self._steps.values() for one in saves if one.request == request]
