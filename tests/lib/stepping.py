"""Calls of an engine line by line, with something in the middle: an exception, or a handler."""

import dis
import sys
from functools import cache

from hexkv.contracts.doubles.heap_kv import HeapKV
from hexkv.core.keys.chunking import PrefixChunker
from rigging import CHUNK, LAYOUT

TAILS = PrefixChunker(CHUNK, tail=4)
TOKENS = list(range(2 * CHUNK + 12))
"""Two chunks and a tail that takes a whole block of the pool."""


@cache
def _exits(code):
    """Where contexts of ``with`` are left: the interpreter lets no signal in between.

    Nor does it at an inner ``try``, which does nothing, and which the outer handler leaves out.
    """
    found, ranges = set(), dis.Bytecode(code).exception_entries
    steps = []
    for step in dis.get_instructions(code):
        if step.opname != "NOP":
            steps.append(step)
        elif not any(each.start <= step.offset < each.end for each in ranges):
            before = {each.target for each in ranges if each.end <= step.offset}
            if before & {each.target for each in ranges if each.start > step.offset}:
                found.add(step.offset)
    for i, step in enumerate(steps[:-2]):
        left = all(s.opname == "LOAD_CONST" and s.argval is None for s in steps[i : i + 3])
        if left or steps[i + 1].opname == "WITH_EXCEPT_START":
            found.add(step.offset)
            if steps[i - 1].opname == "SWAP":  # below what is returned
                found.add(steps[i - 1].offset)
    return found


class Interrupt:
    """Raises in this thread at one line of the core, or of *part*, that is run in the context.

    Or does something else there, or at *every* line, as a signal handler would.
    """

    def __init__(
        self, line=-1, act=None, *, every=False, part="hexkv/core/", error=KeyboardInterrupt
    ):
        self._line_number = line
        self._act = act
        self._every = every
        self._part = part
        self._error = error
        self.where = None
        self.lines = []
        """All that were run."""

    def __enter__(self):
        sys.settrace(self._call)
        return self

    def __exit__(self, *error):
        sys.settrace(None)

    def _call(self, frame, event, arg):
        code = frame.f_code
        if self._part not in code.co_filename or code.co_name == "__del__":
            return None  # what is raised in __del__ goes nowhere
        return self._line

    def _line(self, frame, event, arg):
        if event == "line" and frame.f_lasti not in _exits(frame.f_code):
            file = frame.f_code.co_filename.rpartition(self._part)[2]
            self.lines.append(f"{file}:{frame.f_lineno}")
            if self._every or len(self.lines) - 1 == self._line_number:
                self.where = self.lines[-1]
                if self._act is None:
                    raise self._error
                self._act()
        return self._line


def kv(tokens):
    return HeapKV(LAYOUT, len(tokens)).compute(tokens)


def store(engine):
    engine.store(TOKENS, kv(TOKENS))


def store_later(engine):
    engine.store(TOKENS, kv(TOKENS), wait=False)


def store_layers(engine, background=False):
    device = kv(TOKENS)
    device.background = background
    with engine.store_layers(TOKENS, device) as layers:
        for layer in range(LAYOUT.layers):
            layers.layer_done(layer)
        layers.result()


def retrieve(engine):
    engine.retrieve(TOKENS, HeapKV(LAYOUT, len(TOKENS)))


def retrieve_layers(engine, background=False):
    device = HeapKV(LAYOUT, len(TOKENS))
    device.background = background
    with engine.retrieve_layers(TOKENS, device) as layers:
        for _ in layers:
            pass
        layers.result()


def store_layers_beside(engine):
    store_layers(engine, background=True)


def retrieve_layers_beside(engine):
    retrieve_layers(engine, background=True)


def prefetch_and_cancel(engine):
    engine.prefetch("a", TOKENS)
    engine.cancel("a")


def prefetch_and_retrieve(engine):
    engine.prefetch("a", TOKENS)
    engine.retrieve(TOKENS, HeapKV(LAYOUT, len(TOKENS)), lookup_id="a")


CALLS = (
    store,
    store_later,
    store_layers,
    retrieve,
    retrieve_layers,
    store_layers_beside,
    retrieve_layers_beside,
    prefetch_and_cancel,
    prefetch_and_retrieve,
)


def first_visits(lines):
    """The numbers of the lines that were run for the first time."""
    return sorted({where: number for number, where in reversed(list(enumerate(lines)))}.values())
