"""What an engine calls its chunks."""

from configured import CHUNK, FRAME, NAMESPACE, PROMPT, computed
from hexkv.plugins.composition.compose import build
from hexkv.plugins.configuration.config import load


def test_chunks_are_called_what_events_call_them():
    told = []

    class Listener:
        def emit(self, event):
            told.extend(event.keys)

    settings = {"chunk": {"size": CHUNK}, "pool": {"bytes": 64 * FRAME}}
    with build(load(None, {}, settings), NAMESPACE, events=[Listener()]) as engine:
        engine.store(PROMPT, computed())
        assert told == list(engine.chunk_keys(PROMPT))
        assert list(engine.chunk_keys(PROMPT[: CHUNK - 1])) == []
