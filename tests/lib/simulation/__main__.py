"""Play many seeds on a few processes, or one of them again with all that it did.

``make simulate SEEDS=2000 STEPS=200`` does the first, ``make simulate SEED=7`` the second.
"""

import argparse
import sys
import time
from functools import partial
from multiprocessing import get_context

from simulation.seeds import first_wrong

SHOWN = 3
"""Failing seeds of which everything is told; of the others only how to play them again."""


def replay(seed, steps):
    """Play one seed and tell every step."""
    wrong = first_wrong(seed, steps, lines=None)
    print(wrong or f"seed {seed} of {steps} steps: every promise held")
    return 1 if wrong else 0


def play(seeds, steps, processes):
    """Play all of *seeds*, as many at a time as there are processes."""
    began = time.perf_counter()
    failed = 0
    with get_context("spawn").Pool(processes) as pool:
        found = pool.imap(partial(first_wrong, steps=steps), seeds, chunksize=8)
        for seed, wrong in zip(seeds, found, strict=True):
            if wrong is None:
                continue
            failed += 1
            if failed <= SHOWN:
                print(wrong)
            print(f"seed {seed} fails; again: make simulate SEED={seed} STEPS={steps}", flush=True)
    took = time.perf_counter() - began
    print(f"{len(seeds)} seeds of {steps} steps in {took:.0f} s: {failed} failed")
    return 1 if failed else 0


def main():
    parser = argparse.ArgumentParser(prog="simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=2000, help="how many seeds to play")
    parser.add_argument("--steps", type=int, default=200, help="steps of each")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--seed", type=int, help="play this one alone, and tell every step")
    parser.add_argument("--processes", type=int, default=2)
    asked = parser.parse_args()
    if asked.seed is not None:
        return replay(asked.seed, asked.steps)
    return play(range(asked.first, asked.first + asked.seeds), asked.steps, asked.processes)


if __name__ == "__main__":
    sys.exit(main())
