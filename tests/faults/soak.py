"""Random kills, file faults and hostile inputs against the real program, for as long as you like.

    python tests/faults/soak.py --minutes 60 [--seed 7] [--out FILE] [--ranks]

Every trial is drawn from the seed and its number: `--seed 7 --trial 123` repeats one. A trial that
does not end as it must is printed with its command and kept in FILE, one JSON line a trial; then
the exit code is 1.

- kill: a run is killed one to four times and resumed. It must leave the log, verdicts, summary and
  weights of the run that was left alone.
- fault: a run is killed or finished, then a file of its folder is damaged. Resumed, it must leave
  the same log and weights, or refuse in words and change nothing.
- input: a recipe or a data file is damaged before the start. `msft` must train, or refuse with exit
  code 2 or 3 and in words, within a minute.
- ranks (with --ranks, and then nothing else): a run of two or three processes, each with a hash
  seed of its own, is interrupted one to four times: a rank or all of them are killed, or one is
  asked to stop. The others must end by themselves. Resumed by one to three processes, it must leave
  what one process leaves that was left alone, but for the fields `disk` and `crc`.
"""

import argparse
import hashlib
import json
import os
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

sys.path.append(str(Path(__file__).parents[1]))  # a process of its own knows no pytest
sys.path.append(str(Path(__file__).parents[1] / "app"))
from program import Ended, run, toy_recipe
from rank_processes import SEEDS, Running

from msft.testing import promised_log, promised_summary
from warm_python import NO_REPORTS

METHODS: dict[str, dict[str, Any]] = {
    "sft": {},
    "msft": {"learning_rate": 2e-2},
    "msft-restored": {"learning_rate": 2e-2, "method_options": {"on_rollback": "restore"}},
    "msft-sure-averaged": {
        "learning_rate": 2e-2,
        "ema_decay": 0.8,
        "compute_budget": 2,
        "method_options": {"exclude": {"confidence": 0.9}},
    },
    "soup": {},
    "dynamix": {},
    "ies": {},
    "continual": {},
}
"""Runs of a second or two; what stands before the first dash is the method."""

RANKS: dict[str, dict[str, Any]] = {
    **METHODS,
    "sft-adapter": {"use_peft": True, "lora_r": 4, "learning_rate": 1e-2},
}
LANES = 6
"""Of runs in several processes, so that each number of them divides it."""

KEPT = ("run.jsonl", "summary.json", "best/model.safetensors")
"""What a run that was damaged must leave as it was; verdicts that were damaged may be lost."""


@dataclass(frozen=True)
class Outcome:
    """kind: kill, fault or input. what: the fault in words. wrong: empty if all is well."""

    kind: str
    what: str
    wrong: str


class Soak:
    """Trials in a folder. A run that is left alone is made once for each method."""

    def __init__(self, folder: Path, seed: int) -> None:
        self._folder = folder
        self._seed = seed
        self._alone: dict[str, tuple[dict[str, str], float]] = {}
        self.kills = 0
        """Processes that were killed among several, and signals that one of them got."""

    def trial(self, number: int, ranks: bool = False) -> Outcome:
        random = Random(f"{self._seed} {number}")
        kind = random.choice(("kill", "kill", "fault", "fault", "input"))
        method = random.choice([*METHODS])
        if ranks:
            kind, method = "ranks", random.choice([*RANKS])
        place = self._folder / "trial"
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        if kind == "ranks":
            what, wrong = self._ranks(method, place, random)
        elif kind == "input":
            what, wrong = self._input(method, place, random)
        else:
            what, wrong = self._interrupted(kind, method, place, random)
        return Outcome(kind, what, wrong)

    def _interrupted(self, kind: str, method: str, place: Path, random: Random) -> tuple[str, str]:
        alone, seconds = self._left_alone(method)
        train = ("train", self._folder / method / "recipe.yaml", "--out", "out")
        kills = random.randint(1, 4) if kind == "kill" else random.randint(0, 1)
        for _ in range(kills):
            moment = random.uniform(0.05, 0.9) * seconds
            run(*train, cwd=place, signals=[(moment, signal.SIGKILL)])
        if kind == "kill":
            done = run(*train, cwd=place)
            return f"{method}, {kills} kills", _differs(done, alone, _hashes(place / "out"))
        if kills == 0:
            run(*train, cwd=place)
        fault = _damage(place / "out", random)
        before = _files(place / "out")
        done = run(*train, cwd=place)
        what = f"{method}, {'killed' if kills else 'finished'}, {fault}"
        if done.code in (1, 2) and _in_words(done):
            same = _files(place / "out") == before
            return what, "" if same else "refused, but files were changed"
        if fault.startswith("verdicts.jsonl"):  # what is found from rows that are lost is left out
            _forget_findings(place / "out" / "summary.json", self._folder / method / "out")
        return what, _differs(done, alone, _hashes(place / "out"), KEPT)

    def _ranks(self, method: str, place: Path, random: Random) -> tuple[str, str]:
        os.environ[NO_REPORTS] = "1"
        folder = self._folder / f"ranks-{method}"
        alone, recipe = folder / "out", folder / "recipe.yaml"
        train = ["train", str(recipe), "--quiet", "--out"]
        if not alone.exists():
            folder.mkdir()
            keys = {"lanes": LANES, "train_batch_size": 12, **RANKS[method]}
            toy_recipe(folder, method=method.split("-")[0], **keys)
            codes, said = Running(1, [*train, str(alone)]).ended()
            if codes != [0]:
                raise RuntimeError(f"{method}, left alone: exit code {codes[0]}: {said[0]}")
        sharding = "optimizer" if "adapter" in method else random.choice(("optimizer", "full"))
        command = [*train, str(place / "out"), "--set", f"sharding={sharding}"]
        happened = [sharding]
        for _ in range(random.randint(1, 4)):
            world = random.randint(2, 3)
            seeds = _hash_seeds(world, random)
            what = random.choice(("one", "one", "all", "stop"))
            one = random.randrange(world)
            running = Running(world, command, seeds=seeds)
            least = 1 if what == "stop" else 0  # Python itself does not wait for others
            _at_event(place / "out" / "run.jsonl", random, running, least)
            number = signal.SIGTERM if what == "stop" else signal.SIGKILL
            for rank in range(world) if what == "all" else [one]:
                running.signal(rank, number)
            try:
                codes, said = running.ended()
            except AssertionError as error:
                return ", ".join(happened), str(error)
            happened.append(f"{what} of {world} (rank {one}): {codes}")
            if not any(codes):  # it had ended before
                break
            self.kills += 1
            ends = {0, 1, -signal.SIGKILL} if what != "stop" else {0, 4}
            if not {*codes} <= ends:
                return ", ".join(happened), f"exit codes {codes}: {said}"
        world = random.randint(1, 3)
        seeds = _hash_seeds(world, random)
        codes, said = Running(world, command, seeds=seeds).ended()
        happened.append(f"resumed by {world}")
        wrong = "" if not any(codes) else f"exit codes {codes}: {said}"
        if not wrong:
            wanted, found = _left_by_ranks(alone), _left_by_ranks(place / "out")
            other = [name for name in wanted if wanted[name] != found[name]]
            wrong = f"differs: {', '.join(other)}" if other else ""
        return f"{method}, {', '.join(happened)}", wrong

    def _input(self, method: str, place: Path, random: Random) -> tuple[str, str]:
        toy_recipe(place, method=method.split("-")[0], **METHODS[method])
        files = sorted(path for path in place.iterdir() if path.is_file())
        path = random.choice(files)
        what = f"{path.name}: {_spoil(path, random)}"
        done = run("train", "recipe.yaml", "--out", "out", cwd=place)
        if done.seconds > 60:
            return what, f"took {done.seconds:.0f} s"
        if done.code == 0:
            return what, ""
        fine = done.code in (2, 3) and _in_words(done)
        return what, "" if fine else f"exit code {done.code}: {done.err[-500:]}"

    def _left_alone(self, method: str) -> tuple[dict[str, str], float]:
        """The hashes of a run that nothing happened to, and its seconds."""
        if method not in self._alone:
            place = self._folder / method
            place.mkdir()
            recipe = toy_recipe(place, method=method.split("-")[0], **METHODS[method])
            done = run("train", recipe, "--out", "out", cwd=place)
            if done.code:
                raise RuntimeError(f"{method}, left alone: exit code {done.code}: {done.err}")
            self._alone[method] = _hashes(place / "out"), done.seconds
        return self._alone[method]


def _hash_seeds(world: int, random: Random) -> list[int]:
    """Different ones for neighbours."""
    first = random.randrange(SEEDS)
    return [(first + rank) % SEEDS for rank in range(world)]


def _at_event(log: Path, random: Random, running: Running, least: int) -> None:
    """Wait for some lines more than the log has, and then a moment; or until the end."""
    lines = random.randint(least, 8)
    moment = random.uniform(0, 0.5)
    before = _lines(log)
    until = time.monotonic() + 60
    while _lines(log) < before + lines and not running.is_over() and time.monotonic() < until:
        time.sleep(0.01)
    time.sleep(moment)


def _lines(log: Path) -> int:
    return log.read_bytes().count(b"\n") if log.exists() else 0


def _left_by_ranks(folder: Path) -> dict[str, Any]:
    """What must be the same, however many processes wrote it."""
    from safetensors import safe_open

    def without(line: str) -> dict[str, Any]:
        return {key: value for key, value in json.loads(line).items() if key not in OWN_FIELDS}

    weights: dict[str, bytes] = {}
    for file in sorted((folder / "best").glob("*.safetensors")):
        with safe_open(file, "pt") as held:
            for name in held.keys():  # noqa: SIM118
                weights[name] = held.get_tensor(name).numpy().tobytes()
    return {
        "run.jsonl": [without(line) for line in (folder / "run.jsonl").read_text().splitlines()],
        "verdicts.jsonl": (folder / "verdicts.jsonl").read_bytes(),
        "samples.jsonl": (folder / "samples.jsonl").read_bytes(),
        "summary.json": without((folder / "summary.json").read_text()),
        "schedule.json": (folder / "schedule.json").read_bytes(),
        "weights": weights,
    }


OWN_FIELDS = ("disk", "crc")
"""They depend on how much memory was free."""


def _forget_findings(summary: Path, alone: Path) -> None:
    """Give a summary the findings of the run that was left alone."""
    whole = json.loads((alone / "summary.json").read_text())
    if summary.is_file():
        found = json.loads(summary.read_text()) | {"findings": whole["findings"]}
        if found == whole:
            summary.write_bytes((alone / "summary.json").read_bytes())


def _hashes(folder: Path) -> dict[str, str]:
    names = (*KEPT, "verdicts.jsonl", "schedule.json")
    return {
        name: hashlib.sha256(_promised(folder / name)).hexdigest()
        for name in names
        if (folder / name).is_file()
    }


def _promised(file: Path) -> bytes:
    """Trials run beside others, so the memory that is free differs."""
    if file.name == "run.jsonl":
        return promised_log(file)
    if file.name == "summary.json":
        return json.dumps(promised_summary(file)).encode()
    return file.read_bytes()


def _differs(
    done: Ended, alone: dict[str, str], found: dict[str, str], names: tuple[str, ...] = ()
) -> str:
    if done.code:
        return f"exit code {done.code}: {done.err[-500:]}"
    other = [name for name in names or alone if found.get(name) != alone[name]]
    return f"differs: {', '.join(other)}" if other else ""


def _in_words(done: Ended) -> bool:
    """Whether a command says why it ended, without a traceback."""
    return bool(done.err.strip()) and "Traceback" not in done.err


def _files(folder: Path) -> dict[str, str]:
    """What a refusal must not change: every file but the lock and what was set aside."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.is_symlink() and path.name != "run.lock"
    }


def _damage(folder: Path, random: Random) -> str:
    """Damage a file of a run; what was done, in words."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != "run.lock")
    if not files:
        return "nothing to damage"
    path = random.choice(files)
    what = random.choice([*DAMAGES])
    DAMAGES[what](path, random)
    return f"{path.relative_to(folder)} {what}"


def _flip(path: Path, random: Random) -> None:
    content = bytearray(path.read_bytes())
    if content:
        content[random.randrange(len(content))] ^= 1 << random.randrange(8)
    _replace(path, bytes(content))


def _cut(path: Path, random: Random) -> None:
    content = path.read_bytes()
    _replace(path, content[: random.randrange(len(content) + 1)])


def _zero_tail(path: Path, random: Random) -> None:
    content = path.read_bytes()
    keep = random.randrange(len(content) + 1)
    _replace(path, content[:keep] + bytes(len(content) - keep))


def _folder_instead(path: Path, random: Random) -> None:
    path.unlink()
    path.mkdir()


def _dangling(path: Path, random: Random) -> None:
    path.unlink()
    path.symlink_to("/nowhere/at/all")


def _pipe(path: Path, random: Random) -> None:
    path.unlink()
    os.mkfifo(path)


def _replace(path: Path, content: bytes) -> None:
    """In place, so that a file with two names is damaged under both."""
    with path.open("r+b") as file:
        file.truncate(0)
        file.write(content)


DAMAGES: dict[str, Callable[[Path, Random], None]] = {
    "with a flipped bit": _flip,
    "cut": _cut,
    "with zeros at its end": _zero_tail,
    "removed": lambda path, random: path.unlink(),
    "that is a folder": _folder_instead,
    "that is a dangling link": _dangling,
    "that is a pipe": _pipe,
}

SPOILS: dict[str, Callable[[bytes, Random], bytes]] = {
    "a flipped bit": lambda text, random: _flipped(text, random),
    "cut": lambda text, random: text[: random.randrange(len(text))],
    "a NUL": lambda text, random: _inserted(text, b"\0", random),
    "an escape sequence": lambda text, random: _inserted(text, b"\x1b]0;owned\x07", random),
    "not UTF-8": lambda text, random: _inserted(text, b"\xff\xfe", random),
    "a lone surrogate": lambda text, random: _inserted(text, b"\\ud800", random),
    "deep nesting": lambda text, random: _inserted(text, b"[" * 50_000, random),
    "a long line": lambda text, random: _inserted(text, b"x" * 2_000_000, random),
    "lines repeated": lambda text, random: text * random.randint(2, 50),
    "lines lost": lambda text, random: b"".join(
        line for line in text.splitlines(keepends=True) if random.random() < 0.5
    ),
    "a tag of Python": lambda text, random: text + b"\nx: !!python/object/apply:os.abort []\n",
    "empty": lambda text, random: b"",
}


def _spoil(path: Path, random: Random) -> str:
    what = random.choice([*SPOILS])
    path.write_bytes(SPOILS[what](path.read_bytes(), random))
    return what


def _flipped(text: bytes, random: Random) -> bytes:
    content = bytearray(text)
    content[random.randrange(len(content))] ^= 1 << random.randrange(8)
    return bytes(content)


def _inserted(text: bytes, what: bytes, random: Random) -> bytes:
    at = random.randrange(len(text))
    return text[:at] + what + text[at:]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000)
    parser.add_argument("--trial", type=int, help="only this one")
    parser.add_argument("--out", type=Path, default=Path("soak.jsonl"))
    parser.add_argument("--ranks", action="store_true", help="runs of several processes")
    options = parser.parse_args()
    begun, counts, wrong = time.monotonic(), Counter[str](), 0
    print(f"seed {options.seed}, {options.minutes:g} minutes; trials go to {options.out}")
    with TemporaryDirectory(prefix="msft-soak-") as folder, options.out.open("a") as file:
        soak = Soak(Path(folder), options.seed)
        number = 0 if options.trial is None else options.trial
        while options.trial is None or number == options.trial:
            outcome = soak.trial(number, options.ranks)
            counts[outcome.kind] += 1
            line = {"seed": options.seed, "trial": number, **vars(outcome)}
            file.write(json.dumps(line) + "\n")
            file.flush()
            if outcome.wrong:
                wrong += 1
                print(f"NOT RIGHT: trial {number}, {outcome.kind}, {outcome.what}: {outcome.wrong}")
            number += 1
            if time.monotonic() - begun > 60 * options.minutes:
                break
    minutes = (time.monotonic() - begun) / 60
    each = ", ".join(f"{count} of {kind}" for kind, count in sorted(counts.items()))
    print(f"{number} trials in {minutes:.1f} minutes: {each}; {wrong} not right")
    if options.ranks:
        print(f"{soak.kills} times processes were killed or asked to stop")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
