"""The logs of the study's runs: packed, read, and added to docs/runs; no torch.

    python bench/study_logs.py FOLDER… [--into docs/runs]

adds the runs of bench/study.py that FOLDER holds: lines of study*.jsonl, and the logs in logs/ or
logs*.tgz. A run that is there already stays as it is.
"""

import argparse
import gzip
import json
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

from msft.run.history import History
from msft.run.log import from_line

RUNS = Path(__file__).parent.parent / "docs" / "runs"
PACKED = ("run.jsonl", "verdicts.jsonl")
PLAIN = ("summary.json", "recipe.yaml")
LINES = "study.jsonl"


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


def lines_of(runs: Path) -> list[dict[str, Any]]:
    """One for each run."""
    return [json.loads(line) for line in (runs / LINES).read_text().splitlines()]


def taken(source: Path, runs: Path) -> list[str]:
    """Add the runs of a folder to others; the names of those that were new."""
    known = {line["name"] for line in lines_of(runs)} if (runs / LINES).exists() else set()
    with tempfile.TemporaryDirectory() as place:
        for archive in sorted(source.glob("logs*.tgz")):
            with tarfile.open(archive) as packed:
                packed.extractall(place, filter="data")
        found = [source / "logs", Path(place) / "logs"]
        new = {}
        for file in sorted(source.glob("study*.jsonl")):
            for line in file.read_text().splitlines():
                name = json.loads(line)["name"]
                if name not in known:
                    new.setdefault(name, line)
        for name in new:
            logs = next((each / name for each in found if (each / name).is_dir()), None)
            if logs is None:
                sys.exit(f"{source}: {name} has a line and no logs; expected logs/ or logs*.tgz")
            keep_logs(logs, runs / "logs" / name)
    runs.mkdir(parents=True, exist_ok=True)
    with (runs / LINES).open("a") as out:
        out.writelines(f"{line}\n" for line in new.values())
    return list(new)


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
