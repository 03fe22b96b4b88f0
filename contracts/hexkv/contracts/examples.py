"""Examples that hypothesis makes up: the first that fails is told before a shorter one is sought.

The search takes minutes, in which nobody would know that anything is wrong.
"""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import HealthCheck, Phase, settings

from hexkv.contracts.limits import Overdue, tell


def examples(number: str, run: Callable[[settings], object], count: int, steps: int = 50) -> None:
    """Let *run* try *count* examples, the same ones each time.

    A failure is told at once, and raised with a short example where one is found in time.

    Args:
        number: of the promise.
        run: tries examples as the settings say that it is given.
        count: of examples.
        steps: in each, where they are sequences of calls.
    """
    chosen = settings(
        max_examples=count,
        stateful_step_count=steps,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    try:
        run(chosen)
    except Exception as error:
        first = "\n".join([str(error), *getattr(error, "__notes__", ())])
        tell(f"broken promise {number}: {first}\nA shorter example is sought.")
        try:
            run(settings(chosen, phases=[*chosen.phases, Phase.shrink]))
        except Overdue:
            error.add_note("No shorter example was found in time.")
            raise error from None
        raise
