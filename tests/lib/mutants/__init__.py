"""Deliberately broken adapters over all ports, and a run of the contracts that catches them.

One module for each port or part of one, full of classes like this::

    class TestDropsTheLastByte(DictContract):
        \"\"\"What is wrong, in a sentence.\"\"\"

        breaks = "L1.1"

        class Make(DictStore): ...

They are named as pytest wants tests to be named, but live in modules that it does not collect
by itself. ``make mutants`` prints who is caught, ``tests/test_mutants.py`` asserts it.
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
