"""Several stores over one medium as one: every call goes to another of them."""

import itertools


class InTurn:
    def __init__(self, stores):
        self.stores = stores
        self.turns = itertools.count()

    def any(self):
        return self.stores[next(self.turns) % len(self.stores)]

    def contains(self, keys, deadline):
        return self.any().contains(keys, deadline)

    def read(self, keys, sink, deadline):
        return self.any().read(keys, sink, deadline)

    def read_range(self, key, start, into, deadline):
        return self.any().read_range(key, start, into, deadline)

    def write(self, items, deadline):
        return self.any().write(items, deadline)

    def delete(self, keys, deadline):
        return self.any().delete(keys, deadline)

    def scan(self):
        return self.any().scan()

    def close(self):
        for store in self.stores:
            store.close()


class SettingAside(InTurn):
    """Likewise, where damaged chunks are set aside."""

    def quarantine(self, keys, deadline):
        self.any().quarantine(keys, deadline)
