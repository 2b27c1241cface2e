"""bench/study.py and bench/study_tables.py: names of runs, one engine for all, tables by hand."""

import gzip
import json
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from toys import recipe_of, write_data

import msft
from msft.engine import build

pytestmark = pytest.mark.usefixtures("no_reports")

BENCH = Path(__file__).parents[2] / "bench"


@pytest.fixture
def study(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(BENCH)
    return import_module("study")


@pytest.fixture
def tables(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(BENCH)
    return import_module("study_tables")


def test_a_name_says_all_that_a_run_is(study: Any) -> None:
    (row,) = study.rows_of("noisy-msft-sure-ema-lr1e-4-e5-d0.98-70")
    assert (row.mixture, row.variant, row.seed) == ("noisy", "msft-sure-ema", 70)
    assert row.label == "msft-sure-ema-lr1e-4-e5-d0.98"
    assert row.overrides("0.99") == [
        "seed=70",
        "ema_decay=null",
        "method=msft",
        "method_options.exclude={confidence: 0.95}",
        "ema_decay=0.98",
        "learning_rate=1e-4",
        "num_train_epochs=5",
    ]
    (plain,) = study.rows_of("clean-sft-ema-20")
    assert plain.overrides("0.99")[-1] == "ema_decay=0.99"
    assert [r.name for r in study.rows_of("clean-soup-9..11,noisy-sft-7")] == [
        "clean-soup-9", "clean-soup-10", "clean-soup-11", "noisy-sft-7",
    ]  # fmt: skip
    with pytest.raises(SystemExit, match="clean-sfd-20: expected MIXTURE-VARIANT-SEED"):
        study.rows_of("clean-sfd-20")


def test_the_lists_are_those_of_the_study(study: Any) -> None:
    lists = import_module("study_rows").LISTS
    for name, rows in lists.items():
        assert len(set(rows)) == len(rows)
        assert [row.name for row in study.rows_of(name)] == [*rows]
    published = {row.seed for name in lists if name != "tune" for row in study.rows_of(name)}
    assert published == set(range(70, 80)), "tuning seeds are not seen again"
    assert {row.seed for row in study.rows_of("tune")} == {20, 30, 40}


def test_runs_that_share_an_engine_leave_the_bytes_of_runs_alone(
    study: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_data(tmp_path)
    kinds: list[dict[str, Any]] = [{}, {"learning_rate": 1e-3, "lr_scheduler_type": "linear"}]
    kinds += [{"seed": 2, "num_train_epochs": 1, "lr_scheduler_type": "cosine"}]
    for number, keys in enumerate(kinds):
        msft.train(recipe_of(tmp_path, method="sft", **keys), tmp_path / f"alone{number}")
    made: list[Any] = []

    def make(*given: Any, real: Any = build.engine_of) -> Any:
        made.append(real(*given))
        return made[-1]

    monkeypatch.setattr(build, "engine_of", study.SharedEngines(make))
    for number, keys in enumerate(kinds):
        msft.train(recipe_of(tmp_path, method="sft", **keys), tmp_path / f"shared{number}")
        logs = [(tmp_path / f"{how}{number}" / "run.jsonl").read_bytes() for how in LOGS]
        assert logs[0] == logs[1]
    assert len(made) == 1


LOGS = ("alone", "shared")


def test_a_run_in_memory_does_what_a_run_with_a_disk_does(
    study: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_data(tmp_path)
    recipe = recipe_of(tmp_path, method="msft")
    disk, memory = tmp_path / "disk", tmp_path / "memory"
    msft.train(recipe, disk)
    for place, name in (
        (study.stores, "store_of"),
        (study.best_folder, "BestFolder"),
        (study.checkpoint_sizes, "held_in"),
    ):
        monkeypatch.setattr(place, name, getattr(place, name))  # is as it was afterwards
    study.keep_in_memory(0)
    msft.train(recipe, memory)
    logs = [(folder / "run.jsonl").read_text().splitlines() for folder in (disk, memory)]
    events = [[json.loads(line) for line in lines] for lines in logs]
    assert any(event.get("disk", {}).get("copies") for event in events[0])
    assert not any(event.get("disk", {}).get("peak_bytes") for event in events[1])
    for event in (event for several in events for event in several):
        event.pop("disk", None), event.pop("crc")
    assert events[0] == events[1]
    assert {"exclude", "go_on"} & {event.get("what") for event in events[0]}
    assert list(disk.rglob("*.safetensors"))
    assert not list(memory.rglob("*.safetensors"))


def test_each_seed_has_an_adapter_of_its_own(
    study: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_data(tmp_path)
    kinds: list[dict[str, Any]] = [{"seed": 1, "learning_rate": 1e-3}, {"seed": 1}, {"seed": 2}]
    kinds += [{"seed": 2, "lora_r": 4}]
    recipes = [recipe_of(tmp_path, method="sft", use_peft=True, **keys) for keys in kinds]
    for number, recipe in enumerate(recipes):
        msft.train(recipe, tmp_path / f"alone{number}")
    shared = study.SharedEngines(build.engine_of)
    monkeypatch.setattr(build, "engine_of", shared)
    for number, recipe in enumerate(recipes):
        msft.train(recipe, tmp_path / f"shared{number}")
        logs = [(tmp_path / f"{how}{number}" / "run.jsonl").read_bytes() for how in LOGS]
        assert logs[0] == logs[1]
        assert len(shared._engines) == 1, "one is held at a time"


@pytest.mark.parametrize(("left", "held"), [(0.6, 2), (0.4, 1)])
def test_engines_are_let_go_where_they_hold_most_of_the_memory(
    study: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left: float, held: int
) -> None:
    write_data(tmp_path)
    shared = study.SharedEngines(build.engine_of)
    monkeypatch.setattr(build, "engine_of", shared)
    monkeypatch.setattr(study, "memory_left", lambda: left)
    for number, decay in enumerate((None, 0.9)):
        recipe = recipe_of(tmp_path, method="sft", num_train_epochs=1, ema_decay=decay)
        msft.train(recipe, tmp_path / f"run{number}")
    assert len(shared._engines) == held


def test_seconds_of_a_run_that_was_cut_off_are_counted(
    study: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = iter([0.0, 0.0, 0.0, 40.0, 100.0, 100.0, 100.0, 107.5])
    monkeypatch.setattr(study.time, "perf_counter", lambda: next(clock))
    outcomes: list[Exception | None] = [TimeoutError(), None]

    def train(*given: Any, **options: Any) -> None:
        if (error := outcomes.pop(0)) is not None:
            raise error

    monkeypatch.setattr(study.msft, "train", train)
    monkeypatch.setattr(study, "line_of", lambda row, recipe, folder, s: {"seconds": s})
    monkeypatch.setattr(study, "said", lambda line: f"{line['seconds']} s")
    monkeypatch.setattr(study, "keep_logs", lambda folder, logs: None)
    monkeypatch.setattr(study.build, "engine_of", study.build.engine_of)
    monkeypatch.setattr(study.training, "write_report", study.training.write_report)
    arguments = ["--data", "data", "--out", str(tmp_path), "--rows", "clean-sft-70"]
    monkeypatch.setattr("sys.argv", ["study.py", *arguments])
    for said in ("the same command resumes it\n", "47.5 s\n"):
        study.main()
        assert capsys.readouterr().out.endswith(said)


def test_a_run_is_one_processs_and_made_once(study: Any, tmp_path: Path) -> None:
    def may_another(name: str) -> bool:
        with study.claimed(name, tmp_path) as mine:
            return bool(mine)

    with study.claimed("clean-sft-70", tmp_path) as mine:
        assert mine
        assert not may_another("clean-sft-70")
        assert may_another("clean-sft-71")
    assert may_another("clean-sft-70"), "the claim has ended, and there is no line"
    (tmp_path / "study.jsonl").write_text('{"name": "clean-sft-70"}\n')
    with study.claimed("clean-sft-70", tmp_path) as mine:
        assert not mine


def test_what_is_too_long_for_the_time_left_is_left_out_and_shorter_runs_follow(
    study: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = iter([0.0, 10.0, 60.0, 70.0, 80.0])
    monkeypatch.setattr(study.time, "perf_counter", lambda: next(clock))
    seconds = {"msft": 50.0, "sft": 20.0}

    def trained(row: Any, *rest: Any) -> dict[str, Any]:
        return {"name": row.name, "seconds": seconds[row.variant]}

    monkeypatch.setattr(study, "trained", trained)
    monkeypatch.setattr(study, "said", lambda line: line["name"])
    monkeypatch.setattr(study.build, "engine_of", study.build.engine_of)
    monkeypatch.setattr(study.training, "write_report", study.training.write_report)
    rows = "clean-msft-70,clean-sft-70,clean-msft-71,clean-sft-71"
    arguments = ["--data", "data", "--out", str(tmp_path), "--rows", rows, "--seconds", "115"]
    monkeypatch.setattr("sys.argv", ["study.py", *arguments])
    study.main()
    assert capsys.readouterr().out.splitlines() == [
        "clean-msft-70",
        "clean-sft-70",
        "clean-msft-71: left out, 45 s are left",
        "clean-sft-71",
    ]


def test_averages_go_by_their_kind_and_the_best_tick_is_sft(study: Any) -> None:
    def point(name: str, of: list[str] | None) -> dict[str, Any]:
        return {"checkpoint": name, "average_of": of, "validation": None, "test": {"mean": 0.5}}

    summary = {
        "best": point("a0", ["r0-t1", "r0-t2"]),
        "controls": [point("a1", ["r0-t1"]), point("a2", ["r0-t2"]), point("r0-t3", None)],
    }
    found = study.averages_of(summary)
    assert {kind: each["checkpoint"] for kind, each in found.items()} == {
        "span": "a0", "peaks": "a1", "last": "a2", "sft": "r0-t3",
    }  # fmt: skip
    assert study.averages_of({"best": point("r0-t3", None)}) == {}


def test_kept_files_name_no_folder_of_this_machine_and_no_weights_are_among_them(
    study: Any, tmp_path: Path
) -> None:
    run, logs = tmp_path / "run", tmp_path / "logs"
    (run / "best").mkdir(parents=True)
    (run / "recipe.yaml").write_text("method: sft\ndata_dir: /somewhere/data\nseed: 3\n")
    for name in ("run.jsonl", "summary.json", "verdicts.jsonl"):
        (run / name).write_text(f"{name}\n")
    study.keep_logs(run, logs)
    assert (logs / "recipe.yaml").read_text() == "method: sft\nseed: 3\n"
    for name in ("run.jsonl", "verdicts.jsonl"):
        assert gzip.decompress((logs / f"{name}.gz").read_bytes()) == f"{name}\n".encode()
    assert (logs / "summary.json").read_text() == "summary.json\n"
    assert sorted(path.name for path in logs.iterdir()) == [
        "recipe.yaml", "run.jsonl.gz", "summary.json", "verdicts.jsonl.gz",
    ]  # fmt: skip


# Tables.


def kept(folder: Path, variant: str, seed: int, rows: dict[str, str], **more: Any) -> None:
    """A run of the study with these verdicts on test."""
    name = f"noisy-{variant}-{seed}"
    (folder / "logs" / name).mkdir(parents=True)
    with gzip.open(folder / "logs" / name / "verdicts.jsonl.gz", "wt") as file:
        for dataset, marks in rows.items():
            line = {"checkpoint": "r0-t1", "split": "test", "dataset": dataset, "rows": marks}
            file.write(json.dumps(line) + "\n")
    shares = {dataset: marks.count("1") / len(marks) for dataset, marks in rows.items()}
    scores = {"mean": sum(shares.values()) / len(shares), "datasets": shares}
    run: dict[str, Any] = {
        "name": name,
        "mixture": "noisy",
        "variant": variant,
        "label": variant,
        "seed": seed,
    }
    run |= {"checkpoint": "r0-t1", "validation": scores, "test": scores, "averages": {}}
    run |= {"exclusions": [], "noisy": ["a"], "ended_by": "budget", "candidates": 4}
    run |= {"epochs_trained": 2.0, "seconds": 9.0, **more}
    with (folder / "study.jsonl").open("a") as file:
        file.write(json.dumps(run) + "\n")


def test_differences_and_intervals_by_hand(
    tables: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kept(tmp_path, "sft", 1, {"a": "1100", "b": "10"})
    kept(tmp_path, "sft", 2, {"a": "1000", "b": "10"})
    exclusions = [{"name": name, "stage": 0, "epochs": 1.0} for name in ("a", "b")]
    kept(tmp_path, "msft", 1, {"a": "1110", "b": "11"}, exclusions=exclusions)
    kept(tmp_path, "msft", 2, {"a": "1000", "b": "11"}, exclusions=exclusions[:1])
    (study,) = tables.study_of(tmp_path, None, None).values()
    assert tables.reference_of(study, None) == "sft"
    pairs = [(study["msft"][seed], study["sft"][seed]) for seed in (1, 2)]
    # test means: 0.5 and 0.375 against 0.875 and 0.625, so 0.375 and 0.25
    found = tables.over_seeds([one.mean - two.mean for one, two in pairs])
    assert found.difference == pytest.approx(31.25)
    assert found.high - found.difference == pytest.approx(100 * 12.7062 * 0.0625, rel=1e-4)
    drawn = tables.over_rows(pairs)
    assert drawn.difference == pytest.approx(31.25), "the same, row by row"
    assert drawn.low < 31.25 < drawn.high
    monkeypatch.setattr("sys.argv", ["study_tables.py", str(tmp_path)])
    tables.main()
    said = capsys.readouterr().out
    assert "| msft | 2 | 75.00 | 75.00 | 4 | 2.0 | 9 |" in said
    assert "| b | +50.00 |" in said
    assert "| msft | 2 | 2 of 3 | 2 of 2 | budget 2 |" in said


def test_where_seeds_have_other_rows_each_draws_its_own(tables: Any, tmp_path: Path) -> None:
    kept(tmp_path, "sft", 1, {"a": "10" * 50})
    kept(tmp_path, "sft", 2, {"a": "10" * 49})
    kept(tmp_path, "msft", 1, {"a": "11" * 50})
    kept(tmp_path, "msft", 2, {"a": "10" * 49})
    (study,) = tables.study_of(tmp_path, None, None).values()
    drawn = tables.over_rows([(study["msft"][seed], study["sft"][seed]) for seed in (1, 2)])
    assert drawn.difference == pytest.approx(25.0), "50 points and 0"
    # half of the first seed's 100 rows differ: sd 0.05 of its mean, half of that of both
    assert drawn.high - drawn.low == pytest.approx(2 * 1.96 * 2.5, abs=0.6)


def test_a_soup_s_line_is_several_entries(tables: Any, tmp_path: Path) -> None:
    score = {"mean": 0.5, "datasets": {"a": 0.5}}
    point = {"checkpoint": "r0-t1", "validation": score, "test": score}
    averages = dict.fromkeys(("span", "peaks", "sft"), point)
    kept(tmp_path, "soup", 1, {"a": "10"}, averages=averages)
    (study,) = tables.study_of(tmp_path, None, None).values()
    assert list(study) == ["soup", "soup-peaks", "sft"]
    kept(tmp_path, "sft", 1, {"a": "11"})
    (study,) = tables.study_of(tmp_path, {1}, None).values()
    assert study["sft"][1].mean == 1.0, "a run of its own stands before it"
    assert tables.study_of(tmp_path, {2}, None) == {}
    assert tables.study_of(tmp_path, None, None, "clean") == {}
    assert list(tables.study_of(tmp_path, None, None, "noisy")) == ["noisy"]


def test_rows_that_the_trial_drew_can_be_left_out(tables: Any, tmp_path: Path) -> None:
    from msft.search.draws import sampled

    (tmp_path / "data" / "a").mkdir(parents=True)
    (tmp_path / "data" / "a" / "test.jsonl").write_text("{}\n" * 600)
    drawn = sampled(600, 500, 20, "rows", "a", "test")
    marks = "".join("0" if number in drawn else "1" for number in range(600))
    kept(tmp_path, "sft", 1, {"a": marks})
    (study,) = tables.study_of(tmp_path, None, tmp_path / "data").values()
    assert study["sft"][1].rows["a"] == [True] * 100
    (tmp_path / "data" / "a" / "test.jsonl").write_text("{}\n" * 601)
    with pytest.raises(SystemExit, match="600 of 601 test rows were scored"):
        tables.study_of(tmp_path, None, tmp_path / "data")


def test_tasks_that_the_trial_drew_whole_and_rows_too_long_are_left_out(
    tables: Any, tmp_path: Path
) -> None:
    from msft.search.draws import sampled

    for name, rows in (("all", 500), ("boolq", 1000)):
        (tmp_path / "data" / name).mkdir(parents=True)
        (tmp_path / "data" / name / "test.jsonl").write_text("{}\n" * rows)
    drawn = sampled(1000, 500, 20, "rows", "boolq", "test")
    scored = [number for number in range(1000) if number not in (355, 805)]
    marks = "".join("0" if number in drawn else "1" for number in scored)
    kept(tmp_path, "sft", 1, {"all": "1" * 500, "boolq": marks})
    (study,) = tables.study_of(tmp_path, None, tmp_path / "data").values()
    assert set(study["sft"][1].rows) == {"boolq"}
    assert study["sft"][1].rows["boolq"] == [True] * marks.count("1")
