"""What a person sees while a run goes on, looked at as text."""

import io
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from rich.live import Live

from msft.app.terminal.board import Board
from msft.app.terminal.progress import (
    MOST_ROWS,
    LiveTable,
    PlainLines,
    ShownRun,
    event_text,
    live_view,
    sparkline,
    visible_names,
)
from msft.app.terminal.results import result_text
from msft.observers.observer import Watched
from msft.report.findings import finding_texts, findings_content, findings_in
from msft.run.folder import RunFolder, read_history
from msft.run.history import summary_of
from msft.run.log import DecisionEvent, Event, Log, PointEvent, ScoresEvent, read_log, to_line
from msft.run.worker import Step
from msft.search.curves import Metric, nll
from msft.search.rollout import checkpoint_id
from msft.testing.simulated import Learner, simulate
from msft.text import fitted

FEW = {
    "quick": Learner(limit=0.5, damage=0.4),
    "slow": Learner(limit=3.0),
    "kept": Learner(limit=9.0, keep=True),
}


def events_of(learners: dict[str, Learner], folder: Path) -> list[Event]:
    peaks = {"include_start": False}
    simulate("msft", learners, folder=folder, compute_budget=2, peaks=peaks)
    return read_log(folder / "run.jsonl")


@pytest.fixture(scope="module")
def events(tmp_path_factory: pytest.TempPathFactory) -> list[Event]:
    return events_of(FEW, tmp_path_factory.mktemp("run"))


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> list[Event]:
    learners = {f"sub-dataset-number-{n:03}": Learner(8, limit=0.4 + n / 50) for n in range(100)}
    log = tmp_path_factory.mktemp("many") / "run.jsonl"  # and checkpoints in memory
    peaks = {"include_start": False}
    simulate("msft", learners, log=Log(log), train_batch_size=80, compute_budget=2, peaks=peaks)
    return read_log(log)


def board_of(events: list[Event]) -> Board:
    board = Board(kept={"kept"})
    for event in events:
        board.event(event, live=True)
    board.step(Step(0, 1, 1.25, 16, 1000))
    return board


def text_of(board: Board, width: int, height: int = 40) -> str:
    console = Console(record=True, width=width, height=height, file=io.StringIO())
    console.print(live_view(board, "msft on tiny", width, height))
    return console.export_text()


def after_first_rollback(events: list[Event]) -> int:
    first = next(n for n, event in enumerate(events) if isinstance(event, DecisionEvent))
    return first + 4


def test_a_row_says_score_best_where_trend_and_state(events: list[Event]) -> None:
    board = board_of(events[: after_first_rollback(events)])
    lines = text_of(board, 120).splitlines()
    assert lines[0].rstrip() == "msft on tiny"
    assert lines[1].startswith("2 of 3 sub-datasets active · best mean ")
    assert " at checkpoint r" in lines[1]
    assert lines[2].startswith("stage 1 ")
    assert "epoch 0.62/2 · loss 1.250" in lines[2]
    rows = {line.split()[0]: line for line in lines[5:] if line.strip()}
    stage, tick = board.left("quick") or (None, None)
    assert rows["quick"].rstrip().endswith(f"left: stage {stage}, epoch {tick:g}")
    assert rows["slow"].rstrip().endswith("active")
    assert rows["kept"].rstrip().endswith("kept")
    best = max((s["slow"], c) for c, s in _heights(events[: after_first_rollback(events)]).items())
    assert f"{best[0]:.3f}" in rows["slow"]
    assert any(bar in rows["slow"] for bar in "▁▂▃▄▅▆▇█")


def _heights(events: list[Event]) -> dict[str, dict[str, float]]:
    return {
        event.checkpoint: {name: float(score.value) for name, score in event.scores.items()}
        for event in events
        if isinstance(event, PointEvent)
    }


@pytest.mark.parametrize("width", [60, 80, 100])
def test_a_narrow_terminal_shows_everything_on_its_own_line(
    events: list[Event], width: int
) -> None:
    board = board_of(events[: after_first_rollback(events)])
    text = text_of(board, width)
    lines = [line.rstrip() for line in text.splitlines()]
    assert len([line for line in lines if line]) == (5 if width == 60 else 4) + 1 + 3
    assert max(map(len, lines)) <= width
    stage, tick = board.left("quick") or (None, None)
    assert f"left: stage {stage}, epoch {tick:g}" in text


@pytest.mark.parametrize(("width", "height"), [(120, 50), (80, 24), (60, 24), (60, 5)])
def test_of_a_hundred_sub_datasets_some_are_shown_and_the_rest_counted(
    many: list[Event], width: int, height: int
) -> None:
    board = board_of(many[: len(many) // 2])
    lines = [line.rstrip() for line in text_of(board, width, height).splitlines() if line.strip()]
    head = next(number for number, line in enumerate(lines) if line.startswith("sub-dataset "))
    rows = lines[head + 1 : -1]
    assert 3 <= len(rows) <= min(MOST_ROWS, max(3, height - 10))
    assert max(map(len, lines)) <= width
    active = [name for name in board.history.start.datasets if board.active(name)]
    shown_active = sum(line.endswith("active") for line in rows)
    rest = 100 - len(rows)
    gone = rest - (len(active) - shown_active)
    assert lines[-1] == f"and {rest} more: {len(active) - shown_active} active, {gone} not"


def test_who_left_last_is_among_those_who_are_shown(many: list[Event]) -> None:
    board = board_of(many[: len(many) // 2])
    names = list(board.history.start.datasets)
    shown = visible_names(board, names, 20)
    assert len(shown) == 20
    assert shown == [name for name in names if name in shown], "in recipe order"
    last = max((place, name) for name in names if (place := board.left(name)))[1]
    assert last in shown
    assert sum(board.active(name) for name in shown) == 15
    assert visible_names(board, names[:20], 20) == names[:20]


def test_sparklines() -> None:
    assert sparkline([], 5) == ""
    assert sparkline([0.3, 0.3], 5) == "▁▁"
    assert sparkline([9.0, 0.0, 0.5, 1.0], 3) == "▁▅█"
    assert sparkline([0.5, 0.0, 1.0], 8) == "▅▁█"


def test_rollbacks_stay_above_the_table_and_markup_in_names_is_text(tmp_path: Path) -> None:
    """Names cannot hold brackets, but nothing here should depend on that."""
    learners = {"[red]quick[/]": FEW["quick"], "slow": FEW["slow"]}
    events = events_of(learners, tmp_path)
    out = io.StringIO()
    console = Console(file=out, width=100, height=30, force_terminal=True, color_system=None)
    with Live(console=console, auto_refresh=False) as live:
        table = LiveTable(live, "msft on tiny", Board())
        for event in events:
            table.event(event, live=True)
    text = out.getvalue()
    back = next(e for e in events if isinstance(e, DecisionEvent) and e.what == "exclude")
    said = f"stage 0: → [red]quick[/] left; back to checkpoint {back.checkpoint}"
    assert text.count(said) == 1
    assert "the best is checkpoint r" in text


def test_what_a_resume_replays_is_not_printed_again(events: list[Event]) -> None:
    out = io.StringIO()
    console = Console(file=out, width=100, force_terminal=True, color_system=None)
    with Live(console=console, auto_refresh=False) as live:
        table = LiveTable(live, "msft", Board())
        for event in events:
            table.event(event, live=False)
    assert "→" not in out.getvalue()


def test_plain_lines_say_stage_scores_mean_and_rollback(events: list[Event]) -> None:
    out = io.StringIO()
    lines = PlainLines(out)
    for event in events:
        lines.event(event, live=True)
    text = out.getvalue()
    assert text.startswith("stage 0: 2 epochs from the base model on quick, slow, kept\n")
    first = next(event for event in events if isinstance(event, PointEvent))
    scores = [f"{n} {float(s.value):.3f}" for n, s in first.scores.items()]
    loss = first.loss[0] / first.loss[1]
    assert f"  epoch 0.25, checkpoint r0-t1, loss {loss:.3f}, mean " in text
    assert f"\n      {'  '.join(scores)}\n" in text
    assert "  → quick left; back to checkpoint r0-t" in text
    assert "\x1b" not in text


def test_plain_lines_do_not_speak_of_a_way_back_where_there_is_none(tmp_path: Path) -> None:
    simulate("sro", FEW, folder=tmp_path, num_train_epochs=4, peaks={"include_start": False})
    out = io.StringIO()
    lines = PlainLines(out)
    for event in read_log(tmp_path / "run.jsonl"):
        lines.event(event, live=True)
    assert " left at checkpoint r" in out.getvalue()
    assert "back to" not in out.getvalue()


def test_where_metrics_differ_the_mean_is_called_a_gain(events: list[Event]) -> None:
    out = io.StringIO()
    plain, board = PlainLines(out), Board()
    for event in events:
        changed = event
        if isinstance(event, (ScoresEvent, PointEvent)):
            slow = event.scores["slow"]
            loss = nll(slow.count - slow.total + 1.0, slow.count)
            changed = replace(event, scores={**event.scores, "slow": loss})
        plain.event(changed, live=True)
        board.event(changed, live=True)
    assert "  the base model, mean gain +0.0000:  quick " in out.getvalue()
    assert " mean gain +" in " ".join(out.getvalue().split()[-10:])
    assert " mean 0" not in out.getvalue()
    assert "best mean gain +" in text_of(board, 100)
    rows = {line.split()[0]: line for line in text_of(board, 100).splitlines() if line.strip()}
    assert " accuracy " in rows["quick"]
    assert " nll " in rows["slow"]
    assert "metric" not in text_of(board_of(events), 100)


def test_after_all_have_left_nobody_is_active(tmp_path: Path) -> None:
    learners = {"quick": FEW["quick"], "other": Learner(limit=0.3, damage=0.6)}
    events = events_of(learners, tmp_path)
    *_, last = [number for number, event in enumerate(events) if isinstance(event, DecisionEvent)]
    for until, said in (
        (last, "1 of 2 sub-datasets active · best mean "),
        (last + 1, "all 2 sub-datasets have left · best mean "),
        (len(events), "the run has ended · all 2 sub-datasets have left · best mean "),
    ):
        lines = text_of(board_of(events[:until]), 100).splitlines()
        assert lines[1].startswith(said)
    assert "active" not in "".join(lines)


def test_plain_lines_of_a_large_mixture_are_not_endless(many: list[Event]) -> None:
    out = io.StringIO()
    lines = PlainLines(out)
    for event in many[:12]:
        lines.event(event, live=True)
    assert max(map(len, out.getvalue().splitlines())) <= 80
    assert "… 88 more" in out.getvalue()


def test_the_view_fits_where_the_output_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    def shown(out: io.StringIO, told: int = 0) -> object:
        monkeypatch.setattr(sys, "stdout", out)
        run = ShownRun("msft")
        run.begin(Watched(RunFolder(tmp_path), None, {}, told, print, dict))
        return run.shown

    monkeypatch.setenv("TERM", "xterm")
    assert isinstance(shown(Terminal()), LiveTable)
    assert isinstance(shown(io.StringIO()), PlainLines)
    assert shown(Terminal(), told=12) is None, "a finished run shows its result, and not its way"


def test_time_left_is_of_the_present_stage(
    events: list[Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr("msft.app.terminal.board.time.monotonic", lambda: now)
    board = Board()
    reached = 0
    for event in events:
        if isinstance(event, PointEvent):
            now += 10.0
            reached += 1
        board.event(event, live=True)
        if reached == 3:
            break
    assert stage_left(board) == 5 * 10.0
    now += 4.0
    assert stage_left(board) == 46.0
    now += 100.0
    assert stage_left(board) == 40.0, "a slow tick does not eat the ones after it"


def stage_left(board: Board) -> float:
    assert board.time_left is not None
    return board.time_left.stage


def test_the_result_names_a_mean_of_gains(events: list[Event]) -> None:
    summary = summary_of(board_of(events).history)
    mean = summary["best"]["validation"]["mean"]
    metrics: dict[str, Metric] = {"quick": "accuracy", "slow": "nll", "kept": "value"}
    plain, gains = (result_text(summary, metrics=each).split() for each in ({}, metrics))
    assert plain[plain.index("mean") + 1] == f"{mean:.4f}"
    assert " ".join(gains[gains.index("mean") :]).startswith(f"mean gain over base {mean:+.4f}")


def test_a_reader_who_goes_away_does_not_stop_a_run(events: list[Event]) -> None:
    class Closed(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    lines = PlainLines(Closed())
    for event in events:
        lines.event(event, live=True)


def test_a_resumed_run_says_after_what_it_goes_on(events: list[Event]) -> None:
    out = io.StringIO()
    lines = PlainLines(out)
    known = [number for number, event in enumerate(events) if isinstance(event, PointEvent)][1]
    for number, event in enumerate(events):
        lines.event(event, live=number > known)
    said = "going on after checkpoint r0-t2\n  epoch 0.75, checkpoint r0-t3, "
    assert out.getvalue().startswith(said)
    assert out.getvalue().count("going on") == 1


def test_a_stage_in_which_nobody_leaves_is_said() -> None:
    board = Board()
    said = event_text(DecisionEvent("go_on", checkpoint_id(1, 8)), board)
    assert said == "  → no sub-dataset left: all were still at their highest"


def test_a_stage_in_which_nobody_fell_for_sure_is_said(tmp_path: Path) -> None:
    simulate(
        "msft",
        {"a": Learner(passes=3.0, limit=9.0)},
        compute_budget=2,
        method_options={"exclude": {}, "max_stages": 1},
        folder=tmp_path,
    )
    board, said = Board(), list[str | None]()
    for event in read_log(tmp_path / "run.jsonl"):
        board.event(event, live=False)
        said.append(event_text(event, board))
    assert "  → no sub-dataset left: none surely fell" in said


# Remarks: what noise may have decided, said when it happens.

FALLING = {
    "quick": Learner(rows=16, limit=0.3, damage=0.6),
    "flat": Learner(rows=16, ceiling=0.2, damage=0.0),
    "slow": Learner(rows=16, passes=9.0, limit=9.0),
}
"""One falls, one stays where the base model is and peaks at once, one learns."""


@pytest.fixture(scope="module")
def falling(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("falling")
    simulate("msft", FALLING, folder=folder, compute_budget=3, train_batch_size=16)
    return folder


def plain_text(folder: Path, rows: Path | None, known: int = 0) -> str:
    """What plain lines say of a run whose first events were known already."""
    out = io.StringIO()
    lines = PlainLines(out, rows)
    for number, event in enumerate(read_log(folder / "run.jsonl")):
        lines.event(event, live=number >= known)
    return out.getvalue()


def test_an_exclusion_that_is_not_sure_is_said_when_it_happens(falling: Path) -> None:
    lines = plain_text(falling, falling).splitlines()
    left = [number for number, line in enumerate(lines) if " left; " in line]
    flat = next(number for number in left if "→ flat left" in lines[number])
    assert lines[flat + 1].startswith("     flat: its fall is not sure at 95\u00a0%: ")
    rest = " ".join(" ".join(lines[flat + 1 :]).split())
    assert " flat: it has learned nothing yet: neither surely above nor surely below" in rest
    quick = next(number for number in left if "→ quick left" in lines[number])
    assert "quick: " not in "".join(lines), "its fall is sure"
    assert lines[quick + 1].startswith(("stage ", "  "))


def test_without_the_folder_no_exclusion_is_judged(falling: Path) -> None:
    assert "sure" not in plain_text(falling, None)


def test_the_live_table_marks_who_left_without_a_sure_fall(falling: Path) -> None:
    events = read_log(falling / "run.jsonl")
    for width in (120, 80, 60):
        board = Board(folder=falling)
        for event in events:
            board.event(event, live=True)
            board.remarks.after(event)
        rows = {line.split()[0]: line.rstrip() for line in text_of(board, width).splitlines()[3:-1]}
        assert rows["flat"].endswith(", unsure")
        assert not rows["quick"].endswith(", unsure")
        assert max(map(len, rows.values())) <= width


def test_the_live_table_prints_remarks_above_it_and_not_what_a_resume_replays(
    falling: Path,
) -> None:
    for live_run in (True, False):
        out = io.StringIO()
        console = Console(file=out, width=100, force_terminal=True, color_system=None)
        with Live(console=console, auto_refresh=False) as live:
            table = LiveTable(live, "msft", Board(folder=falling))
            for event in read_log(falling / "run.jsonl"):
                table.event(event, live=live_run)
        assert out.getvalue().count("flat: its fall is not sure") == live_run


def grown(folder: Path) -> None:
    """The losses of the log go up from the third tick on."""
    log = folder / "run.jsonl"
    told = [
        replace(event, loss=(2000.0 if number < 5 else 6000.0, 1000))
        if isinstance(event, PointEvent)
        else event
        for number, event in enumerate(read_log(log))
    ]
    log.write_bytes(b"".join(map(to_line, told)))


def test_a_loss_that_grows_is_said_once(tmp_path: Path) -> None:
    simulate("sft", FEW, folder=tmp_path, num_train_epochs=3)
    grown(tmp_path)
    text = plain_text(tmp_path, tmp_path)
    said = "note: The training loss grew: from 2 to 6 at tick 4 of stage 0. The learning"
    assert text.count("The training loss grew") == text.count(said) == 1
    lines = text.splitlines()
    place = next(number for number, line in enumerate(lines) if line.startswith(said))
    assert lines[place - 2].startswith("  epoch 1.00, checkpoint r0-t4, ")
    again = plain_text(tmp_path, tmp_path, known=8)
    assert "grew" not in again, "it was said before the run was stopped"


def test_the_result_has_the_findings(falling: Path) -> None:
    history = read_history(falling)
    found = findings_in(falling, history)
    summary = summary_of(history) | {"findings": findings_content(found)}
    lines = fitted(result_text(summary), 80).splitlines()
    notes = "\n".join(lines[lines.index("reported on validation") + 1 :])
    assert notes.startswith("note: ")
    assert max(map(len, notes.splitlines())) <= 80
    told = " ".join(notes.replace("note: ", "").split()).replace("95 %", "95\u00a0%")
    assert told == " ".join(" ".join(finding_texts(found)).split(" "))
    assert told.startswith("1 of 2 exclusions is not sure")
    assert "note" not in result_text(summary_of(history))
