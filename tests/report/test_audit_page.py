"""The page of an audit and its text on a terminal: numbers, order, words, and nothing cut."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from test_report import Page, assert_self_contained, page_of

from audits import (
    CONTROLS,
    HEBREW,
    HTML,
    LONG_ANSWER,
    LONG_PROMPT,
    TEN,
    audit_folder,
    estimate,
    found,
    suspects_of,
    write_lines,
)
from mortal import quick_folder, unseal
from msft.app.merge import merge
from msft.app.terminal.audit import audit_text
from msft.app.watch import watch
from msft.cli import main
from msft.errors import LogError, UsageError
from msft.report import write_report
from msft.report.audit_page import (
    Suspect,
    doubt_in_words,
    read_audit,
    result_in_words,
)
from msft.report.compare.runs import compared_runs, runs_in
from msft.run.folder import read_history
from msft.run.history import flops_of
from msft.run.schedules import found_schedule
from msft.search.judging import Estimate
from msft.text import columns_of, fitted, plain, si

WORST_FIRST = (
    *("shelves", "teams", "logs"),
    *("tiny-one", "reversals"),
    *("animals", "sums-with-a-rather-long-name", "colours", "weights", "prose"),
)
FINE = {name: TEN[name] for name in ("colours", "weights", "animals", "prose")}


@pytest.fixture
def folder() -> Iterator[Path]:
    with quick_folder() as path:
        yield path / "audit"


@pytest.fixture(scope="module")
def ten() -> Iterator[tuple[Path, Page]]:
    with quick_folder() as path:
        folder = audit_folder(path / "audit")
        yield folder, page_of(write_report(folder))


def rows_of(page: Page, section: str) -> list[list[str]]:
    """The cells of the first table of a section."""
    part = page.html.partition(f'<section id="{section}">')[2].partition("</section>")[0]
    body = part.partition("<tbody>")[2].partition("</tbody>")[0]
    return [
        [re.sub(r"<[^>]*>", "", cell).strip() for cell in re.findall(r"<td.*?</td>", row)]
        for row in body.split("<tr")[1:]
    ]


def replaced(folder: Path, dataset: str, **values: Any) -> None:
    """Other values of a sub-dataset in `audit.json`."""
    path = folder / "audit.json"
    content = json.loads(path.read_text())
    content["datasets"][dataset] |= values
    path.write_text(json.dumps(content))


def test_an_audit_is_read_as_the_contract_writes_it(ten: tuple[Path, Page]) -> None:
    audit = read_audit(ten[0])
    assert audit.rounds == 2
    assert [each.name for each in audit.datasets] == [*TEN]
    assert [each.name for each in audit.worst_first] == [*WORST_FIRST]
    by_name = {each.name: each for each in audit.datasets}
    shelves, logs = by_name["shelves"], by_name["logs"]
    assert (shelves.validation, shelves.train, shelves.suspects) == (0.883, 0.519, 74)
    assert shelves.wrong_share == Estimate(**estimate(0.412, 1.2 * 0.05))
    assert (shelves.unit, logs.unit, logs.wrong_share) == ("accuracy", "nll", None)
    assert logs.gap is not None
    assert logs.gap.low == pytest.approx(0.297)
    assert audit.listed == {"shelves": 74, "teams": 64, "logs": 31}
    assert [len(audit.suspects[name]) for name in ("shelves", "teams", "logs")] == [10] * 3
    first = audit.suspects["shelves"][0]
    assert (first.where, first.doubt) == ("data/shelves.train.jsonl, line 8", 7.4)


def test_the_page_is_one_file_without_a_script(ten: tuple[Path, Page]) -> None:
    assert_self_contained(ten[1])
    assert "<img src=x" not in ten[1].html
    assert str(ten[0].parent) not in ten[1].html


def test_the_page_begins_with_the_result_in_words(ten: tuple[Path, Page]) -> None:
    page = ten[1]
    heading = re.search(r"<h1>(.*?)</h1>", page.html)
    assert heading
    assert heading[1].replace("\u00a0", " ") == (
        "3 of 10 sub-datasets are spoiled: shelves, teams and logs. About 41 % of the answers of "
        "shelves are wrong."
    )
    assert "Cannot tell about reversals. The model does not know this task" in page.text()
    history = read_history(ten[0])
    assert f"cost {si(flops_of(history).total)} FLOPs" in page.text()
    assert "model smollm2-135m" in page.text()


def test_the_table_has_every_number_the_worst_first(ten: tuple[Path, Page]) -> None:
    rows = rows_of(ten[1], "verdicts")
    assert [row[0] for row in rows] == [*WORST_FIRST]
    by_name = {name: cells for name, *cells in rows}
    assert by_name["shelves"][:5] == [
        "88.3",
        "51.9",
        "+36.4 (+31.4 to +41.4)",
        "41.2 (35.2 to 47.2)",
        "spoiled",
    ]
    assert by_name["logs"][:5] == ["1.204", "1.611", "+0.407 (+0.297 to +0.517)", "–", "spoiled"]
    assert by_name["tiny-one"][2:5] == [
        "+15.0 (−18.0 to +48.0)",
        "27.0 (−12.6 to 66.6)",
        "cannot tell",
    ]
    assert by_name["weights"][3] == "−0.9 (−5.7 to 3.9)"
    assert all(row[-1] == TEN[row[0]]["why"].replace(" %", "\u00a0%") for row in rows)
    assert any("2.1\u00a0%" in row[-1] for row in rows), "a line does not begin with its sign"
    numbers = {name: cells for name, *cells in rows_of(ten[1], "numbers")}
    assert [*numbers] == [*TEN]
    assert numbers["teams"] == [
        *("0.702", "0.455", "0.247", "0.187", "0.307", "0.353", "0.281", "0.425"),
        *("180", "64"),
    ]


def test_the_figure_has_a_row_with_a_title_for_each_sub_dataset(ten: tuple[Path, Page]) -> None:
    titles = re.findall(r"<title>([^<]*: [^<]*)</title>", ten[1].html)
    wide = titles[: len(titles) // 2]
    assert titles == wide * 2, "once for a screen, once for a phone"
    names = [title.partition(":")[0] for title in wide]
    with_share = [name for name in WORST_FIRST if TEN[name]["wrong_share"]]
    assert names == [*with_share, "logs", "prose", "reversals"], "one axis for each unit"
    assert wide[0] == (
        "shelves: spoiled; 41.2 % of the answers are wrong (35.2 to 47.2); gap +36.4 (+31.4 to "
        "+41.4)"
    )
    drawn = ten[1].html.partition('<div class="wide">')[2].partition("</div>")[0]
    for text in ("41.2\u00a0%", "−0.9\u00a0%", "+0.407", "+0.3", "gap, nats a token"):
        assert f">{text}</text>" in drawn
    assert "var(--left)" in drawn
    assert "var(--green)" in drawn


def test_the_first_ten_suspects_of_each_stand_side_by_side(ten: tuple[Path, Page]) -> None:
    page = ten[1]
    cards = page.html.split('<article class="suspect">')[1:]
    assert len(cards) == 30
    text = page.text("suspects")
    assert "shelves: the first 10 of 74 suspects" in text
    assert "data/shelves.train.jsonl, line 8 the model prefers its own answer by more than" in text
    assert "line 22 the model prefers its own answer 40 to 1" in text
    assert "line 57 the model prefers its own answer 3.0 to 1" in text
    assert "given answer C the model's answer A" in text
    assert "a loss of 3.69 nats a token" in text
    assert text.count("given answer") == 31, "and once in the sentence above them"
    assert text.count("the model's answer") == 21, "of nll the model has no answer"


def test_foreign_text_is_whole_and_escaped(ten: tuple[Path, Page]) -> None:
    said = "".join(ten[1].texts["suspects"])
    for text in (HTML, HEBREW, LONG_PROMPT, LONG_ANSWER, "x" * 500, plain(CONTROLS)):
        assert text in said
    assert not re.search(r"[\x00-\x08\x0b-\x1f\u202a-\u202e]", ten[1].html)
    folded = re.findall(r'<summary dir="auto">([^<]*)</summary>', ten[1].html)
    assert len(folded) == 2 + 3 + 5
    assert all(len(each) <= 160 for each in folded)
    assert folded[0].startswith("Read the passage and answer the question. 1. The river")
    assert folded[0].endswith("the bridge was closed at noon.")


def test_the_page_says_what_to_do(ten: tuple[Path, Page], folder: Path) -> None:
    said = ten[1].text("next")
    for command in (
        "msft train clean.yaml --out ../clean",
        "msft train RECIPE --audit",
        "msft compare recipe.yaml --methods 'sft,sft[exclude_rows=suspects.jsonl]'",
    ):
        assert command in said
    for words in ("follow a rule", "Where validation rows have wrong answers too", "cannot tell"):
        assert words in ten[1].text("limits")
    flops = flops_of(read_history(ten[0]))
    measured = ten[1].text("measured")
    assert f"Training the judges took {si(flops.train)} FLOPs" in measured
    assert "Rounds: 2." in measured
    audit_folder(folder)
    fewer = str(folder.resolve() / "fewer.jsonl")
    clean = (folder / "clean.yaml").read_text().replace("suspects.jsonl", fewer)
    (folder / "clean.yaml").write_text(clean)
    page = page_of(write_report(folder))
    assert "sft[exclude_rows=fewer.jsonl]" in page.text("next")
    assert "Delete from fewer.jsonl the lines" in page.text("next")
    assert "from fewer.jsonl, then" in audit_text(read_audit(folder), folder)


@pytest.mark.parametrize(
    ("names", "sentence"),
    [
        (["colours", "weights"], "No sub-dataset is spoiled: all 2 are fine."),
        (["colours"], "colours is fine."),
        (["tiny-one"], "The audit cannot tell whether tiny-one is spoiled."),
        (["shelves"], "shelves is spoiled. About 41 % of the answers of shelves are wrong."),
        (
            ["reversals", "tiny-one"],
            "The audit cannot tell whether any of the 2 sub-datasets is spoiled.",
        ),
        (
            ["colours", "reversals", "weights"],
            "No sub-dataset was found spoiled: 2 of 3 are fine, and of 1 the audit cannot tell "
            "(reversals).",
        ),
        (
            ["logs", "prose"],
            "1 of 2 sub-datasets is spoiled: logs. Training rows of logs are worse than its "
            "validation rows by 0.407 nats a token.",
        ),
    ],
)
def test_every_result_has_its_sentence(folder: Path, names: list[str], sentence: str) -> None:
    audit_folder(folder, {name: TEN[name] for name in names})
    audit = read_audit(folder)
    assert result_in_words(audit).replace("\u00a0", " ") == sentence
    page = page_of(write_report(folder))
    assert_self_contained(page)
    assert sentence in page.text()
    assert sentence in audit_text(audit, folder).replace("\u00a0", " ")
    spoiled = any(TEN[name]["verdict"] == "spoiled" for name in names)
    assert ("suspects" in page.texts) is spoiled
    assert ("clean.yaml" in page.text("next")) is spoiled
    assert "glance" in page.texts


def test_an_own_metric_has_its_own_unit(folder: Path) -> None:
    values = {"speech": found("spoiled", 3.5, 2.25, 0.5, None, "The gap is sure.", suspects=2)}
    audit_folder(folder, values | FINE, {"speech": "my.metrics:score", "prose": "nll"})
    write_lines(
        folder / "suspects.jsonl",
        [{"dataset": "speech", "sha256": "0" * 64, "doubt": 2.5}, {"dataset": "speech"}],
    )
    page = page_of(write_report(folder))
    assert rows_of(page, "verdicts")[0][1:4] == ["3.500", "2.250", "+1.250 (+0.750 to +1.750)"]
    assert "worse than its validation rows by 1.250." in page.text()
    assert "gap of the own metric" in page.text("glance")
    assert "speech: all 2 suspects" in page.text("suspects")
    assert "a loss of 2.50 nats a token" in page.text("suspects")


def test_a_split_sub_dataset_has_the_metric_of_its_recipe(folder: Path) -> None:
    parts = {"prose.old": TEN["prose"], "prose.new": TEN["logs"]}
    audit_folder(folder, {"prose": TEN["prose"], "prose.old": TEN["colours"]}, {"prose": "nll"})
    path = folder / "audit.json"
    path.write_text(json.dumps({"rounds": 1, "datasets": {**parts, "prosecco": TEN["colours"]}}))
    assert [each.unit for each in read_audit(folder).datasets] == ["accuracy", "nll", "accuracy"]


def test_many_sub_datasets_are_shown_and_few_are_named(folder: Path) -> None:
    spoiled = {f"bad{n:02d}": found("spoiled", 0.9, 0.5, 0.1, 0.9 - n / 100) for n in range(12)}
    unclear = {f"odd{n}": found("cannot_tell", 0.1, 0.1, 0.1, None, f"Why {n}.") for n in range(5)}
    audit_folder(folder, spoiled | unclear)
    names = [*spoiled]
    write_lines(folder / "suspects.jsonl", [{"dataset": name, "given": "zebra"} for name in names])
    audit, page = read_audit(folder), page_of(write_report(folder))
    sentence = "12 of 17 sub-datasets are spoiled: bad00, bad01, bad02, bad03, bad04 and 7 more. "
    assert result_in_words(audit).startswith(sentence)
    assert "Why 2. Cannot tell about 2 more: report.html says why." in page.text()
    assert "Why 3" not in page.text()
    assert [row[0] for row in rows_of(page, "verdicts")] == [*names, *unclear]
    assert page.text("suspects").count("given answer zebra") == 12
    assert page.html.count("<details><summary><h3>") == 12 - 3
    assert [line[:5] for line in audit_text(audit, folder).split("\n")[1:13]] == names


def test_doubt_is_said_in_words() -> None:
    def said(doubt: float | None, unit: Any = "accuracy") -> str:
        return doubt_in_words(Suspect("a", 0, "", "", "", "", doubt), unit)

    assert said(3.689) == "the model prefers its own answer 40 to 1"
    assert said(0.7) == "the model prefers its own answer 2.0 to 1"
    assert said(800.0) == "the model prefers its own answer by more than 1,000 to 1"
    assert said(0.0) == said(-2.0) == "the model prefers no other answer"
    assert said(3.689, "nll") == said(3.689, "value") == "a loss of 3.69 nats a token"
    assert said(None) == ""


def test_lines_that_a_person_deleted_are_missed_and_said(folder: Path) -> None:
    audit_folder(folder, {"shelves": TEN["shelves"], "colours": TEN["colours"]})
    lines = suspects_of({"shelves": TEN["shelves"]})
    write_lines(folder / "suspects.jsonl", lines[3:9])
    text = page_of(write_report(folder)).text("suspects")
    assert "shelves: all 6 suspects; 68 of those that the audit named are no longer" in text
    assert "line 22 " not in text
    assert "line 29 " in text
    (folder / "suspects.jsonl").unlink()
    assert "no suspects.jsonl" in page_of(write_report(folder)).text("suspects")


def test_an_audit_that_has_not_ended_has_a_short_page(folder: Path) -> None:
    audit_folder(folder, ended=False)
    page = page_of(write_report(folder))
    assert_self_contained(page)
    assert "The audit has not ended, and no process works on it." in page.text()
    assert "Begun so far: 1 judge." in page.text()
    assert page.texts.keys() == {"", "glossary"}
    with pytest.raises(UsageError, match=r"has no audit\.json; expected the folder of an audit"):
        read_audit(folder)


def test_a_damaged_log_costs_the_facts_alone(folder: Path) -> None:
    audit_folder(folder)
    (folder / "run.jsonl").write_text('{"event": "run", "method": "audit"}\n')
    page = page_of(write_report(folder))
    assert "The log cannot be read" in page.text()
    assert "3 of 10 sub-datasets are spoiled" in page.text()
    (folder / "run.jsonl").unlink()
    page = page_of(write_report(folder))
    assert "The log cannot be read" not in page.text()
    assert "FLOPs" not in page.html


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ("{", "Invalid JSON: EOF"),
        ("[]", "Input should be an object"),
        ('{"rounds": true, "datasets": {}}', "rounds: Input should be a valid integer"),
        ('{"rounds": 1, "datasets": {}}', "datasets: "),
        ('{"rounds": 1, "datasets": {"a": 3}}', "datasets: a: Input should be an object"),
        (
            '{"rounds": 1, "datasets": {"a": {"verdict": "bad"}}}',
            "datasets: a: verdict: Input should be 'spoiled', ",
        ),
    ],
)
def test_a_damaged_result_is_refused_in_words(folder: Path, damage: str, message: str) -> None:
    audit_folder(folder)
    (folder / "audit.json").write_text(damage)
    with pytest.raises(LogError) as error:
        write_report(folder)
    assert f"audit.json: {message}" in str(error.value)
    assert "; expected the file as `msft audit` writes it" in str(error.value)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"validation": "high"}, "validation: Input should be a valid number"),
        ({"validation": float("nan")}, "validation: "),
        ({"gap": {"value": 0.1, "low": 0.0}}, "gap: high: Field required"),
        ({"suspects": -1}, "suspects: Input should be greater than or equal to 0"),
    ],
)
def test_a_damaged_number_is_refused_in_words(
    folder: Path, values: dict[str, Any], message: str
) -> None:
    audit_folder(folder)
    replaced(folder, "teams", **values)
    with pytest.raises(LogError) as error:
        read_audit(folder)
    assert f"datasets: teams: {message}" in str(error.value)


def test_a_damaged_suspect_is_refused_with_its_line(folder: Path) -> None:
    audit_folder(folder)
    path = folder / "suspects.jsonl"
    path.write_text(f'{{"dataset": "shelves"}}\n\n{path.read_text()}oops\n')
    with pytest.raises(LogError, match=r"suspects\.jsonl, line 172: Invalid JSON"):
        read_audit(folder)
    path.write_text('{"row": 3}\n')
    with pytest.raises(LogError, match=r"line 1: dataset: Field required"):
        read_audit(folder)


def test_a_link_in_place_of_the_result_is_not_followed(folder: Path) -> None:
    audit_folder(folder)
    (folder / "audit.json").rename(folder / "elsewhere")
    (folder / "audit.json").symlink_to(folder / "elsewhere")
    with pytest.raises(OSError, match="is a symbolic link"):
        write_report(folder)


def test_the_terminal_says_the_same_in_few_lines(ten: tuple[Path, Page]) -> None:
    folder = ten[0]
    text = audit_text(read_audit(folder), folder, 80)
    lines = text.split("\n")
    assert [line.split()[0] for line in lines[1:4]] == ["shelves", "teams", "logs"]
    assert " ".join(lines[1].split()) == "shelves 88.3 51.9 +36.4 41 (35 to 47) spoiled"
    assert " ".join(lines[3].split()) == "logs 1.204 1.611 +0.407 – spoiled"
    assert lines[11] == "of nll, lower is better"
    assert f"  msft train {folder}/clean.yaml --out {folder.parent}/clean" == lines[-1]
    assert "read the 169 suspects in report.html or suspects.jsonl" in lines[-2]
    assert max(map(columns_of, lines[:11])) <= 80
    assert len(fitted(text, 80).split("\n")) <= 11 + 1 + 2 + 4 + 2 + 2
    narrow = audit_text(read_audit(folder), folder, 50).split("\n")
    assert max(map(columns_of, narrow[:20])) <= 50


def test_report_writes_the_page_of_an_audit(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    audit_folder(folder)
    assert main(["report", str(folder), "--figures", "svg"]) == 0
    said = capsys.readouterr().out
    assert "shelves" in said
    assert said.endswith(f"{folder}/report.html\n{folder}/figures\n")
    assert max(map(columns_of, said.split("\n")[:15])) <= 80
    assert "41.2" in (folder / "figures" / "glance.svg").read_text()
    assert "3 of 10" in page_of(folder / "report.html").text()
    running = audit_folder(folder.parent / "running", ended=False)
    assert main(["report", str(running)]) == 0
    assert capsys.readouterr().out == f"{running}/report.html\n"


def test_an_audit_is_not_compared_merged_or_replayed(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    audit_folder(folder)
    run = audit_folder(folder.parent / "sft-s20", FINE)
    log = run / "run.jsonl"
    log.write_bytes(unseal(log).replace(b'"method":"audit"', b'"method":"sft"', 1))
    (run / "audit.json").unlink()
    assert main(["report", str(run), str(folder)]) == 2
    assert f"{folder} is the folder of an audit, which is not compared" in capsys.readouterr().err
    for arguments in (
        ["analyze", "headroom", str(folder)],
        ["analyze", "grid", "loss", str(folder)],
        ["analyze", "compute", str(folder)],
        ["merge", str(folder), "--out", str(folder.parent / "merged")],
    ):
        assert main(arguments) == 2
        assert f"{folder} is the folder of an audit, whose judges" in capsys.readouterr().err
    with pytest.raises(UsageError, match="the folder of an audit"):
        merge(folder, folder.parent / "merged")
    with pytest.raises(UsageError, match="the folder of an audit"):
        compared_runs([run, folder])
    with pytest.raises(UsageError, match="the folder of an audit"):
        found_schedule(folder)
    both = runs_in([run, folder])
    assert [each.label for each in both.runs] == ["sft-s20"]
    assert "the folder of an audit" in both.unreadable["audit"]
    out = folder.parent / "grid"
    assert main(["analyze", "grid", "loss", str(folder.parent), "--out", str(out)]) == 2
    assert "none of the 1 run is" in capsys.readouterr().err, "an audit among runs is left out"


def test_watching_an_audit_waits_for_its_result(folder: Path) -> None:
    audit_folder(folder)
    result = (folder / "audit.json").read_bytes()
    (folder / "audit.json").unlink()
    said: list[str] = []
    pages: list[str] = []

    def sleep(seconds: float) -> None:
        assert not pages, said
        pages.append((folder / "report.html").read_text())
        (folder / "audit.json").write_bytes(result)

    watch([folder], 7, said.append, sleep)
    assert 'http-equiv="refresh" content="7"' in pages[0]
    assert "has not ended" in pages[0]
    assert "3 of 10" in (folder / "report.html").read_text()
