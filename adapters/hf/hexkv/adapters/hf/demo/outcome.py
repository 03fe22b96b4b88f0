"""The measurements of the demo, and the check of its claims."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hexkv.adapters.hf.demo.plan import TRAINED, DemoPlan
from hexkv.plugins.cli.output import human_size, print_table

_TITLES = {
    "without": "without the cache",
    "disk": "from disk, after the restart",
    "memory": "from memory",
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """Both processes' reports, as JSON brought them."""

    plan: DemoPlan
    first: Mapping[str, Any]
    runs: Mapping[str, Mapping[str, Any]]
    """``without``, ``disk`` and ``memory``."""

    killed: bool
    """True if the first process ended by SIGKILL, and by nothing else."""

    def speedup(self, run: str) -> float:
        """How many times sooner the first token came than without the cache."""
        return float(self.runs["without"]["seconds"] / self.runs[run]["seconds"])

    def problems(self) -> list[str]:
        """All claims that do not hold; empty if all do."""
        found = [] if self.killed else ["the first process was not ended by SIGKILL"]
        if self.first["stored_tokens"] < self.plan.reusable:
            found.append(f"the first process stored {self.first['stored_tokens']} tokens")
        for name, run in self.runs.items():
            if run["tokens"] != self.first["tokens"]:
                found.append(f"{_TITLES[name]}: other tokens than the first process generated")
            if name != "without" and run["tier_tokens"] < self.plan.reusable:
                found.append(
                    f"{_TITLES[name]}: {run['tier_tokens']} tokens hit, not {self.plan.reusable}"
                )
        return found

    def as_json(self) -> dict[str, object]:
        """The whole outcome, for programs."""
        return {
            "model": self.plan.model or TRAINED,
            "prefix_tokens": self.plan.tokens,
            "prompt_tokens": self.runs["without"]["prompt_tokens"],
            "first_process": {**self.first, "killed": self.killed},
            "runs": {
                name: {**run, "speedup": round(self.speedup(name), 2)}
                for name, run in self.runs.items()
            },
            "tokens_equal": all(
                run["tokens"] == self.first["tokens"] for run in self.runs.values()
            ),
            "problems": self.problems(),
        }

    def show(self) -> None:
        """Print the table."""
        rows = []
        for name, run in self.runs.items():
            hit = name != "without"
            rows.append(
                (
                    _TITLES[name],
                    f"{run['seconds']:.3f} s",
                    f"{self.speedup(name):.1f} x" if hit else "",
                    str(run["hit_tokens"]) if hit else "0",
                    human_size(run["loaded_bytes"]) if hit else "",
                    f"{run['load_seconds']:.3f} s" if hit else "",
                    "yes" if run["tokens"] == self.first["tokens"] else "NO",
                )
            )
        columns = ("", "first token ", "sooner ", "hit tokens ", "loaded ", "in ", "same tokens")
        prompt = self.runs["without"]["prompt_tokens"]
        print_table(columns, rows, f"A prompt of {prompt} tokens, {self.plan.new_tokens} generated")
