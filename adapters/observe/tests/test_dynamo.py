"""Dynamo's own indexer, fed with our events, knows what ``hexkv explain`` says."""

from random import Random

import pytest

from configured import CHUNK, FRAME, built, computed
from operating.dynamo import Indexer, lossy
from processes import held_port, until

BLOCK = 8
pytestmark = pytest.mark.thorough


def conversations(count):
    """Prompts that go on where others are, at whole chunks and within them."""
    random = Random(16)
    found = [random.choices(range(50_000), k=CHUNK)]
    while len(found) < count:
        start = random.choice(found)
        kept = random.choice([len(start), random.randrange(len(start) + 1)])
        found.append(start[:kept] + random.choices(range(50_000), k=random.randrange(1, 60)))
        found[-1] = found[-1][: 20 * CHUNK]
    return found


def test_the_indexer_agrees_on_a_thousand_prompts_after_losses_and_a_restart(tmp_path):
    asked = conversations(1000)
    ports = {name: f"127.0.0.1:{held_port()}" for name in ("address", "events", "replay")}
    place = ports | {"events_block": BLOCK, "events_beat": 0.1}
    sizes = {"slots": 1200, "budget": 2000 * FRAME}
    with (
        Indexer(tmp_path / "log") as indexer,
        lossy(ports["events"], lambda came: came % 4 == 0) as (line, lost),
    ):
        indexer.register(7, line, ports["replay"], BLOCK)

        def wrong(engine):
            """Prompts of which the indexer knows something else than would be loaded."""
            found = []
            for tokens in asked:
                memory, total = indexer.match(tokens).get(7, (0, 0))
                told = engine.explain(tokens)
                assert told.hit_tokens == engine.lookup(tokens).hit_tokens
                if total // CHUNK * CHUNK != told.hit_tokens or memory > total:
                    found.append((total, told))
            return found

        hits = []
        for life in range(2):
            with built(tmp_path / "disk", **sizes, observe=place) as engine:
                for tokens in asked[life * 300 : 500 + life * 500]:
                    engine.store(tokens, computed(tokens))
                for tokens in asked[950 : 950 + 50 * life]:
                    engine.clear(tokens)
                engine.flush()
                for tokens in asked:  # what the disk has of the life before becomes known
                    engine.lookup(tokens)
                until(lambda engine=engine: not wrong(engine))
                hits.append(sum(engine.lookup(tokens).hit_tokens > 0 for tokens in asked))
        assert min(hits) > 150
        assert len(lost) > 5, "batches were lost on the way"
