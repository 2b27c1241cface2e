"""Threads: how many, who decides, and what a busy machine costs."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from msft import threads

MOST = 1.5
"""CPU time beside two busy loops over that without them; 6 where waiting threads spin."""

SHORT = """
model_name_or_path: tiny
method: sft
num_train_epochs: 3
evals_per_epoch: 1
train_batch_size: 16
datasets:
  - {name: teams, benchmark: demo_teams, train_rows: 320, validation_rows: 16, test_rows: 16}
"""
CROWDED = """
import json, subprocess, sys, time
import msft.__main__
import msft
from msft import training
training.write_report = lambda folder: folder  # it has no threads

def seconds(out):
    before = time.process_time()
    msft.train(msft.load_recipe("recipe.yaml"), out)
    return time.process_time() - before

seconds("first")  # with everything that is loaded on the way
alone = seconds("alone")
loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2)]
try:
    crowded = seconds("crowded")
finally:
    for loop in loops:
        loop.kill()
print(json.dumps([alone, crowded]))
"""
"""CPU time of a short run, and of one beside two busy loops."""
SAID = """
import json, os, sys
import msft.__main__
from msft import threads
print(json.dumps([os.environ.get(key) for key in (threads.COUNT, threads.WAITING)]), flush=True)
import torch
counts = [torch.get_num_threads()]
for weights, device in ((threads.SMALL, "cpu"), (10, "cuda"), (threads.SMALL - 1, "cpu")):
    threads.fit(weights, device)
    counts.append(torch.get_num_threads())
print(json.dumps(counts))
"""


def said(**environment: str) -> list[list[object]]:
    plain = {k: v for k, v in os.environ.items() if k not in (threads.COUNT, threads.WAITING)}
    command = [sys.executable, "-c", SAID]
    done = subprocess.run(command, env=plain | environment, capture_output=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_as_many_as_there_are_cores_and_one_for_a_small_model() -> None:
    cores = threads.usable_cores()
    assert said() == [[str(cores), "passive"], [cores, cores, cores, 1]]


def test_a_setting_of_the_user_wins() -> None:
    chosen = said(OMP_NUM_THREADS="2", OMP_WAIT_POLICY="active")
    assert chosen == [["2", "active"], [2, 2, 2, 2]]


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({"cpu.max": "150000 100000\n"}, 2),
        ({"cpu.max": "20000 100000\n"}, 1),
        ({"cpu.max": "max 100000\n"}, None),
        ({"cpu/cpu.cfs_quota_us": "100000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 1),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, None),
        ({"cpu.max": "no numbers\n"}, None),
        ({}, None),
    ],
)
def test_a_container_has_its_share(
    files: Mapping[str, str], cores: int | None, tmp_path: Path
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    here = len(os.sched_getaffinity(0))
    assert threads.usable_cores(tmp_path) == min(here, cores or here)


def test_a_busy_machine_costs_little_more_cpu_time(tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text(SHORT)
    environment = {k: v for k, v in os.environ.items() if k not in (threads.COUNT, threads.WAITING)}
    done = subprocess.run(
        [sys.executable, "-c", CROWDED],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    alone, crowded = json.loads(done.stdout.splitlines()[-1])
    assert crowded < MOST * alone
