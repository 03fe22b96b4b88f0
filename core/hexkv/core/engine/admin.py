"""The operators' calls of a cache: explain, move, compress, add and remove tiers."""

from __future__ import annotations

from collections.abc import Sequence

from hexkv.core.admin.explain import Explanation, explain
from hexkv.core.admin.moving import Moved, Mover
from hexkv.core.engine.calls import Calls, Deadlines
from hexkv.core.engine.keyed_admin import KeyedAdmin
from hexkv.core.engine.naming import Naming
from hexkv.core.tiers.cache import TierStack
from hexkv.core.tiers.rules import Writes, changed_rules
from hexkv.core.tiers.tier import Tier, TierPlan
from hexkv.ports import (
    ChunkKey,
    Deadline,
    InvalidRequest,
    Namespace,
    Tokens,
)


class Admin:
    """The calls beside the serving path; most of them wait for the tiers. Safe from any thread."""

    def __init__(
        self,
        stack: TierStack,
        calls: Calls,
        naming: Naming,
        deadlines: Deadlines,
        chunks: KeyedAdmin,
    ) -> None:
        """Administer the engine of these parts."""
        self.chunks = chunks
        """Administration by key, as it is served to other processes."""

        self._stack = stack
        self._calls = calls
        self._naming = naming
        self._deadlines = deadlines
        self._clock = stack.runtime.clock

    def explain(self, tokens: Tokens, *, namespace: Namespace | None = None) -> Explanation:
        """Return where the hits of *tokens* end, and why, tier by tier. Loads and changes nothing.

        Names other namespaces of this engine that hold the same tokens, and the fields in
        which they differ: for operators, not for one tenant among several.

        Raises:
            InvalidTokens, LayoutMismatch, EngineClosed
        """
        with self._calls.call():
            until = self._until(self._deadlines.lookup)
            prompt = self._naming.prompt(tokens, namespace, until)
            return explain(self._stack, prompt, tokens, self._naming.keyers(), until)

    def copy(
        self,
        tokens: Tokens | None,
        source: str,
        target: str,
        *,
        namespace: Namespace | None = None,
    ) -> Moved:
        """Copy a prompt's chunks, or all of a tier for ``None``, to another tier.

        Raises:
            InvalidRequest: there is no such tier, or only its store knows its content.
            InvalidTokens, LayoutMismatch, EngineClosed
        """
        with self._calls.call() as owner:
            until = self._until(self._deadlines.store)
            origin, goal = self._stack.named([source, target])
            keys = self._chosen(tokens, origin, namespace, until)
            return Mover(self._stack, owner, until).copy(keys, origin, goal)

    def move(
        self,
        tokens: Tokens | None,
        source: str,
        target: str,
        *,
        namespace: Namespace | None = None,
    ) -> Moved:
        """Copy as :meth:`copy`, and delete from *source* each chunk that *target* can read.

        At every moment each chunk can be read from one of them.

        Raises:
            InvalidRequest, InvalidTokens, LayoutMismatch, EngineClosed
        """
        with self._calls.call() as owner:
            until = self._until(self._deadlines.store)
            origin, goal = self._stack.named([source, target])
            keys = self._chosen(tokens, origin, namespace, until)
            return Mover(self._stack, owner, until).move(keys, origin, goal)

    def compress(
        self,
        tokens: Tokens | None,
        tier: str,
        serde: str,
        *,
        namespace: Namespace | None = None,
    ) -> Moved:
        """Replace chunks on *tier* by their encodings by *serde*, where these are smaller.

        They are retrieved like any other: each frame names the serde that encoded it.

        Raises:
            InvalidRequest: there is no such tier or serde.
            InvalidTokens, LayoutMismatch, EngineClosed
        """
        with self._calls.call() as owner:
            (place,) = self._stack.named([tier])
            if serde not in self._stack.runtime.serdes:
                known = ", ".join(self._stack.runtime.serdes) or "none"
                raise InvalidRequest(f"no serde {serde!r}; there are: {known}")
            until = self._until(self._deadlines.store)
            keys = self._chosen(tokens, place, namespace, until)
            return Mover(self._stack, owner, until).compress(keys, place, serde)

    def decompress(
        self, tokens: Tokens | None, tier: str, *, namespace: Namespace | None = None
    ) -> Moved:
        """Replace encoded chunks on *tier* by plain ones.

        Raises:
            InvalidRequest, InvalidTokens, LayoutMismatch, EngineClosed
        """
        with self._calls.call() as owner:
            (place,) = self._stack.named([tier])
            until = self._until(self._deadlines.store)
            keys = self._chosen(tokens, place, namespace, until)
            return Mover(self._stack, owner, until).decompress(keys, place)

    def attach(self, plan: TierPlan, position: int | None = None) -> None:
        """Add a tier while the engine runs, at the end or at *position*; it becomes the engine's.

        Raises:
            ConfigError: there is a tier of that name.
            EngineClosed
        """
        with self._calls.call():
            self._stack.attach(plan, position)

    def detach(self, tier: str) -> bool:
        """Remove a tier while the engine runs, after its running work, and close it.

        Return True if all of that work ended in time.

        Raises:
            InvalidRequest: there is no such tier.
            EngineClosed
        """
        with self._calls.call():
            return self._stack.detach(tier, self._until(self._deadlines.store))

    def change_rules(
        self,
        tier: str,
        *,
        reads: bool | None = None,
        writes: Writes | None = None,
        promotes: bool | None = None,
    ) -> None:
        """Change the rules of a tier from the next call on; ``None`` leaves a rule as it is.

        Neither reading from nor writing to the memory tier, for instance, switches the hot
        cache off; its chunks stay until they are cleared.

        Raises:
            InvalidRequest: there is no such tier, or *writes* is no such rule.
            EngineClosed
        """
        with self._calls.call():
            (place,) = self._stack.named([tier])
            changed = changed_rules(place.rules, reads=reads, writes=writes, promotes=promotes)
            self._stack.change_rules(place, changed)

    def _chosen(
        self, tokens: Tokens | None, tier: Tier, namespace: Namespace | None, until: Deadline
    ) -> Sequence[ChunkKey]:
        if tokens is not None:
            return self._naming.prompt(tokens, namespace, until).keys
        if not tier.index.decides:
            raise InvalidRequest(f"only the store of tier {tier.name!r} knows what it holds")
        return tier.index.keys()

    def _until(self, seconds: float) -> Deadline:
        return Deadline.after(self._clock, seconds)
