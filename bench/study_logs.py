"""The logs of the study's runs: packed, read, and added to docs/runs; no torch.

    python bench/study_logs.py FOLDER… [--into docs/runs]

adds the runs of bench/study.py and bench/audit_gain.py that FOLDER holds: lines of study*.jsonl and
audit-gain.jsonl, and the logs in logs/ or logs*.tgz. A run that is there already stays as it is.
"""

import argparse
import gzip
import json
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from msft.run.history import History
from msft.run.log import from_line

RUNS = Path(__file__).parent.parent / "docs" / "runs"
PACKED = ("run.jsonl", "verdicts.jsonl")
SUMMARY = "summary.json"
PLAIN = (SUMMARY, "recipe.yaml")
LINES = "study.jsonl"
AUDITS = "audit-gain.jsonl"
"""Rows of bench/audit_gain.py: an audit and the trainings after it."""


AUDIT = (("run.jsonl",), ("audit.json", "recipe.yaml"))
"""What is kept of an audit; its judgments are too large."""


def keep_logs(
    folder: Path, logs: Path, kept: tuple[tuple[str, ...], tuple[str, ...]] = (PACKED, PLAIN)
) -> None:
    """Put the small files of a run into a folder; what they say of the place of rows is left out.

    The bytes follow from the files' content alone.
    """
    logs.mkdir(parents=True, exist_ok=True)
    for name in kept[0]:
        packed = folder / f"{name}.gz"
        raw = gzip.decompress(packed.read_bytes()) if packed.exists() else None
        content = (folder / name).read_bytes() if raw is None else raw
        with (
            (logs / packed.name).open("wb") as file,
            gzip.GzipFile("", "wb", mtime=0, fileobj=file) as stream,
        ):
            stream.write(content)
    summary, recipe = kept[1]
    (logs / summary).write_text((folder / summary).read_text())
    (logs / recipe).write_text(without_places((folder / recipe).read_text()))


def keep_result(folder: Path, logs: Path) -> None:
    """Put the summary of a run into a folder, and how its result did on each test row."""
    logs.mkdir(parents=True, exist_ok=True)
    summary = (folder / SUMMARY).read_text()
    best = json.loads(summary)["best"]["checkpoint"]
    with gzip.open(folder / "verdicts.jsonl.gz", "rt") as lines:
        kept = [x for x in lines if f'"checkpoint":"{best}","split":"test",' in x]
    (logs / "verdicts.jsonl.gz").write_bytes(gzip.compress("".join(kept).encode(), mtime=0))
    (logs / SUMMARY).write_text(summary)


def without_places(recipe: str) -> str:
    """A recipe without `data_dir`, and files in it by their names from there."""
    lines = recipe.splitlines(keepends=True)
    places = [line.partition(":")[2].strip() for line in lines if line.startswith("data_dir:")]
    text = "".join(line for line in lines if not line.startswith("data_dir:"))
    for place in places:
        text = text.replace(f"{place}/", "")
    return text


def history_of(logs: Path) -> History:
    """What happened in a run, from its packed log."""
    with gzip.open(logs / "run.jsonl.gz", "rb") as lines:
        return History(map(from_line, lines))


def verdicts_of(logs: Path) -> dict[tuple[str, str, str], str]:
    """Rows by checkpoint, split and sub-dataset: `1` is right."""
    with gzip.open(logs / "verdicts.jsonl.gz", "rt") as lines:
        read = [json.loads(line) for line in lines]
    return {(r["checkpoint"], r["split"], r["dataset"]): r["rows"] for r in read}


def lines_of(runs: Path, lines: str = LINES) -> list[dict[str, Any]]:
    """One for each run."""
    file = runs / lines
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def taken(source: Path, runs: Path) -> list[str]:
    """Add the runs of a folder to others; the names of those that were new."""
    with tempfile.TemporaryDirectory() as place:
        for archive in sorted(source.glob("logs*.tgz")):
            with tarfile.open(archive) as packed:
                packed.extractall(place, filter="data")
        places = [source / "logs", Path(place) / "logs"]
        return [
            name
            for pattern, lines in (("study*.jsonl", LINES), (AUDITS, AUDITS))
            for name in _added(source, pattern, places, runs, lines)
        ]


def _added(
    source: Path, pattern: str, places: Sequence[Path], runs: Path, lines: str
) -> Iterator[str]:
    """Copy the logs of new lines, then add each line to a file of `runs`."""
    known = {line["name"] for line in lines_of(runs, lines)}
    for file in sorted(source.glob(pattern)):
        for line in file.read_text().splitlines():
            row = json.loads(line)
            name = row["name"]
            if name in known:
                continue
            logs = next((each / name for each in places if (each / name).is_dir()), None)
            if logs is None:
                sys.exit(f"{source}: {name} has a line and no logs; expected logs/ or logs*.tgz")
            if lines == AUDITS:
                for use in row["scores"]:
                    keep_result(logs / use, runs / "logs" / name / use)
                keep_logs(logs / "audit", runs / "logs" / name / "audit", ((), AUDIT[1]))
            else:
                keep_logs(logs, runs / "logs" / name)
            known.add(name)
            with (runs / lines).open("a") as out:
                out.write(f"{line}\n")
            yield name


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folders", type=Path, nargs="+", metavar="FOLDER")
    parser.add_argument("--into", type=Path, default=RUNS)
    options = parser.parse_args()
    for folder in options.folders:
        names = taken(folder, options.into)
        print(f"{folder}: {len(names)} new: {', '.join(names)}" if names else f"{folder}: 0 new")


if __name__ == "__main__":
    main()
