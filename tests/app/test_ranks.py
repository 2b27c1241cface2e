"""One run in several processes leaves the bytes of one process with the same lanes."""

import json
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from signal import SIGKILL, SIGTERM
from typing import Any

import pytest
import spoiled
import yaml
from rank_processes import Ended, Running, in_processes
from rank_runs import at_step, before_call, left_by, recipe, train
from toys import write_data

from mortal import files_of, quick_folder
from msft.cli import main
from msft.data.exclusions import row_sha256
from msft.example import Example
from msft.testing import promised_log

pytestmark = pytest.mark.usefixtures("no_reports")  # but for one test
METHODS: dict[str, dict[str, Any]] = {
    "sft": {"num_train_epochs": 1, "ema_decay": 0.5, "prompt_loss_weight": 0.3},
    "msft": {"method_options": {"on_rollback": "restore"}},
    "dynamix": {
        "ema_decay": 0.5,
        "method_options": {"lookahead_batch_size": 4, "update_every": 2},
    },
    "ies": {"num_train_epochs": 3, "method_options": {"threshold": 0.9}},
    "soup": {"num_train_epochs": 1, "exclude_rows": "out.jsonl"},
}


@pytest.fixture(scope="module")
def data() -> Iterator[Path]:
    with quick_folder() as folder:
        write_data(folder, train=13, held_out=5)
        row = json.loads((folder / "upper.train.jsonl").read_text().splitlines()[1])
        digest = row_sha256(Example(row["prompt"], row["completion"]))
        line = json.dumps({"dataset": "upper", "sha256": digest})
        (folder / "out.jsonl").write_text(f"{line}\n")
        yield folder


@pytest.fixture(scope="module")
def alone(data: Path) -> Callable[[str], dict[str, Any]]:
    """What one process leaves."""
    known: dict[str, dict[str, Any]] = {}

    def of(method: str) -> dict[str, Any]:
        if method not in known:
            out = data / "alone" / method
            assert main(train(recipe(data, method, method=method, **METHODS[method]), out)) == 0
            known[method] = left_by(out)
        return known[method]

    return of


@pytest.mark.parametrize("sharding", ["optimizer", "full"])
def test_two_ranks_leave_the_bytes_of_one_for_every_method(
    data: Path, alone: Callable[[str], dict[str, Any]], sharding: str
) -> None:
    expected = {method: alone(method) for method in METHODS}
    outs = {method: data / sharding / method for method in METHODS}
    files = {m: recipe(data, m, method=m, **METHODS[m]) for m in METHODS}
    words = ("--set", f"sharding={sharding}")
    ended = in_processes(2, [train(files[method], outs[method], *words) for method in METHODS])
    assert ended.codes == [[0] * len(METHODS)] * 2, ended.said
    assert ended.said[1] == "", "rank 0 speaks"
    for method, out in outs.items():
        assert left_by(out) == expected[method], method


def test_a_rank_that_dies_ends_all_and_any_number_of_ranks_goes_on(data: Path) -> None:
    sizes = {"lanes": 4, "train_batch_size": 12}
    file = recipe(data, "msft", method="msft", **sizes, **METHODS["msft"])
    assert main(train(file, data / "four" / "alone")) == 0
    expected = left_by(data / "four" / "alone")
    killed = data / "four" / "killed"
    ended = in_processes(2, [train(file, killed)], at_step(1, 6, SIGKILL))
    assert ended.codes == [[1], [-9]], "rank 1 was killed, and rank 0 cannot go on"
    assert said(ended).startswith("msft: another process of this run has ended or cannot be reach")
    begun = (killed / "run.jsonl").read_bytes()
    assert 2 < begun.count(b"\n") < expected["run.jsonl"].count(b"\n")
    for world, sharding in ((1, "auto"), (2, "full"), (3, "optimizer"), (4, "auto")):
        out = data / "four" / f"with-{world}"
        shutil.copytree(killed, out)
        command = train(file, out, "--set", f"sharding={sharding}")
        if world == 1:
            assert main(command) == 0
        else:
            ended = in_processes(world, [command])
            assert ended.codes == [[0]] * world, ended.said
        assert left_by(out) == expected, world
        [whole] = (out / "best").glob("*.safetensors")
        assert whole.name == "model.safetensors", "as save_pretrained writes it, not in parts"
    again = in_processes(2, [train(file, data / "four" / "with-3")])
    assert again.codes == [[0], [0]], "a finished run is shown by any number"
    assert left_by(data / "four" / "with-3") == expected


def test_a_signal_to_one_rank_stops_all_and_the_same_command_goes_on(
    data: Path, alone: Callable[[str], dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    file = recipe(data, "stopped", method="soup", **{**METHODS["soup"], "lanes": "auto"})
    command = train(file, data / "stopped")
    ended = in_processes(2, [command], at_step(1, 3, SIGTERM))
    assert ended.codes == [[4], [4]], ended.said
    assert ended.said[0].startswith(
        "stopped by SIGTERM; nothing is lost. To go on, start the same command again"
    )
    assert ended.said[1] == ""
    ended = in_processes(2, [command])
    assert ended.codes == [[0], [0]], ended.said
    assert left_by(data / "stopped") == alone("soup"), "auto is one lane for each rank"
    assert b'"lanes":2' in alone("soup")["run.jsonl"].splitlines()[0]
    assert main(command) == 0, "one process goes on with the lanes that the run has"
    assert main([*command, "--set", "lanes=2"]) == 0
    capsys.readouterr()
    assert main([*command, "--set", "lanes=3"]) == 2
    assert "holds a run with lanes: 2, but the recipe says lanes: 3" in capsys.readouterr().err


def test_slices_of_lanes_and_micro_batches_have_the_same_bytes_and_load_in_transformers(
    data: Path, reports: None
) -> None:
    """Three ranks and six lanes: two passes a step, and a last step that has no row for some."""
    from transformers import AutoModelForCausalLM

    sizes = {"lanes": 6, "train_batch_size": 7, "micro_batch_tokens": 20}
    file = recipe(data, "slices", method="sft", num_train_epochs=0.5, **sizes)
    assert main(train(file, data / "slices-alone")) == 0
    command = train(file, data / "slices", "--set", "sharding=full")
    ended = in_processes(3, [command])
    assert ended.codes == [[0]] * 3, ended.said
    assert left_by(data / "slices") == left_by(data / "slices-alone")
    pages = [(data / name / "report.html").read_text() for name in ("slices", "slices-alone")]
    assert all("</html>" in page for page in pages)
    loaded = AutoModelForCausalLM.from_pretrained(data / "slices" / "best")
    found = {name: p.detach().numpy().tobytes() for name, p in loaded.named_parameters()}
    assert found == left_by(data / "slices")["weights"]


def said(ended: Ended) -> str:
    """What rank 0 said; the others say nothing."""
    assert all(text == "" for text in ended.said[1:]), ended.said
    return " ".join(ended.said[0].split())


def test_wrong_uses_are_refused_by_all_ranks_and_start_nothing(data: Path) -> None:
    file, out = recipe(data, "wrong", method="sft"), data / "wrong"
    wrong = {
        "each process needs one; start at most 1, or begin in another folder with lanes: 2": [
            "--set",
            "lanes=1",
        ],
        "2 processes were started, but a step has 1 row (train_batch_size)": [
            *("--set", "train_batch_size=1", "--set", "lanes=auto")
        ],
        "engine: simple works in one": ["--set", "engine=simple", "--set", "lanes=auto"],
        "lanes is 7, but a step has train_batch_size (6) rows": ["--set", "lanes=7"],
        "sharding is 'half'": ["--set", "sharding=half"],
        "sharding: full needs a number of processes that divides the lanes": [
            *("--set", "sharding=full", "--set", "lanes=3")
        ],
        "sharding is full, but an adapter (use_peft) needs its whole frozen model": [
            *("--set", "use_peft=true", "--set", "sharding=full")
        ],
        "nowhere.jsonl": ["--set", "datasets.0.train=nowhere.jsonl"],
    }
    for expected, words in wrong.items():
        ended = in_processes(2, [train(file, out, *words)])
        assert ended.codes == [[2], [2]], (expected, ended.said)
        assert expected in said(ended)
        assert not out.exists()


def test_ranks_that_mean_different_runs_are_refused(data: Path) -> None:
    out, other = data / "apart", data / "other"
    other.mkdir()
    for each in data.glob("*.jsonl"):
        shutil.copy(each, other / each.name)
    text = (other / "first.train.jsonl").read_text()
    (other / "first.train.jsonl").write_text(text.replace("first", "1st", 1))
    file = recipe(data, "apart", method="sft")
    own = yaml.safe_load(Path(file).read_text())
    own["datasets"][1]["train"] = "/proc/self/cwd/first.train.jsonl"
    Path(file).write_text(yaml.safe_dump(own))

    def with_seeds(rank: int) -> list[list[str]]:
        return [train(file, out, "--set", f"seed={rank}")]

    def with_weights(rank: int) -> list[list[str]]:
        return [train(file, out, "--set", f"datasets.first.weight={1.0 + rank}")]

    def same(rank: int) -> list[list[str]]:
        return [train(file, out)]

    def with_exclusions(rank: int) -> list[list[str]]:
        return [train(file, out, "--set", "exclude_rows=out.jsonl")]

    other_file = (  # by which the same rows leave
        "import dataclasses, msft.data.corpus as corpus; known = corpus.read_exclusions; "
        "corpus.read_exclusions = lambda recipe: dataclasses.replace(known(recipe), "
        "digest=str(rank))"
    )
    torch_2 = (
        "from importlib import metadata; known = metadata.version; metadata.version = lambda name:"
        " '2.0' if rank and name == 'torch' else known(name)"
    )
    for commands, folder, before, expected in (
        (with_seeds, data, "", "another recipe than rank 0: seed is 0 on rank 0 and 1 there"),
        (
            with_weights,
            data,
            "",
            "another recipe than rank 0: datasets.first.weight is 1.0 on rank 0 and 2.0 there. N",
        ),
        (same, other, "", "rank 1 has other data than rank 0: first is"),
        (with_exclusions, data, other_file, "rank 1 has other data than rank 0: upper is"),
        (same, data, torch_2, "rank 1 has other packages than rank 0: torch is"),
    ):
        ended = in_processes(2, commands, before, [data, folder])
        assert ended.codes == [[2], [2]], ended.said
        assert expected in said(ended)
        assert not out.exists()


TERM = "import os, signal; os.kill(os.getpid(), signal.SIGTERM)"
KILL = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
PLACES = {
    "before the ranks meet": ("msft.recipe.recipe:load_recipe", 1),
    "while data is read": ("msft.training:load_rows", 1),
    "in an evaluation": ("msft.training:TrainingRun._score", 2),
    "while a checkpoint is written": ("msft.store.ranked:RankedDisk.put", 1),
    "while the result is written": ("msft.engine.saving.best_folder:BestFolder.verify", 1),
}


def test_a_signal_to_one_rank_ends_all_with_4_wherever_it_comes(
    data: Path, alone: Callable[[str], dict[str, Any]]
) -> None:
    file = recipe(data, "signals", method="soup", **METHODS["soup"])
    for number, (where, (of, times)) in enumerate(PLACES.items()):
        command = train(file, data / "signals" / str(number))
        ended = in_processes(2, [command], before_call(number % 2, of, TERM, times))
        assert ended.codes == [[4], [4]], (where, ended.said)
        assert said(ended).startswith("stopped by SIGTERM; nothing is lost"), where
        if number in (2, 3):
            ended = in_processes(2, [command])
            assert ended.codes == [[0], [0]], (where, ended.said)
            assert left_by(data / "signals" / str(number)) == alone("soup"), where


def test_a_rank_that_waits_in_vain_ends_in_time_and_says_for_whom(data: Path) -> None:
    file, out = recipe(data, "late", method="sft"), data / "late"
    slow = "import time; time.sleep(12)"
    step, load = "msft.engine.fast:FastEngine.work", "msft.training:load_rows"
    for number, (key, act, expected) in enumerate(
        (
            (
                "rendezvous",
                ("msft.recipe.recipe:load_recipe", KILL),
                "for the other 1 of 2 processes",
            ),
            ("ddp", (step, slow), "for rank 1 at 'losses of step 0'; see whether it hangs"),
            ("saving", (load, slow), "for rank 1 at 'data': rank 1 is at data; see whether it h"),
        )
    ):
        command = train(file, out / str(number), "--set", f"{key}_timeout=5")
        begun = time.monotonic()
        ended = in_processes(2, [command], before_call(1, *act))
        assert time.monotonic() - begun < 60, "not minutes"
        assert ended.codes[0] == [1], (key, ended.said)
        assert ended.codes[1] == ([-SIGKILL] if act[1] == KILL else [1])
        found = " ".join(ended.said[0].split())
        assert f"msft: rank 0 has waited 5 s {expected}" in found
        assert f"or give {key}_timeout more seconds" in found


def test_without_rank_0_the_others_wait_no_longer_than_they_say(data: Path) -> None:
    command = train(recipe(data, "no-first", method="sft"), data / "no-first")
    before = before_call(0, "msft.recipe.recipe:load_recipe", KILL)
    ended = in_processes(2, [[*command, "--set", "rendezvous_timeout=5"]], before)
    assert ended.codes == [[-SIGKILL], [1]]
    assert ended.said[1].startswith("msft: rank 1 has waited 5 s for the other 1 of 2"), (
        "no traces of torch's attempts, each of which waits again"
    )


def test_a_rank_that_dies_before_training_ends_the_other_at_once(data: Path) -> None:
    file = recipe(data, "dies", method="sft")
    before = before_call(0, "msft.training:load_rows", KILL)
    ended = in_processes(2, [train(file, data / "dies")], before)
    assert ended.codes == [[-SIGKILL], [1]]
    found = " ".join(ended.said[1].split())
    assert "another process of this run has ended or cannot be reached" in found
    assert "(rank 1 waited for it at 'data')" in found, "rank 0 cannot say it"


def test_ranks_that_take_different_checkpoints_fail_and_say_which(data: Path) -> None:
    """As two orders of one set would have it."""
    file = recipe(data, "mixed", method="soup", evals_per_epoch=6)
    out = data / "mixed"
    assert in_processes(2, [train(file, out)], at_step(1, 6, SIGTERM)).codes == [[4], [4]]
    assert len({path.name.split(".")[0] for path in (out / "checkpoints").iterdir()}) > 2
    log = (out / "run.jsonl").read_bytes()
    other_order = (
        "from msft.store.store import CheckpointStore as S; known = S._bring_back\n"
        "def turned(self, needed):\n"
        "    held = self._ledger\n"
        "    self._ledger = dict(reversed(held.items())) if rank else held\n"
        "    known(self, needed)\n"
        "    self._ledger = held\n"
        "S._bring_back = turned\n"
    )
    ended = in_processes(2, [train(file, out)], other_order)
    assert ended.codes == [[1], [1]], ended.said
    found = said(ended)
    assert "ranks meet at different places: rank 0 is at 'r0-t" in found, found
    assert ", rank 1 is at 'r0-t" in found
    assert (out / "run.jsonl").read_bytes().startswith(log)
    assert in_processes(2, [train(file, out)]).codes == [[0], [0]]
    assert main(train(file, data / "unmixed")) == 0
    assert left_by(out) == left_by(data / "unmixed"), "nothing wrong was written"


def test_ranks_at_meetings_of_different_kinds_do_not_wait_for_each_other() -> None:
    meet = (
        "import os, torch; from msft.engine.ranks import joined\n"
        "from msft.ranks import Patience\n"
        "ranks = joined(Patience()); numbers = torch.ones(3)\n"
        "try:\n"
        "    ranks.total('losses', numbers)\n"
        "    ranks.gather('a line', 1) if rank else ranks.spread('weights', numbers, 1)\n"
        "except Exception as error:\n"
        "    print(type(error).__name__, error, flush=True); os._exit(1)\n"
    )
    running = Running(2, [], meet)
    codes, said = running.ended(60)
    assert codes == [1, 1], said
    where = "ranks meet at different places: rank 0 is at 'weights', rank 1 is at 'a line'"
    assert any(where in text for text in said), "the other may only see that this one has ended"


def test_a_rank_that_compiles_says_so_and_the_others_wait_longer() -> None:
    """How long is in `test_a_rank_that_waits_in_vain_…`."""
    meet = (
        "import os, torch, torch._dynamo; from msft.ranks import Patience\n"
        "from msft.engine.ranks import excuse_compiling, joined\n"
        "def compiled(graph, inputs):\n"
        "    print(ranks._others()[0][1], ranks._said('busy', 1), flush=True)\n"
        "    return graph.forward\n"
        "ranks = joined(Patience()); excuse_compiling()\n"
        "rank and torch.compile(torch.nn.ReLU(), backend=compiled)(torch.ones(2))\n"
        "print([ranks.gather('compiled', rank), ranks._said('busy', 1)], flush=True)\n"
        "ranks.gather('done', None); os._exit(0)  # rank 0 has the store that rank 1 asks\n"
    )
    codes, said = Running(2, [], meet).ended()
    assert codes == [0, 0], said
    assert said == ["[[0, 1], '']\n", " compiling\n[[0, 1], '']\n"]


def test_the_order_of_sets_reaches_no_file(data: Path) -> None:
    """The same runs in processes with different hash seeds leave the same files, byte for byte."""
    left: list[dict[str, bytes]] = []
    for seed in range(2):
        place = data / f"hash-seed-{seed}"
        for method, keys in METHODS.items():
            file = recipe(data, method, method=method, **keys)
            codes, texts = Running(1, train(file, place / method), seeds=[seed]).ended()
            assert codes == [0], texts
        timed = ("environment.json", "steps.jsonl", "run.lock")
        found = {
            name: text for name, text in files_of(place).items() if Path(name).name not in timed
        }
        left.append({name: text.replace(str(place).encode(), b"") for name, text in found.items()})
    assert left[0].keys() == left[1].keys()
    assert [name for name in left[0] if left[0][name] != left[1][name]] == []
    assert any("best/" in name for name in left[0])


def test_an_audit_in_two_ranks_leaves_the_bytes_of_one(data: Path) -> None:
    """Also where a rank was killed; and `msft train --audit` goes through in two."""
    place = data / "audited"
    place.mkdir()
    file = spoiled.recipe(place, None, lanes=2)
    command = ["audit", file, "--quiet", "--out"]
    assert main([*command, str(place / "one")]) == 0
    expected = found_by(place / "one")
    assert len(expected["suspects.jsonl"].splitlines()) > 10
    ended = in_processes(2, [[*command, str(place / "killed")]], at_step(1, 40, SIGKILL))
    assert ended.codes == [[1], [-9]]
    both = ["train", file, "--audit", "--quiet", "--out", str(place / "both")]
    ended = in_processes(2, [[*command, str(place / "killed")], both])
    assert ended.codes == [[0, 0]] * 2, ended.said
    assert ended.said[1] == "", "rank 0 speaks"
    assert found_by(place / "killed") == expected
    assert found_by(place / "both/audit") == expected
    choice = json.loads((place / "both/choice.json").read_text())
    best = {
        n: json.loads((place / "both" / n / "summary.json").read_text()) for n in ("all", "clean")
    }
    assert choice["validation"] == {n: x["best"]["validation"]["mean"] for n, x in best.items()}
    assert (place / "both/best/model.safetensors").exists()


def found_by(folder: Path) -> dict[str, bytes]:
    """What an audit must leave alike."""
    names = ("audit.json", "suspects.jsonl", "judgments.jsonl", "clean.yaml")
    return {
        "run.jsonl": promised_log(folder / "run.jsonl"),
        **{name: (folder / name).read_bytes() for name in names},
    }
