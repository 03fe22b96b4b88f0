"""Every option of every command: a value that means nothing is told by the option's name."""

import json
import re
import signal
from contextlib import contextmanager

import pytest

from configured import CHUNK, built
from hexkv.plugins.__main__ import main
from hexkv.plugins.cli import output
from hexkv.plugins.discovery.discovery import discover
from hexkv.ports import RecordedKind
from operating.administration import Managed, short_folder
from operating.call_records import a_call, keys_of, write_record

pytestmark = pytest.mark.thorough

WITHOUT = {"demo": "speaks argparse; it has tests of its own"}
"""Commands that are not walked, and why."""

BAD = {
    "--badge": "nowhere/badge.svg",
    "--dir": "hexkv.yaml/chunks",
    "--html": "nowhere/page.html",
    "--into": ".",
    "--json": "nowhere/card.json",
    "--model": "./nowhere",
    "--output": "nowhere/trace.json",
    "--plot": "nowhere/plot.svg",
    "--record": "nowhere/record.json",
    "--socket": "nowhere/node.sock",
}
"""What means nothing, where `nonsense` would be the name of a new file."""

FREE = {
    "blend calibrate --name": "any name",
    "explain --identity": "a filter: that nobody has it is an answer",
    "export --model": "any name",
    "export --tenant": "any name",
    "fleet copy --tenant": "judged once there are two nodes",
    "fleet move --tenant": "judged once there are two nodes",
    "import --model": "any name",
    "import --tenant": "any name",
    "quality --name": "any name",
    "warm --name": "any name",
}
"""Options that take every text."""

JUDGED = {"--tenant", "--tier", "--to", "--on", "--node"}
"""What only the cache at the other end can judge: it is named, and the exit code is not 0."""

GIVEN = {
    "admin": "{socket}",
    "admin compress": "memory zstd",
    "admin copy": "disk memory",
    "admin drain": "disk",
    "admin move": "disk memory",
    "admin attach": "tier.yaml",
    "admin pin": "me",
    "admin clear --tier": "--everything",
    "admin explain": "--tokens prompt.json",
    "admin lookup": "--tokens prompt.json",
    "admin rules": "disk",
    "admin rules --compute-rate": "",
    "admin rules --log-level": "",
    "admin rules --peer-rate": "",
    "blend calibrate": "recall --record record.json --sample prompt.json",
    "check": "lru --level L1",
    "explain": "prompt.json --dir disk",
    "export": "out.hexkv --config hexkv.yaml",
    "fleet": "--node {socket}",
    "fleet compress": "memory zstd",
    "fleet clear --on": "--everything",
    "fleet copy": "{socket} other",
    "fleet drain": "{socket}",
    "fleet lookup": "--tokens prompt.json",
    "fleet move": "{socket} other",
    "fleet pin": "me",
    "fleet pin --on": "me --everything",
    "fleet unpin": "me",
    "fleet size": "--nodes 3 --chunks 1000",
    "import": "made.hexkv --config hexkv.yaml",
    "inspect": "disk",
    "fsck": "disk",
    "new-adapter": "store thing",
    "plan": "trace.jsonl",
    "quality": "recall --prompts prompt.json",
    "report": "calls.record",
    "serdes": "--links 1GB",
    "size": "--layers 4 --heads 2 --width 64 --requests 1 --prompt 100",
    "size --config": "",
    "tokens": "prompt.json --model recall",
    "top": "{socket}",
    "trace": "{socket}",
    "warm": "prompt.json --model recall --config hexkv.yaml",
}
"""What commands are given beside, so that nothing else is wrong."""

CONFIG = """\
pool: {bytes: 16MiB}
tiers:
  - {store: disk, settings: {root: disk}}
"""


class _Made(BaseException):
    pass


def application(spec):
    """The parsed form of a command, which it makes when it is run."""

    def take(app):
        raise _Made(make(app))

    make, output.get_command = output.get_command, take
    try:
        spec.run(["--help"])
    except _Made as made:
        return made.args[0]
    finally:
        output.get_command = make


def verbs(command, words):
    """A command and its verbs, each with the words that call it."""
    yield command, words
    for name, verb in getattr(command, "commands", {}).items():
        yield from verbs(verb, [*words, name])


def commands():
    for name, spec in discover().commands.items():
        if name not in WITHOUT:
            yield from verbs(application(spec), name.split("."))


def every_option():
    """Each option in help that takes a value, with the words before it and the ones after."""
    for command, words in commands():
        for parameter in command.params:
            if parameter.param_type_name != "option" or parameter.hidden:
                continue  # a former name is refused by its new one
            if not parameter.is_flag:
                yield words, parameter.opts[0], next(iter(getattr(command, "commands", {})), "")


@contextmanager
def ends(seconds=60):
    """A server that found nothing wrong is ended as its user would, by SIGINT."""
    former = signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, former)


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with what commands read, and a cache that serves administration."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "prompt.json").write_text(json.dumps([1, 2, 3]))
    (tmp_path / "hexkv.yaml").write_text(CONFIG)
    (tmp_path / "tier.yaml").write_text("store: memory\nname: new\n")
    trace = {"timestamp": 0, "input_length": 512, "output_length": 1, "hash_ids": [1]}
    (tmp_path / "trace.jsonl").write_text(json.dumps(trace) + "\n")
    chunks = keys_of(1, 2, 3)
    write_record(tmp_path / "calls.record", [a_call(RecordedKind.RETRIEVE, 1.0, chunks)])
    former = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    with short_folder() as folder:
        socket = str(folder / "admin.sock")
        with built(tmp_path / "disk", admin={"address": socket}) as engine:
            Managed(engine, engine.admin, CHUNK, engine.close).store()
            yield socket
    for number, handler in former.items():  # which servers take over
        signal.signal(number, handler)


def test_an_option_that_means_nothing_is_named(place, capsys):
    assert main(["export", "made.hexkv", "--config", "hexkv.yaml"]) in (0, 1)
    found = list(every_option())
    assert len(found) > 100
    wrong = []
    for words, flag, verb in found:
        if f"{' '.join(words)} {flag}" in FREE:
            continue
        given = []
        for at in range(len(words)):
            path = " ".join(words[: at + 1])
            extra = GIVEN.get(f"{path} {flag}", GIVEN.get(path, "")).format(socket=place).split()
            if at == len(words) - 1:  # the value that is wrong comes last, and counts
                extra += [flag, BAD.get(flag, "nonsense")]
            given += [words[at], *extra]
        if verb:
            given.append(verb)
        capsys.readouterr()
        with ends():
            code = main(given)
        said = "".join(capsys.readouterr())
        judged = flag in JUDGED and words[0] in ("admin", "fleet")
        named = "nonsense" in said if judged else flag in said
        if (code != 2 and not (judged and code == 1)) or not named or "Traceback" in said:
            wrong.append((" ".join(given), code, " ".join(said.split())[-200:]))
    assert wrong == [], "\n".join(map(str, wrong))


TLS = {"--secret-file", "--tls-ca", "--tls-certificate", "--tls-client-ca"}


def test_the_same_thing_is_written_the_same_way_in_every_command():
    """A prompt is ``--tokens FILE``, a time and a size have units, former names are hidden."""
    counts = {"demo", "serdes"}  # where --tokens is a number of tokens
    sized = re.compile(r"\d+(?:[KMGT]i?B)")
    wrong = []
    for command, words in commands():
        for option in command.params:
            if option.param_type_name != "option" or option.hidden:
                continue
            place, kind = " ".join([*words, option.opts[0]]), option.metavar
            longer = [flag for flag in option.opts if flag.startswith("--")]
            if len(longer) > 1:
                wrong.append(f"{place}: a former name is shown")
            if "--tokens" in longer and words[0] not in counts and kind != "FILE":
                wrong.append(f"{place}: not FILE")
            if re.search("seconds|patience|heartbeat|hold|limit|think|within", longer[0]):
                wrong += [f"{place}: not TIME"] * (kind != "TIME")
            if sized.fullmatch(str(option.default)):
                wrong += [f"{place}: not SIZE"] * (kind != "SIZE")
            if re.search("secret|tls|cert|authorit|-ca$", longer[0]) and longer[0] not in TLS:
                wrong.append(f"{place}: another name for a secret or a certificate")
            if re.search("repeat", option.help or "") and "May be repeated" not in option.help:
                wrong.append(f"{place}: repeated in other words")
    assert wrong == []
