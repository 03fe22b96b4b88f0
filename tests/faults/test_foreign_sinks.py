"""A store that misuses what it was given for a read: the batch, and the sink."""

from dict_store import DictStore
from prompts import PROMPT, computed, empty
from rigging import FRAME, tier


class Sorts(DictStore):
    """Sorts the batch that it was given, and answers it in that order."""

    def read(self, keys, sink, deadline):
        if hasattr(keys, "sort"):
            keys.sort()
        return super().read(keys, sink, deadline)


def test_a_store_that_sorts_its_batch_exchanges_no_chunks(rig):
    r = rig([tier("abroad", Sorts({}))])
    r.engine.store(PROMPT, computed())
    window = empty()
    got = r.engine.retrieve(PROMPT, window)
    assert window.agrees(computed(), got.hit_tokens)
    assert got.hit_tokens == 160


class Late(DictStore):
    """Keeps the sink, and asks it for memory when the call is long over."""

    def read(self, keys, sink, deadline):
        self.sink = sink
        return super().read(keys, sink, deadline)


def test_a_sink_gives_no_memory_after_its_call_nor_for_a_chunk_that_was_not_asked_for(rig):
    rooms = []

    class Strays(Late):
        def read(self, keys, sink, deadline):
            rooms.extend(sink.room(at, FRAME) for at in (-1, len(keys), True, "0", 0.0))
            return super().read(keys, sink, deadline)

    late, stray = Late({}), tier("stray", Strays({}))
    r, s = rig([tier("late", late)]), rig([stray])
    for one in (r, s):
        one.engine.store(PROMPT, computed())
        one.engine.retrieve(PROMPT, empty())
    assert late.sink.room(0, FRAME) is None
    assert rooms
    assert set(rooms) == {None}
    assert s.tiers["stray"].calls.failures


TOLD = [(-1, 0), (1 << 40, 0), (True, 0), ("0", 0), (0, -1), (0, FRAME + 1), (0, 1.0), (0, None)]


def test_a_store_that_tells_a_sink_what_cannot_be_has_failed_and_nothing_of_it_is_used(rig):
    for said in [*TOLD, "too soon", "backwards"]:

        class Tells(DictStore):
            def read(self, keys, sink, deadline, said=said):
                if said == "too soon":
                    sink.filled(0, 0)
                answer = super().read(keys, sink, deadline)
                if said == "backwards":
                    sink.filled(0, 2)
                    sink.filled(0, 1)
                elif said != "too soon":
                    sink.filled(*said)
                return answer

        one = rig([tier("tells", Tells({}))])
        one.engine.store(PROMPT, computed())
        assert one.engine.retrieve(PROMPT, empty()).hit_tokens == 0, said
        assert one.tiers["tells"].calls.failures, said
