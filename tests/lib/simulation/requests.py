"""What callers ask of the engine, and what each answer must be."""

from hexkv.ports import EngineClosed
from rigging import chosen
from simulation.play import SLACK, Violation
from simulation.prompts import CHUNK, NAMESPACES, Window, keys
from simulation.stage import DEADLINES, MEMORY

CROWDED = {"queue full", "refused"}
"""Why no load misses anything while no tier is in trouble: then it waits for room."""


def unless_closed(work):
    """*work*, but for an engine that is closed meanwhile."""

    def guarded():
        try:
            return work()
        except EngineClosed:
            return None

    return guarded


def store(play):
    tokens, tenant = play.prompt()
    wait = play.rng.random() < 0.7
    engine, stage = play.stage.engine, play.stage
    chunks = len(tokens) // CHUNK
    skip = play.rng.choice((0, 0, 0, CHUNK)) if chunks else 0

    def work():
        window = Window(tokens, tenant, play.pause)
        try:
            report = engine.store(
                tokens, window, skip=skip, wait=wait, namespace=NAMESPACES[tenant]
            )
        except EngineClosed:
            return None
        parts = report.stored_tokens, report.present_tokens, report.queued_tokens
        if not report.frozen and sum(parts) + report.dropped_tokens != chunks * CHUNK - skip:
            raise Violation(f"a report that does not add up: {report}")
        return report

    call = play.call(f"store {tokens[:1]}..{len(tokens)} {wait=} {skip=}", DEADLINES.store, work)
    if call is not None and call.result is not None and not play.going:
        check_report(play, stage, call.result, keys(tokens, tenant))
    asking = any(tier.remote for tier in stage.stack.tiers if tier.name in play.troubled)
    if call is not None and wait and not asking:  # which would be one more call
        once_only(play, call, DEADLINES.store, work)


def check_report(play, stage, report, names):
    """What a tier is said to hold now, it holds now, but for what its store lost and kept quiet."""
    for place in stage.settings.places:
        told = report.tiers.get(place.name, 0) // CHUNK
        here = sum(name in place.medium.frames or name in place.store.lost for name in names)
        if told > here and place.indexed:
            raise Violation(f"{place.name} is said to hold {told} new chunks, and has {here}")


def retrieve(play):
    tokens, tenant = play.prompt()
    load(play, tokens, tenant, None)


def load(play, tokens, tenant, lookup_id, *, alone=False):
    """Retrieve a prompt and look at every byte of what is said to be there."""
    engine = play.stage.engine
    skip = 0 if alone else play.rng.choice((0, 0, 0, CHUNK))
    chunks = (len(tokens) - skip) // CHUNK

    def work():
        window = Window(tokens, tenant, play.pause)
        well = not play.troubled
        try:
            got = engine.retrieve(
                tokens, window, skip=skip, namespace=NAMESPACES[tenant], lookup_id=lookup_id
            )
        except EngineClosed:
            return None
        wrong = window.wrong(skip, got.hit_tokens)
        if wrong is not None:
            raise Violation(f"chunk {wrong} is not as computed: {got}")
        loaded = sum(got.tiers.values())
        if loaded != got.loaded_tokens or loaded != got.hit_tokens - skip:
            raise Violation(f"loaded tokens do not add up: {got}")
        if loaded // CHUNK + sum(got.misses.values()) != chunks:
            raise Violation(f"hits and misses are not {chunks} chunks: {got}")
        alone = not play.troubled and not play.leased()  # clients of a node take what they like
        if well and alone and not CROWDED.isdisjoint(got.misses):
            raise Violation(f"chunks that are there, and had to make way for others: {got}")
        return got

    name = f"retrieve {tokens[:1]}..{len(tokens)} {skip=} {lookup_id=}"
    call = play.call(name, DEADLINES.retrieve, work, alone=alone)
    if call is not None and not alone:
        once_only(play, call, DEADLINES.retrieve, work)
    return call


def once_only(play, call, limit, work):
    """One tier that hangs costs one call its deadline: the next finds the breaker open.

    Unless clients of a node hold blocks: then a call may wait for room, not for that tier.
    """
    if play.going or play.leased() or list(play.troubled.values()) != ["hang"]:
        return
    world, costly = play.stage.world, 0
    while call.ended - call.began > 0.9 * limit:
        costly += 1
        if costly > 2:  # something may have ended while the first one waited
            (name,) = play.troubled
            raise Violation(f"{name} hangs, and costs one call after the other its deadline")
        play.judge("again", limit, world.finish(call := world.begin(work), limit + SLACK))


def lookup(play):
    tokens, tenant = play.prompt()
    engine, pin = play.stage.engine, play.rng.choice((None, None, "p0"))

    def work():
        got = engine.lookup(tokens, pin=pin, namespace=NAMESPACES[tenant])
        if sum(got.tiers.values()) != got.hit_tokens:
            raise Violation(f"a lookup that does not add up: {got}")
        if pin is not None:
            pinned(play, pin, tokens, tenant, got.hit_tokens, DEADLINES.pin)

    play.call(f"lookup {tokens[:1]}..{len(tokens)} {pin=}", DEADLINES.lookup, unless_closed(work))


def pin(play):
    tokens, tenant = play.prompt()
    owner, seconds = play.rng.choice(("p1", "p2")), play.rng.choice((5.0, 100.0))
    engine = play.stage.engine

    def work():
        hit = engine.pin(tokens, owner, seconds=seconds, namespace=NAMESPACES[tenant])
        pinned(play, owner, tokens, tenant, hit, seconds)

    play.call(
        f"pin {tokens[:1]}..{len(tokens)} {owner} {seconds}", DEADLINES.lookup, unless_closed(work)
    )


def pinned(play, owner, tokens, tenant, hit, seconds):
    names = keys(tokens, tenant)[: hit // CHUNK]
    play.pins.add(owner, names, play.stage.witnesses, seconds)


def unpin(play, owner=None):
    owner = owner or play.rng.choice(("p0", "p1", "p2"))
    engine = play.stage.engine

    def work():
        play.pins.end(owner)
        engine.unpin(owner)

    play.call(f"unpin {owner}", 0.0, unless_closed(work))


def prefetch(play):
    tokens, tenant = play.prompt()
    name, engine = play.rng.choice(("q0", "q1", "q2")), play.stage.engine

    def work():
        engine.prefetch(name, tokens, namespace=NAMESPACES[tenant])

    play.call(f"prefetch {name} {tokens[:1]}..{len(tokens)}", 0.0, unless_closed(work))
    if play.rng.random() < 0.5:
        play.stage.world.advance(play.rng.random())
        load(play, *((tokens, tenant) if play.rng.random() < 0.8 else play.prompt()), name)


def cancel(play):
    name, engine = play.rng.choice(("q0", "q1", "q2")), play.stage.engine
    play.call(f"cancel {name}", 0.0, unless_closed(lambda: engine.cancel(name)))


def clear(play):
    engine = play.stage.engine
    names = [MEMORY, *(p.name for p in play.stage.settings.places if p.attached)]
    tiers = play.rng.choice([None, *([name] for name in names)])
    whole = play.rng.random() < 0.2
    tokens, tenant = play.prompt()
    chosen = None if whole else tokens

    def work():
        engine.clear(chosen, tiers=tiers, namespace=NAMESPACES[tenant])

    play.call(f"clear {tiers} {whole=}", DEADLINES.store, unless_closed(work))


def transfer(play):
    engine = play.stage.engine
    names = [MEMORY, *(p.name for p in play.stage.settings.places if p.attached)]
    if len(names) < 2:
        return
    source, target = play.rng.sample(names, 2)
    tokens, tenant = play.prompt()
    draw = play.rng.random()
    verb = "move" if draw < 0.5 else "copy" if draw < 0.8 else "decode" if draw < 0.9 else "clear"

    def work():
        admin, prompt = engine.admin, chosen(engine, tokens, NAMESPACES[tenant])
        acts = {
            "move": lambda: admin.move(prompt, source, target),
            "copy": lambda: admin.copy(prompt, source, target),
            "decode": lambda: admin.compress(prompt, source, "raw"),
            "clear": lambda: admin.clear(prompt, [source, target]),
        }
        acts[verb]()

    play.call(f"{verb} {source} {target}", DEADLINES.store, unless_closed(work))


def freeze(play):
    engine, frozen = play.stage.engine, play.rng.random() < 0.3
    play.call(f"freeze {frozen}", 0.0, unless_closed(lambda: engine.freeze(frozen)))


def flush(play):
    engine = play.stage.engine
    play.call("flush", DEADLINES.store, unless_closed(engine.flush))
