"""The whole stack in virtual time: many requests, many faults, one seed, one outcome.

``world`` is the clock and the executor, ``medium`` what outlives a process, ``stage`` an
engine over it, ``play`` the random steps and what must hold after each of them.
"""
