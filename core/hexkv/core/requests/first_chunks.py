"""The first chunks of a long prompt: their copy is queued before the others are named and found.

To name and find 32,768 tokens takes 1 to 2 % of the time in which their KV crosses to a GPU, and
more in short chunks. So what memory has of the front is copied first, and the rest named beside it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from math import inf

from hexkv.core.keys.prompts import Prompt
from hexkv.core.requests.accounts import Laps
from hexkv.core.requests.checks import check_window
from hexkv.core.requests.pipeline import Pipeline
from hexkv.core.requests.retrieve import Held
from hexkv.core.requests.waiting import LoadStep, give_up
from hexkv.core.tiers.local import LentHold
from hexkv.ports import Deadline, DeviceKV, InvalidRequest, InvalidTokens, release_all


class FirstChunks:
    """Begins the loads of long prompts. Safe from any thread."""

    def __init__(self, requests: Pipeline, chunk: int) -> None:
        """Begin loads of *requests*, whose prompts have chunks of *chunk* tokens."""
        self._requests = requests
        pace = requests.pace.fixed if requests.chunks.near else None
        self._least = 0 if pace is None else pace.run
        self.longer = inf if pace is None else pace.run * chunk
        """Only prompts of more tokens than this are copied in several steps."""

    def begin(
        self,
        first: Callable[[int], Prompt | None],
        whole: Callable[[], Prompt],
        device: DeviceKV,
        owner: str,
        laps: Laps,
        lookup_id: str | None,
        deadline: Deadline,
    ) -> tuple[Prompt, LoadStep | None]:
        """Return the prompt, and the first step of its load if memory has all chunks of that.

        Args:
            first: returns this number of the first chunks to load or more, if others follow.
            whole: returns the prompt.
            device: the window on all of it, which is checked.
            owner: the call.
            laps: of the call.
            lookup_id: the call's prefetch. If that holds chunks, these come first.
            deadline: of the call.

        Raises:
            InvalidTokens: the tokens were changed in between.
            InvalidRequest, LayoutMismatch: the window is not one on the prompt.
            HexKVError: *whole* raises it.
        """
        step = self._begin(first, device, owner, laps, lookup_id)
        with ExitStack() as unused:
            if step is not None:
                unused.callback(give_up, self._requests.copier, step, deadline)
            prompt = whole()
            check_window(device, prompt.layout, prompt.length)
            if step is None or prompt.unnamed.ends:
                return prompt, None
            here = prompt.since(step.part.starts[0]).keys[: len(step.part)]
            if list(here) != list(step.part.keys):
                raise InvalidTokens("the tokens were changed during the call")
            unused.pop_all()
            return prompt, step

    def _begin(
        self,
        first: Callable[[int], Prompt | None],
        device: DeviceKV,
        owner: str,
        laps: Laps,
        lookup_id: str | None,
    ) -> LoadStep | None:
        requests = self._requests
        if lookup_id is not None and requests.prefetches.holds(lookup_id):
            return None
        try:
            part = first(self._least)
            if part is None:
                return None
            check_window(device, part.layout, part.length)
        except Exception:  # noqa: BLE001 - of any kind: the call raises it once more
            return None
        leases, tier = requests.chunks.lend(part.specs(), owner)
        if not leases:
            return None
        try:
            spans = part.spans(leases)
            copy = requests.copier.begin(device, spans, leases, owner, gather=False)
        except InvalidRequest:  # the device refuses all of the prompt, too
            release_all(leases)
            return None
        laps.mark(("copy", "", laps.now()))
        copies = [copy] if copy is not None and copy.transfer is not None else []
        window, tiers = Held(LentHold(leases, tier), 0, len(leases)), [tier] * len(leases)
        return LoadStep(part, window, leases, tiers, None, copies, copy is not None)
