"""One seed, played to its end."""

import itertools
import logging
import traceback

from simulation.clients import NodePlay, allocate, die, hold, let_go, publish, take_over
from simulation.events import advance, attach, close, crash, detach, mend, trouble
from simulation.locks import watching
from simulation.play import Play
from simulation.recovery import recover
from simulation.requests import (
    cancel,
    clear,
    flush,
    freeze,
    lookup,
    pin,
    prefetch,
    retrieve,
    store,
    transfer,
    unpin,
)

ACTS = (
    (store, 28),
    (retrieve, 28),
    (lookup, 7),
    (pin, 3),
    (unpin, 2),
    (prefetch, 5),
    (cancel, 1),
    (clear, 2),
    (transfer, 2),
    (freeze, 1),
    (flush, 1),
    (advance, 8),
    (trouble, 4),
    (mend, 4),
    (detach, 0.7),
    (attach, 1),
    (crash, 1),
    (close, 0.5),
)

NODE_ACTS = (
    *((act, weight) for act, weight in ACTS if act not in (prefetch, cancel, detach, attach)),
    (hold, 20),
    (allocate, 8),
    (publish, 8),
    (let_go, 12),
    (die, 4),
    (take_over, 3),
)
"""Of a node: others lease from it, and another process takes its place."""

PLAYS = {"engine": (Play, ACTS), "node": (NodePlay, NODE_ACTS)}


def run(play, steps, acts=ACTS):
    """Take so many random steps, then see everything come back."""
    weights = list(itertools.accumulate(weight for _, weight in acts))
    for _ in range(steps):
        ((act, _),) = play.rng.choices(acts, cum_weights=weights)
        act(play)
        play.check()
    recover(play)


def fails(seed, steps, lines=40, kind="engine"):
    """What is wrong with a seed, after the last *lines* of what it did; ``None`` if nothing is."""
    make, acts = PLAYS[kind]
    play = None
    disabled = logging.root.manager.disable
    logging.disable(logging.CRITICAL)  # stores fail on purpose, thousands of times
    try:
        with watching():
            play = make(seed)
            run(play, steps, acts)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is the finding
        trace = play.trace[-lines if lines else 0 :] if play else []
        return "\n".join([*trace, *traceback.format_exception(error)])
    finally:
        logging.disable(disabled)
    return None


def first_wrong(seed, steps, lines=40):
    """What is wrong with a seed, played by an engine, or by a node; ``None`` if nothing is."""
    for kind in PLAYS:
        if wrong := fails(seed, steps, lines=lines, kind=kind):
            return f"{wrong}\nby the play of a {kind}"
    return None
