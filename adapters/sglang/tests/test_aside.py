"""Calls that their caller can leave before they end."""

from threading import Event, Thread

import pytest

from hexkv.adapters.sglang.pages.aside import Aside
from hexkv.contracts.doubles.heap_kv import HeapKV
from hexkv.ports import DType, InvalidRequest, KVLayout, Span

LAYOUT = KVLayout.attention(DType.FLOAT16, layers=1, heads=1, key_width=8)
PATIENCE = 60.0


@pytest.fixture
def aside():
    made = Aside()
    yield made
    made.close()


def test_an_answer_and_an_error_are_those_of_the_call(aside):
    assert aside.do(lambda _: 7, 0) == 7
    with pytest.raises(ZeroDivisionError):
        aside.do(lambda _: 1 // 0, 0)


def test_callers_leave_calls_that_wait_and_new_ones_are_answered_at_once(aside):
    begun, go, answers = Event(), Event(), []

    def waits(_):
        begun.set()
        assert go.wait(PATIENCE)
        return 7

    caller = Thread(target=lambda: answers.append(aside.do(waits, 0)))
    caller.start()
    assert begun.wait(PATIENCE)
    aside.stop()
    caller.join(PATIENCE)
    assert answers == [0]
    assert aside.do(lambda _: 7, 0) == 0
    go.set()
    aside.go_on()
    assert aside.do(lambda _: 7, 0) == 7


@pytest.mark.parametrize("move", ["gather", "scatter"])
def test_nothing_is_copied_for_a_call_that_was_left(aside, move):
    window, data = HeapKV(LAYOUT, 4), memoryview(bytearray(LAYOUT.chunk_bytes(4)))
    begun, go, seen, errors = Event(), Event(), Event(), []

    def late(call):
        moved = call.window(window)
        getattr(moved, move)([Span(0, 4, data)])
        begun.set()
        assert go.wait(PATIENCE)
        try:
            getattr(moved, move)([Span(0, 4, data)])
        except InvalidRequest as error:
            errors.append(error)
        seen.set()

    caller = Thread(target=lambda: aside.do(late, None))
    caller.start()
    assert begun.wait(PATIENCE)
    aside.stop()
    caller.join(PATIENCE)
    go.set()
    assert seen.wait(PATIENCE)
    assert len(errors) == 1
