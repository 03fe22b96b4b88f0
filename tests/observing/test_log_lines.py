"""Every line that can be logged is in ``docs/logs.md``."""

from tests.lib.operating.log_lines import BEGIN, END, PAGE, all_lines, lines_of, table


def test_the_document_has_each_line_of_the_code_and_no_other():
    shown = PAGE.read_text().partition(BEGIN)[2].partition(END)[0]
    assert shown == table(), "write it anew: python -m tests.lib.operating.log_lines"


def test_lines_are_found_wherever_they_are_logged():
    code = (
        "log = logging.getLogger(__name__)\n"
        'log.warning("tier %s: %d chunks", tier.name, len(keys))\n'
        'self._log.exception("it fails")\n'
        'logging.getLogger("hexkv.listening").info("at %s", where)\n'
        'verbs = ("is off", "is on")\n'
        'Notices(log, f"node {name}", clock, verbs)\n'
    )
    found = {(one.text, one.level) for one in lines_of(code, "hexkv.core.tiers.x")}
    assert found == {
        ("tier NAME: KEYS chunks", "warning"),
        ("it fails", "error"),
        ("at WHERE", "info"),
        ("node NAME: OPERATION is off: ERROR", "warning"),
        ("node NAME: OPERATION is on after SECONDS s", "warning"),
    }
    assert len(all_lines()) > 100
