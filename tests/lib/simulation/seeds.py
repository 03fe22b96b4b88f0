"""One seed, played to its end."""

import itertools
import logging
import traceback

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

_WEIGHTS = list(itertools.accumulate(weight for _, weight in ACTS))


def run(play, steps):
    """Take so many random steps, then see everything come back."""
    for _ in range(steps):
        ((act, _),) = play.rng.choices(ACTS, cum_weights=_WEIGHTS)
        act(play)
        play.check()
    recover(play)


def fails(seed, steps, lines=40):
    """What is wrong with a seed, after the last *lines* of what it did; ``None`` if nothing is."""
    play = None
    disabled = logging.root.manager.disable
    logging.disable(logging.CRITICAL)  # stores fail on purpose, thousands of times
    try:
        with watching():
            play = Play(seed)
            run(play, steps)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is the finding
        trace = play.trace[-lines if lines else 0 :] if play else []
        return "\n".join([*trace, *traceback.format_exception(error)])
    finally:
        logging.disable(disabled)
    return None
