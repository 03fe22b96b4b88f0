"""Stores that clear too much, too little, or say so wrongly."""

from __future__ import annotations

from fnmatch import fnmatchcase

from dict_store import CapableStore, DictContract, WholeContract


class TestClearsEverything(DictContract):
    """The prefix is not looked at."""

    breaks = "clear.1"

    class Make(CapableStore):
        def starting(self, prefix):
            return super().starting(b"")


class TestClearsAndForgetsToCount(DictContract):
    """What went is not counted."""

    breaks = "clear.1"

    class Make(CapableStore):
        def clear_prefix(self, prefix, deadline):
            super().clear_prefix(prefix, deadline)
            return 0


class TestClearsByPattern(DictContract):
    """The prefix is a pattern to the service."""

    breaks = "clear.2"

    class Make(CapableStore):
        def starting(self, prefix):
            pattern = prefix.decode("latin-1") + "*"
            every = super().starting(b"")
            return [key for key in every if fnmatchcase(key.decode("latin-1"), pattern)]


class TestClearsTheFirstPage(DictContract):
    """What the service lists on its first page goes."""

    breaks = "clear.3"

    class Make(CapableStore):
        def starting(self, prefix):
            return super().starting(prefix)[:1000]


class TestClearsStrangers(WholeContract):
    """Whatever begins so goes, whether or not it is a chunk."""

    breaks = "clear.4"

    class Make(CapableStore):
        def starting(self, prefix):
            return [name for name in list(self.medium) if name.startswith(prefix)]


class TestClearsHalfInNoTime(DictContract):
    """Where there is no time it does what it can, and says that it is done."""

    breaks = "clear.5"

    class Make(CapableStore):
        def clear_prefix(self, prefix, deadline):
            mine = self.starting(prefix)
            return sum(self.forget(key) for key in (mine[:3] if deadline.expired else mine))


class TestClearsWithForeignErrors(DictContract):
    """The error of its client escapes."""

    breaks = "clear.5"

    class Make(CapableStore):
        def clear_prefix(self, prefix, deadline):
            if deadline.expired:
                raise TimeoutError
            return super().clear_prefix(prefix, deadline)


class TestClearsWithoutACount(DictContract):
    """A clear answers whether it went well."""

    breaks = "L1.28"

    class Make(CapableStore):
        def clear_prefix(self, prefix, deadline):
            super().clear_prefix(prefix, deadline)
            return True
