"""A dictionary that can be out of reach, slow or full, as a server can."""

from __future__ import annotations

from threading import Condition

from hexkv.contracts.store import Service
from hexkv.ports import StoreUnreachable


class Shelf(dict):
    """A medium. Whoever uses it passes through, and waits or fails as long as it is in trouble."""

    def __init__(self):
        super().__init__()
        self.turn = Condition()
        self.mend()

    def mend(self):
        self.down = self.stalled = self.full = self.trickling = False
        self.seconds = 0.0
        self.wake()

    def beside(self):
        """Another corner of the same service."""
        return Shelf()

    def wake(self):
        """Have everybody who waits look again."""
        with self.turn:
            self.turn.notify_all()

    def pass_through(self, deadline, given_up):
        if not self.is_well():
            patience = min(deadline.remaining(), self.seconds or 600.0)
            with self.turn:
                self.turn.wait_for(lambda: given_up() or self.is_well(), patience)
            if given_up() or deadline.expired or self.stalled or self.trickling:
                raise StoreUnreachable("no answer")
        if self.down:
            raise StoreUnreachable("down")

    def is_well(self):
        return not self.stalled and not self.seconds and not self.trickling


class DictService(Service):
    """Breaks a shelf in every way there is."""

    can = frozenset({"kill", "stall", "slow", "trickle", "cut", "garbage", "full"})

    def __init__(self, shelf):
        self.shelf = shelf

    def kill(self):
        self.shelf.down = True
        self.shelf.clear()

    def start(self):
        self.shelf.down = False

    def stall(self):
        self.shelf.stalled = True

    def resume(self):
        self.shelf.stalled = False
        self.shelf.wake()

    def slow(self, seconds):
        self.shelf.seconds = seconds

    def trickle(self):
        self.shelf.trickling = True

    def cut(self):
        self.shelf.down = True

    garbage = cut  # a client that checks what it receives sees no difference

    def fill(self):
        self.shelf.full = True

    def mend(self):
        self.shelf.mend()
