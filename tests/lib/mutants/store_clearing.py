"""Stores that clear too much, too little, or say so wrongly."""

from __future__ import annotations

from fnmatch import fnmatchcase

from dict_store import CapableStore, DictContract, WholeContract
from mutants.rows import Wrong, broken


def clears_and_forgets_to_count(self, real, prefix, deadline):
    real(prefix, deadline)
    return 0


def clears_by_pattern(self, real, prefix):
    pattern = prefix.decode("latin-1") + "*"
    every = real(b"")
    return [key for key in every if fnmatchcase(key.decode("latin-1"), pattern)]


def clears_strangers(self, prefix):
    return [name for name in list(self.medium) if name.startswith(prefix)]


def clears_half_in_no_time(self, prefix, deadline):
    mine = self.starting(prefix)
    return sum(self.forget(key) for key in (mine[:3] if deadline.expired else mine))


def clears_with_foreign_errors(self, real, prefix, deadline):
    if deadline.expired:
        raise TimeoutError
    return real(prefix, deadline)


def clears_without_a_count(self, real, prefix, deadline):
    real(prefix, deadline)
    return True


DICT_CONTRACT = {
    "clear.1 clears everything": Wrong(
        "The prefix is not looked at.", starting=lambda self, real, prefix: real(b"")
    ),
    "clear.1 clears and forgets to count": Wrong(
        "What went is not counted.", clear_prefix=clears_and_forgets_to_count
    ),
    "clear.2 clears by pattern": Wrong(
        "The prefix is a pattern to the service.", starting=clears_by_pattern
    ),
    "clear.3 clears the first page": Wrong(
        "What the service lists on its first page goes.",
        starting=lambda self, real, prefix: real(prefix)[:1000],
    ),
    "clear.5 clears half in no time": Wrong(
        "Where there is no time it does what it can, and says that it is done.",
        clear_prefix=clears_half_in_no_time,
    ),
    "clear.5 clears with foreign errors": Wrong(
        "The error of its client escapes.", clear_prefix=clears_with_foreign_errors
    ),
    "L1.28 clears without a count": Wrong(
        "A clear answers whether it went well.", clear_prefix=clears_without_a_count
    ),
}
globals().update(broken(__name__, DictContract, CapableStore, DICT_CONTRACT))


WHOLE_CONTRACT = {
    "clear.4 clears strangers": Wrong(
        "Whatever begins so goes, whether or not it is a chunk.", starting=clears_strangers
    ),
}
globals().update(broken(__name__, WholeContract, CapableStore, WHOLE_CONTRACT))
