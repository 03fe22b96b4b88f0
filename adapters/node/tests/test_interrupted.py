"""An exception out of nowhere, at any line of an engine over a node, leaves nothing behind."""

from contextlib import suppress

import pytest
import stepping
from stepping import TOKENS, kv

from hexkv.contracts.doubles.heap_kv import HeapKV
from hexkv.core.memory import copying
from hexkv.ports import Namespace, frame_bytes
from nodes import Node
from processes import until
from rigging import CHUNK, LAYOUT

pytestmark = pytest.mark.thorough

FULL = len(TOKENS) // CHUNK * CHUNK
CALLS = (
    stepping.store,
    stepping.retrieve,
    stepping.store_layers,
    stepping.retrieve_layers,
    stepping.prefetch_and_cancel,
    stepping.prefetch_and_retrieve,
)


class Interrupt(stepping.Interrupt):
    """Also at the lines of the client; the node's own threads are not in it."""

    def _call(self, frame, event, arg):
        code = frame.f_code
        ours = "hexkv/core/" in code.co_filename or "hexkv/adapters/node/" in code.co_filename
        return self._line if ours and code.co_name != "__del__" else None


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.__name__)
def test_an_interrupt_at_any_line_leaves_nothing_behind(tmp_path, call, monkeypatch):
    monkeypatch.setattr(copying, "LOST", 0.01)  # seconds that blocks below a lost copy are kept
    frame = frame_bytes(LAYOUT.chunk_bytes(CHUNK))
    with Node(tmp_path, slots=24, frame=frame, memory=12, disk=False) as node:
        engine = node.engine(Namespace("toy", LAYOUT), chunk={"size": CHUNK})

        def made(interrupt):
            if "store" in call.__name__:
                engine.clear(TOKENS)
            else:
                engine.store(TOKENS, kv(TOKENS))
            with suppress(KeyboardInterrupt), interrupt:
                call(engine)
            return interrupt

        made(Interrupt())
        lines = made(Interrupt()).lines
        first = {where: number for number, where in reversed(list(enumerate(lines)))}
        last = {where: number for number, where in enumerate(lines)}
        interrupted = 0
        for number in sorted({*first.values(), *last.values()}):
            interrupt = made(Interrupt(number))
            interrupted += interrupt.where is not None
            try:
                engine.cancel("a")
                # A connection in the middle of a message was given up, and is made again.
                until(lambda: engine._chunks.connected)
                until(lambda: engine.store(TOKENS, kv(TOKENS)).dropped_tokens == 0)
                target = HeapKV(LAYOUT, len(TOKENS))
                assert engine.retrieve(TOKENS, target).hit_tokens == FULL
                assert target.agrees(kv(TOKENS), FULL)
                until(lambda: engine.lookup(TOKENS) and engine._chunks.ledger() == {})
                assert not engine._chunks._ledger._asked
                assert not engine._requests.copier.begun
                until(lambda: node.server.leased_bytes == 0)
                until(lambda: not node.ledger())
            except BaseException as error:
                error.add_note(f"after an interrupt at line {number}: {interrupt.where}")
                raise
        assert interrupted > 100
        engine.close()
        node.at_rest()
