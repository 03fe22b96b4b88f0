"""Every page of the built site in a real browser: ``make test-docs``.

Named so that only who asks for it gets it: it needs Chromium. What is checked is what a reader with
a phone would see first, a page that is wider than the screen; pictures are left for people.
"""

import json
import re
import subprocess
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

ROOT = Path(__file__).parent.parent
SITE = ROOT / "build" / "site"
PICTURES = ROOT / "build" / "pages"
PICTURED = ["docs/index", "docs/symptoms", "docs/operations", "docs/reference/ports", "README"]

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


@pytest.fixture(scope="module")
def address():
    handler = partial(Quiet, directory=SITE)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def chromium(tmp_path, *options):
    command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
    command += [f"--user-data-dir={tmp_path}/profile", *options]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=300).stdout


@pytest.mark.parametrize("width", [390, 1280])
def test_no_page_is_wider_than_the_screen(address, width, tmp_path):
    pages = [f"/{page.relative_to(SITE)}" for page in sorted(SITE.rglob("*.html"))]
    pages = [page for page in pages if not page.startswith(("/_", "/index"))]
    assert len(pages) > 60
    harness = SITE / f"_measure-{width}.html"
    harness.write_text(HARNESS.replace("PAGES", json.dumps(pages)).replace("WIDTH", str(width)))
    try:
        shown = chromium(
            tmp_path, "--virtual-time-budget=600000", "--dump-dom", f"{address}/{harness.name}"
        )
    finally:
        harness.unlink()
    found = json.loads(re.search(r'<pre id="found">(\{.*\})!</pre>', shown)[1])
    assert sorted(found) == sorted(pages)
    assert {page: wide for page, wide in found.items() if wide > width} == {}


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("page", PICTURED)
def test_a_picture_is_taken(address, page, width, tmp_path):
    PICTURES.mkdir(parents=True, exist_ok=True)
    picture = PICTURES / f"{page.replace('/', '-')}-{width}.png"
    size = f"--window-size={width},1400"
    chromium(tmp_path, size, f"--screenshot={picture}", f"{address}/{page}.html")
    assert picture.stat().st_size > 10_000
