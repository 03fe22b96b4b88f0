"""The results of work on the chunks of several nodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from hexkv.fleet.draining import Moved
from hexkv.ports import ChunkKey, WorkReport


@dataclass(frozen=True, slots=True)
class FleetReport:
    """The result of work on chunks, on all nodes together."""

    chunks: int = 0
    """Chunks that were chosen, on each node that has them."""

    done: int = 0
    """Chunks that are in the wanted place and form, including those that were before."""

    absent: int = 0
    """Chunks that were gone."""

    busy: int = 0
    """Chunks that another move has at present."""

    failed: int = 0
    """Chunks that stayed as they were."""

    stopped: bool = False
    """True if it was stopped before its end."""

    kept: tuple[ChunkKey, ...] = ()
    """Chunks that only a drained node has."""

    nodes: Mapping[str, int] = field(default_factory=dict)
    """By node how many chunks were done there."""

    problems: Mapping[str, str] = field(default_factory=dict)
    """By node its last error, or the reason that it may have more of the selection."""

    @property
    def complete(self) -> bool:
        """True if nothing failed, and nothing is left."""
        return not (self.busy or self.failed or self.stopped or self.kept or self.problems)


def report_of(moved: Moved, node: str) -> FleetReport:
    """Return the report of chunks that were moved to, or from, one node."""
    return FleetReport(
        moved.chunks,
        moved.done,
        absent=moved.absent,
        busy=moved.busy,
        failed=moved.failed,
        stopped=moved.stopped,
        kept=tuple(moved.kept),
        nodes={node: moved.done},
        problems=moved.problems,
    )


def summed(reports: Mapping[str, WorkReport], problems: Mapping[str, str]) -> FleetReport:
    """Return the reports of all nodes together."""
    left = {
        name: "; ".join(f"{tier}: {why}" for tier, why in report.left.items())
        for name, report in reports.items()
        if report.left
    }
    return FleetReport(
        sum(report.chunks for report in reports.values()),
        sum(report.done for report in reports.values()),
        absent=sum(report.absent for report in reports.values()),
        failed=sum(report.failed for report in reports.values()),
        stopped=any(report.stopped for report in reports.values()),
        nodes={name: report.done for name, report in reports.items()},
        problems={**problems, **left},
    )
