"""Every page of the built site, and those of reports, in a real browser: ``make test-docs``.

Named so that only who asks for it gets it: it needs Chromium. What is checked is what a reader with
a phone would see first, a page that is wider than the screen; pictures are left for people.
"""

import json
import re
import subprocess
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from readme_renderer import markdown

from hexkv.plugins.__main__ import main
from hexkv.ports import RecordedKind, RecordedStep, TierHealth
from operating.call_records import CHUNK, a_call, keys_of, write_record

ROOT = Path(__file__).parents[2]
SITE = ROOT / "build" / "site"
PICTURES = ROOT / "build" / "pages"
PICTURED = [
    *("docs/index", "docs/symptoms", "docs/operations", "docs/reference/ports", "README"),
    *("docs/measured", "docs/tutorials/operate"),
]

HARNESS = """<!doctype html><body><pre id="found"></pre><script>
async function measure(pages, width) {
  const found = {};
  for (const page of pages) {
    const frame = document.createElement("iframe");
    frame.style.width = width + "px";
    frame.style.height = "800px";
    frame.src = page;
    document.body.append(frame);
    await new Promise(done => frame.onload = done);
    found[page] = frame.contentDocument.documentElement.scrollWidth;
    frame.remove();
  }
  document.getElementById("found").textContent = JSON.stringify(found) + "!";
}
measure(PAGES, WIDTH);
</script>"""


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@contextmanager
def served(folder):
    handler = partial(Quiet, directory=folder)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture(scope="module")
def address():
    with served(SITE) as where:
        yield where


def chromium(tmp_path, *options):
    command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
    command += [f"--user-data-dir={tmp_path}/profile", *options]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=300).stdout


@pytest.mark.parametrize("width", [390, 1280])
def test_no_page_is_wider_than_the_screen(address, width, tmp_path):
    pages = [f"/{page.relative_to(SITE)}" for page in sorted(SITE.rglob("*.html"))]
    pages = [page for page in pages if not page.startswith(("/_", "/index"))]
    assert len(pages) > 60
    found = widths(tmp_path, address, SITE, pages, width)
    assert {page: wide for page, wide in found.items() if wide > width} == {}


def test_each_picture_of_a_page_is_there():
    shown = [
        (page, picture)
        for page in sorted(SITE.rglob("*.html"))
        for picture in re.findall(r'<img [^>]*src="([^":]+)"', page.read_text())
    ]
    assert len(shown) > 10
    assert [(page, src) for page, src in shown if not (page.parent / src).exists()] == []


def widths(tmp_path, address, folder, pages, width):
    """How wide each page is, which a server at *address* has in *folder*, on such a screen."""
    harness = folder / f"_measure-{width}.html"
    harness.write_text(HARNESS.replace("PAGES", json.dumps(pages)).replace("WIDTH", str(width)))
    try:
        shown = chromium(
            tmp_path, "--virtual-time-budget=600000", "--dump-dom", f"{address}/{harness.name}"
        )
    finally:
        harness.unlink()
    found = json.loads(re.search(r'<pre id="found">(\{.*\})!</pre>', shown)[1])
    assert sorted(found) == sorted(pages)
    return found


ON_AN_INDEX = """<!doctype html><meta name="viewport" content="width=device-width">
<base href="{root}/"><style>
body {{ font: 16px/1.5 sans-serif; max-width: 800px; margin: 1em auto; padding: 0 1em }}
img {{ max-width: 100% }} pre, table {{ display: block; overflow-x: auto }}
</style>{page}"""
"""The styles are those that indexes have for projects' pages."""


@pytest.mark.parametrize("width", [390, 1280])
def test_the_readme_fits_an_index(width, tmp_path):
    shown = markdown.render((ROOT / "README.md").read_text())
    assert shown.count("<table>") == 1
    assert shown.count("<img") == 1
    page = tmp_path / "readme.html"
    page.write_text(ON_AN_INDEX.format(root=ROOT.as_uri(), page=shown))
    with served(tmp_path) as where:
        found = widths(tmp_path, where, tmp_path, ["/readme.html"], width)
    assert max(found.values()) <= width
    PICTURES.mkdir(parents=True, exist_ok=True)
    picture = PICTURES / f"readme-on-an-index-{width}.png"
    size = f"--window-size={width},2400"
    chromium(tmp_path, size, f"--screenshot={picture}", page.as_uri())
    assert picture.stat().st_size > 10_000


@pytest.mark.parametrize("width", [390, 1280])
def test_reports_fit_the_screen_and_load_nothing(width, tmp_path):
    tiers = [
        TierHealth("memory", 90, 90 << 12, 1 << 20, 0, "closed", "closed", 0, False, {}),
        TierHealth("a disk with a name", None, None, None, 0, "closed", "closed", 0, False, {}),
    ]
    hits = {"tiers": {"memory": CHUNK, "a disk with a name": CHUNK}, "misses": {"absent": CHUNK}}
    steps = [RecordedStep(part, "memory", 0.1) for part in ("match", "read", "copy")]
    calls = []
    for at in range(200):
        keys = keys_of(*(at % 7 * 100 + i for i in range(3 + at // 20)))
        calls += [
            a_call(RecordedKind.RETRIEVE, 60.0 * at, keys, steps=steps, **hits),
            a_call(RecordedKind.STORE, 60.0 * at + 1, keys),
        ]
    record = write_record(tmp_path / "record", calls, tiers=tiers, rate=900.0)
    assert main(["report", str(record), "--html", str(tmp_path / "report.html")]) == 0
    plan = ["plan", str(record), "--sizes", "10,100,1k", "--html", str(tmp_path / "plan.html")]
    assert main(plan) == 0
    PICTURES.mkdir(parents=True, exist_ok=True)
    with served(tmp_path) as where:
        found = widths(tmp_path, where, tmp_path, ["/report.html", "/plan.html"], width)
    assert max(found.values()) <= width
    for name in ("report", "plan"):
        for scheme in ("light", "dark"):
            picture = PICTURES / f"{name}-{width}-{scheme}.png"
            options = [f"--window-size={width},2600", f"--screenshot={picture}"]
            options.append(f"--blink-settings=preferredColorScheme={int(scheme == 'light')}")
            chromium(tmp_path, *options, (tmp_path / f"{name}.html").as_uri())
            assert picture.stat().st_size > 10_000
    light, dark = (PICTURES / f"report-{width}-{scheme}.png" for scheme in ("light", "dark"))
    assert light.read_bytes() != dark.read_bytes()


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("page", PICTURED)
def test_a_picture_is_taken(address, page, width, tmp_path):
    PICTURES.mkdir(parents=True, exist_ok=True)
    picture = PICTURES / f"{page.replace('/', '-')}-{width}.png"
    size = f"--window-size={width},1400"
    chromium(tmp_path, size, f"--screenshot={picture}", f"{address}/{page}.html")
    assert picture.stat().st_size > 10_000
