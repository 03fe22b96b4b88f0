"""Resets and changed weights beside a linker: queued pages are not stored, and copies end."""

from threading import Event
from types import SimpleNamespace

import pytest
import torch

from engines.sglang.sglang_linkers import (
    FROM,
    PATIENCE,
    TO,
    buffers,
    filled,
    kv,
    linker,
    moved,
    offloaded,
)
from engines.sglang.sglang_pools import (
    names,
    slots,
)
from hexkv.adapters.sglang.identity.updates import CHANGED
from hexkv.adapters.sglang.linker import HexKVLinker
from hexkv.kernels.paged import PagedKV
from hexkv.ports import Finished
from processes import until


def test_a_reset_waits_for_copies_into_the_device(tmp_path):
    pool, keys = filled("mha", seed=1), names(3)
    with linker(pool, tmp_path) as one:
        assert offloaded(one, keys, FROM)
        assert one.lookup("r", kv(keys)) == [1, 2, 3]
        assert one.load("r", kv(keys, TO))
        one.start_layer_wise_loading()
        one.reset()
        assert moved(pool, pool)
        assert not one.cancel_queued_load("r")
        assert one.lookup("r", kv(keys)) == [1, 2, 3], "nothing was deleted"


def test_a_store_that_hangs_holds_up_no_offload_and_no_reset(stalled, tmp_path):
    pool, keys, later = filled("mha", seed=1), names(3), names(3, seed=500)
    was = [buffer.clone() for buffer in buffers(pool)]
    with linker(pool, tmp_path) as one:
        assert offloaded(one, keys, FROM)
        assert stalled.begun.wait(PATIENCE)
        assert offloaded(one, later, FROM), "its slots are free while no page is written"
        one.reset()
        for buffer in buffers(pool):
            buffer.zero_()
        stalled.go.set()
        until(lambda: one._store.find(keys) == one._store.find(later) == 3)
        assert one.load("r", kv(keys, TO))
        assert one.finish_layer_wise_loading(one.start_layer_wise_loading())
    assert all(
        torch.equal(before[slots(*FROM)], buffer[slots(*TO)])
        for before, buffer in zip(was, buffers(pool), strict=True)
    )


def test_nothing_that_is_queued_at_a_reset_is_stored_and_too_much_is_dropped(tmp_path, monkeypatch):
    """A reset gives the slots to others, and waits for no forward pass."""
    monkeypatch.setattr("hexkv.adapters.sglang.linker._MOST_OFFLOADS", 1)
    pool, keys, computed, begun = filled("mha", seed=1), names(3), Event(), Event()
    forward = SimpleNamespace(synchronize=lambda: begun.set() or computed.wait(PATIENCE))
    with linker(pool, tmp_path) as one:
        with monkeypatch.context() as patch:
            patch.setattr(one, "record_offload_ready", lambda: [forward])
            assert one.offload(kv(keys[:1], FROM[:1]))
            assert begun.wait(PATIENCE)
            assert one.offload(kv(keys[1:2], FROM[1:2]))
            assert not one.offload(kv(keys[2:], FROM[2:]))
        one.reset()
        computed.set()
        assert offloaded(one, names(1, seed=900), FROM[:1])
        assert one.num_completed_offloads() == 0, "of before the reset"
        assert one._store.present(keys) == [False] * 3


class Beside:
    """A copy that a GPU makes beside the host."""

    def wait(self, deadline):
        return True


@pytest.mark.parametrize("transfer", [Finished(), Beside()], ids=["at once", "beside the host"])
@pytest.mark.parametrize("given_away", [HexKVLinker.reset, lambda _: CHANGED.count()])
def test_what_is_copied_while_its_slots_or_weights_become_others_is_not_stored(
    given_away, transfer, tmp_path, monkeypatch
):
    pool, keys = filled("mha", seed=1), names(3)
    gather = PagedKV.gather
    with linker(pool, tmp_path) as one:

        def torn(*given):
            gather(*given)
            if not isinstance(transfer, Beside):
                given_away(one)
            return transfer

        monkeypatch.setattr(PagedKV, "gather", torn)
        monkeypatch.setattr(Beside, "wait", lambda *_: given_away(one) is None)
        keep, answers = one._keep, []
        monkeypatch.setattr(one, "_keep", lambda task: answers.append(keep(task)))
        assert one.offload(kv(keys, FROM))
        until(lambda: answers == [False])
        assert one._store.find(keys) == 0


def test_what_was_queued_when_weights_changed_is_not_stored(changed, tmp_path, monkeypatch):
    pool, keys, computed = filled("mha", seed=1), names(3), Event()
    forward = SimpleNamespace(synchronize=lambda: computed.wait(PATIENCE))
    with linker(pool, tmp_path) as one:
        monkeypatch.setattr(one, "record_offload_ready", lambda: [forward])
        assert one.offload(kv(keys, FROM))
        changed.count()
        computed.set()
        until(lambda: one.num_completed_offloads() == 1)
        assert not one.pop_completed_offload()
        assert one._store.find(keys) == 0


def test_once_weights_change_nothing_is_found_loaded_or_stored(changed, tmp_path, caplog):
    pool, keys = filled("mha", seed=1), names(3)
    with linker(pool, tmp_path) as one:
        assert offloaded(one, keys, FROM)
        assert one.lookup("r", kv(keys)) == [1, 2, 3]
        changed.count()
        assert not one.load("r", kv(keys, TO))
        assert not one._engine.health().pins
        assert one.lookup("r", kv(keys)) == []
        other = names(3, seed=500)
        assert offloaded(one, other, FROM)
        assert one._store.find(other) == 0
        assert one._engine.health().why == "weights were replaced"
    [said] = [line for line in caplog.messages if "weights were replaced" in line]
    assert said.endswith("restart the server"), "a linker cannot be attached again"
