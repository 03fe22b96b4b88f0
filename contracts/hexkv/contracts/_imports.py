"""Imports all of a plugin in a process of its own, and prints the side effects as JSON.

Run by :mod:`hexkv.contracts.plugin`. Each effect is attributed to the innermost code outside the
standard library: effects of a library that the plugin imports do not count against the plugin.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import json
import os
import pkgutil
import sys
import sysconfig
import threading
from collections.abc import Iterator
from types import ModuleType

_PROCESS = "starts a process"
_EVENTS = {
    "open": "opens a file",
    "os.fork": _PROCESS,
    "os.posix_spawn": _PROCESS,
    "os.system": _PROCESS,
    "subprocess.Popen": _PROCESS,
    "os.mkdir": "makes a folder",
    "socket.__new__": "opens a socket",
}
"""Of the interpreter's audit."""

_LIBRARY = (sysconfig.get_path("stdlib"), "<")


class _Watch:
    """Records the side effects of code under *root*."""

    def __init__(self, root: str) -> None:
        self._root = root
        self.seen: list[str] = []

    def note(self, what: str) -> None:
        """Record the effect *what* if code under the root caused it."""
        frame = sys._getframe(1)
        while (back := frame.f_back) is not None:
            name, frame = back.f_code.co_filename, back
            if name.startswith("<frozen importlib"):
                return  # a module is read, as it must be
            if name.startswith(self._root):
                self.seen.append(f"{os.path.basename(name)}:{frame.f_lineno} {what}")
                return
            if name != __file__ and (not name.startswith(_LIBRARY) or "-packages" in name):
                return

    def audit(self, event: str, arguments: tuple[object, ...]) -> None:
        if event in _EVENTS:
            shown = f" {arguments[0]!r}" if event in ("open", "os.mkdir") else ""
            self.note(f"{_EVENTS[event]}{shown}")

    # In place of a stream.

    def write(self, text: str) -> int:
        self.note("prints")
        return len(text)

    def flush(self) -> None:
        pass


def _modules(entry: importlib.metadata.EntryPoint) -> Iterator[ModuleType]:
    """The plugin's module, and all modules beside it."""
    plugin = importlib.import_module(entry.module)
    yield plugin
    name = entry.module if hasattr(plugin, "__path__") else entry.module.rpartition(".")[0]
    if not name:
        return
    package = importlib.import_module(name)
    for found in pkgutil.walk_packages(package.__path__, f"{name}.", onerror=lambda _: None):
        if not found.name.endswith(".__main__"):
            try:
                yield importlib.import_module(found.name)
            except Exception:  # noqa: BLE001, S112 - what it requires is not here
                continue


def _root(entry: importlib.metadata.EntryPoint) -> str:
    """The path of its code: a folder, or one file."""
    found = importlib.util.find_spec(entry.module)
    if found is None or found.origin is None:
        raise ImportError(f"there is no module {entry.module}")
    alone = "." not in entry.module and found.submodule_search_locations is None
    return found.origin if alone else os.path.dirname(found.origin) + os.sep


def main() -> None:
    path, group, name = json.loads(sys.argv[1])
    sys.path[:] = path
    (entry,) = importlib.metadata.entry_points(group=group, name=name)
    watch, out = _Watch(_root(entry)), sys.stdout

    class Environment(os.environ.__class__):  # type: ignore[name-defined, misc]
        def __getitem__(self, key: str) -> str:
            watch.note(f"reads {key} of the environment")
            return str(super().__getitem__(key))

        def __iter__(self) -> Iterator[str]:
            watch.note("reads the environment")
            return iter(super().__iter__())

    class Thread(threading.Thread):
        def start(self) -> None:
            watch.note("starts a thread")
            super().start()

    threading.Thread = Thread  # type: ignore[misc]
    os.environ.__class__ = Environment
    sys.stdout = sys.stderr = watch
    sys.addaudithook(watch.audit)
    try:
        for module in _modules(entry):
            for hook in ("hexkv_adapters", "hexkv_commands"):
                list(getattr(module, hook, list)())
    except SystemExit:
        watch.seen.append("it ends the program")
    print(json.dumps(list(dict.fromkeys(watch.seen))), file=out, flush=True)
    os._exit(0)  # do not wait for threads that an import started


if __name__ == "__main__":
    main()
