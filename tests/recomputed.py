"""The paper's numbers, recomputed from the events of `run.jsonl`: a second opinion.

Nothing of msft is imported, so that an error there cannot repeat itself here; docs/log.md and the
paper are all it goes by. Every answer scans the events again, without a fold in between.

    python tests/recomputed.py RUN [RUN…]        one JSON object for each run
"""

import json
import sys
import zlib
from collections.abc import Iterator, Sequence
from fractions import Fraction
from math import atan, fsum, pi, sqrt
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

Event = dict[str, Any]
Value = Fraction | float

BASE, VALIDATION, TEST = "base", "validation", "test"


def checked_events(path: Path) -> Iterator[Event]:
    """The events of a log whose checksums fit: each is of all bytes of the file before it."""
    data, at = path.read_bytes(), 0
    for line in data.splitlines(keepends=True):
        event = json.loads(line)
        if (said := event.pop("crc", None)) is not None:
            before = at + line.rindex(b',"crc":')
            if said != f"{zlib.crc32(data[:before]):08x}":
                raise ValueError(f"{path}: the checksum {said} does not fit the bytes before it")
        yield event
        at += len(line)


class Run:
    """A run folder's events and the numbers that follow from them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.events: list[Event] = [*checked_events(folder / "run.jsonl")]
        self.head = self.events[0]
        self.names = list(self.head["datasets"])
        self.per_epoch: int = self.head["settings"]["evals_per_epoch"]
        self.rollouts = [event for event in self.events if event["event"] == "rollout"]
        self.averages = {
            event["checkpoint"]: event["of"] for event in self.events if event["event"] == "average"
        }

    # scores

    def scores(self, checkpoint: str, split: str = VALIDATION) -> dict[str, Any]:
        """Raw scores by sub-dataset; those of points are of validation."""
        found: dict[str, Any] = {}
        for event in self.events:
            of = (event.get("checkpoint"), event.get("split", VALIDATION))
            if "scores" in event and of == (checkpoint, split):
                found.update(event["scores"])
        return found

    def value(self, checkpoint: str, name: str, split: str = VALIDATION) -> Value:
        return value_of(self.scores(checkpoint, split)[name])

    def is_scored(self, checkpoint: str, split: str = VALIDATION) -> bool:
        return set(self.scores(checkpoint, split)) == set(self.names)

    def mean(self, checkpoint: str, split: str = VALIDATION) -> Value:
        """Of all sub-datasets: of their scores, or where metrics differ of gains over the base."""
        raw, base = self.scores(checkpoint, split), self.scores(BASE, split)
        if len({kind_of(score) for score in raw.values()}) > 1:
            return fsum(gain_of(raw[name], base[name]) for name in self.names) / len(self.names)
        if self.head["settings"]["mean"] == "pooled":
            pairs = [counts_of(raw[name]) for name in self.names]
            rows = sum(pair[1] for pair in pairs)
            if kind_of(raw[self.names[0]]) == "accuracy":
                return Fraction(sum(pair[0] for pair in pairs), rows)
            return fsum(pair[0] for pair in pairs) / int(rows)
        values = [value_of(raw[name]) for name in self.names]
        if all(isinstance(value, Fraction) for value in values):
            return sum(values, Fraction(0)) / len(values)
        return fsum(values) / len(values)

    def height(self, checkpoint: str) -> Value:
        """The mean on validation, higher is better."""
        kinds = {kind_of(score) for score in self.scores(checkpoint).values()}
        return -self.mean(checkpoint) if kinds == {"nll"} else self.mean(checkpoint)

    # where training went

    def points(self, rollout: int) -> list[Event]:
        head = f"r{rollout}-t"
        points = [event for event in self.events if event["event"] == "point"]
        return [event for event in points if event["checkpoint"].startswith(head)]

    def path(self, checkpoint: str) -> list[str]:
        """The ticks from the base model to a checkpoint, that one last; to an average, all the way
        to the latest tick in it."""
        if checkpoint in self.averages:
            checkpoint = max(self.averages[checkpoint], key=place_of)
        if checkpoint == BASE:
            return []
        rollout, tick = place_of(checkpoint)
        before = self.path(self.rollouts[rollout]["start"])
        return [*before, *(f"r{rollout}-t{number}" for number in range(1, tick + 1))]

    @property
    def best(self) -> str:
        """What the method reports, else the highest mean of the eligible, the first of equals."""
        reports = [e for e in self.events if e["event"] == "decision" and e["what"] == "report"]
        return str(reports[-1]["checkpoint"]) if reports else max(self.candidates, key=self.height)

    @property
    def candidates(self) -> list[str]:
        """The base model and the ticks that may be the best, in the order of training; `max` takes
        the first of equal ones."""
        ticks = [
            point["checkpoint"]
            for number, rollout in enumerate(self.rollouts)
            if rollout["eligible"]
            for point in self.points(number)
        ]
        return [each for each in (BASE, *ticks) if self.is_scored(each)]

    @property
    def chosen_from(self) -> int:
        """How many the best was chosen from; a method's own word is no choice, and who averages has
        looked at every tick."""
        if self.best in self.averages:
            return sum(event["event"] == "point" for event in self.events)
        reports = [event for event in self.events if event.get("what") == "report"]
        return 1 if reports else len(self.candidates)

    @property
    def epochs(self) -> float:
        """Ep. of the best checkpoint; continual SFT's is the mean of the stops."""
        if self.head["method"] == "continual":
            return fmean(tick / self.per_epoch for _, tick, _, _ in self.exits)
        return len(self.path(self.best)) / self.per_epoch

    @property
    def exits(self) -> list[tuple[str, int, str, int]]:
        """Who left, at which tick by the method's count, back to which checkpoint, after which
        roll-out."""
        found: list[tuple[str, int, str, int]] = []
        rollout = -1
        for event in self.events:
            rollout += event["event"] == "rollout"
            if event["event"] == "decision" and event["what"] == "exclude":
                found += [(n, event["tick"], event["checkpoint"], rollout) for n in event["names"]]
        return found

    # cost

    def flops(self) -> dict[str, int]:
        """6 per parameter and token trained, 2 evaluated, 8 looked ahead."""
        size = self.head["num_parameters"]
        spent = [event["tokens"] for event in self.events if "tokens" in event]
        train, evaluation, ahead = (
            factor * size * sum(tokens[kind] for tokens in spent)
            for kind, factor in (("train", 6), ("evaluation", 2), ("lookahead", 8))
        )
        path = set(self.path(self.best))
        kept = sum(
            size * (6 * event["tokens"]["train"] + 8 * event["tokens"]["lookahead"])
            for event in self.events
            if event["event"] == "point" and event["checkpoint"] in path
        )
        return {
            "train": train,
            "evaluation": evaluation,
            "lookahead": ahead,
            "total": train + evaluation + ahead,
            "kept": kept,
            "discarded": train + ahead - kept,
        }

    def disk(self) -> dict[str, float]:
        held = [event["disk"] for event in self.events if event["event"] == "point"]
        every = [event["disk"] for event in self.events if "disk" in event]
        return {
            "mean_copies": sum(disk["copies"] for disk in held) / len(held),
            "peak_copies": max(disk["peak_copies"] for disk in every),
            "peak_bytes": max(disk["peak_bytes"] for disk in every),
        }

    def disk_bounds(self) -> tuple[float, int]:
        """What the paper's appendix on disk expects of mSFT: on average, and at most."""
        many, looks = len(self.names), self.head["settings"]["compute_budget"]
        return fmean(min(many - stage + 1, looks) + 2 for stage in range(1, many + 1)), many + 1

    # peaks

    def curve(self, rollout: int, name: str) -> list[Value]:
        """Heights over a roll-out, its start first."""
        ticks = [point["checkpoint"] for point in self.points(rollout)]
        raw = [self.scores(each)[name] for each in (self.rollouts[rollout]["start"], *ticks)]
        if self.head["settings"]["peaks"].get("by") == "probability":
            return [score[2] for score in raw]
        return [-value_of(score) if kind_of(score) == "nll" else value_of(score) for score in raw]

    def peak(self, curve: Sequence[Value]) -> float:
        """Epochs to the peak of a curve, by the rule of the recipe (docs/recipe.md, `peaks`)."""
        rule = self.head["settings"]["peaks"]
        width = rule["smooth"]
        smooth = [
            sum(curve[max(0, tick - width) : tick + width + 1], Fraction(0))
            / len(curve[max(0, tick - width) : tick + width + 1])
            for tick in range(len(curve))
        ]
        best = first = 0 if rule["include_start"] else 1
        for tick in range(first, len(curve)):
            if smooth[tick] - smooth[best] > Fraction(repr(float(rule["min_delta"]))):
                best = tick
        return best / self.per_epoch

    def peaks(self, rollout: int) -> dict[str, float]:
        names = self.rollouts[rollout]["active"]
        return {name: self.peak(self.curve(rollout, name)) for name in names}

    def distances(self) -> dict[str, float]:
        """Fig. 2b: from each peak of the first roll-out to the peak of the mean."""
        ticks = [BASE, *(point["checkpoint"] for point in self.points(0))]
        mean = self.peak([self.height(tick) for tick in ticks])
        return {name: abs(peak - mean) for name, peak in self.peaks(0).items()}

    # loss and rows

    def losses(self) -> dict[str, float]:
        """Mean training loss of every tick that trained rows."""
        points = [event for event in self.events if event["event"] == "point"]
        return {e["checkpoint"]: e["loss"][0] / e["loss"][1] for e in points if e["loss"][1]}

    def moving_losses(self, rollout: int, window: int = 10) -> list[float]:
        """Fig. 9: the mean loss of the last ten steps on the path, at each step of a roll-out; of a
        run that was never stopped, so that `steps.jsonl` has every step once."""
        lines = (self.folder / "steps.jsonl").read_text().splitlines()
        steps = [json.loads(line) for line in lines]
        path = self.path(self.rollouts[rollout]["start"])
        before = [
            step["loss"]
            for tick in path
            for step in steps
            if (step["rollout"], step["tick"]) == place_of(tick)
        ]
        own = [step["loss"] for step in steps if step["rollout"] == rollout]
        every = [*before, *own]
        ends = range(max(len(before) + 1, window), len(every) + 1)
        return [fmean(every[end - window : end]) for end in ends]

    def rows_per_epoch(self) -> list[int]:
        """Rows trained in each whole epoch of the last roll-out: under IES those still active."""
        rows = [point["loss"][1] for point in self.points(len(self.rollouts) - 1)]
        step = self.per_epoch
        return [sum(rows[at : at + step]) for at in range(0, len(rows) - step + 1, step)]

    def verdicts(self) -> Iterator[tuple[str, str, str, str]]:
        """Checkpoint, split, sub-dataset and rows, of rows that are right or wrong."""
        for line in (self.folder / "verdicts.jsonl").read_text().splitlines():
            raw = json.loads(line)
            if isinstance(raw.get("rows"), str):
                yield raw["checkpoint"], raw["split"], raw["dataset"], raw["rows"]

    def summary(self) -> dict[str, Any]:
        """What `summary.json` says of it too."""
        best = self.best
        return {
            "best": {
                "checkpoint": best,
                "epochs": self.epochs,
                "candidates": self.chosen_from,
                **{
                    split: {
                        "mean": float(self.mean(best, split)),
                        "datasets": {n: float(self.value(best, n, split)) for n in self.names},
                    }
                    if self.is_scored(best, split)
                    else None
                    for split in (VALIDATION, TEST)
                },
            },
            "exits": self.exits,
            "epochs_trained": sum(e["event"] == "point" for e in self.events) / self.per_epoch,
            "flops": self.flops(),
            "disk": self.disk(),
        }


def place_of(checkpoint: str) -> tuple[int, int]:
    if checkpoint == BASE:
        return (-1, 0)
    rollout, tick = checkpoint.split("-")
    return int(rollout[1:]), int(tick[1:])


def kind_of(score: Any) -> str:
    return "accuracy" if isinstance(score, list) else "nll" if isinstance(score, dict) else "value"


def counts_of(score: Any) -> tuple[Any, Any]:
    match score:
        case [right, rows, *_]:
            return right, rows
        case {"nll": total, "tokens": tokens}:
            return total, tokens
    return score, 1


def value_of(score: Any) -> Value:
    total, count = counts_of(score)
    return Fraction(total, count) if isinstance(score, list) else total / count


def gain_of(score: Any, base: Any) -> float:
    """Points of accuracy or of an own metric, the share of an nll that was saved."""
    value, before = float(value_of(score)), float(value_of(base))
    return (before - value) / before if kind_of(score) == "nll" else value - before


def decomposition(sft: Run, msft: Run, split: str) -> dict[str, tuple[Value, Value, Value]]:
    """Eq. 4 and Fig. 8 of every sub-dataset that left: its gain over SFT, the overfitting
    prevented, and the forgetting (or transfer), which is m(c_final) − m(c_min)."""
    found: dict[str, tuple[Value, Value, Value]] = {}
    for name, _, checkpoint, _ in msft.exits:
        sign = -1 if kind_of(msft.scores(BASE)[name]) == "nll" else 1
        final, reference = msft.value(msft.best, name, split), sft.value(sft.best, name, split)
        forgetting = sign * (final - msft.value(checkpoint, name, split))
        gain = sign * (final - reference)
        found[name] = (gain, gain - forgetting, forgetting)
    return found


def shifts(with_all: Run, without: Run) -> dict[str, float]:
    """Fig. 3a: the change of each survivor's peak in the last roll-outs of two branches."""
    before = with_all.peaks(len(with_all.rollouts) - 1)
    after = without.peaks(len(without.rollouts) - 1)
    return {name: after[name] - before[name] for name in before if name in after}


def spread(run: Run, split: str) -> float:
    """Fig. 4, left: standard deviation (n − 1) over the sub-datasets."""
    return stdev(float(run.value(run.best, name, split)) for name in run.names)


def first_places(runs: Sequence[Run], split: str) -> list[int]:
    """Fig. 4, right: on how many sub-datasets no other run scores better; for accuracies."""
    tops = {name: max(run.value(run.best, name, split) for run in runs) for name in runs[0].names}
    return [sum(r.value(r.best, n, split) == top for n, top in tops.items()) for r in runs]


def seed_table(runs: Sequence[Run], sft: Sequence[Run], split: str) -> dict[str, float | None]:
    """Mean, standard deviation and p of the two-sided paired t-test against SFT, in per cent.

    With three seeds (two degrees of freedom) and with two (one), p has a closed form; it has none
    where every seed has the same difference.
    """
    scores, against = ([100 * run.mean(run.best, split) for run in each] for each in (runs, sft))
    apart = [score - other for score, other in zip(scores, against, strict=True)]
    p = None
    if len({*apart}) > 1:
        t = abs(fmean(apart)) / (stdev(apart) / sqrt(len(apart)))
        p = {2: 1 - 2 / pi * atan(t), 3: 1 - t / sqrt(t * t + 2)}[len(apart)]
    return {"mean": fmean(scores), "sd": float(stdev(scores)), "p": p}


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        print(json.dumps({"run": argument, **Run(Path(argument)).summary()}, indent=1))
