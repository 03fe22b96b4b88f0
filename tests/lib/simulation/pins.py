"""What is pinned, as a plain table: told of every pin, and of every chunk that leaves a tier."""


class Pins:
    """Keys by owner and tier, for as long as the owner has them."""

    def __init__(self, clock):
        self.broken = []
        """Evictions of what was pinned."""

        self._clock = clock
        self._owners = {}

    def add(self, owner, keys, witnesses, seconds):
        """*owner* pinned whatever of *keys* the tiers hold now."""
        until, tiers = self._owners.get(owner, (0.0, {}))
        if until <= self._clock():
            tiers = {}
        for tier, witness in witnesses.items():
            tiers.setdefault(tier, set()).update(witness.here.intersection(keys))
        self._owners[owner] = self._clock() + seconds, tiers

    def end(self, owner):
        self._owners.pop(owner, None)

    def forget(self, tier):
        for _, tiers in self._owners.values():
            tiers.pop(tier, None)

    def left(self, tier, key, evicted):
        """*key* is not on *tier* any more."""
        for owner, (until, tiers) in self._owners.items():
            here = tiers.get(tier, ())
            if key in here:
                here.discard(key)
                if evicted and until > self._clock():
                    self.broken.append(f"{tier} evicted {key.hex()[-8:]}, pinned by {owner}")

    def count(self):
        """Pins by owner, of those whose time is not over."""
        return {
            owner: sum(map(len, tiers.values()))
            for owner, (until, tiers) in self._owners.items()
            if until > self._clock()
        }
