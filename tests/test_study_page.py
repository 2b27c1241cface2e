"""The study's pages: their tables are those that the logs of its runs give."""

import gzip
import json
import re
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

BENCH = Path(__file__).parents[1] / "bench"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    return _bench(monkeypatch, "study_page")


@pytest.fixture
def logs(monkeypatch: pytest.MonkeyPatch) -> Any:
    return _bench(monkeypatch, "study_logs")


@pytest.fixture
def audits(monkeypatch: pytest.MonkeyPatch) -> Any:
    return _bench(monkeypatch, "study_audits")


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch) -> Any:
    return _bench(monkeypatch, "study_rows")


@pytest.fixture
def selection(monkeypatch: pytest.MonkeyPatch) -> Any:
    return _bench(monkeypatch, "study_selection")


@pytest.fixture
def bigbench(monkeypatch: pytest.MonkeyPatch) -> Any:
    return _bench(monkeypatch, "bigbench_rows")


@pytest.fixture
def costs(monkeypatch: pytest.MonkeyPatch) -> Any:
    return _bench(monkeypatch, "study_costs")


@pytest.fixture
def methods(monkeypatch: pytest.MonkeyPatch) -> Any:
    return _bench(monkeypatch, "study_methods")


def _bench(monkeypatch: pytest.MonkeyPatch, name: str) -> Any:
    monkeypatch.syspath_prepend(BENCH)
    return import_module(name)


def test_every_number_of_the_pages_is_that_of_the_logs(script: Any) -> None:
    texts = [page.read_text() for page in script.PAGES]
    names = [found[2] for text in texts for found in script.MARK.finditer(text)]
    assert sorted(names) == sorted(script.TABLES)
    studies = script.study_of(script.RUNS, script.SEEDS, None)
    assert [script.rebuilt(text, studies, script.RUNS) for text in texts] == texts


def test_every_figure_shows_what_the_logs_give(script: Any, tmp_path: Path) -> None:
    studies = script.study_of(script.RUNS, script.SEEDS, None)
    page = script.PAGES[0].read_text()
    first, second = script.figures_of(studies, script.RUNS)
    for drawn in (first, second):
        assert f"](images/{drawn.key}.svg)" in page
        assert script.told_in(script.IMAGES / f"{drawn.key}.svg") == drawn.told
    assert "clean; mSFT, C = 3: -0.55, seeds -0.92 to -0.19, rows" in first.told
    assert "boolq: peak at 3 epochs; 60.0" in second.told
    path = script.write(first, tmp_path)
    assert script.told_in(path) == first.told
    drawn_texts = [">mSFT, C = 3<", ">−0.55<", ">◂ −4.81<", ">Clean labels<"]
    assert all(text in path.read_text() for text in drawn_texts)


def test_the_paper_s_reference_has_a_column_of_its_own(script: Any) -> None:
    def entry(test: float) -> Any:
        line = {"epochs_trained": 5.0, "candidates": 4}
        rows = {"a": [True] * round(10 * test) + [False] * round(10 - 10 * test)}
        return SimpleNamespace(mean=test, validation=0.5, rows=rows, test={"a": test}, line=line)

    study = {
        "sft-cosine": {1: entry(0.8), 2: entry(0.6)},
        "sft": {1: entry(0.5), 2: entry(0.5)},
        "msft": {1: entry(0.9)},
        "ies": {3: entry(0.9)},
    }
    paper = {"sft": 0.0, "msft": 1.84, "ies": -0.3}
    methods = {label: (label.upper(), paper.get(label)) for label in study}
    head, _, *lines = script.main_table(study, methods)
    assert head.endswith("| over test rows | over constant SFT | paper, over SFT |")
    cells = [[cell.strip() for cell in line.split("|")[-3:-1]] for line in lines[:-1]]
    assert cells == [["+20.00", ""], ["0", "0"], ["+40.00", "+1.8"], ["", "-0.3"]]


def test_the_paper_s_protocol_has_a_gain_on_the_rows_that_chose_and_one_on_rows_apart(
    script: Any, methods: Any
) -> None:
    study = script.study_of(script.RUNS, {70}, None, "qwenpaper")["qwenpaper"]
    head, _, *lines = script.protocol_table(study, script.RUNS, methods.PAPER_QWEN)
    assert "| over SFT, rows that chose | over SFT, rows apart |" in head
    sft, msft = ([cell.strip() for cell in line.split("|")][3:-1] for line in lines[:2])
    assert sft[-3:] == ["0", "0", "0"]
    for split, gain in ((0, msft[-3]), (1, msft[-2])):  # of the scores, and of the verdicts
        assert float(gain.split()[0]) == pytest.approx(float(msft[split]) - float(sft[split]))
    assert msft[-1] == "+0.9"


def test_a_shift_is_from_peak_to_peak_over_as_many_ticks(costs: Any) -> None:
    rule = SimpleNamespace(peak=lambda curve: curve.index(max(curve)))
    curves = {
        (0, "a"): [0, 9, 1, 2, 3],
        (1, "a"): [9, 1, 2, 10, 11],  # what is after the shorter branch is not seen
        (0, "b"): [0, 1, 2, 3, 4],
        (1, "b"): [1, 5, 2, 3, 9],
    }
    stages = [
        SimpleNamespace(ticks=4, asked=SimpleNamespace(active=names)) for names in ("abc", "ab")
    ]
    history = SimpleNamespace(
        exclusions=[SimpleNamespace(name="c", tick=2)],
        stages=stages,
        rule=rule,
        evals_per_epoch=2,
        curve=lambda stage, name: curves[stage, name],
    )
    first, moved = costs.shifts_in(history)
    assert first.name == "c"
    assert moved == {"a": -1.0, "b": -0.5}


def test_the_main_tables_have_five_seeds_where_there_are_five(script: Any) -> None:
    study = script.study_of(script.RUNS, script.SEEDS, None)["noisy"]
    told = [[cell.strip() for cell in line.split("|")] for line in script.main_table(study)]
    rows = {cells[1]: cells for cells in told if len(cells) > 1}
    assert rows["mSFT, C = 1"][2] == "3"
    assert rows["mSFT, sure exclusion, `ema_decay: 0.99`"][2:5] == ["5", "65.63", "66.26"]
    assert rows["mSFT, sure exclusion, `ema_decay: 0.99`"][8] == "-0.15 (-0.69…+0.40)"


IN_WORDS = ("peaks", "parts")
"""Tables of epochs and of parts of a difference: what they are of stands below them."""
RUNS = r"seeds [\d, and]+: [\d.]+ on validation, [\d.]+ on test \(.+\), chosen from \d+ candidates"


def test_every_table_has_both_splits_seeds_and_candidates(script: Any) -> None:
    text = "".join(page.read_text() for page in script.PAGES)
    for found in script.MARK.finditer(text):
        head = found[0].splitlines()[2]
        if found[2] in IN_WORDS:
            assert re.search(RUNS, found[0])
        elif found[2].endswith("_found"):  # shares of wrong rows
            assert head == script.NOT_RUN[0] or head.startswith("| sub-dataset | wrong, % |")
        elif found[2] == "tasks":  # both splits are in each cell
            assert head.startswith("| method | seeds | candidates |")
        elif head != script.NOT_RUN[0]:
            assert "| seed" in head
            for column in ("validation", "test", "test − validation", "candidates"):
                assert f"| {column} |" in head


def test_the_bootstrap_of_a_selection_on_verdicts_with_a_known_answer(selection: Any) -> None:
    """Each of two candidates knows one of two rows: who is chosen knows the row that was drawn
    twice, and does not know the row left out. Draws without such a row say nothing."""
    apart = selection.selection_of({"a": np.array([[1.0, 0.0], [0.0, 1.0]])})
    assert (apart.candidates, apart.chosen, apart.optimism, apart.test) == (2, 2, 1.0, None)
    assert 0.7 < apart.most < 0.8  # the first wins ties: three of four draws
    better = np.array([[0.0] * 30, [1.0] * 30])
    test = {"a": np.array([[1.0, 1.0], [1.0, 0.0]])}
    sure = selection.selection_of({"a": better, "b": better}, test)
    assert (sure.chosen, sure.most, sure.optimism, sure.test) == (1, 1.0, 0.0, (0.5, 0.0))
    same = selection.selection_of({"a": np.tile(np.arange(40) % 2.0, (9, 1))})
    assert (same.chosen, same.most) == (1, 1.0)  # the earliest
    assert abs(same.optimism) < 0.02  # nothing to choose, so only the noise of the draws
    # Fifty coins: the best of 400 throws each is 2.249 standard errors above one half. Rows that
    # were not drawn miss what the drawn ones have, so the bootstrap says √2 times as much.
    coins = [np.random.RandomState(n).randint(0, 2, (50, 400)).astype(float) for n in range(6)]
    found = [selection.selection_of({"a": each}).optimism for each in coins]
    assert np.mean(found) == pytest.approx(2**0.5 * 2.249 * 0.5 / 400**0.5, rel=0.05)


def test_candidates_are_those_that_the_run_counted(selection: Any, logs: Any) -> None:
    for line in logs.lines_of(logs.RUNS):
        if line["seed"] == 70 and line["variant"] not in ("soup", "continual"):
            history = logs.history_of(logs.RUNS / "logs" / line["name"])
            assert len(selection.candidates_of(history)) == line["candidates"], line["name"]


def test_the_runs_have_lines_and_logs_within_ten_megabytes(logs: Any) -> None:
    names = [
        line["name"]
        for file in (logs.LINES, logs.AUDITS)
        for line in logs.lines_of(logs.RUNS, file)
    ]
    assert len(set(names)) == len(names)
    assert {folder.name for folder in (logs.RUNS / "logs").iterdir()} == set(names)
    files = [file for file in logs.RUNS.rglob("*") if file.is_file()]
    assert sum(file.stat().st_size for file in files) < 10_000_000
    assert not [
        file for file in files if file.suffix == ".gz" and file.read_bytes()[4:8] != b"\0" * 4
    ]


def test_runs_of_another_folder_are_taken_once(logs: Any, tmp_path: Path) -> None:
    source, into = tmp_path / "made", tmp_path / "runs"
    plain = source / "logs" / "clean-sft-1"
    plain.mkdir(parents=True)
    (source / "study1.jsonl").write_text('{"name": "clean-sft-1"}\n')
    (plain / "run.jsonl").write_text("{}\n")
    (plain / "verdicts.jsonl").write_text(
        '{"checkpoint":"base","split":"test","dataset":"a","rows":"01"}\n'
    )
    (plain / "summary.json").write_text("{}")
    (plain / "recipe.yaml").write_text("seed: 1\ndata_dir: /here\ntrain: /here/a.jsonl\n")
    assert logs.taken(source, into) == ["clean-sft-1"]
    kept = into / "logs" / "clean-sft-1"
    assert logs.verdicts_of(kept) == {("base", "test", "a"): "01"}
    assert (kept / "run.jsonl.gz").read_bytes()[4:8] == bytes(4)  # no time in it
    assert (kept / "recipe.yaml").read_text() == "seed: 1\ntrain: a.jsonl\n"
    before = {file: file.read_bytes() for file in into.rglob("*") if file.is_file()}
    assert logs.taken(source, into) == []
    logs.keep_logs(kept, kept)  # what is packed stays as it is
    assert {file: file.read_bytes() for file in into.rglob("*") if file.is_file()} == before
    (source / "study2.jsonl").write_text('{"name": "clean-sft-2"}\n')
    with pytest.raises(SystemExit, match="clean-sft-2 has a line and no logs"):
        logs.taken(source, into)


def test_rows_of_audits_are_taken_and_stand_in_tables(
    logs: Any, audits: Any, tmp_path: Path
) -> None:
    """Two seeds, two of three test rows of `a` right; without suspects all, then two."""
    source, into = tmp_path / "made", tmp_path / "runs"
    source.mkdir()
    share = {"value": 0.41, "low": 0.3, "high": 0.5}
    for seed, marks in (
        (1, {"all": "110", "round-2": "111"}),
        (2, {"all": "110", "round-2": "011"}),
    ):
        line = {
            "name": f"noisy-{seed}",
            "mixture": "noisy",
            "seed": seed,
            "scores": {n: {} for n in marks},
        }
        spoiled = {"verdict": "spoiled", "wrong_share": share, "truth": 0.4, "rows": 10}
        line["found"] = {"a": {**spoiled, "suspects": [4, 5], "hits": [3, 2 + seed]}}
        with_line(source / "audit-gain.jsonl", line)
        of_audit = source / "logs" / f"noisy-{seed}" / "audit"
        of_audit.mkdir(parents=True)
        (of_audit / "audit.json").write_text("{}")
        (of_audit / "recipe.yaml").write_text("seed: 1\n")
        for use, rows in marks.items():
            place = source / "logs" / f"noisy-{seed}" / use
            place.mkdir()
            found = {"mean": rows.count("1") / 3, "datasets": {"a": rows.count("1") / 3}}
            best = {"checkpoint": "r0-t2", "candidates": 5, "validation": found, "test": found}
            (place / "summary.json").write_text(json.dumps({"best": best}))
            verdicts = [
                {"checkpoint": c, "split": s, "dataset": "a", "rows": r}
                for c, s, r in (
                    ("base", "test", "000"),
                    ("r0-t2", "validation", "1"),
                    ("r0-t2", "test", rows),
                )
            ]
            text = "".join(json.dumps(each, separators=(",", ":")) + "\n" for each in verdicts)
            (place / "verdicts.jsonl.gz").write_bytes(gzip.compress(text.encode()))
    assert logs.taken(source, into) == ["noisy-1", "noisy-2"]
    assert logs.taken(source, into) == []
    assert logs.verdicts_of(into / "logs/noisy-1/all") == {("r0-t2", "test", "a"): "110"}
    table = [[c.strip() for c in x.split("|")[1:-1]] for x in audits.gain_table(into, "noisy")]
    assert table[2][:6] == ["SFT on all rows", "2", "66.67", "66.67", "+0.00", "5"]
    assert table[3][:6] == ["without the suspects of round 2", "2", "83.33", "83.33", "+0.00", "5"]
    assert table[3][6].startswith("+16.67 (-195.1")  # 12.71 standard errors, of 16.67 points each
    assert table[3][7].startswith("+16.67 (")
    assert table[3][8:] == ["1 of 2", "+16.67"]
    table = [[c.strip() for c in x.split("|")[1:-1]] for x in audits.found_table(into, "noisy")]
    assert table[2] == ["a", "40", "41 (41 to 41)", "2", "0", "0", "75", "70"]
    assert (
        audits.gain_table(into, "clean")[0]
        == audits.found_table(into, "clean")[0]
        == "These runs are not there yet."
    )


def with_line(file: Path, line: dict[str, Any]) -> None:
    with file.open("a") as out:
        out.write(json.dumps(line) + "\n")


def test_every_listed_row_has_a_recipe(rows: Any, tmp_path: Path) -> None:
    """But `bigbench`, whose recipe is made from a package."""
    found = {name: rows.rows_of(name) for name in rows.LISTS if name != "bigbench"}
    recipes = {
        row.name: row.recipe(tmp_path, "0.99", [])
        for several in found.values()
        for row in (several[0], several[-1])
    }
    assert recipes["clean-msft-c5-72"].compute_budget == 5
    assert len(recipes["five-sft-cosine-lr1e-4-e3-70"].datasets) == 5
    assert len(recipes["fifteen-sft-cosine-lr1e-4-e3-70"].datasets) == 15
    assert recipes["medmcqa-sft-cosine-lr1e-4-e3-70"].prompt_style == "text"
    assert recipes["qwen-sft-cosine-e3-70"].report_split == "test"
    assert recipes["qwenlora-sft-cosine-e3-r600-70"].lora_r == 16
    few = rows.Row.of("qwen-msft-sure-ema-r600-m9-70").recipe(tmp_path, "0.99", ["max_length=256"])
    assert {spec.train_rows for spec in few.datasets} == {600}
    assert (few.method_options["max_epochs"], few.ema_decay, few.max_length) == (9, 0.99, 256)


def test_rows_of_big_bench_have_one_right_choice_and_no_question_twice(bigbench: Any) -> None:
    def example(asked: str, **scores: float) -> dict[str, Any]:
        return {"input": asked, "target_scores": scores}

    task = {
        "task_prefix": "Think. ",
        "examples": [
            example("One?", yes=1, no=0),
            example("one? ", yes=0, no=1),
            example("Two?", yes=1, no=1),
            example("Three?", yes=0.5, no=0.5),
            {"input": "Four?", "target": "free"},
            example("Five?" * 300, yes=1, no=0),
            example("Six?", **{str(n): float(n == 3) for n in range(13)}),
            example("Seven?", **{"": 0, "a": 1}),
            example("Eight?", a=0, b=1, c=0),
        ],
    }
    first, last = bigbench.rows_of(task)
    assert first["prompt"].startswith("Think. \nQ: One?\n  choice: ")
    assert first["prompt"].endswith("\nA:")
    assert first["choices"][first["answer"]] == " yes"
    assert sorted(last["choices"]) == [" a", " b", " c"]
    assert last["choices"][last["answer"]] == " b"
    (bare,) = bigbench.rows_of(
        {"append_choices_to_input": False, "examples": [example("One?", yes=1, no=0)]}
    )
    assert bare["prompt"] == "Q: One?\nA:"
    assert len(set(bigbench.TASKS)) == 39


def test_a_mixture_names_its_methods_by_the_settings_of_its_rows(methods: Any) -> None:
    def runs(epochs: float, validation: float = 0.5) -> dict[int, Any]:
        line = {"num_train_epochs": epochs}
        return {70: SimpleNamespace(line=line, validation=validation)}

    study = {
        "msft-c2-m9-r600": runs(5),
        "soup-all-e5": runs(5),
        "soup-best-e5": runs(5),
        "sft-ema-d0.98": runs(5),
        "sft-cosine-e3": runs(3),
        "sft": runs(10),
    }
    assert methods.names_in(study, {"msft": 1.8, "sft": 0.0}) == {
        "sft-cosine-e3": ("SFT, cosine over 3 epochs", None),
        "sft": ("SFT, constant rate, 10 epochs", 0.0),
        "sft-ema-d0.98": ("SFT with `ema_decay: 0.98`", None),
        "soup-all-e5": ("soup, all ticks (control)", None),
        "msft-c2-m9-r600": ("mSFT, C = 2, `max_epochs: 9`, 600 rows a task", 1.8),
    }
    alike = {"msft-c2-r600": runs(5), "sft-r600": runs(3)}
    assert [name for name, _ in methods.names_in(alike).values()] == [
        "SFT, constant rate, 3 epochs", "mSFT, C = 2",
    ]  # fmt: skip
    schedules = {f"sft-cosine-e{n}": runs(n, score) for n, score in ((10, 0.5), (3, 0.6), (5, 0.4))}
    assert list(methods.names_in(schedules)) == [
        "sft-cosine-e3", "sft-cosine-e10", "sft-cosine-e5",
    ], "the best on validation is the reference"  # fmt: skip
