"""Whatever an adapter does, a run of the kit ends, and says which promise it was."""

import json
import os
import subprocess
import sys
import textwrap
from threading import Event

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hexkv.contracts.kit import examples, limits
from hexkv.contracts.kit.cases import each

pytest_plugins = ["pytester"]

SUITE = """
    from threading import Event, Thread

    import pytest
    from hexkv.contracts.kit.promise import promise
    from hexkv.contracts.kit.whole import Whole

    def block():
        Event().wait()

    class Contract(Whole):
        def call(self): pass

        @pytest.fixture
        def subject(self):
            self.open()
            yield self
            self.close()

        def open(self): pass
        close = open

        @pytest.mark.thorough
        @promise("L1.5", "answers with all it has")
        def test_a(self): pass

        @promise("L2.1", "answers truthfully")
        def test_b(self): pass

        @promise("L1.1", "answers")
        def test_answers(self, subject): self.call()

        @promise("L1.2", "answers again")
        def test_answers_again(self, subject): self.call()

        @promise("L1.3", "answers a third time")
        def test_answers_a_third_time(self, subject): self.call()

        @promise("L1.4", "answers in the end")
        def test_answers_in_the_end(self, subject): self.call()

    class TestHangs(Contract):
        def call(self): block()

    class TestCatchesAll(Contract):
        def call(self):
            try:
                block()
            except BaseException:
                pass

    class TestDoesNotOpen(Contract):
        def open(self): block()

    class TestDoesNotClose(Contract):
        def close(self): block()

    class TestFailsToClose(Contract):
        def close(self): raise OSError("bad file descriptor")

    class TestIsSound(Contract):
        pass
"""
STUBBORN = """
    class TestLeavesAThread(Contract):
        def call(self):
            Thread(target=block).start()
            block()

    class TestIsStubborn(Contract):
        def call(self):
            while True:
                try:
                    block()
                except BaseException:
                    pass
"""


def spins():
    while True:
        pass


def goes_on():
    while True:
        limits.step()


def test_a_promise_that_does_not_end_is_broken_by_name_and_the_others_are_tried(pytester):
    pytester.makepyfile(textwrap.dedent(SUITE))
    options = ["-p", "no:cacheprovider", "--hexkv-limit", "0.3", "--hexkv-scorecard", "card.json"]
    result = pytester.runpytest_subprocess(*options, timeout=240)
    assert result.ret == 1
    cards = json.loads((pytester.path / "card.json").read_text())["cards"]
    found = {
        card["subject"]["name"].rpartition("::")[2]: [
            (line["verdict"], line["reason"]) for line in card["promises"]
        ]
        for card in cards
    }
    assert {verdict for verdict, _ in found.pop("TestIsSound")} == {"kept"}
    failing = [verdict for verdict, _ in found.pop("TestFailsToClose")]
    assert failing == ["broken"] * 4 + ["kept"] * 2
    result.stdout.fnmatch_lines(["the end of promise L1.1 failed: answers", "hint: *close()*"])
    for name, lines in found.items():
        assert [verdict for verdict, _ in lines] == ["broken"] * 3 + ["not checked"] * 3, name
        assert all("did not end within 0.3 seconds: in block" in why for _, why in lines[:3])
        for _, why in lines[3:]:  # by level, the thorough one after the plain ones
            assert why.endswith("within their limits: L1.1, L1.2, L1.3")
    result.stdout.fnmatch_lines(["broken promise L1.1: answers"])
    result.stderr.fnmatch_lines(["promise L1.2: answers again: did not end within 0.3 seconds: *"])


@pytest.mark.thorough
def test_threads_that_go_on_do_not_keep_the_program(pytester):
    pytester.makepyfile(textwrap.dedent(SUITE + STUBBORN))
    options = ["-p", "no:cacheprovider", "--hexkv-limit", "0.3", "-k", "LeavesAThread"]
    assert pytester.runpytest_subprocess(*options, timeout=240).ret == 1


@pytest.mark.thorough
def test_what_cannot_be_interrupted_is_killed_by_name(pytester):
    pytester.makepyfile(textwrap.dedent(SUITE + STUBBORN))
    options = ["-p", "no:cacheprovider", "--hexkv-limit", "0.3", "-k", "Stubborn"]
    result = pytester.runpytest_subprocess(*options, timeout=240)
    assert result.ret == -9
    result.stderr.fnmatch_lines(
        ["*cannot be interrupted: the kit is killed, * L1.1: answers", '*File "*", line * in block']
    )


@pytest.mark.thorough
@each("hangs, times, seconds", [(Event().wait, 50, 3), (spins, 50, 3), (goes_on, 2, 6)])
def test_a_step_of_a_thorough_promise_has_the_limit_and_its_steps_have_more(hangs, times, seconds):
    watch = limits.Limits(3.0, os.dup(2))
    try:
        with watch.within("adapter", "L9.8", "goes on", 5):
            for _ in range(3):
                limits.step()
                Event().wait(1.2)
        named = rf"within {seconds} seconds: in .*limits.py:\d+"
        with (
            pytest.raises(limits.Overdue, match=named),
            watch.within("adapter", "L9.9", "answers", times),
        ):
            hangs()
    finally:
        watch._hits.clear()  # the program need not be made to end
        watch.close()


FACTORIES = """
    from threading import Event

    from hexkv.contracts.policy import PolicyContract  # before pytest could explain its assertions
    from hexkv.core.policies.lru import LRU

    def hangs():
        Event().wait()

    class Forgetful(LRU):
        def victims(self):
            return iter(list(super().victims())[1:])

        def touch(self, keys):
            assert keys
            super().touch(keys)
"""


def check(folder, *words):
    (folder / "factories.py").write_text(textwrap.dedent(FACTORIES))
    return subprocess.run(
        [sys.executable, "-m", "hexkv.plugins", "check", *words],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=240,
    )


def test_a_check_does_not_wait_for_a_factory(tmp_path):
    hung = check(tmp_path, "factories:hangs", "--limit", "0.3")
    assert hung.returncode == 1
    assert "error: factories:hangs did not end within 0.3 seconds: in hangs" in hung.stderr


@pytest.mark.thorough
def test_a_check_explains_assertions_that_pytest_did_not_rewrite(tmp_path):
    done = check(tmp_path, "factories:Forgetful", "--json", "--level", "L0", "--level", "L1")
    (card,) = json.loads(done.stdout)["cards"]
    seen = {line["number"]: line["reason"] for line in card["promises"]}
    assert seen["policy.2"] == "assert keys, where keys = [] (factories.py:15)"
    assert seen["policy.6"].startswith("assert set(policy.victims()) == left, where left = {b")
    assert seen["policy.6"].endswith("; case: True")


def test_the_first_failure_is_told_before_a_shorter_one_is_sought(monkeypatch):
    tried, told, numbers = [], [], st.lists(st.integers(0, 9))
    monkeypatch.setattr(examples, "report", lambda text: told.append((len(tried), text)))

    def holds(numbers):
        tried.append(numbers)
        assert sum(numbers) < 20, f"the sum of {len(numbers)} numbers"

    with pytest.raises(AssertionError, match="the sum of 3 numbers"):
        examples.examples("L9.9", lambda chosen: chosen(given(numbers)(holds))(), 100)
    ((before, text),) = told
    assert text.startswith("broken promise L9.9: the sum of ")
    assert all(sum(numbers) < 20 for numbers in tried[: before - 2]), "it is the first that failed"
    assert before < len(tried)
