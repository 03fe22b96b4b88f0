"""Hypothesis examples: the first failure is printed before hypothesis shrinks it.

Shrinking takes minutes, in which the failure would otherwise not show.
"""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import HealthCheck, Phase, settings

from hexkv.contracts.kit.limits import Overdue, report


def examples(number: str, run: Callable[[settings], object], count: int, steps: int = 50) -> None:
    """Let *run* try *count* examples, the same ones each time.

    A failure is printed at once, and raised with a short example if one is found in time.

    Args:
        number: of the promise.
        run: tries examples with the settings in its argument.
        count: of examples.
        steps: in each example, if examples are sequences of calls.
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
        report(f"broken promise {number}: {first}\nA shorter example is sought.")
        try:
            run(settings(chosen, phases=[*chosen.phases, Phase.shrink]))
        except Overdue:
            error.add_note("No shorter example was found in time.")
            raise error from None
        raise
