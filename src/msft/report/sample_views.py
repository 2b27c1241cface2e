"""Sample answers as a page shows them: each row with what the base model and the results say."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from msft.report.compare.contest import Contest
from msft.run.folder import RunFolder
from msft.run.history import History
from msft.run.rows import Sample, SamplesByName, read_samples
from msft.search.rollout import BASE

BASE_MODEL = "base model"


@dataclass(frozen=True, slots=True)
class AnswerView:
    """who: the base model, the result, or a method. mark: what the answer was worth."""

    who: str
    text: str
    mark: str


@dataclass(frozen=True, slots=True)
class SampleView:
    """A row with what everybody answered."""

    prompt: str
    reference: str
    answers: Sequence[AnswerView]


SampleViews = Mapping[str, Sequence[SampleView]]
"""By sub-dataset."""


def run_samples(folder: Path, history: History) -> SampleViews:
    """The base model's answers beside those of the best checkpoint."""
    held = read_samples(RunFolder(folder).samples)
    best = history.best or BASE
    spoken = {BASE_MODEL: held.get(BASE, {})}
    if best != BASE:
        spoken[f"best, {best}"] = held.get(best, {})
    return _views([*history.start.datasets], spoken)


def contest_samples(contest: Contest) -> SampleViews:
    """The base model's answers beside those of each method, under its first seed."""
    spoken: dict[str, SamplesByName] = {}
    for entrant in contest.entrants:
        run = entrant.over(contest.seeds)[0]
        held = read_samples(RunFolder(run.folder).samples)
        spoken.setdefault(BASE_MODEL, held.get(BASE, {}))
        spoken[entrant.label] = held.get(run.best, {})
    return _views(contest.names, spoken)


def _views(names: Sequence[str], spoken: Mapping[str, SamplesByName]) -> SampleViews:
    found: dict[str, Sequence[SampleView]] = {}
    for name in names:
        answers: dict[tuple[int, str, str], list[AnswerView]] = {}
        for who, samples in spoken.items():
            for each in samples.get(name, ()):
                key = (each.row, each.prompt, each.reference)
                answers.setdefault(key, []).append(
                    AnswerView(who, "" if each.answer is None else each.answer, _mark(each))
                )
        if answers:
            found[name] = [
                SampleView(prompt, reference, said)
                for (_, prompt, reference), said in sorted(answers.items())
            ]
    return found


def _mark(sample: Sample) -> str:
    if isinstance(sample.worth, bool):
        return "right" if sample.worth else "wrong"
    return f"loss {sample.worth:.3f}" if sample.answer is None else f"{sample.worth:.3g}"
