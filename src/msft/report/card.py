"""The model card of a result: Markdown with the front matter that the hub reads."""

import re
from pathlib import Path
from typing import Any

from msft.report.comparison_tables import average_in_words
from msft.report.findings import Findings, certainty_of, result_texts
from msft.report.tables import markdown
from msft.report.watched import watched_table
from msft.report.wording import MEAN_OF_GAINS
from msft.run.history import Exclusion, History, adapter_of, schedule_of, summary_of
from msft.search.curves import SELECTION, TEST
from msft.search.rollout import BASE, place_of
from msft.text import (
    SELECTED_ON_TEST,
    counted,
    epochs,
    in_markdown,
    listed,
    named_mean,
    no_test_mean,
)

_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*(?<!\.gguf)", re.ASCII)


def card_of(
    history: History,
    model: str,
    found: Findings | None = None,
    report_split: str = TEST,
    merged: bool = False,
    four_bit: bool = False,
    fp8: bool = False,
) -> str:
    """Markdown with the front matter that the hub reads. Only what led to this checkpoint is in it.

    found: the findings of a finished run. report_split: as in the recipe. merged: the result has
        its adapter in it. four_bit, fp8: the adapter was trained beside weights in NF4, or in FP8.
    """
    adapter = bool(adapter_of(history)) and not merged
    summary, schedule = summary_of(history), schedule_of(history)
    best = summary["best"]
    splits = (TEST,) if history.selected_on_test else (SELECTION, TEST)
    lines = [
        "---",
        f"library_name: {'peft' if adapter else 'transformers'}",
        *([f"base_model: {model}"] if is_hub_name(model) else []),
        "pipeline_tag: text-generation",
        f"tags: [msft, sft{', lora' if adapter else ''}]",
        "---",
        "",
        f"# {in_markdown(model)}, fine-tuned with msft ({in_markdown(summary['method'])})",
        "",
        *([f"**{SELECTED_ON_TEST}**", ""] if history.selected_on_test else []),
        _origin(history, summary),
        *(["", _kind(history, model, four_bit, fp8)] if adapter else []),
        *(text for each in result_texts(found or Findings()) for text in ("", each)),
        "",
        f"| sub-dataset | rows | epochs | {' | '.join(splits)} |",
        "| --- | --- | --- |" + " --- |" * len(splits),
    ]
    for name, rows in history.start.datasets.items():
        scores = " | ".join(_shown(best[split], name) for split in splits)
        lines.append(
            f"| {in_markdown(name)} | {rows} | {epochs(schedule['datasets'][name])} | {scores} |"
        )
    known = [best[split] and best[split]["mean"] for split in splits]
    means = [named_mean(mean, history.mixed) for mean in known]
    lines.append(f"| **{means[0][0]}** | | | {' | '.join(text for _, text in means)} |")
    if without := history.untested(best["checkpoint"]):
        text = in_markdown(no_test_mean(without))
        lines += ["", f"{text[0].upper()}{text[1:]}."]
    if table := watched_table(history):
        lines += ["", markdown(table).rstrip()]
    if report_split != TEST and not history.selected_on_test:
        lines += ["", "Validation reports, as in the paper (`report_split: selection`)."]
    if history.mixed:
        lines += ["", MEAN_OF_GAINS]
    return "\n".join([*lines, *_departures(history, found or Findings())]) + "\n"


def is_hub_name(model: str) -> bool:
    """True for the name of a hub model: the hub refuses cards with another base."""
    return _NAME.fullmatch(model) is not None and not Path(model).exists()


def _kind(history: History, model: str, four_bit: bool, fp8: bool) -> str:
    """A paragraph on the adapter and on how to load it."""
    text = (
        f"It is a LoRA adapter of {adapter_of(history):,} weights beside the "
        f"{history.start.num_parameters:,} of {in_markdown(model)}, which did not change. With "
        "peft installed, `AutoModelForCausalLM.from_pretrained` of this folder loads both."
    )
    if four_bit:
        text += (
            " It was trained and scored beside these weights in four bits (NF4, quantised twice): "
            "load them so too, with `quantization_config`, or write both as one model with `msft "
            "merge`."
        )
    if fp8:
        text += (
            " It was trained and scored beside these weights in FP8 (e4m3, a scale for each row): "
            "`msft merge` writes both as one model with these numbers."
        )
    return text


def _origin(history: History, summary: dict[str, Any]) -> str:
    """The place of this checkpoint in the run."""
    best = summary["best"]
    text = f"Checkpoint `{best['checkpoint']}` of a run with seed {summary['seed']}"
    text += f" ({summary['status']}), "
    if best["checkpoint"] == BASE:
        return f"{text}the model as it was given: no training is in it."
    if history.average_of:
        text += f"{average_in_words(history)}."
    else:
        path = sum(ticks for _, ticks in history.path(best["checkpoint"]))
        text += f"after {counted(path / history.evals_per_epoch, 'epoch')} on the path to it"
        chosen = (
            f"; chosen from {counted(best['candidates'], 'scored point')} by the "
            f"{history.selection} mean."
        )
        text += "." if history.reported else chosen
    if summary["ema_decay"] is not None:
        what = "Each of these is" if history.average_of else "Its weights are"
        text += (
            f" {what} the exponential moving average over the steps of training, with a decay of "
            f"{summary['ema_decay']:g} (`ema_decay`)."
        )
    return text


def _departures(history: History, found: Findings) -> list[str]:
    """The exclusions on the way to this checkpoint; later ones have no part in it."""
    left = history.path_exclusions(history.best or BASE)
    if not left:
        return []
    last = place_of(history.reach(history.best or BASE))[0]
    names = [*dict.fromkeys(each.name for each in left)]
    rehearsed = history.stages[last].asked.rehearsed
    stayed = [f"{rehearsed[name]} rows of {name}" for name in names if name in rehearsed]
    lines = ["", "| left on the way | stage | at epoch of that stage | its fall |"]
    lines += ["| --- | --- | --- | --- |", *(_row(history, found, each) for each in left)]
    if stayed:
        lines += ["", f"Of those that left, {listed(stayed)} stayed in every epoch."]
    return lines


def _row(history: History, found: Findings, each: Exclusion) -> str:
    rollout, tick = place_of(each.checkpoint)
    at = (tick if rollout == each.stage else 0) / history.evals_per_epoch
    sure = certainty_of(found.departures, each.name)
    return f"| {in_markdown(each.name)} | {each.stage} | {epochs(at)} | {sure} |"


def _shown(scores: dict[str, Any] | None, name: str) -> str:
    return (
        ""
        if scores is None or name not in scores["datasets"]
        else f"{scores['datasets'][name]:.4f}"
    )
