"""Mutants of the core: each small change to a line should fail a test. `make mutants` runs them.

python tests/mutants.py [FILE ...] [--continue]

Every file of CORE (or those named, from src/msft) is changed at one place at a time: `<` to `<=`,
`and` to `or`, `any` to `all`, `min` to `max`, `+` to `-`, a number to the next one. The file's
tests run until the first one fails. What no test notices is printed; JUDGED holds those that a
reader has found to change nothing, with the reason. Results go into mutants.jsonl as they come.
"""

import argparse
import json
import os
import signal
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from hashlib import sha256
from itertools import chain
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"  # before anything counts the cores; a fork needs one thread

from mutant_changes import Key, Mutant, mutants_of
from mutant_forks import ROOT
from mutant_tests import first_run, test_files
from mutant_trials import try_all
from mutants_judged import JUDGED

METHODS = "tests/search/methods tests/test_properties.py"
CORE: dict[str, str] = {
    "search/methods/msft.py": "tests/search/methods/test_msft.py " + METHODS,
    "search/methods/sft.py": "tests/search/methods/test_sft.py " + METHODS,
    "search/methods/continual.py": "tests/search/methods/test_continual.py " + METHODS,
    "search/methods/dynamix.py": "tests/search/methods/test_dynamix.py " + METHODS,
    "search/methods/ies.py": "tests/search/methods/test_ies.py " + METHODS,
    "search/methods/sro.py": "tests/search/methods/test_sro.py " + METHODS,
    "search/methods/soft_sro.py": "tests/search/methods/test_soft_sro.py " + METHODS,
    "search/methods/soup.py": "tests/search/methods/test_soup.py " + METHODS,
    "search/curves.py": "tests/search/test_curves.py " + METHODS,
    "search/falls.py": "tests/search/test_fall_values.py tests/search/test_falls.py "
    "tests/run/test_fall_test.py",
    "search/student.py": "tests/search/test_student.py",
    "search/feeds.py": "tests/search/test_feeds.py tests/search/test_mixture.py "
    "tests/search/test_weighted_rows.py " + METHODS,
    "search/rehearsal.py": "tests/search/test_rehearsal.py tests/search/test_mixture.py " + METHODS,
    "run/history.py": "tests/run/test_flops.py tests/run/test_summary.py",
    "report/compare/paper.py": "tests/report/test_decomposition.py",
    "report/compare/statistics.py": "tests/report/test_statistics.py tests/report/test_headroom.py",
    "report/headroom.py": "tests/report/test_headroom.py",
}
"""Files whose numbers decide or are published, and the tests that hold them."""

RESULTS, HELD = ROOT / "mutants.jsonl", ROOT / "mutants.tests.json"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="*", help="from src/msft; by default all of CORE")
    parser.add_argument(
        "--continue",
        action="store_true",
        dest="goes_on",
        help="what mutants.jsonl says is not tried again, but for survivors whose tests changed",
    )
    options = parser.parse_args()
    files = options.files or list(CORE)
    if unknown := [file for file in files if file not in CORE]:
        sys.exit(f"{', '.join(unknown)}: not in CORE; there are {', '.join(CORE)}")
    if not options.goes_on:
        HELD.unlink(missing_ok=True)
    if not options.goes_on or not RESULTS.exists():
        RESULTS.write_text("")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the child ends too
    sys.exit(run(files))


def run(files: Sequence[str]) -> int:
    """1 where a mutant survives."""
    killed = survivors = 0
    judged = set[Key]()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["TMPDIR"] = name
        paths = dict.fromkeys(chain.from_iterable(CORE[file].split() for file in files))
        tests = first_run([*paths], HELD, folder)
        print(f"{len(tests)} tests pass on the source as it is", flush=True)
        for file in files:
            state, holding = digest(CORE[file].split()), CORE[file].split()
            every = [*mutants_of(file)]
            mutants = [mutant for mutant in every if mutant.key not in JUDGED]
            judged |= {mutant.key for mutant in every} & JUDGED.keys()
            noticed, survived = results(state)
            new = [mutant for mutant in mutants if mutant.digest not in noticed | survived]
            try_all(new, holding, tests, folder, partial(write, state))
            noticed, survived = results(state)
            alive = [mutant for mutant in mutants if mutant.digest in survived - noticed]
            for mutant in alive:
                print(mutant, flush=True)
            survivors += len(alive)
            killed += len(mutants) - len(alive)
            print(f"{file}: {len(mutants)} tried, {len(alive)} survive", flush=True)
    print(f"{killed} mutants fail a test, {len(judged)} change nothing, {survivors} survive")
    stale = [key for key in JUDGED if key[0] in files and key not in judged]
    for key in stale:
        print(f"judged, but there is no such mutant any more: {key}")
    return 1 if survivors or stale else 0


def digest(paths: Sequence[str]) -> str:
    """Of the tests, as they are now."""
    files = [ROOT / file for path in paths for file in test_files(path)]
    return sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:16]


def write(tests: str, mutant: Mutant, by: str | None) -> None:
    line = {"mutant": str(mutant), "digest": mutant.digest, "tests": tests, "noticed_by": by}
    with RESULTS.open("a") as file:
        file.write(json.dumps(line) + "\n")


def results(tests: str) -> tuple[set[str], set[str]]:
    """The mutants that were noticed, and those that survived the tests as they are."""
    lines = [json.loads(line) for line in RESULTS.read_text().splitlines()]
    noticed = {line["digest"] for line in lines if line["noticed_by"]}
    alive = {line["digest"] for line in lines if not line["noticed_by"] and line["tests"] == tests}
    return noticed, alive


if __name__ == "__main__":
    main()
