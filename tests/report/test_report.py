"""Reports: every section has its data, text stays text, and nothing is fetched."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from fractions import Fraction
from html.parser import HTMLParser
from pathlib import Path
from time import process_time

import pytest

import msft
from mortal import Case, quick_folder
from msft.errors import UsageError
from msft.report import comparison_text, write_comparison, write_report
from msft.report.branches import epochs_to
from msft.report.compare.comparison import comparison_of_each
from msft.report.compare.runs import compared_runs
from msft.report.compare.statistics import RecordedRows, paired, sign_test, wilson
from msft.report.comparison_tables import dataset_tables
from msft.report.findings import stage_tests
from msft.report.wording import difference, number
from msft.run.environment import read_environments, record_environment, versions
from msft.run.history import History
from msft.run.log import (
    EndEvent,
    Event,
    Log,
    PointEvent,
    RolloutEvent,
    RunEvent,
    ScoresEvent,
    Tokens,
    read_log,
    to_line,
)
from msft.run.rows import read_verdicts
from msft.search.curves import Scores, accuracy, nll, value
from msft.search.methods import METHODS
from msft.search.rollout import BASE, CheckpointId
from msft.store.store import Disk
from msft.testing import Learner, simulate
from msft.text import epochs, label, si

HOSTILE = '<script>alert("1")</script>$x^2$'
SECTIONS = ("scores", "curves", "timeline", "decisions", "loss", "flops", "disk", "settings")
VOID = {"meta", "br", "link", "img", "input", "hr", "wbr"}


class Page(HTMLParser):
    """What a browser would see of a page."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.html = html
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.texts: dict[str, list[str]] = {"": []}
        self.section = ""
        self.feed(html)
        self.close()
        assert not self.open, f"never closed: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)
        if tag == "section":
            self.section = dict(attrs)["id"] or ""
            self.texts[self.section] = []

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag
        if tag == "section":
            self.section = ""

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] != "style":
            self.texts[self.section].append(data)

    def text(self, section: str = "") -> str:
        joined = " ".join(self.texts[section]).replace("\u00a0", " ")
        return re.sub(r"\s+", " ", joined).strip()


def page_of(path: Path) -> Page:
    return Page(path.read_text(encoding="utf-8"))


def assert_self_contained(page: Page) -> None:
    policy = [
        a["content"] for t, a in page.tags if a.get("http-equiv") == "Content-Security-Policy"
    ]
    assert len(policy) == 1
    assert policy[0] is not None
    assert policy[0].startswith("default-src 'none'; style-src 'unsafe-inline'; img-src data:")
    assert "<script" not in page.html.lower()
    for tag, attributes in page.tags:
        assert tag not in ("script", "link", "img", "iframe", "object", "embed", "base", "image")
        for key, text in attributes.items():
            assert not key.startswith("on")
            if key in ("src", "href", "xlink:href", "action"):
                assert text is not None
                assert text.startswith(("#", "./")), f"{tag} refers to {text}"
    assert not re.search(r"url\((?!#)|@import", page.html)
    ids = [a["id"] for _, a in page.tags if "id" in a]
    assert len(ids) == len(set(ids))
    wanted = {
        i for found in re.findall(r'url\(#([^)]+)\)|href="#([^"]+)"', page.html) for i in found
    }
    assert wanted - {""} <= set(ids)


@pytest.fixture
def folder() -> Iterator[Path]:
    with quick_folder() as path:
        yield path


@pytest.mark.parametrize("method", METHODS)
def test_every_method_gets_a_report_with_all_sections(method: str, folder: Path) -> None:
    history = Case(method, score_test="best").run(folder)
    page = page_of(write_report(folder))
    assert_self_contained(page)
    sections = [a["id"] for t, a in page.tags if t == "section"]
    assert [section for section in sections if section in SECTIONS] == [*SECTIONS]
    top = page.text()
    assert history.best is not None
    assert history.best in top
    assert f"{number(history.mean(history.best), 'accuracy')} % on validation" in top
    assert f"{number(history.mean(history.best, 'test'), 'accuracy')} % on test" in top
    assert "still running" not in top
    for name in history.start.datasets:
        assert name in page.texts["curves"]
        assert name in page.texts["scores"]
    left = [name for stage in history.stages for name, _ in stage.excluded]
    assert all(f"{name}" in page.text("decisions") for name in left)
    assert ("excludes no sub-dataset" in page.text("decisions")) == (not left)
    for section in ("timeline", "curves", "loss", "flops", "disk"):
        between = page.html.split(f'<section id="{section}">')[1].split("</section>")[0]
        assert "<svg" in between
        assert ("<summary><h2>" in between) == (section in ("loss", "flops", "disk"))


def test_the_scores_say_what_happened_to_each_sub_dataset(folder: Path) -> None:
    history = Case("msft", {"max_stages": 2}).run(folder)
    text = page_of(write_report(folder)).text("scores")
    left = {each.name: epochs_to(history, each.checkpoint) for each in history.exclusions}
    assert 0 < len(left) < len(history.start.datasets)
    for name, rows in history.start.datasets.items():
        what = f"left at epoch {epochs(left[name])}" if name in left else "stayed"
        assert f"{name} {rows} rows, {what} " in text
    Case("sft").run(folder / "sft")
    text = page_of(write_report(folder / "sft")).text("scores")
    assert "left" not in text
    assert "stayed" not in text


def test_the_page_says_what_to_do_next_where_there_is_a_recipe(folder: Path) -> None:
    Case("msft").run(folder)
    assert "next" not in page_of(write_report(folder)).texts
    (folder / "recipe.yaml").write_text("method: msft\n")
    page = page_of(write_report(folder))
    assert "msft chat ." in page.text("next")
    command = "msft compare recipe.yaml --methods sft,msft --seeds 20,21,22 --out ../compare"
    assert f"Test mSFT against SFT over several seeds. {command}" in page.text("next")


def test_a_pointer_is_told_the_score_of_every_tick(folder: Path) -> None:
    """Once in the figure of all and once in its own; phones have no pointer."""
    history = Case("msft").run(folder)
    page = page_of(write_report(folder))
    for stage in history.stages:
        for point in stage.points:
            score = number(point.scores["a"].value, "accuracy")
            said = re.findall(
                rf"<title>a, epoch [\d.]+, {point.checkpoint}: ({score})\u00a0% \(", page.html
            )
            assert 1 <= len(said) <= 2, "what was rolled back is in its own figure alone"
            mean = number(history.mean(point.checkpoint), "accuracy")
            assert re.search(rf"<title>stage \d, .*?, {point.checkpoint}: mean {mean}", page.html)
    narrow = "".join(re.findall(r'<div class="narrow">(.*?)</div>', page.html, re.DOTALL))
    assert "<title>" not in narrow.replace("<title>training", "").replace("<title>eval", "")


def test_the_decision_table_says_who_left_where_and_how_sure_that_is(folder: Path) -> None:
    history = Case("msft").run(folder)
    text = page_of(write_report(folder)).text("decisions")
    name, tick = history.stages[0].excluded[0]
    stage = history.stages[0]
    places = [stage.asked.start, *(point.checkpoint for point in stage.points)]
    assert (
        f"{name} 0 3 {tick / 2:g} {number(history.known(places[tick])[name].value, 'accuracy')}"
        in text
    )
    assert "too few ticks to test" in text, "a roll-out has three"
    assert re.search(
        r"none \d \d – – – – every sub-dataset was still at its highest at the end", text
    )


def test_the_decision_table_and_sure_exclusion_have_one_notion_of_sure(folder: Path) -> None:
    """The same curves under the paper's rule and under ours: the first roll-out is the same."""
    paper, sure = (
        Case("msft", options, compute_budget=3).run(folder / name)
        for name, options in (("paper", {}), ("sure", {"exclude": {"confidence": 0.95}}))
    )
    tested = sure.stages[0].falls
    rows = read_verdicts(folder / "paper" / "verdicts.jsonl")
    found = stage_tests(paper, RecordedRows(paper, rows, {}))
    assert found[0].falls == tested
    name, _ = paper.stages[0].excluded[0]
    text = page_of(write_report(folder / "paper")).text("decisions")
    assert tested[name].sure
    fall = tested[name]
    low, high = (-100 * (fall.fall + side * 1.96 * fall.error) for side in (1, -1))
    interval = " to ".join(difference(bound / 100, "accuracy") for bound in (low, high))
    assert f" sure {difference(-fall.fall, 'accuracy')} points ({interval}), p " in text


def test_after_the_last_decision_nothing_goes_on(folder: Path) -> None:
    exclude = {"exclude": {"confidence": 0.95}}
    ended = Case("msft", exclude, compute_budget=2).run(folder).ended
    assert ended is not None
    assert ended.by == "no_gain"
    text = page_of(write_report(folder)).text("decisions")
    assert "one of the sub-datasets that surely fell leaves" in text
    assert re.search(r"none 0 \d – – – – no fall was sure, so training went on", text)
    assert re.search(r"none 2 \d – – – – no fall was sure(?!, so)", text)


def test_without_verdicts_and_recipe_it_says_so(folder: Path) -> None:
    Case("msft", compute_budget=3).run(folder)
    (folder / "verdicts.jsonl").unlink()
    page = page_of(write_report(folder))
    assert "no row verdicts" in page.text("decisions")
    assert "has no recipe.yaml" in page.text("settings")
    assert "not scored on a test split" in page.text()


def test_the_recipe_is_shown_as_text(folder: Path) -> None:
    Case("sft").run(folder)
    recipe = f"method: sft  # {HOSTILE}\nseed: 20\n"
    (folder / "recipe.yaml").write_text(recipe)
    page = page_of(write_report(folder))
    assert_self_contained(page)
    assert recipe in page.texts["settings"]


def test_hostile_names_are_text_wherever_they_stand(folder: Path) -> None:
    worse = "a\"'&\n\x1b[31m\u202e</text></svg><style>*{}</style>" + "\ud800"
    learners = {
        HOSTILE: Learner(rows=16, limit=0.3, damage=0.6),
        worse: Learner(rows=16, passes=2.0),
    }
    runs = [folder / "one", folder / "two"]
    for run in runs:
        run.mkdir()
        simulate("msft", learners, compute_budget=1, train_batch_size=8, folder=run)
        page = page_of(write_report(run))
        assert_self_contained(page)
        assert HOSTILE in page.texts["curves"]
        assert any(text.endswith(" left") and "<scrip" in text for text in page.texts["timeline"])
        assert sum(tag == "style" for tag, _ in page.tags) == 1
        assert not re.search("[\x00-\x08\x0b-\x1f\u202e]", page.html)
    page = page_of(write_comparison(runs, folder))
    assert_self_contained(page)
    assert HOSTILE in page.texts["table-datasets"]
    text = comparison_text(runs)
    assert "<script>" in text
    assert not re.search("[\x00-\x09\x0b-\x1f\u202e\ud800]", text)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.99])
def test_a_run_that_is_going_on_has_a_report(share: float, folder: Path) -> None:
    Case("msft").run(folder)
    log = folder / "run.jsonl"
    lines = log.read_bytes().splitlines(keepends=True)
    count = max(1, int(share * len(lines)))
    log.write_bytes(b"".join(lines[:count]) + lines[count][:20])
    held = Log(log)  # as a process that trains does; it cuts the torn line off
    page = page_of(write_report(folder))
    assert_self_contained(page)
    assert "still running" in page.text() or "only begun" in page.text()
    assert "stopped" not in page.text()
    held.close()
    page = page_of(write_report(folder))
    assert_self_contained(page)
    assert "mSFT was stopped" in page.text()
    assert "Run the same command again to go on where it stopped." in page.text()
    assert "still running" not in page.text()


@pytest.mark.parametrize("method", METHODS)
def test_a_log_with_at_most_the_base_models_scores(method: str, folder: Path) -> None:
    history = Case(method).run(folder / "whole")
    base = number(history.known(BASE)["a"].value, "accuracy")
    log = [to_line(event) for event in read_log(folder / "whole" / "run.jsonl")]
    for events in (1, 2, 3):
        (folder / "run.jsonl").write_bytes(b"".join(log[:events]))
        page = page_of(write_report(folder))
        assert_self_contained(page)
        assert "Nothing has been decided yet" in page.text("decisions")
        assert (f"{base} ±0.0 from {base}" in page.text("scores")) == (events == 3)


def test_a_folder_that_is_none_is_refused(folder: Path) -> None:
    with pytest.raises(UsageError, match=r"has no run\.jsonl; expected"):
        write_report(folder)
    (folder / "run.jsonl").write_bytes(b'{"event":')
    with pytest.raises(UsageError, match="no events yet"):
        write_report(folder)


def written(folder: Path, base: Scores, later: Scores) -> Path:
    """A run of one tick with these scores."""
    folder.mkdir(parents=True)
    settings = {"evals_per_epoch": 1, "compute_budget": 1, "train_ticks": 1, "mean": "macro"}
    peaks = {"peaks": {"smooth": 0, "min_delta": 0.0, "include_start": True}}
    first = CheckpointId("r0-t1")
    rows = dict.fromkeys(base, 8)
    events: list[Event] = [
        RunEvent("sft", 20, 1000, rows, settings | peaks, {}),
        RolloutEvent(0, BASE, rows, {}, 1, {"name": "shuffled"}, "fresh", True),
        ScoresEvent(BASE, "validation", Tokens(evaluation=5), base),
        PointEvent(first, 1, (8.0, 8), Tokens(10, 5), Disk(1, 2, 100), later),
        ScoresEvent(BASE, "test", Tokens(), base),
        ScoresEvent(first, "test", Tokens(), base),
        EndEvent("budget", first),
    ]
    (folder / "run.jsonl").write_bytes(b"".join(to_line(event) for event in events))
    return folder


def test_losses_and_own_metrics_are_not_taken_for_shares(folder: Path) -> None:
    losses = written(folder / "nll", {"a": nll(20.0, 10)}, {"a": nll(15.0, 10)})
    page = page_of(write_report(losses))
    assert "SFT reached 2.000 nats on test, ±0.000 nats against the base model" in page.text()
    assert "1.500 nats on validation (−0.500 nats)" in page.text()
    assert "lower is better" in page.text()
    assert "a 8 rows 1.500 −0.500 from 2.000 2.000 from 2.000" in page.text("scores")
    assert "95 %" not in page.text("curves")  # there are no rows to draw from
    mixed = written(
        folder / "mixed",
        {"a": nll(20.0, 10), "b": accuracy(5, 10), "c": value(1.0)},
        {"a": nll(15.0, 10), "b": accuracy(7, 10), "c": value(1.5)},
    )
    page = page_of(write_report(mixed))
    assert_self_contained(page)
    assert "+0.317 over the base model on validation" in page.text()
    assert "b 8 rows 70.0 39.7 to 89.2 +20.0 from 50.0 50.0 from 50.0" in page.text("scores")


def test_losses_get_a_band_from_their_rows(folder: Path) -> None:
    losses = written(folder / "nll", {"a": nll(100.0, 200)}, {"a": nll(60.0, 200)})
    rows = [0.2 * number for number in range(-10, 41)]
    rows = [row + (60.0 - sum(rows)) / len(rows) for row in rows]
    line = {"checkpoint": "r0-t1", "split": "validation", "dataset": "a", "rows": rows}
    (losses / "verdicts.jsonl").write_text(json.dumps(line) + "\n")
    page = page_of(write_report(losses))
    assert "the middle 95 % of a bootstrap over rows" in page.text("curves")
    found = re.search(r"a 8 rows 0\.300 (\d\.\d+) to (\d\.\d+) ", page.text("scores"))
    assert found
    mean = sum(rows) / len(rows)
    deviation = (sum((row - mean) ** 2 for row in rows) / len(rows)) ** 0.5
    half = 1.96 * deviation / len(rows) ** 0.5 * len(rows) / 200  # the normal approximation
    for bound, expected in zip(found.groups(), (0.3 - half, 0.3 + half), strict=True):
        assert abs(float(bound) - expected) < 0.1 * half
    line["rows"] = "not numbers"
    (losses / "verdicts.jsonl").write_text(json.dumps(line) + "\n")
    assert "bootstrap" not in page_of(write_report(losses)).text("curves")


def test_the_versions_that_trained_it_are_shown(folder: Path) -> None:
    Case("sft").run(folder)
    assert "versions that trained it are not known" in page_of(write_report(folder)).text(
        "settings"
    )
    path = folder / "environment.json"
    for torch in ("2.10", "2.10", "2.11"):
        record_environment(path, {"msft": "0.1", "torch": torch}, {"a": "math"})
    assert [item["torch"] for item in read_environments(path)] == ["2.10", "2.11"]
    text = page_of(write_report(folder)).text("settings")
    assert "msft 0.1 torch 2.10 → 2.11" in text
    assert "went on with another" in text
    for content in ("[", '{"a": 1}', "[1, null]"):
        path.write_text(content)
        assert read_environments(path) == []
    write_report(folder)


def test_versions_name_python_and_every_package() -> None:
    found = versions()
    assert found["msft"] == msft.__version__
    assert found.keys() >= {"python", "system", "torch", "transformers", "safetensors"}
    assert versions(["peft"]).keys() - found.keys() == {"peft"}


def test_the_sign_test_agrees_with_numbers_worked_out_by_hand() -> None:
    assert sign_test(0, 0) == 1
    assert sign_test(1, 0) == 1
    assert sign_test(3, 3) == 1
    assert sign_test(5, 0) == Fraction(1, 16)  # 2 · 1 / 32
    assert sign_test(1, 7) == Fraction(9, 128)  # 2 · (1 + 8) / 256
    assert sign_test(2, 8) == sign_test(8, 2) == Fraction(7, 64)  # 2 · (1 + 10 + 45) / 1024
    assert sign_test(0, 2000) == Fraction(2, 2**2000)


def test_rows_are_paired_row_by_row() -> None:
    pair = paired("11010", "10001")
    assert pair is not None
    assert (pair.better, pair.worse) == (2, 1)
    losses = paired([1.0, 2.0, 3.0], [2.0, 2.0, 4.0], lower_is_better=True)
    assert losses is not None
    assert (losses.better, losses.worse) == (2, 0)
    assert paired("11", "111") is None
    assert paired("11", [1.0, 2.0]) is None


def test_wilsons_interval() -> None:
    table = {(81, 263): (0.2553, 0.3662), (15, 148): (0.0624, 0.1605), (0, 20): (0.0, 0.1611)}
    for counts, interval in table.items():  # Newcombe (1998), table I, method 3
        low, high = wilson(*counts)
        assert (round(low, 4), round(high, 4)) == interval
    assert wilson(0, 10)[0] == 0.0
    assert wilson(10, 10)[1] == 1.0
    assert wilson(0, 0) == (0.0, 1.0)


def test_numbers_and_names_as_people_read_them() -> None:
    assert [si(n) for n in (0, 5, 1234567, 999_600, 1.5e21)] == [
        "0",
        "5",
        "1.23 M",
        "1.00 M",
        "1.50 Z",
    ]
    assert difference(Fraction(-1, 100), "accuracy") == "−1.0"
    assert difference(Fraction(-1, 10**6), "accuracy") == "±0.0"
    assert label("x" * 40, 10) == "x" * 9 + "…"


@pytest.fixture
def pair_of_runs(folder: Path) -> list[Path]:
    for method in ("sft", "msft"):
        Case(method, score_test="best").run(folder / method)
    return [folder / "sft", folder / "msft"]


def test_the_comparison_has_every_sub_dataset_on_both_splits(pair_of_runs: list[Path]) -> None:
    sft, msft = (History(read_log(run / "run.jsonl")) for run in pair_of_runs)
    tables = dataset_tables(comparison_of_each(compared_runs(pair_of_runs)))
    assert [table.key for table in tables] == ["datasets", "datasets-validation"]
    for table, split in zip(tables, ("test", "validation"), strict=True):
        assert [row.name for row in table.rows] == ["a", "b", "c", "mean"]
        assert table.head == ("sub-dataset", "SFT", "mSFT")
        assert sft.best is not None
        assert msft.best is not None
        means = [sft.mean(sft.best, split), msft.mean(msft.best, split)]
        first, second = table.rows[-1].cells
        assert (first.text, second.text) == tuple(number(mean, "accuracy") for mean in means)
        assert (first.more, second.more) == ("", difference(means[1] - means[0], "accuracy"))
        assert [first.rank, second.rank] == ([1, 2] if means[0] > means[1] else [2, 1])


def test_the_comparison_as_text(pair_of_runs: list[Path]) -> None:
    text = comparison_text(pair_of_runs)
    assert max(len(line) for line in text.splitlines()) <= 80
    assert text.index("test (reported)") < text.index("validation (selected on)")
    assert "\x1b" not in text
    assert re.search(r"^mean +\d+\.\d° +\d+\.\d\* +\+\d+\.\d$", text, re.MULTILINE)
    told = " ".join(text.replace("\u00a0", " ").split())
    assert "Validation chose every checkpoint. The reported scores are from test." in told
    assert " has the best mean on test, " in told[:100], "the headline comes first"
    assert told.count("Per cent of rows right") == 1, "how to read the cells is said once"
    assert "flatters" not in told, "a table has the first sentence of its note"
    assert "mSFT has the best mean on test" in told
    assert "2 runs." in told


def test_the_comparison_as_a_page(pair_of_runs: list[Path]) -> None:
    parent = pair_of_runs[0].parent
    write_report(pair_of_runs[1])
    page = page_of(write_comparison(pair_of_runs, parent))
    assert_self_contained(page)
    assert [a["href"] for t, a in page.tags if t == "a"] == ["./msft/report.html"]
    assert [a["id"] for t, a in page.tags if t == "section"] == [
        *("table-main", "figure-scores", "table-datasets", "table-bootstrap", "table-flops"),
        *("table-datasets-validation", "table-spread", "table-disk"),
        *(f"figure-{key}" for key in ("places", "gains", "parts", "losses")),
        "samples",
        "glossary",
    ]
    assert "mSFT +" in page.text("table-bootstrap")
    assert "mSFT" in page.text("figure-scores")
    assert "msft" not in re.sub(
        r"(?i)made by msft|msft compare", "", "".join(map(page.text, page.texts))
    )
    assert "<svg" in page.html
    other = write_comparison(pair_of_runs, parent / "deep" / "er.html")
    assert other == parent / "deep" / "er.html"
    assert 'href="./../msft/report.html"' in other.read_text()


def test_an_unfair_comparison_says_so(folder: Path) -> None:
    one = written(folder / "one", {"a": accuracy(5, 10)}, {"a": accuracy(6, 10)})
    two = written(folder / "two", {"b": accuracy(5, 10)}, {"b": accuracy(6, 10)})
    text = comparison_text([one, two])
    assert "different sub-datasets" in text
    assert not re.search("^mean", text, re.MULTILINE)
    write_comparison([one, two], folder)
    with pytest.raises(ValueError, match="expected at least one"):
        comparison_text([])


def test_a_report_is_the_same_whenever_it_is_built(folder: Path) -> None:
    Case("msft").run(folder)
    first = write_report(folder).read_bytes()
    assert write_report(folder).read_bytes() == first
    assert not [*folder.glob(".report*")]


def test_sixty_stages_of_sixty_sub_datasets_are_quick_small_and_readable(
    folder: Path,
) -> None:
    learners = {
        f"d{number:03d}": Learner(rows=8, limit=0.1 + 0.05 * (37 * number % 60), damage=0.3)
        for number in range(60)
    }
    history = simulate("msft", learners, train_batch_size=80, folder=folder)
    assert len(history.stages) == 60
    start = process_time()
    path = write_report(folder)
    assert process_time() - start < 9  # a third of it on an idle machine; tests share theirs
    assert path.stat().st_size < 3_000_000
    page = page_of(path)
    assert_self_contained(page)
    curves = page.html.split('<section id="curves">')[1].split("</section>")[0]
    assert curves.count("<svg") == 12
    assert "48 more, from larger to smaller gains" in page.text("curves")
    left = [name for stage in history.stages for name, _ in stage.excluded]
    assert all(f"{name} left" in page.texts["timeline"] for name in left[:8] + left[-8:])
    assert "44 left" in page.texts["timeline"]
    assert all(name in page.texts["decisions"] for name in left)
    assert "41 more, folded below" in page.text("scores")
    assert "Largest gains" in page.text("curves")


def test_the_report_is_light_to_import() -> None:
    heavy = "{'torch', 'matplotlib', 'jinja2', 'numpy'}"
    code = f"import sys, msft.report; sys.exit(bool({heavy} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
