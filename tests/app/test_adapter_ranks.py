"""An adapter in several processes leaves the bytes of one process with the same lanes."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from signal import SIGKILL
from typing import Any

import pytest
from rank_processes import in_processes
from rank_runs import at_step, left_by, recipe, train
from toys import write_data

from mortal import quick_folder
from msft.cli import main
from msft.store.store import Hashes, Manifest

pytestmark = pytest.mark.usefixtures("no_reports")
LORA: dict[str, Any] = {"use_peft": True, "lora_r": 4, "learning_rate": 1e-2}
SIZES = {"lanes": 4, "train_batch_size": 12}
RUNS: dict[str, dict[str, Any]] = {
    "sft": {"ema_decay": 0.5, "load_in_4bit": True},
    "msft": {"method_options": {"on_rollback": "restore"}, "lora_dropout": 0.1},
    "soup": {"use_dora": True, "merge_adapter": True},
}
ONE_FILE = ["adapter_model.safetensors"]


@pytest.fixture(scope="module")
def data() -> Iterator[Path]:
    """Rows, and in `alone` what one process leaves of each run."""
    with quick_folder() as folder:
        write_data(folder, train=13, held_out=5)
        for method in RUNS:
            assert main(train(file_of(folder, method), folder / "alone" / method)) == 0
        yield folder


def file_of(data: Path, method: str) -> str:
    return recipe(data, method, method=method, **{**LORA, **SIZES, **RUNS[method]})


def weights_in(best: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in best.glob("*.safetensors")}


def test_two_ranks_leave_the_bytes_of_one_and_a_folder_that_loads(data: Path) -> None:
    from transformers import AutoModelForCausalLM

    outs = {method: data / "two" / method for method in RUNS}
    ended = in_processes(2, [train(file_of(data, m), out) for m, out in outs.items()])
    assert ended.codes == [[0] * len(RUNS)] * 2, ended.said
    assert ended.said[1] == "", "rank 0 speaks"
    for method, out in outs.items():
        alone = data / "alone" / method
        assert left_by(out) == left_by(alone), method
        assert weights_in(out / "best") == weights_in(alone / "best"), "not a byte of the file"
        merged = bool(RUNS[method].get("merge_adapter"))
        for folder in (out, alone):
            said = Manifest.from_bytes((folder / "best" / "manifest.json").read_bytes())
            for name, digest in said.files.items():
                assert Hashes().of(folder / "best" / name) == digest
            assert {*weights_in(folder / "best")} <= {*said.files}
        assert [*weights_in(out / "best")] == (["model.safetensors"] if merged else ONE_FILE)
        parts = {path.name for path in (out / "checkpoints").rglob("*.safetensors")}
        assert {"adapter_model-00001-of-00002.safetensors"} < parts
    loaded = AutoModelForCausalLM.from_pretrained(data / "two" / "msft" / "best")
    found = {
        f"base_model.model.{name}".replace(".default", ""): p.detach().numpy().tobytes()
        for name, p in loaded.named_parameters()
        if "lora_" in name
    }
    assert found == left_by(outs["msft"])["weights"]


def test_a_rank_that_dies_ends_all_and_any_number_of_ranks_goes_on(data: Path) -> None:
    file, killed = file_of(data, "msft"), data / "killed"
    expected = left_by(data / "alone" / "msft")
    ended = in_processes(2, [train(file, killed)], at_step(1, 6, SIGKILL))
    assert ended.codes == [[1], [-9]], "rank 1 was killed, and rank 0 cannot go on"
    begun = (killed / "run.jsonl").read_bytes()
    assert 2 < begun.count(b"\n") < expected["run.jsonl"].count(b"\n")
    assert list((killed / "checkpoints").glob("*.training.2-of-2"))
    for world in (1, 3):
        out = data / f"with-{world}"
        shutil.copytree(killed, out)
        if world == 1:
            assert main(train(file, out)) == 0
        else:
            ended = in_processes(world, [train(file, out)])
            assert ended.codes == [[0]] * world, ended.said
        assert left_by(out) == expected, world
        assert [*weights_in(out / "best")] == ONE_FILE
