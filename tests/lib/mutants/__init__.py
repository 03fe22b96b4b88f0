"""Deliberately broken adapters over all ports, and a run of the contracts that catches them.

One module for each port or part of one, with a table whose rows are the promise that catches a
mutant, its name, what is wrong with it, and the methods that make it so::

    ROWS = {
        "L1.1 drops the last byte": Wrong(
            "A fencepost on the way in.",
            publish=lambda self, real, name, frame: real(name, frame[:-1]),
        ),
    }
    globals().update(broken(__name__, DictContract, DictStore, ROWS))

What takes more than methods (a fixture, a class beside it) is a class with ``breaks = "L1.1"``.
Both are named as pytest wants tests to be named, but live in modules that it does not collect
by itself. ``make mutants`` prints who is caught, ``tests/faults/test_mutants.py`` asserts it.
"""

from mutants.catalogue import HANGING, PORTS, WITNESSES, Mutant, Port, mutants
from mutants.trial import Trial, Verdict, trial

__all__ = [
    "HANGING",
    "PORTS",
    "WITNESSES",
    "Mutant",
    "Port",
    "Trial",
    "Verdict",
    "mutants",
    "trial",
]
