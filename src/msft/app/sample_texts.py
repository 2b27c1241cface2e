"""Sample answers as text for trackers: what the base model and the result say to the same rows."""

from collections.abc import Mapping
from pathlib import Path

from msft.run.rows import Sample, SamplesByName, read_samples
from msft.search.rollout import BASE, CheckpointId


def sample_texts(path: Path, best: CheckpointId) -> dict[str, str]:
    """`samples/<name>` for every sub-dataset that has samples of the result.

    path: of `samples.jsonl`.
    """
    found = read_samples(path)
    before: SamplesByName = found.get(BASE, {})
    return {
        f"samples/{name}": "\n\n".join(
            _text(sample, {each.row: each for each in before.get(name, ())}) for sample in samples
        )
        for name, samples in found.get(best, {}).items()
    }


def _text(sample: Sample, before: Mapping[int, Sample]) -> str:
    """Lines of a row, indented, so that a tracker shows them as they are."""
    base = before.get(sample.row)
    parts = {
        "prompt": sample.prompt,
        "reference": sample.reference,
        "base model": base.answer if base else None,
        "result": sample.answer,
        "score": str(sample.worth),
    }
    told = [f"{name}: {text}" for name, text in parts.items() if text is not None]
    return "\n".join(f"    {line}" for text in told for line in text.splitlines())
