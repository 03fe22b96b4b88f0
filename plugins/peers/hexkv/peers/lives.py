"""The life of a process in a directory and before its peers, in the order of the directory's."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable
from dataclasses import replace
from threading import Lock

from hexkv.ports import Member

log = logging.getLogger(__name__)

_TIE_BITS = 31
"""Random bits in a generation, for lives that follow the same one. The rest counts lives."""

_END = 1 << 63


def new_generation() -> int:
    """Return the generation of a life before it knows of any other; it does not use a clock."""
    return secrets.randbelow((1 << _TIE_BITS) - 1) + 1


class Life:
    """The identity of a process in directories and before its peers. Safe from any thread."""

    def __init__(self, member: Member, renew: Callable[[int], bool] = lambda _: True) -> None:
        """Begin as *member*; *renew* announces a new generation to peers; False if it cannot."""
        self._member = member
        self._renew = renew
        self._lock = Lock()
        self._stuck = False
        """True once the log has a line that this life cannot be a later one."""

    @property
    def member(self) -> Member:
        """The current state of this life."""
        return self._member

    def follow(self, known: int) -> None:
        """Become a later life than that of generation *known*, if this is another; 0 is none."""
        with self._lock:
            own = self._member.generation
            if known in (0, own) or known >> _TIE_BITS < own >> _TIE_BITS:
                return
            later = ((known >> _TIE_BITS) + 1 << _TIE_BITS) + own % (1 << _TIE_BITS)
            if later >= _END or not self._renew(later):
                if not self._stuck:
                    log.error("node %r cannot follow its life %d", self._member.name, known)
                self._stuck = True
                return
            self._member = replace(self._member, generation=later)
