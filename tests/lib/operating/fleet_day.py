"""A day of a small fleet: faults, and the three commands at most that name the cause of each.

``make fleet-day`` prints the table. A directory, two nodes with an engine each, Redis, a disk of
32 MiB (a mount namespace of its own), a shared folder, and a Prometheus with the chart's rules, in
which a minute lasts :data:`MINUTE` seconds, and :data:`LEAST` where an alert waits for one. All of
it listens on 127.0.0.1 or Unix sockets.
"""

import json
import random
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from argparse import ArgumentParser
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field
from itertools import count
from pathlib import Path
from tempfile import mkdtemp

from configured import CHUNK, LAYOUT, NAMESPACE, PATIENT
from engines.vllm.vllm_frames import damage, frames
from hexkv.contracts.doubles.heap_kv import HeapKV
from hexkv.plugins.composition.compose import build
from hexkv.plugins.configuration.config import load
from nodes import NodeProcess
from operating.charts import rendered
from operating.monitoring import generator, prometheus, shortened
from operating.watching import Traffic
from processes import held_port, until
from servers.redis_servers import RedisServer

MINUTE = 2
"""Seconds of a minute of the rules; a day has forty minutes of them."""

LEAST = 10
"""Seconds for which an alert waits at least: a node that is taken over may be silent for some."""

LONGEST = 300.0
"""Seconds after which an alert counts as missing."""

STEPS = (
    *("start", "load", "redis killed", "disk full", "secret rotated", "directory gone"),
    *("node upgraded", "tenant cleared", "budget changed", "disk damaged", "node killed"),
)
KNOWN = ("greeting", "manual", "contract")
SALT = "0123456789abcdef0123456789abcdef"


@dataclass
class Step:
    """A fault and the commands after it."""

    name: str
    commands: list[str] = field(default_factory=list)
    cause: str = ""
    """The line in which the last command names it."""

    alerts: list[str] = field(default_factory=list)
    """Alerts that fired from the fault to its end."""

    silent: int = 0
    """Seconds in which some process did not answer a scrape, or an engine had no node."""


def tokens_of(name):
    return random.Random(name).choices(range(50_000), k=(8 if name in KNOWN else 2) * CHUNK)


def asked():
    """Three prompts that are known, then one that is new, and so on."""
    for number in count():
        yield KNOWN[number % 4] if number % 4 < len(KNOWN) else f"new {number}"


class Fleet:
    """The processes, and the engines in this one."""

    def __init__(self, folder, opened):
        self.folder = folder
        self.opened = opened
        self.places = {
            name: f"127.0.0.1:{held_port()}"
            for name in ("directory", "node-a", "node-b", "engine-a", "engine-b")
        }
        self.port = held_port()
        self.secret = folder / "secret"
        for made in ("disk-a", "disk-b", "shared", "redis", "prometheus"):
            (folder / made).mkdir()
        self._write(self.secret, "the first secret of the fleet")
        mount = ["mount", "-t", "tmpfs", "-o", "size=32m", "disk-a", str(folder / "disk-a")]
        subprocess.run(mount, check=True)
        opened.callback(subprocess.run, ["umount", str(folder / "disk-a")], check=False)
        self.redis = opened.enter_context(RedisServer(folder / "redis"))
        opened.callback(self._end_directory)
        self.start_directory()
        self.nodes = {name: opened.enter_context(self._node(name)) for name in ("a", "b")}
        self.engines = {name: self._engine(name) for name in self.nodes}
        rules = rendered({"monitoring": {"enabled": True}}, folder)["PrometheusRule", "kv"]["spec"]
        text = shortened(rules["groups"], MINUTE, 40 * MINUTE, LEAST)
        self.watching = opened.enter_context(prometheus(folder / "prometheus", self.places, text))

    def _write(self, file, text):
        """Replace a file of a secret in one step."""
        new = file.with_suffix(".new")
        new.write_text(text)
        new.chmod(0o600)
        new.rename(file)

    def rotate(self, text):
        """As docs/security.md describes."""
        former, also = self.secret.read_text(), Path(f"{self.secret}.also")
        self._write(also, text)
        self._write(self.secret, text)
        self._write(also, former)
        also.unlink()

    def start_directory(self):
        words = ["directory", "--port", str(self.port), "--secret-file", str(self.secret)]
        words += ["--observe", self.places["directory"], "--heartbeat", "0.3", "--json"]
        log = self.folder / "directory.log"
        with log.open("w") as out:
            command = [sys.executable, "-m", "hexkv.plugins", *words]
            self.directory = subprocess.Popen(command, stdout=out, stderr=out)
        until(lambda: '"address"' in log.read_text(), LONGEST)

    def _end_directory(self):
        self.directory.kill()
        self.directory.wait(60)

    def _settings(self, secret):
        place = {"address": f"127.0.0.1:{self.port}", "secret_file": str(secret)}
        return {"adapter": "embedded", "settings": place}

    def client(self, name, secret):
        """The file of a configuration for ``hexkv fleet``."""
        file = self.folder / name
        file.write_text(json.dumps({"directory": self._settings(secret)}))
        return file

    def _node(self, name):
        channel = {"listen": "127.0.0.1:0", "secret_file": str(self.secret)}
        return NodeProcess(
            self.folder,
            pool={"bytes": "16MiB", "provider": "shared"},
            tiers=[
                {"store": "memory", "budget": "1MiB"},
                {"store": "peers"},
                {
                    "store": "disk",
                    "budget": "64MiB",
                    "settings": {"root": str(self.folder / f"disk-{name}" / "kv")},
                },
                {"store": "fs", "settings": {"root": str(self.folder / "shared" / "kv")}},
                {"store": "redis", "settings": {"url": self.redis.url, "prefix": "day:"}},
            ],
            tenants=[{"name": "red", "salt": SALT}],
            directory=self._settings(self.secret) | {"name": f"node-{name}"},
            peers={"channel": "tcp", "settings": channel},
            observe={"address": self.places[f"node-{name}"]},
        )

    def _engine(self, name):
        wanted = {
            "node": str(self.nodes[name].path),
            "chunk": {"size": CHUNK},
            "observe": {"address": self.places[f"engine-{name}"]},
            "deadlines": PATIENT,
            "model": {"salt": SALT if name == "a" else ""},
        }
        engine = self.opened.enter_context(build(load(None, {}, wanted), NAMESPACE))
        assert engine.flush(60)
        return engine

    def ask(self, engine, name):
        tokens = tokens_of(name)
        window = HeapKV(LAYOUT, len(tokens))
        self.engines[engine].retrieve(tokens, window)
        self.engines[engine].store(tokens, window.compute(tokens), wait=False)


class Day:
    """What happens to a fleet, and what its operator runs after each step."""

    def __init__(self, fleet):
        self.fleet = fleet
        self.steps = []
        made = generator()
        self._panels = {panel.title: panel.query for row in made.ROWS.values() for panel in row}
        self._prompt = fleet.folder / "archive.json"
        self._prompt.write_text(json.dumps(tokens_of("archive")))

    def go(self, names=STEPS):
        for name in names:
            began = time.monotonic()
            self.steps.append(Step(name))
            getattr(self, name.replace(" ", "_"))()
            until(lambda: not self.fleet.watching.alerts(), LONGEST)
            lasted = max(1, int(time.monotonic() - began))
            self.steps[-1].alerts = sorted(self.fleet.watching.ever(lasted))
            silent = f"max(count_over_time((up == 0 or hexkv_open == 0)[{lasted}s:1s]))"
            for row in self.fleet.watching.ask(silent):
                self.steps[-1].silent = int(row["value"][1])

    # What an operator has.

    def run(self, words, line, code=0):
        """Run a command; its answer has a *line* (a pattern), which names the cause."""
        done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
        said = done.stdout + done.stderr
        shown = shlex.join([Path(words[0]).name, *words[1:]]).replace(f"{self.fleet.folder}/", "")
        for name, node in self.fleet.nodes.items():
            shown = shown.replace(str(node.folder), f"node-{name}")
        found = [one.strip() for one in said.splitlines() if re.search(line, one)]
        assert found, f"{self.steps[-1].name}: {shown} has no {line!r}:\n{said}"
        assert done.returncode == code, f"{shown} ends with {done.returncode}:\n{said}"
        self.steps[-1].commands.append(shown)
        self.steps[-1].cause = found[-1]

    def hexkv(self, *words, line, code=0):
        self.run([str(Path(sys.executable).with_name("hexkv")), *map(str, words)], line, code)

    def admin(self, node, *words, line, code=0):
        self.hexkv("admin", f"{self.fleet.nodes[node].path}.admin", *words, line=line, code=code)

    def query(self, expression, line):
        url = self.fleet.watching.url
        self.run(["promtool", "query", "instant", url, expression], line)

    def panel(self, title, line):
        """The query of a panel of the dashboard."""
        query = self._panels[title].replace("$job", ".*").replace("$__rate_interval", "15s")
        self.query(query, line)

    def alert(self, *names, **labels):
        """Wait until alerts fire, and look at the first one."""

        def fire():
            return set(names) <= {name for name, _, _ in self.fleet.watching.alerts()}

        until(fire, LONGEST)
        said = "".join(rf'(?=.*\b{label}="{value}")' for label, value in labels.items())
        self.query('ALERTS{alertstate="firing"}', rf'(?=.*"{names[0]}"){said}')

    def page(self, name, line):
        self.run(["curl", "-s", f"http://{self.fleet.places[name]}/readyz"], line)

    def log(self, name, line):
        file = self.fleet.folder / "directory.log"
        if name != "directory":
            file = self.fleet.nodes[name].folder / "log"
        until(lambda: re.search(line, file.read_text()), LONGEST)
        self.run(["tail", "-n", "25", str(file)], line)

    # What happens.

    def start(self):
        config = self.fleet.client("fleet.json", self.fleet.secret)
        self.hexkv("fleet", "--config", config, "nodes", line="node-b +open")
        self.page("node-a", "^ok$")
        self.log("a", r"hexkv .* starts \(.*hexkv.yaml\): a pool of 16 MiB, tiers memory .* redis")

    def load(self):
        self.fleet.ask("a", "archive")
        for name in self.fleet.engines:
            self.fleet.opened.enter_context(
                traffic := Traffic(lambda prompt, name=name: self.fleet.ask(name, prompt))
            )
            traffic.chosen = asked()
            until(lambda traffic=traffic: traffic.asked > 40, LONGEST)
        self.admin("a", "namespaces", line="red +toy")
        self.hexkv("top", self.fleet.places["engine-a"], "--json", "--count", "1", line="memory")
        self.panel("Tokens hit", 'tier="memory"')

    def redis_killed(self):
        self.fleet.redis.kill()
        self.alert("HexKVTierOff", "HexKVNotStored", tier="redis")
        self.page("node-a", "degraded: .*tier redis is off")
        self.admin("a", "status", line="redis: last error .*refused")
        self.fleet.redis.start()

    def disk_full(self):
        other = self.fleet.folder / "disk-a" / "of another program"
        with other.open("wb", buffering=0) as file, suppress(OSError):
            while True:
                file.write(bytes(1 << 16))
        self.alert("HexKVNoRoom", tier="disk", job="node-a")
        self.admin("a", "status", line="disk: last error .*No space left on device")
        self.run(["df", "-h", str(self.fleet.folder / "disk-a")], "100%")
        other.unlink()

    def secret_rotated(self):
        old = self.fleet.folder / "former"
        self.fleet._write(old, self.fleet.secret.read_text())
        self.fleet.rotate("the second secret of the fleet")
        config, former = self.fleet.folder / "fleet.json", self.fleet.client("former.json", old)
        self.hexkv("fleet", "--config", config, "nodes", line="b +open")
        self.hexkv("fleet", "--config", former, "nodes", line="error: .*secret", code=1)
        self.log("directory", "turned away")

    def directory_gone(self):
        self.fleet._end_directory()
        self.alert("HexKVDown", "HexKVDirectoryGone", "HexKVTierOff", job="directory")
        self.page("node-b", "degraded: .*the directory is not informed")
        self.admin("b", "status", line="the directory is not informed: .*refused")
        self.fleet.start_directory()

    def node_upgraded(self):
        self.fleet.nodes["a"].take_over()
        self.admin("a", "status", line="^open;")
        self.log("a", "ends: another process has taken its place")

    def tenant_cleared(self):
        self.fleet.ask("a", "archive")
        assert self.fleet.engines["a"].flush(60)
        self.admin("a", "clear", "--tenant", "red", line="chunks done", code=1)
        self.admin("a", "explain", "--tokens", self._prompt, line="memory: cleared.*disk: cleared")
        self.log("a", r"admin: pid .*: clear chosen=\(tenant 'red'\)")

    def budget_changed(self):
        node = self.fleet.nodes["b"]
        wanted = json.loads(node.file.read_text())
        wanted["tiers"][2]["budget"] = "512KiB"
        node.file.write_text(json.dumps(wanted))
        node.process.send_signal(signal.SIGHUP)
        self.panel("Evicted", 'tier="disk"')
        self.admin("b", "tiers", line="disk .*512 KiB")
        self.log("b", "SIGHUP: the configuration is read anew: tiers.disk.budget: 512KiB")

    def disk_damaged(self):
        disk = self.fleet.folder / "disk-b" / "kv"
        for file in frames(disk):
            with suppress(FileNotFoundError):  # evicted in between
                damage(file)
        clear = ["admin", f"{self.fleet.nodes['b'].path}.admin", "clear", "--everything"]
        command = [sys.executable, "-m", "hexkv.plugins", *clear, "--tier", "memory"]
        subprocess.run(command, check=True, capture_output=True, timeout=120)
        self.alert("HexKVDamagedChunks", tier="disk", job="node-b")
        self.log("b", "tier disk: verification failed: not the frame that was written")
        self.hexkv("inspect", disk / "quarantine", "--verify", line="checksum|damaged", code=1)

    def node_killed(self):
        self.fleet.nodes["b"].kill()
        self.alert("HexKVDown", "HexKVClosed", job="node-b")
        self.page("engine-b", "node")
        self.admin("b", "status", line="error: .*node.sock.admin", code=1)
        self.fleet.nodes["b"].start()


def table(steps):
    """The table of a day, in Markdown."""
    rows = [
        f"| {one.name} | {'; '.join(f'`{command}`' for command in one.commands)} | {one.cause} |"
        f" {', '.join(one.alerts)} |"
        for one in steps
    ]
    head = ["| step | commands | the line that names the cause | alerts |", "| --- " * 4 + "|"]
    return "".join(f"{line}\n" for line in head + rows)


def main():
    reader = ArgumentParser(description=__doc__)
    reader.add_argument("--json", type=Path, help="a file for the steps")
    given = reader.parse_args()
    folder = Path(mkdtemp(prefix="fleet-day-"))
    with ExitStack() as opened:
        opened.callback(shutil.rmtree, folder, ignore_errors=True)
        day = Day(Fleet(folder, opened))
        try:
            day.go()
        finally:
            sys.stdout.write(table(day.steps))
    if given.json:
        given.json.write_text(json.dumps([asdict(one) for one in day.steps]))


if __name__ == "__main__":
    main()
