"""Every token that a store was asked to keep is in its report once, whatever the tiers answer."""

import shutil

from hypothesis import given, settings
from hypothesis import strategies as st

from dict_store import ScanningStore
from hexkv.adapters.local.disk import DiskStore
from hexkv.ports import Failed, Hit, Stored, StoreError, StoreFull, StoreUnreachable, TimedOut
from layered import FULL, PROMPT, Growing, computed, memory, store_layerwise
from rigging import CHUNK, rigging, tier

ANSWERS = (
    lambda items: [Stored(len(item.frame)) for item in items],
    lambda items: [Failed(StoreFull("full"))] * len(items),
    lambda items: [Failed(StoreUnreachable("gone"))] * len(items),
    lambda items: [TimedOut()] * len(items),
    lambda items: [Stored(1 << 70)] * len(items),
    lambda items: [Stored] * len(items),
    lambda items: [Hit(1)] * len(items),
    lambda items: [Stored(len(items[0].frame))] * (len(items) + 1),
    lambda items: [],
    lambda items: None,
    lambda items: items,
)
ERRORS = (StoreError("no"), StoreFull("full"), OSError(28, "gone"), KeyError("x"))


class Failing(ScanningStore):
    """Answers each write as it is told."""

    def __init__(self, answers):
        super().__init__({})
        self.answers = list(answers)

    def write(self, items, deadline):
        answer = self.answers.pop() if self.answers else ANSWERS[0]
        if isinstance(answer, Exception):
            raise answer
        super().write(items[: len(items) // 2], deadline)
        return answer(items)


def accounted(report):
    return (
        report.stored_tokens + report.present_tokens + report.queued_tokens + report.dropped_tokens
    )


@settings(max_examples=25, deadline=None)
@given(
    answers=st.lists(st.sampled_from(ANSWERS + ERRORS), max_size=12),
    wait=st.booleans(),
    in_memory=st.booleans(),
    skip=st.integers(0, len(PROMPT)),
)
def test_a_store_accounts_for_every_chunk(answers, wait, in_memory, skip):
    asked = FULL - min(skip, FULL) // CHUNK * CHUNK
    with rigging() as rig:
        tiers = [tier("failing", Failing(answers), retries=1)]
        r = rig([memory(), *tiers] if in_memory else tiers, slots=24)
        options = {"wait": wait, "skip": skip}
        assert accounted(r.engine.store(PROMPT, computed(), **options)) == asked
        assert accounted(store_layerwise(r, **options)) == asked
        specs = r.engine._naming.prompt(PROMPT, None).specs()
        device = Growing(PROMPT[:FULL])
        saved = r.engine.chunks.save(specs, device, r.engine.admin._until(30.0), wait=wait)
        assert accounted(saved) == FULL
        assert r.engine.flush()


def test_a_store_accounts_for_every_chunk_where_the_directory_is_gone(tmp_path):
    for lost in (lambda root: None, lambda root: root.write_bytes(b"a file in its place")):
        root = tmp_path / "chunks"
        with rigging() as rig:
            r = rig([tier("disk", DiskStore(root))])
            assert r.engine.store(PROMPT[:CHUNK], computed(PROMPT[:CHUNK])).stored_tokens == CHUNK
            shutil.rmtree(root)
            lost(root)
            report = r.engine.store(PROMPT, computed())
            assert accounted(report) == FULL
            assert report.present_tokens == CHUNK, "as far as the index knows"
        root.unlink() if root.is_file() else shutil.rmtree(root)
