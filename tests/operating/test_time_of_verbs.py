"""A verb of administration ends by its own deadline, whatever hangs; and does the rest by then."""

from functools import partial
from itertools import product
from random import Random

from hexkv.contracts.kit.cases import each
from hexkv.ports import InvalidRequest, Selection
from simulation.locks import watching
from simulation.play import SLACK
from simulation.prompts import LONGEST, NAMESPACES, PROMPTS, Window
from simulation.stage import DEADLINES, Settings, Stage

ALL = Selection(everything=True)
VERBS = {
    "copy": lambda admin, keys: admin.copy(ALL, "disk", "remote"),
    "move": lambda admin, keys: admin.move(ALL, "disk", "remote"),
    "move here": lambda admin, keys: admin.move(Selection(keys=keys), "remote", "disk"),
    "compress": lambda admin, keys: admin.compress(ALL, "disk", "raw"),
    "drain": lambda admin, keys: admin.drain("disk"),
    "clear": lambda admin, keys: admin.clear(ALL),
    "clear keys": lambda admin, keys: admin.clear(Selection(keys=keys)),
    "clear a tenant": lambda admin, keys: admin.clear(Selection(tenant="a")),
    "clear a half": lambda admin, keys: admin.clear(
        Selection(everything=True, oldest=0.5), ["disk"]
    ),
    "pin": lambda admin, keys: admin.pin("me", ALL),
    "namespaces": lambda admin, keys: admin.namespaces(),
    "claim": lambda admin, keys: admin.claim("t", keys, 60.0, read=True),
    "detach": lambda admin, keys: admin.detach("disk"),
    "flush": lambda admin, keys: admin.flush(),
}


def stage():
    """A cache that has more chunks than go in one step on a disk, and on a remote store."""
    settings = Settings(slots=32, memory_frames=8, workers=1, promotes=True)
    rng = Random(0)
    disk = settings._place("disk", rng, indexed=True, seconds=(0.001, 0.001))
    remote = settings._place("remote", rng, indexed=False, seconds=(0.001, 0.001))
    disk.budget = remote.medium.capacity = 1 << 20
    disk.divided = False
    settings.places = [disk, remote]
    made = Stage(0, settings)
    longest = [tokens for tokens in PROMPTS if len(tokens) == LONGEST]
    for tokens, tenant in product(longest[::5], (0, 1)):
        window = Window(tokens, tenant, lambda: None)
        made.world.do(partial(made.engine.store, tokens, window, namespace=NAMESPACES[tenant]))
    return made


@each(
    "verb, hanging, restarted",
    product(VERBS, [(), ("disk",), ("remote",), ("disk", "remote")], [False, True]),
)
def test_a_verb_ends_by_its_deadline_whatever_hangs(verb, hanging, restarted):
    """Perhaps since before the cache knows what its disk holds."""
    with watching():
        made = stage()
        keys = tuple(made.settings.places[0].medium.frames)
        assert len(keys) > 16
        if restarted:
            made.crash()
        for place in made.settings.places:
            if place.name in hanging:
                place.store.hang()

        def work():
            try:
                return VERBS[verb](made.engine.admin, keys)
            except InvalidRequest:
                return None

        call = made.world.finish(made.world.begin(work), 10 * DEADLINES.store)
        assert call.error is None
        assert call.done
        assert call.ended - call.began <= DEADLINES.store + SLACK
        for place in made.settings.places:
            if verb == "clear keys" and place.name not in hanging:
                assert place.medium.frames == {}, "the tier that works is cleared"
        made.world.end()
