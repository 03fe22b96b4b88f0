"""Stores that clear too much, too little, or say so wrongly."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase

from dict_store import CapableStore, DictContract, WholeContract
from hexkv.ports import namespace_of
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


def clears_like(self, real, prefix):
    pattern = re.escape(prefix.decode("latin-1")).replace("%", ".*").replace("_", ".")
    return [key for key in real(b"") if re.match(pattern, key.decode("latin-1"), re.DOTALL)]


def clears_up_to_the_next(self, real, prefix):
    end = prefix[:-1] + bytes([(prefix[-1] + 1) & 0xFF]) if prefix else b""
    return [key for key in real(b"") if prefix <= key and (not prefix or key < end)]


def clears_up_to_the_highest(self, real, prefix):
    return [key for key in real(b"") if prefix <= key < prefix + b"\xff" or not prefix]


def clears_whole_namespaces(self, real, prefix):
    return [key for key in real(b"") if not prefix or namespace_of(key) == prefix]


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
    "clear.2 clears like": Wrong("The prefix is a pattern of ``LIKE``.", starting=clears_like),
    "clear.2 clears up to the next": Wrong(
        "The last byte of a range's end has no carry.", starting=clears_up_to_the_next
    ),
    "clear.2 clears up to the highest": Wrong(
        "A range ends before the prefix with a byte of ones behind it.",
        starting=clears_up_to_the_highest,
    ),
    "clear.1 clears whole namespaces": Wrong(
        "Chunks are in one folder for each namespace, and the prefix is its name.",
        starting=clears_whole_namespaces,
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
