"""Reports in a real browser: nothing is fetched, text stays text, every section has its data."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from html import unescape
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from audits import HTML, LONG_ANSWER, TEN, audit_folder
from mortal import quick_folder, unseal
from msft.report import write_comparison, write_report
from msft.report.wording import number
from msft.run.history import History
from msft.testing import Learner, simulate

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))),
    None,
)
pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="Chromium is not installed, so no report was opened in a browser"
)

ATTACK = "<img src=x onerror=\"document.title='owned'\">"
FETCH = "<img src='http://trap.example/a.png'><link rel=stylesheet href='//trap.example/b.css'>"
SCRIPT = "</code></style></svg></title><script>document.title='owned'</script>"
HOSTILE = (ATTACK, FETCH, SCRIPT)
SECTIONS = ("scores", "curves", "timeline", "decisions", "loss", "flops", "disk", "settings")

LOOK = """<!doctype html><body style="margin:0"><script>
function look(frame) {
  const page = frame.contentDocument, seen = {sections: {}, elements: {}};
  for (const one of page.querySelectorAll("details")) one.open = true;
  for (const one of page.querySelectorAll("*"))
    seen.elements[one.localName] = (seen.elements[one.localName] || 0) + 1;
  for (const one of page.querySelectorAll("section"))
    seen.sections[one.id] = {
      text: one.innerText,
      drawn: [...one.querySelectorAll("svg")].filter(svg => svg.getBoundingClientRect().width > 99
        && svg.querySelector("path, use")).length,
      rows: one.querySelectorAll("tbody tr").length,
      folded: one.querySelectorAll("details svg").length,
    };
  seen.title = page.title;
  seen.text = page.body.innerText;
  seen.sentence = page.querySelector("h1").innerText;
  seen.width = page.documentElement.scrollWidth;
  seen.paper = getComputedStyle(page.body).backgroundColor;
  seen.ink = getComputedStyle(page.querySelector("h1")).color;
  seen.label = getComputedStyle(page.querySelector("svg text")).fill;
  seen.tables = [...page.querySelectorAll("table")].map(table => {
    const box = table.closest(".scroll");
    return {wide: table.scrollWidth, room: box.clientWidth, end: box.getBoundingClientRect().right};
  });
  seen.pairs = [...page.querySelectorAll(".answers")].map(pair => [...pair.children].map(one => {
    const box = one.getBoundingClientRect();
    return {top: box.top, right: box.right};
  }));
  const shown = () => [0, 1].map(number => [...page.querySelectorAll(".d" + number)]
    .filter(one => one.getClientRects().length).length);
  seen.on = shown();
  page.querySelectorAll("#on0").forEach(one => one.click());
  seen.off = shown();
  seen.fetched = frame.contentWindow.performance.getEntriesByType("resource").map(e => e.name);
  const out = document.createElement("pre");
  out.id = "seen";
  out.textContent = JSON.stringify(seen);
  document.body.append(out);
}
</script><iframe src="/page" width="WIDTH" height="900" frameborder="0" onload="look(this)">"""
"""A page of the same origin that looks at another one; its script is none of the other's."""


@dataclass
class Site:
    """A server that every name leads to: it gives out one page and notes what else is asked for."""

    page: bytes = b""
    asked: list[str] = field(default_factory=list)
    port: int = 0

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        host, path = request.headers.get("Host", ""), request.path
        body = b""
        if path == "/page":
            body = self.page
        elif path.startswith("/look?"):
            body = LOOK.replace("WIDTH", path.removeprefix("/look?")).encode()
        elif path != "/favicon.ico":
            self.asked.append(f"{host}{path}")
        request.send_response(200)
        request.send_header("Content-Type", "text/html; charset=utf-8")
        request.end_headers()
        request.wfile.write(body)


@pytest.fixture
def site() -> Iterator[Site]:
    site = Site()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            site.answer(self)

        def log_message(self, *arguments: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        site.port = server.server_port
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield site
        server.shutdown()
        thread.join()


def opened(url: str, site: Site, *options: str) -> str:
    """The DOM of a page after it was loaded; every host name leads to the site."""
    assert CHROMIUM is not None
    with quick_folder() as profile:
        command = [
            CHROMIUM,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--disable-features=NetworkTimeServiceQuerying,OptimizationHints,MediaRouter",
            "--no-first-run",
            f"--user-data-dir={profile}",
            f"--host-resolver-rules=MAP * 127.0.0.1:{site.port}",
            "--window-size=1280,900",
            "--virtual-time-budget=5000",
            *options,
            "--dump-dom",
            url,
        ]
        done = subprocess.run(command, capture_output=True, timeout=120)
    dom = done.stdout.decode()
    assert "<html" in dom, done.stderr.decode()[-2000:]
    return dom


def seen(page: Path, site: Site, width: int = 1280, dark: bool = False) -> dict[str, Any]:
    """What a reader of this width sees of a page, all that is folded unfolded."""
    site.page = page.read_bytes()
    scheme = f"--blink-settings=preferredColorScheme={0 if dark else 1}"
    dom = opened(f"http://localhost:{site.port}/look?{width}", site, scheme)
    found = re.search(r'<pre id="seen">(.*?)</pre>', dom, re.DOTALL)
    assert found, dom[:2000]
    content: dict[str, Any] = json.loads(unescape(found[1]))
    return content


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with quick_folder() as path:
        yield path


@pytest.fixture(scope="module")
def run(folder: Path) -> tuple[History, Path]:
    learners = {
        "law": Learner(rows=24, limit=0.3, damage=0.6),
        "medicine": Learner(rows=32, passes=2.0),
        "sports": Learner(rows=16, passes=0.5, limit=0.3, damage=1.5),
    }
    (folder / "plain").mkdir()
    history = simulate(
        "msft", learners, train_batch_size=16, score_test="best", folder=folder / "plain"
    )
    return history, write_report(folder / "plain")


@pytest.fixture(scope="module")
def audit(folder: Path) -> Path:
    return write_report(audit_folder(folder / "audit"))


@pytest.fixture(scope="module")
def hostile(folder: Path) -> Path:
    """A run whose every text is an attack: names, settings, recipe, versions, verdicts."""
    place = folder / f"run{ATTACK.replace('/', '')[:40]}"
    place.mkdir()
    learners = {
        text: Learner(rows=16, limit=0.3 * (number + 1), damage=0.6)
        for number, text in enumerate(HOSTILE)
    }
    simulate("msft", learners, compute_budget=1, train_batch_size=8, folder=place)
    log = place / "run.jsonl"
    first, rest = unseal(log).decode().split("\n", 1)
    opening = json.loads(first)
    opening["settings"][ATTACK] = SCRIPT
    opening["settings"]["method"] = {FETCH: ATTACK}
    opening["fingerprint"] = {SCRIPT: FETCH}
    log.write_text(json.dumps(opening) + "\n" + rest)
    rows = (place / "verdicts.jsonl").read_text().splitlines()
    spoiled = [json.dumps({**json.loads(line), "rows": SCRIPT}) for line in rows[::2]]
    (place / "verdicts.jsonl").write_text("\n".join([*rows, *spoiled]) + "\n")
    answers = [json.loads(line) for line in (place / "samples.jsonl").read_text().splitlines()]
    for place_in, answer in enumerate(answers):
        answer["answer"] = f"{HOSTILE[place_in % len(HOSTILE)]} and no end"
    (place / "samples.jsonl").write_text("\n".join(map(json.dumps, answers)))
    (place / "recipe.yaml").write_text(f"method: msft  # {SCRIPT} {FETCH}\nseed: '{ATTACK}'\n")
    (place / "environment.json").write_text(json.dumps([{ATTACK: SCRIPT}, {ATTACK: FETCH}]))
    return write_report(place)


def test_the_trap_catches_what_the_report_must_not_do(site: Site, tmp_path: Path) -> None:
    """Without this, the tests below could not fail."""
    page = tmp_path / "page.html"
    figure = "<section id=curves><svg><text>a</text></svg></section>"
    page.write_text(f"<!doctype html><title>mine</title><h1>a</h1>{figure}{ATTACK}{FETCH}")
    found = seen(page, site, width=400)
    assert found["title"] == "owned"
    assert any(url.startswith("http://trap.example/") for url in found["fetched"])
    assert [*filter(lambda asked: asked.startswith("trap.example/"), site.asked)]
    page.write_text(f"<!doctype html><h1 style='width:500px'>a</h1>{figure}")
    assert seen(page, site, width=400)["width"] > 400


def test_a_report_fetches_nothing_and_opens_from_disk(
    run: tuple[History, Path], site: Site
) -> None:
    found = seen(run[1], site)
    assert found["fetched"] == []
    dom = opened(run[1].as_uri(), site)
    assert found["sentence"] in unescape(dom)
    assert site.asked == []


def test_every_section_shows_its_data(run: tuple[History, Path], site: Site) -> None:
    history, page = run
    found = seen(page, site)
    sections = found["sections"]
    assert [section for section in sections if section in SECTIONS] == [*SECTIONS]
    written = ("samples", "glossary", "settings")
    assert all(s["drawn"] or s["rows"] for key, s in sections.items() if key not in written)
    assert "best, " in sections["samples"]["text"]
    assert history.best is not None
    for split in ("validation", "test"):
        mean = f"{number(history.mean(history.best, split), 'accuracy')}\u00a0% on {split}"
        assert mean in found["sentence"]
    names = [*history.start.datasets]
    left = [name for stage in history.stages for name, _ in stage.excluded]
    assert sections["curves"]["drawn"] == 1 + len(names)
    assert all(name in sections["curves"]["text"] for name in names)
    for section in ("timeline", "loss", "flops", "disk"):
        assert sections[section]["drawn"] == 1  # the wide one or the narrow one, never both
    assert left
    assert all(f"{name} left" in sections["timeline"]["text"] for name in left)
    assert sections["decisions"]["rows"] == len(left)
    assert sections["scores"]["rows"] == len(names) + 1
    assert "training kept" in sections["flops"]["text"]
    assert "mean " in sections["disk"]["text"]


@pytest.mark.parametrize("width", [400, 1280])
def test_a_sub_dataset_is_switched_off_and_the_others_stay(
    run: tuple[History, Path], site: Site, width: int
) -> None:
    """Line, discs and its own figure; without a script of the page."""
    found = seen(run[1], site, width)
    assert found["elements"]["input"] == len(run[0].start.datasets)
    assert all(count > 1 for count in found["on"])
    assert found["off"] == [0, found["on"][1]]


@pytest.mark.parametrize("dark", [False, True])
def test_a_phone_does_not_scroll_sideways(
    run: tuple[History, Path], hostile: Path, site: Site, dark: bool
) -> None:
    """Nor does the page of a comparison, whose wide tables are cards there."""
    place = run[1].parent.parent
    compared = write_comparison([run[1].parent, hostile.parent], place / "compared.html")
    for page in (compared if dark else run[1], hostile):
        found = seen(page, site, width=400, dark=dark)
        assert found["width"] <= 400
        assert found["tables"]
        assert all(table["end"] <= 400 for table in found["tables"])
        drawn = "figure-scores" if page == compared else "timeline"
        assert found["sections"][drawn]["drawn"] == 1
        if page == compared:
            assert all(table["wide"] <= table["room"] for table in found["tables"])


def test_the_page_of_an_audit_fits_a_phone_and_keeps_text_as_text(audit: Path, site: Site) -> None:
    """Every card is within the page, and both answers of a suspect stand side by side."""
    for width, dark in ((400, True), (1280, False)):
        found = seen(audit, site, width, dark)
        assert found["width"] <= width
        assert not found["elements"].keys() & {"img", "script", "link", "iframe", "image", "object"}
        assert found["title"] == "Audit · audit"
        assert found["sections"]["glance"]["drawn"] == 1
        assert found["sections"]["verdicts"]["rows"] == len(TEN)
        assert HTML in found["sections"]["suspects"]["text"]
        assert LONG_ANSWER in found["sections"]["suspects"]["text"]
        assert all(table["end"] <= width for table in found["tables"])
        pairs = [pair for pair in found["pairs"] if len(pair) == 2]
        assert len(pairs) == 20
        assert all(left["top"] == right["top"] for left, right in pairs)
        ends = [box["right"] for pair in found["pairs"] for box in pair]
        assert max(ends) <= width
    assert found["fetched"] == site.asked == []


def test_light_and_dark_have_their_own_colours(run: tuple[History, Path], site: Site) -> None:
    light, dark = seen(run[1], site), seen(run[1], site, dark=True)

    def brightness(colour: str) -> int:
        return sum(int(part) for part in re.findall(r"\d+", colour)[:3])

    assert brightness(light["paper"]) > 700 > 150 > brightness(light["ink"])
    assert brightness(dark["paper"]) < 150 < 600 < brightness(dark["ink"])
    assert brightness(light["label"]) < brightness(dark["label"])


def test_hostile_text_is_shown_as_text(hostile: Path, site: Site) -> None:
    found = seen(hostile, site)
    assert found["title"].startswith("mSFT · run<img")
    assert not found["elements"].keys() & {"img", "script", "link", "iframe", "image", "object"}
    assert found["elements"]["style"] == 1
    assert found["fetched"] == []
    assert site.asked == []
    for text in HOSTILE:
        assert text in found["sections"]["curves"]["text"]
        assert text in found["sections"]["scores"]["text"]
        assert text in found["sections"]["decisions"]["text"]
        assert text in found["sections"]["settings"]["text"]
        assert f"a row of {text}" in found["sections"]["samples"]["text"]
        assert f"{text} and no end" in found["sections"]["samples"]["text"]
    assert found["sections"].keys() >= {*SECTIONS}
    assert "no row verdicts" in found["sections"]["decisions"]["text"]


def test_a_style_that_got_in_would_not_count(run: tuple[History, Path], site: Site) -> None:
    """The policy knows the page's one style by its hash, and allows no script at all."""
    page = (
        run[1]
        .read_text()
        .replace(
            "</main>",
            f"<style>h1 {{ color: red !important; }}</style>{ATTACK}{FETCH}{SCRIPT}</main>",
        )
    )
    spoiled = run[1].with_name("spoiled.html")
    spoiled.write_text(page)
    found = seen(spoiled, site)
    assert found["elements"]["img"] == 2
    assert found["title"] != "owned"
    assert found["ink"] != "rgb(255, 0, 0)"
    assert site.asked == []


def test_a_long_run_is_folded(folder: Path, site: Site) -> None:
    learners = {
        f"d{number:03d}": Learner(rows=4, limit=0.1 + 0.02 * (37 * number % 40), damage=0.5)
        for number in range(40)
    }
    place = folder / "many"
    place.mkdir()
    history = simulate("msft", learners, train_batch_size=80, compute_budget=1, folder=place)
    assert len(history.stages) > 30
    found = seen(write_report(place), site, width=400)
    assert found["sections"]["curves"]["drawn"] == 12
    assert found["sections"]["decisions"]["rows"] >= 40
    assert found["sections"]["scores"]["rows"] == 40 + 2
    assert found["width"] <= 400
    assert (place / "report.html").stat().st_size < 2_000_000
