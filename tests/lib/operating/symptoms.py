"""An engine with a fault, into which an operator looks as ``docs/symptoms.md`` describes."""

import json
import random
import re
from pathlib import Path
from threading import Event, Thread

from dict_store import ScanningStore
from hexkv.adapters.admin.access import SocketAccess
from hexkv.adapters.admin.settings import SocketSettings
from hexkv.adapters.local.disk import DiskStore
from hexkv.contracts.doubles import ManualClock
from hexkv.contracts.doubles.heap_kv import HeapKV
from hexkv.plugins.__main__ import main
from hexkv.plugins.clock import SystemClock
from hexkv.plugins.memory.store import MemoryStore
from hexkv.plugins.observing.telemetry import Totals, render
from hexkv.ports import Miss, StoreUnreachable
from processes import until
from rigging import CHUNK, LAYOUT, tier

PAGE = Path(__file__).parents[3] / "docs" / "symptoms.md"
PROMPT = random.Random(3).choices(range(50_000), k=6 * CHUNK)
OTHER = random.Random(4).choices(range(50_000), k=6 * CHUNK)
SECTIONS = ("The hit rate fell", "KV is not stored", "A process does not start", "It is slow")
CASES = {}
"""What makes the fault of a row and follows the page to it, by section and symptom."""


def symptoms(section):
    """The first cells of the rows of a section's table."""
    text = PAGE.read_text().partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    found = [re.split(r"\s*\|\s*", line.strip("| "))[0] for line in lines]
    return [found[at] for at in range(len(found)) if "---" not in found[at : at + 2]]


def row(section, symptom):
    """Register what makes the fault of a row and follows the page to it."""

    def keep(case):
        CASES[section, symptom] = case
        return case

    return keep


def misses(reason):
    return row("The hit rate fell", reason)


def drops(reason):
    return row("KV is not stored", reason)


class Faulty(ScanningStore):
    """Fails, answers or takes its time as a case wants."""

    reads = writes = scans = True
    answer = None
    spend = None
    """Takes the clock's time, if it is given."""

    def __init__(self):
        super().__init__({})
        self.go_on, self.begun = Event(), Event()
        self.go_on.set()

    def _come_in(self, works):
        self.begun.set()
        assert self.go_on.wait(60)
        if self.spend is not None:
            self.spend()
        if not works:
            raise StoreUnreachable("the cable is out")

    def scan(self):
        self._come_in(self.scans)
        yield from super().scan()

    def read(self, keys, sink, deadline):
        self._come_in(self.reads)
        if self.answer is not None:
            return [Miss(self.answer)] * len(keys)
        return super().read(keys, sink, deadline)

    def write(self, items, deadline):
        self._come_in(self.writes)
        return super().write(items, deadline)


class Place:
    """An engine that an operator looks into, and a prompt's life in it."""

    def __init__(self, rig, folder, tmp_path, capsys, caplog):
        self.folder, self.path, self.log = folder, tmp_path, caplog
        self.clock = ManualClock()
        self.disk = tmp_path / "disk"
        self._rig, self._said = rig, capsys
        self.address = str(folder / "admin.sock")
        self.known = True
        """True if the namespace is known whatever the tiers do, by a prompt that is not read."""

    def open(self, *tiers, **options):
        known = [tier("known", MemoryStore(self.clock), reads=False, promotes=False)]
        tiers = [*tiers, *(known if self.known else [])]
        self.rig = self._rig(tiers, clock=self.clock, telemetry=Totals(), **options)
        self.engine = self.rig.engine
        server = SocketAccess(SocketSettings(self.address), SystemClock()).serve(self.engine.admin)
        self.engine.at_close(server.close)
        return self

    def store(self, tokens=PROMPT, wait=True, window=HeapKV):
        full = HeapKV(LAYOUT, len(tokens)).compute(tokens)
        if window is not HeapKV:
            full = window(LAYOUT, len(tokens))
        return self.engine.store(tokens, full, wait=wait)

    def load(self, tokens=PROMPT, window=HeapKV):
        return self.engine.retrieve(tokens, window(LAYOUT, len(tokens)))

    def while_time_passes(self, work, *args):
        """Run *work* to its end, while the clock goes on: it may wait by it."""
        working = Thread(target=work, args=args)
        working.start()
        until(lambda: self.clock.advance(1.0) or not working.is_alive())

    def counts(self, family):
        """Step 1: a metric's sums by reason."""
        found = {}
        for labels, value in re.findall(family + r"\{(.*?)\} (\S+)", render(self.engine)):
            reason = re.search(r'reason="(.*?)"', labels)[1]
            found[reason] = found.get(reason, 0) + float(value)
        return {reason: value for reason, value in found.items() if value}

    def missed(self, reason):
        assert reason in self.counts("hexkv_missed_tokens_total")

    def dropped(self, reason):
        assert reason in self.counts("hexkv_dropped_total")

    def admin(self, *words, code=0):
        assert main(["admin", self.address, *words]) == code
        return self._said.readouterr().out

    def command(self, *words, code=0):
        assert main([*words]) == code
        out, err = self._said.readouterr()
        return out + err

    def explain(self, why, tokens=PROMPT, code=0):
        """Step 3: the first chunk that misses, and why."""
        prompt = self.path / "prompt.json"
        prompt.write_text(json.dumps(tokens))
        assert "explain --tokens prompt.json" in PAGE.read_text()
        assert why in self.admin("explain", "--tokens", str(prompt), code=code)

    def start(self, text):
        """What a check of a configuration says, as a start does, with stores opened."""
        file = self.path / "hexkv.yaml"
        file.write_text(text)
        return self.command("config", "check", str(file), "--open", code=1)


def memory(place, **rules):
    return tier("memory", MemoryStore(place.clock), **rules)


def disk(place, **rules):
    return tier("disk", DiskStore(place.disk), **rules)


class BadDevice(HeapKV):
    """Memory of an engine that is not there now."""

    def scatter(self, spans, layers=None):
        raise RuntimeError("device lost")

    gather = scatter
