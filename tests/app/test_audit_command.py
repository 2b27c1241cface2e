"""`msft audit`: what it leaves, how it resumes, and what it refuses."""

import errno
import io
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from hashlib import sha256
from math import cos, pi
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from spoiled import LETTERS, TRAIN, WRONG, recipe, rows, spoiled_rows, write_rows
from toys import read_lines

import msft
from mortal import Killed, MortalLog, files_of, quick_folder
from msft import training
from msft.app.audit import suspect_lines
from msft.app.terminal.progress import ShownAudit
from msft.cli import main
from msft.engine.fast import FastEngine
from msft.engine.model.tokenizers import load_rows
from msft.example import Example
from msft.recipe.recipe import load_recipe
from msft.report import write_report
from msft.run.log import FoundEvent, JudgedEvent, PointEvent, RankSync, RolloutEvent, read_log
from msft.testing import promised_log

pytestmark = pytest.mark.usefixtures("no_reports")  # but for one audit


@pytest.fixture(scope="module")
def place(no_reports: None) -> Iterator[Path]:
    """The spoiled mixture with `recipe.yaml`, and `audit`, which was never disturbed."""
    with quick_folder() as folder:
        file = recipe(folder)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("msft.app.audit.write_report", write_report)
            assert main(["audit", file, "--out", str(folder / "audit"), "--quiet"]) == 0
        yield folder


@pytest.fixture
def fresh() -> Iterator[Path]:
    with quick_folder() as folder:
        yield folder


def suspects_of(folder: Path) -> list[dict[str, Any]]:
    return [
        json.loads(line) for line in (folder / "suspects.jsonl").read_text().split("\n") if line
    ]


def audit_of(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / "audit.json").read_text())
    return content


def left_by(folder: Path) -> dict[str, bytes]:
    """What must be the same."""
    names = ("audit.json", "suspects.jsonl", "judgments.jsonl", "clean.yaml")
    found = {name: (folder / name).read_bytes() for name in names}
    return {**found, "run.jsonl": promised_log(folder / "run.jsonl")}


def copy_of(place: Path, fresh: Path) -> Path:
    return Path(shutil.copytree(place / "audit", fresh / "audit"))


# What it leaves


def test_it_names_the_spoiled_sub_dataset_and_its_wrong_rows(place: Path) -> None:
    found = audit_of(place / "audit")
    assert found["rounds"] == 2
    bad, good = found["datasets"]["bad"], found["datasets"]["good"]
    assert bad["verdict"] == "spoiled"
    assert good["verdict"] != "spoiled"
    assert bad["wrong_share"]["low"] < 0.4 < bad["wrong_share"]["high"]
    assert abs(bad["wrong_share"]["value"] - 0.4) < 0.12
    assert bad["gap"]["value"] == pytest.approx(bad["validation"] - bad["train"])
    assert (bad["rows"], good["rows"], good["suspects"]) == (TRAIN, TRAIN, 0)
    assert bad["suspects"] == round(bad["wrong_share"]["value"] * TRAIN)
    lines = suspects_of(place / "audit")
    assert [line["rank"] for line in lines] == [*range(1, bad["suspects"] + 1)]
    right = sum(line["row"] in WRONG for line in lines)
    assert right >= 0.8 * len(lines), "nearly all of them are wrong"
    doubts = [line["doubt"] for line in lines]
    assert doubts == sorted(doubts, reverse=True)


def test_a_suspect_is_the_row_of_the_file_and_its_hash_that_of_the_contract(place: Path) -> None:
    given = read_lines(place / "bad.train.jsonl")
    for line in suspects_of(place / "audit"):
        row = given[line["row"]]
        assert {*line} == {
            *("dataset", "row", "where", "sha256", "prompt", "given", "answer", "doubt", "rank")
        }
        assert (line["dataset"], line["prompt"]) == ("bad", row["prompt"])
        assert line["given"] == row["completion"]
        assert line["where"].endswith(f"bad.train.jsonl, line {line['row'] + 1}")
        said = json.dumps(
            [row["prompt"], row["completion"]], ensure_ascii=False, separators=(",", ":")
        )
        assert line["sha256"] == sha256(said.encode()).hexdigest()
        assert line["answer"].strip() != line["given"].strip()


def test_its_folder_has_what_the_contract_names_and_no_model(place: Path) -> None:
    names = {path.name for path in (place / "audit").iterdir()}
    assert {"recipe.yaml", "run.jsonl", "report.html", "audit.json"} < names
    assert not names & {"summary.json", "schedule.json", "best", "verdicts.jsonl", "samples.jsonl"}
    assert not [*(place / "audit" / "checkpoints").iterdir()]
    assert "</html>" in (place / "audit" / "report.html").read_text()


def test_the_clean_recipe_leaves_out_the_suspects_wherever_it_is_read(
    place: Path, fresh: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(fresh)
    clean = load_recipe(place / "audit" / "clean.yaml")
    corpus = load_rows(clean).corpus
    left = {*range(TRAIN)} - {line["row"] for line in suspects_of(place / "audit")}
    assert {*corpus.datasets["bad"].train.numbers} == left
    assert corpus.datasets["good"].excluded is None
    assert clean.output_dir != load_recipe(place / "recipe.yaml").output_dir


def test_every_row_has_one_judge_that_has_not_seen_it(place: Path) -> None:
    file = place / "audit" / "judgments.jsonl"
    lines = read_lines(file)
    for pair in (("r0-t4", "r1-t4"), ("r2-t4", "r3-t4")):
        for name in ("good", "bad"):
            said = [x for x in lines if x["dataset"] == name and x["checkpoint"] in pair]
            assert sorted(n for each in said for n in each["numbers"]) == [*range(TRAIN)]
    events = read_log(place / "audit" / "run.jsonl")
    asked = [event.active for event in events if isinstance(event, RolloutEvent)]
    assert asked[:2] == [{"good": 30, "bad": 30}] * 2
    trained = sum(active["bad"] for active in asked[2:])
    suspects = next(e for e in events if isinstance(e, FoundEvent)).findings["bad"].suspects
    assert trained == TRAIN - len(suspects)


def test_a_plan_counts_the_steps_and_tokens_of_a_round_as_the_audit_logs_them(place: Path) -> None:
    planned = msft.plan(place / "recipe.yaml", place / "plan", calibrate=False)["audit_round"]
    events = read_log(place / "audit" / "run.jsonl")
    until = next(n for n, event in enumerate(events) if isinstance(event, FoundEvent))
    points = [event for event in events[:until] if isinstance(event, PointEvent)]
    assert planned["steps"] == sum(point.steps for point in points) == 2 * 4 * 8
    assert planned["tokens"]["train"] == sum(point.tokens.train for point in points)
    judged = [event for event in events[:until] if isinstance(event, JudgedEvent)]
    asked = sum(event.tokens.evaluation for event in judged)
    assert asked <= planned["tokens"]["evaluation"] < 2 * asked, "as if all answers were wrong"
    assert planned["evaluations"] == 2
    parameters = read_log(place / "audit" / "run.jsonl")[0].num_parameters  # type: ignore[union-attr]
    assert planned["flops"]["train"] == 6 * parameters * planned["tokens"]["train"]


def test_the_plan_on_the_terminal_has_a_line_of_it(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["plan", str(place / "recipe.yaml"), "--no-calibration", "--out", str(place / "p")]
    assert main(command) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "msft audit: a round trains 64 steps on " in said
    assert "a second one follows if a sub-dataset is spoiled" in said
    assert main([*command, "--set", "selection_split=test"]) == 0
    assert "msft audit" not in capsys.readouterr().out, "an audit refuses it"


# Resume


def test_called_again_it_says_so_and_keeps_what_people_deleted(
    place: Path, fresh: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = copy_of(place, fresh)
    kept = "".join((out / "suspects.jsonl").read_text().splitlines(keepends=True)[:5])
    (out / "suspects.jsonl").write_text(kept)
    before = files_of(out)
    monkeypatch.setattr(FastEngine, "work", lambda *given: pytest.fail("nothing is trained"))
    assert main(["audit", str(place / "recipe.yaml"), "--out", str(out)]) == 0
    said = capsys.readouterr()
    assert f"{out} is finished already; this is its result" in said.out.replace("\n", " ")
    changed = {"report.html", "environment.json", "run.lock", "steps.jsonl"}
    after = files_of(out)
    assert {k: v for k, v in after.items() if k not in changed} == {
        k: v for k, v in before.items() if k not in changed
    }
    (out / "suspects.jsonl").unlink()
    (out / "audit.json").unlink()
    assert main(["audit", str(place / "recipe.yaml"), "--out", str(out), "--quiet"]) == 0
    for name in ("suspects.jsonl", "audit.json"):
        assert (out / name).read_bytes() == (place / "audit" / name).read_bytes(), "made again"


class Dying:
    """Logs die at an event."""

    def __init__(self, patch: pytest.MonkeyPatch, last: int, written: bool) -> None:
        patch.setattr(RankSync, "log", lambda self, path: MortalLog(path, last, written))


@pytest.mark.parametrize(("last", "written"), [(0, True), (4, False), (6, True), (13, False)])
def test_killed_and_resumed_it_leaves_the_same_bytes(
    last: int, written: bool, place: Path, fresh: Path
) -> None:
    """After its first event, in the first judge, before its judgment, and in the second round."""
    command = ["audit", str(place / "recipe.yaml"), "--out", str(fresh / "audit"), "--quiet"]
    with pytest.MonkeyPatch.context() as patch:
        Dying(patch, last, written)
        with pytest.raises(Killed):
            main(command)
    assert not (fresh / "audit" / "audit.json").exists()
    assert main(command) == 0
    assert left_by(fresh / "audit") == left_by(place / "audit")


@pytest.mark.parametrize(
    "keys", [{"use_peft": True, "lora_r": 4}, {"engine": "simple"}], ids=["adapter", "simple"]
)
def test_judges_with_an_adapter_or_the_simple_engine_resume_to_the_same_bytes(
    keys: dict[str, Any], fresh: Path
) -> None:
    """Killed before the second judgment of two, of rows with choices."""
    datasets = [write_rows(fresh, "asked", with_choices("asked", 40))]
    file = recipe(fresh, datasets, num_train_epochs=1, **keys)
    for name in ("whole", "killed"):
        command = ["audit", file, "--out", str(fresh / name), "--rounds", "1", "--quiet"]
        if name == "killed":
            with pytest.MonkeyPatch.context() as patch:
                Dying(patch, 6, False)
                with pytest.raises(Killed):
                    main(command)
        assert main(command) == 0
    assert left_by(fresh / "killed") == left_by(fresh / "whole")
    judged = read_lines(fresh / "whole" / "judgments.jsonl")
    assert [each["kind"] for each in judged] == ["choices"] * 2
    assert sorted(n for each in judged for n in each["numbers"]) == [*range(40)]


@pytest.mark.parametrize("writer", ["write_lines", "write_clean", "write_json", "write_report"])
def test_killed_while_it_writes_its_files_they_are_written_again(
    writer: str, place: Path, fresh: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = copy_of(place, fresh)
    for name in ("suspects.jsonl", "clean.yaml", "audit.json", "report.html"):
        (out / name).unlink()

    def dies(*given: Any) -> None:
        raise Killed

    command = ["audit", str(place / "recipe.yaml"), "--out", str(out), "--quiet"]
    with monkeypatch.context() as patch:
        patch.setattr(f"msft.app.audit.{writer}", dies)
        with pytest.raises(Killed):
            main(command)
    assert main(command) == 0
    assert left_by(out) == left_by(place / "audit")
    assert (out / "report.html").exists()


def test_without_its_judgments_a_finished_audit_judges_again_to_the_same_result(
    place: Path, fresh: Path
) -> None:
    out = copy_of(place, fresh)
    for name in ("judgments.jsonl", "suspects.jsonl"):
        (out / name).unlink()
    assert main(["audit", str(place / "recipe.yaml"), "--out", str(out), "--quiet"]) == 0
    assert left_by(out) == left_by(place / "audit")


def test_a_disk_that_is_full_is_said_and_the_same_command_goes_on(
    place: Path, fresh: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(path: Path, data: bytes) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    command = ["audit", str(place / "recipe.yaml"), "--out", str(fresh / "audit"), "--quiet"]
    with monkeypatch.context() as patch:
        patch.setattr("msft.run.rows.replace_bytes", full)
        assert main(command) == 1
    said = " ".join(capsys.readouterr().err.split())
    assert "judgments.jsonl" in said
    assert "space" in said
    assert main(command) == 0
    assert left_by(fresh / "audit") == left_by(place / "audit")


# What it shows


def test_json_alone_is_on_stdout(
    place: Path, fresh: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = copy_of(place, fresh)
    assert main(["audit", str(place / "recipe.yaml"), "--out", str(out), "--json"]) == 0
    said = capsys.readouterr().out
    assert json.loads(said) == {**audit_of(out), "folder": str(out)}


def test_a_reader_who_goes_away_does_not_stop_it(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    monkeypatch.setattr("sys.stdout", Gone())
    shown = ShownAudit()
    from msft.run.history import History

    history = History()
    for event in read_log(place / "audit" / "run.jsonl"):
        history.add(event)
        shown.event(history, event, True)
    shown.close()


def test_it_says_which_judge_of_which_round_is_at_work(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from msft.run.history import History

    shown, history = ShownAudit(), History()
    for event in read_log(place / "audit" / "run.jsonl"):
        history.add(event)
        shown.event(history, event, True)
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("round 1, judge 1 of 2: epoch 1, loss ")
    assert said[4] == "round 1, judge 1 of 2 has judged 60 training rows that it has not seen"
    assert said[9].startswith("round 1, judge 2 of 2 has judged")
    assert said[10] == "round 1: spoiled: bad"
    shown.event(history, FoundEvent(2, {}), True)
    assert capsys.readouterr().out == "round 2: spoiled: no sub-dataset\n"
    assert said[-1] == "round 2: spoiled: bad"
    assert len(said) == 22


# In Python


def test_msft_audit_takes_rows_from_python_and_its_clean_recipe_says_so(fresh: Path) -> None:
    given: dict[str, Any] = spoiled_rows()
    files = [{"name": name, "train": "gone", "validation": "gone"} for name in given]
    base = load_recipe(recipe(fresh, files))
    notes: list[str] = []
    found = msft.audit(
        base, fresh / "audit", rounds=1, notice=notes.append, datasets=given, quiet=True
    )
    assert found.spoiled == ("bad",)
    assert found.content == audit_of(found.folder)
    assert repr(found) == f"AuditResult(folder={str(fresh / 'audit')!r}, spoiled=['bad'])"
    assert notes
    lines = suspects_of(found.folder)
    assert all("train" in line["where"] for line in lines)
    text = found.clean.read_text()
    assert text.startswith("# The rows of good and bad were given from Python and are not in any")
    result = msft.train(
        replace(base, exclude_rows=str(found.suspects)),
        fresh / "clean",
        datasets=given,
        quiet=True,
    )
    opened = read_log(result.folder / "run.jsonl")[0]
    assert opened.datasets == {"good": TRAIN, "bad": TRAIN - len(lines)}  # type: ignore[union-attr]
    again = msft.audit(base, fresh / "audit", rounds=1, datasets=given, quiet=True)
    assert again.was_finished
    changed = {**given, "bad": rows("bad")}
    with pytest.raises(Exception, match="changed under a started run"):
        msft.audit(base, fresh / "audit", rounds=1, datasets=changed, quiet=True)


def test_msft_audit_shows_progress_unless_it_is_quiet(
    place: Path, fresh: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = copy_of(place, fresh)
    log = out / "run.jsonl"
    log.write_bytes(b"".join(log.read_bytes().splitlines(keepends=True)[:-1]))
    assert msft.audit(place / "recipe.yaml", out, quiet=True).folder == out
    assert capsys.readouterr() == ("", "")


# What it refuses, with nothing started


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["audit", *words]) == 2
    return " ".join(capsys.readouterr().err.split())


def test_wrong_uses_are_refused_before_anything_is_loaded(
    place: Path, fresh: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "read", lambda job: pytest.fail("rows were read"))
    file, out = str(place / "recipe.yaml"), fresh / "audit"
    said = refused(capsys, file, "--out", str(out), "--rounds", "0")
    assert "0 rounds were asked for; expected 1 or more" in said
    said = refused(capsys, file, "--out", str(out), "--set", "selection_split=test")
    assert "leave selection_split out" in said
    assert not out.exists()
    out.mkdir()
    (out / "suspects.jsonl").write_text("mine\n")
    said = refused(capsys, file, "--out", str(out))
    assert "has suspects.jsonl, which a run would overwrite" in said
    assert (out / "suspects.jsonl").read_text() == "mine\n"


def test_other_keys_or_rounds_are_refused_under_a_started_audit(
    place: Path, fresh: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = copy_of(place, fresh)
    before = files_of(out)
    file = str(place / "recipe.yaml")
    said = refused(capsys, file, "--out", str(out), "--set", "learning_rate=0.1")
    assert "learning_rate was 0.003, now it is 0.1" in said
    said = refused(capsys, file, "--out", str(out), "--rounds", "1", "--quiet")
    assert "holds an audit of 2 rounds; give --rounds 2, or another --out" in said
    after = files_of(out)
    assert {k for k in before if before[k] != after[k]} <= {"run.lock"}


def test_runs_and_audits_refuse_each_others_folders(
    place: Path, fresh: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, out = str(place / "recipe.yaml"), copy_of(place, fresh)
    assert main(["train", file, "--out", str(out)]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert f"{out} holds an audit; expected a folder for a run: give another --out" in said
    assert main(["train", file, "--out", str(out), "--audit"]) == 2
    assert "has run.jsonl, which is that of something else" in " ".join(
        capsys.readouterr().err.split()
    )
    words = ("--set", "num_train_epochs=1", "--quiet")
    assert main(["train", file, "--out", str(fresh / "run"), *words]) == 0
    capsys.readouterr()
    said = refused(capsys, file, "--out", str(fresh / "run"), *words)
    assert "holds a run of sft; expected a folder for an audit: give another --out" in said
    assert main(["train", file, "--out", str(fresh / "run"), *words, "--audit"]) == 2
    (fresh / "run" / "run.jsonl").unlink()
    assert main(["train", file, "--out", str(fresh / "run"), *words, "--audit"]) == 2
    assert "has best, which is that of something else" in " ".join(capsys.readouterr().err.split())
    assert (fresh / "run" / "best" / "config.json").exists()


def test_without_validation_rows_nothing_is_started(
    fresh: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    only = {"train": rows("good")["train"]}
    file = recipe(fresh, [write_rows(fresh, "good", only)])
    said = refused(capsys, file, "--out", str(fresh / "audit"))
    assert "sub-dataset 'good': neither validation nor validation_fraction" in said
    assert not (fresh / "audit" / "run.jsonl").exists()


def test_rows_that_the_recipe_excludes_stay_excluded(place: Path, fresh: Path) -> None:
    """Row numbers are those of all rows; texts with line ends of other alphabets are no matter."""
    named = suspects_of(place / "audit")[:3]
    for line in named:
        line["prompt"] += "\u2028"
    own = fresh / "own.jsonl"
    own.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in named))
    out = fresh / "audit"
    words = ("--set", f"exclude_rows={own}", "--rounds", "1", "--quiet")
    assert main(["audit", str(place / "recipe.yaml"), "--out", str(out), *words]) == 0
    found = audit_of(out)["datasets"]["bad"]
    assert (found["verdict"], found["rows"]) == ("spoiled", TRAIN - 3)
    given = read_lines(place / "bad.train.jsonl")
    lines = suspects_of(out)
    assert all(given[line["row"]]["prompt"] == line["prompt"] for line in lines)
    gone = {line["row"] for line in (*lines, *named)}
    corpus = load_rows(load_recipe(out / "clean.yaml")).corpus
    assert {*corpus.datasets["bad"].train.numbers} == {*range(TRAIN)} - gone
    assert len(gone) == len(lines) + 3


def test_of_a_sub_dataset_that_is_all_wrong_one_row_stays_to_be_trained(
    fresh: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A sub-dataset without rows cannot be trained; rows like the one that stays, stay too."""
    splits = {"good": with_choices("good", 160), "bad": with_choices("bad", 40)}
    for row in splits["bad"]["train"]:
        row["answer"] = (row["answer"] + 1) % len(row["choices"])
    file = recipe(fresh, [write_rows(fresh, n, each) for n, each in splits.items()])
    words = ("--set", "num_train_epochs=6", "--quiet", "--json")
    assert main(["train", file, "--audit", "--out", str(fresh / "both"), *words]) == 0
    capsys.readouterr()
    suspects = suspects_of(fresh / "both/audit")
    assert [line["rank"] for line in suspects] == [*range(1, 41)]
    clean = load_recipe(fresh / "both/audit/clean.yaml")
    assert clean.exclude_rows == "excluded.jsonl"
    assert [*load_rows(clean).corpus.datasets["bad"].train.numbers] == [suspects[-1]["row"]]
    trained = json.loads((fresh / "both/clean/run.jsonl").read_text().split("\n")[0])
    assert trained["datasets"] == {"good": 160, "bad": 1}


def with_choices(name: str, train: int) -> dict[str, list[dict[str, Any]]]:
    """Rows that ask for the first letter of a word, with four choices."""
    random = Random(name)
    found: dict[str, list[dict[str, Any]]] = {}
    for split, part in rows(name, train).items():
        found[split] = []
        for row in part:
            right = row["completion"]
            choices = [
                right,
                *random.sample([f" {x.upper()}" for x in LETTERS if f" {x.upper()}" != right], 3),
            ]
            random.shuffle(choices)
            asked = {"prompt": row["prompt"], "choices": choices, "answer": choices.index(right)}
            found[split].append(asked)
    return found


def test_suspects_of_an_earlier_round_have_what_its_judges_said() -> None:
    """In the second round the task was not known, so the finding is that of the first."""

    def of_round(number: int, doubts: list[float]) -> tuple[Any, Any]:
        rows = SimpleNamespace(numbers=[0, 1], doubts=doubts)
        answers = [f"round {number}"] * 2
        return SimpleNamespace(checkpoints=[number]), SimpleNamespace(
            rows={"a": rows}, answers={"a": answers}
        )

    stages, judged = zip(
        *[of_round(n, d) for n, d in [(1, [2.0, 5.0]), (2, [0.0, 0.1])]], strict=True
    )
    finding = SimpleNamespace(suspects=(1, 0))
    event = SimpleNamespace(findings={"a": finding})
    history: Any = SimpleNamespace(stages=stages, found=[event, event])
    judgments: Any = SimpleNamespace(at=lambda number: judged[number - 1])
    example = Example("x", "y")
    trained: Any = {"a": SimpleNamespace(examples=[example] * 2, numbers=[0, 7])}
    lines = suspect_lines(history, judgments, trained)
    assert [(each["row"], each["doubt"], each["rank"]) for each in lines] == [
        (7, 5.0, 1),
        (0, 2.0, 2),
    ]
    assert {each["answer"] for each in lines} == {"round 1"}


# Training with and without the suspects


def test_both_trainings_and_the_choice_are_left_and_said(
    place: Path, fresh: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(fresh)
    own = {"dataset": "bad", "sha256": suspects_of(place / "audit")[0]["sha256"]}
    (fresh / "suspects.jsonl").write_text(json.dumps(own))  # of an earlier audit
    out = fresh / "both"
    command = ["train", str(place / "recipe.yaml"), "--audit", "--out", str(out), "--quiet"]
    assert main(command) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert left_by(out / "audit")["audit.json"] == left_by(place / "audit")["audit.json"]
    choice = json.loads((out / "choice.json").read_text())
    best = {n: json.loads((out / n / "summary.json").read_text())["best"] for n in ("all", "clean")}
    assert choice["validation"] == {n: each["validation"]["mean"] for n, each in best.items()}
    assert choice["test"] == {n: each["test"]["mean"] for n, each in best.items()}
    chosen = max(("all", "clean"), key=lambda name: choice["validation"][name])
    assert (choice["chosen"], choice["spoiled"]) == (chosen, ["bad"])
    suspects = len(suspects_of(out / "audit"))
    assert choice["suspects"] == suspects
    assert f"chosen: {chosen}. {choice['why']}" in said
    first = {n: json.loads((out / n / "run.jsonl").read_text().split("\n")[0]) for n in best}
    assert first["all"]["datasets"] == {"good": TRAIN, "bad": TRAIN}
    assert first["clean"]["datasets"] == {"good": TRAIN, "bad": TRAIN - suspects}
    weights = (out / "best/model.safetensors").read_bytes()
    assert weights == (out / chosen / "best/model.safetensors").read_bytes()
    other = {"all": "clean", "clean": "all"}[chosen]
    assert weights != (out / other / "best/model.safetensors").read_bytes()

    monkeypatch.setattr(FastEngine, "work", lambda *given: pytest.fail("nothing is trained"))
    (out / "choice.json").unlink()
    shutil.rmtree(out / "best")
    assert main(command) == 0
    assert json.loads((out / "choice.json").read_text()) == choice
    assert (out / "best/model.safetensors").read_bytes() == weights


def test_where_nobody_is_spoiled_there_is_one_training(
    fresh: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = recipe(fresh, [write_rows(fresh, "good", rows("good"))])
    out = fresh / "both"
    assert main(["train", file, "--audit", "--out", str(out), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["chosen"], found["suspects"], found["spoiled"]) == ("all", 0, [])
    assert {*found["validation"]} == {"all"}
    assert not (out / "clean").exists()
    assert (out / "best/model.safetensors").exists()


def test_a_folder_with_another_run_is_refused(
    place: Path, fresh: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (fresh / "best").mkdir()
    command = ["train", str(place / "recipe.yaml"), "--audit", "--out", str(fresh)]
    assert main(command) == 2
    assert "has best, which is that of something else" in " ".join(capsys.readouterr().err.split())
    assert [*fresh.iterdir()] == [fresh / "best"]


# Odd sub-datasets


def audited(folder: Path, datasets: Sequence[dict[str, Any]], **keys: Any) -> dict[str, Any]:
    file = recipe(folder, datasets, num_train_epochs=1, **keys)
    assert main(["audit", file, "--out", str(folder / "audit"), "--quiet"]) == 0
    found: dict[str, Any] = audit_of(folder / "audit")["datasets"]
    return found


def test_few_rows_one_answer_and_one_question_cannot_be_told_with_the_reason(fresh: Path) -> None:
    few, one, asked = rows("few", 20), rows("one"), rows("asked", 40)
    for row in one["train"]:
        row["completion"] = " A"
    for row in asked["train"]:
        row["prompt"] = "the very same:"
    splits = {"few": few, "one": one, "asked": asked}
    found = audited(fresh, [write_rows(fresh, name, each) for name, each in splits.items()])
    assert {each["verdict"] for each in found.values()} == {"cannot_tell"}
    assert "50 validation and 20 training rows are too few" in found["few"]["why"]
    assert found["one"]["why"] == (
        "All training rows have the same answer, so it needs no question to be right."
    )
    assert found["asked"]["rows"] == 40
    assert suspects_of(fresh / "audit") == []
    clean = load_recipe(fresh / "audit" / "clean.yaml")
    assert clean.exclude_rows is None


def test_one_sub_dataset_works_though_all_its_rows_ask_the_same(fresh: Path) -> None:
    splits = rows("same", 40)
    for row in splits["train"]:
        row["prompt"] = "the very same:"
    found = audited(fresh, [write_rows(fresh, "same", splits)])
    assert found["same"]["verdict"] == "cannot_tell"
    steps = [e.steps for e in read_log(fresh / "audit" / "run.jsonl") if isinstance(e, PointEvent)]
    assert sorted(steps) == [0, 5], "a judge of the base model, and one that was trained"


def test_two_rows_are_no_crash(fresh: Path) -> None:
    found = audited(fresh, [write_rows(fresh, "two", rows("two", 2))])
    assert found["two"]["verdict"] == "cannot_tell"
    assert "50 validation and 2 training rows are too few" in found["two"]["why"]


# A learning rate that changes


@pytest.mark.parametrize("engine", ["fast", "simple"])
def test_a_cosine_is_spread_over_the_steps_of_each_judge(engine: str, fresh: Path) -> None:
    good = write_rows(fresh, "good", rows("good", 43))
    words = {"lr_scheduler_type": "cosine", "warmup_steps": 2, "engine": engine}
    file = recipe(fresh, [good], **{**words, "num_train_epochs": 2})
    assert main(["audit", file, "--out", str(fresh / "a"), "--quiet", "--rounds", "1"]) == 0
    lines = read_lines(fresh / "a" / "steps.jsonl")
    for judge, trained in ((0, 21), (1, 22)):
        rates = [line["learning_rate"] for line in lines if line["rollout"] == judge]
        steps = 2 * -(-trained // 8)
        cosine = [3e-3 * (1 + cos(pi * step / (steps - 2))) / 2 for step in range(steps - 2)]
        assert rates == pytest.approx([1.5e-3, 3e-3, *cosine])
        assert rates[-1] < 0.2 * 3e-3, "a recipe's six steps an epoch would end in the middle"
