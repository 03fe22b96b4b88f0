"""The store contract on any S3: subclasses say which one, by ``server`` and ``service``."""

from typing import ClassVar

import pytest

from hexkv.contracts.store import StoreContract


class S3Contract(StoreContract):
    options: ClassVar = {}

    @pytest.fixture
    def settings(self, server):
        return server.settings | self.options

    @pytest.fixture
    def store(self, settings, open_store):
        return open_store(**settings)

    @pytest.fixture
    def raw(self, server, prefix):
        found = server.objects(f"{prefix}/")
        yield found
        found.clear()

    @pytest.fixture
    def sibling(self, settings, open_store, prefix):
        return open_store(prefix=f"{prefix} of another", **settings)

    @pytest.fixture
    def foreign(self, server, prefix):
        """Others' objects, beside ours and among them."""
        others = server.objects(prefix)
        names = [f"{prefix}/README", f"{prefix}/{'0' * 95}", f"{prefix}-old/{'0' * 96}"]
        names.append(f"{prefix}/{'0' * 96}/0")
        for name in names:
            others.put_name(name, name.encode())
        yield lambda: {name: others.get_name(name) for name in names}
        for name in names:
            others.delete_name(name)

    @pytest.fixture
    def exposed(self, service, open_store):
        return open_store(**service.settings | self.options)

    @pytest.fixture
    def reopen(self, settings, store, open_store):
        opened = [store]

        def again():
            opened[-1].close()
            opened.append(open_store(**settings))
            return opened[-1]

        return again
