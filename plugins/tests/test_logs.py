"""Lines of the log: their facts, their forms, and where they go."""

import json
import logging
import re

import pytest

from hexkv.contracts.kit.cases import each
from hexkv.plugins.__main__ import main
from hexkv.plugins.observing import logs

log = logging.getLogger("hexkv.core.tiers.stores.calls")


@pytest.fixture
def own(monkeypatch):
    """Makes a program that has set up no logging, as a command is: here pytest has."""
    return lambda: monkeypatch.setattr(logging.getLogger(), "handlers", [])


@pytest.fixture(autouse=True)
def before():
    root = logging.getLogger("hexkv")
    former = root.level, root.handlers, root.propagate
    root.handlers = list(root.handlers)
    yield
    root.handlers, root.propagate = former[1:]
    root.setLevel(former[0])


def test_a_line_has_time_level_process_and_component(own, capsys):
    own()
    with logs.shown("node"):
        log.warning("tier %s: %s", "disk", "write failed")
    out, err = capsys.readouterr()
    time = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"
    assert out == ""
    assert re.fullmatch(rf"{time} WARNING node\[\d+\] tiers: tier disk: write failed\n", err)


def test_json_has_the_same_facts_and_the_traceback(own, capsys):
    own()
    with logs.shown("node"):
        logs.configure(form="json")
        try:
            int("seven")
        except ValueError:
            log.exception("a line\nof two")
    (line,) = capsys.readouterr().err.splitlines()
    facts = json.loads(line)
    assert facts["message"] == "a line\nof two"
    assert (facts["level"], facts["process"], facts["component"]) == ("ERROR", "node", "tiers")
    assert facts["logger"] == log.name
    assert facts["error"].endswith("'seven'")


def test_text_from_outside_adds_no_line_and_controls_no_terminal(own, capsys):
    own()
    with logs.shown("node"):
        log.warning("a client: %s", "x\n2026 ERROR forged\r\x1b[2J")
    assert len(capsys.readouterr().err.splitlines()) == 1


@each(
    ("name", "part"),
    [
        ("hexkv", "hexkv"),
        ("hexkv.admin", "admin"),
        ("hexkv.adapters.redis.store", "redis"),
        ("hexkv.core.io.scheduler", "io"),
        ("hexkv.kernels.transfer", "kernels"),
        ("vllm.hexkv", "vllm"),
    ],
)
def test_the_component_is_the_part_of_hexkv_that_writes(name, part):
    assert logs.component(name) == part


def test_commands_write_warnings_and_servers_all_that_their_level_lets_through(own, capsys):
    own()
    with logs.shown("node"):
        log.info("quiet")
        logs.show_all()
        log.info("shown")
        logs.configure(level="debug")
        log.debug("more")
        logs.configure(level="error")
        log.warning("less")
    err = capsys.readouterr().err
    assert [line.rpartition(" ")[2] for line in err.splitlines()] == ["shown", "more"]


def test_a_programs_own_logging_is_kept_until_a_configuration_sets_a_form(caplog, capsys):
    log.warning("first")
    logs.configure(level="info")
    log.info("second")
    assert caplog.messages == ["first", "second"]
    logs.configure(form="json")
    log.info("third")
    assert caplog.messages == ["first", "second"]
    assert json.loads(capsys.readouterr().err)["message"] == "third"


def test_a_command_that_fails_ends_with_its_cause_in_the_same_form(own, monkeypatch, capsys):
    own()
    wrong = ["explain", "none.json", "--dir", "none"]
    assert main(wrong) != 0
    assert capsys.readouterr().err.splitlines()[-1].startswith("error: ")
    monkeypatch.setenv("HEXKV_LOG__FORMAT", "json")
    assert main(["admin", "no address", "status"]) == 1
    last = json.loads(capsys.readouterr().err.splitlines()[-1])
    assert (last["level"], last["process"]) == ("ERROR", "admin")
    monkeypatch.setenv("HEXKV_LOG__FORMAT", "xml")
    assert main(["adapters"]) == 2
    assert capsys.readouterr().err == "error: log.format 'xml': there are text, json\n"


def test_an_engines_handlers_write_our_lines_from_its_level_on(capsys):
    root, host = logging.getLogger("hexkv"), logging.getLogger("an engine")
    root.handlers, root.level = [], logging.NOTSET
    made = logging.StreamHandler()
    made.setFormatter(logging.Formatter("ENGINE %(message)s"))
    host.handlers = [made]
    host.setLevel(logging.INFO)
    logs.share("an engine")
    log.info("tier %s", "disk")
    log.debug("no more")
    assert capsys.readouterr().err == "ENGINE tier disk\n"


def test_a_command_within_a_program_leaves_lines_to_its_logging(caplog, capsys):
    with logs.shown("admin"):
        log.warning("tier disk: write failed")
    assert caplog.messages == ["tier disk: write failed"]
    assert capsys.readouterr().err == ""
