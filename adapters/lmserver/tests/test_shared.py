"""One server under several engines."""

from configured import CHUNK, FRAME, NAMESPACE, PATIENT, PROMPT, computed, hit
from hexkv.plugins.composition.compose import build
from hexkv.plugins.configuration.config import load


def engine_on(server):
    """An engine without memory of its own."""
    tiers = [{"store": "hexkv", "settings": {"address": server.address}}]
    wanted = {"chunk": {"size": CHUNK}, "pool": {"bytes": 32 * FRAME}, "deadlines": PATIENT}
    return build(load(None, {}, wanted | {"tiers": tiers}), NAMESPACE)


def test_an_engine_finds_what_another_one_stored_after_it_began_and_not_what_it_cleared(server):
    with engine_on(server) as one, engine_on(server) as other:
        assert one.flush()
        assert hit(one) == 0
        other.store(PROMPT, computed())
        assert one.lookup(PROMPT).hit_tokens == hit(one) == len(PROMPT)
        other.clear(PROMPT)
        assert hit(one) == 0
