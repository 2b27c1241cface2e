"""Places of runs beside each other, as `--devices` names them."""

import os

import pytest
import torch

from msft import threads
from msft.app.jobs import DeviceSlot, device_slots, shell_command
from msft.errors import UsageError


@pytest.fixture
def two(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine of which this process sees two GPUs."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4, GPU-7")


def test_numbers_count_the_devices_that_this_process_sees(two: None) -> None:
    every = [DeviceSlot("device 0", "4"), DeviceSlot("device 1", "GPU-7")]
    assert device_slots(None) == device_slots("0,1") == device_slots([0, 1]) == every
    assert device_slots("1") == every[1:]
    assert device_slots("cpu, 1 ,cpu") == [DeviceSlot("CPU", ""), every[1], DeviceSlot("CPU", "")]
    assert device_slots("MIG-3/1/0") == [DeviceSlot("device MIG-3/1/0", "MIG-3/1/0")]
    os.environ.pop("CUDA_VISIBLE_DEVICES")
    assert device_slots(None) == [DeviceSlot("device 0", "0"), DeviceSlot("device 1", "1")]


def test_one_device_is_the_only_place_and_shows_its_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert device_slots(None) == [DeviceSlot("", None)]


@pytest.mark.parametrize(
    ("devices", "said"),
    [
        ("0,0", "--devices has 0 twice"),
        ("2", r"has 2, .* it sees 2, counted from 0 \(CUDA_VISIBLE_DEVICES is '4, GPU-7'\)"),
        ("-1", "--devices has '-1'; expected numbers of CUDA devices such as 0,1,2"),
        ("cuda:0", "--devices has 'cuda:0'"),
        ("", "between commas"),
    ],
)
def test_a_device_that_is_not_there_is_refused(devices: str, said: str, two: None) -> None:
    with pytest.raises(UsageError, match=said):
        device_slots(devices)


def test_a_process_beside_this_one_counts_its_threads_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """So a run of a comparison has as many as alone; bits may depend on it."""
    monkeypatch.setattr(threads, "_ours", True)
    assert threads.for_another({threads.COUNT: "8", "A": "b"}) == {"A": "b"}
    monkeypatch.setattr(threads, "_ours", False)
    assert threads.for_another({threads.COUNT: "8"}) == {threads.COUNT: "8"}


def test_a_command_is_typed_so_that_a_shell_reads_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", "/opt/env/bin/python")
    command = ("/opt/env/bin/python", "-m", "msft", "train", "a b.yaml", "--set", "x={}")
    monkeypatch.setattr("shutil.which", lambda name: f"/opt/env/bin/{name}")
    assert shell_command(command) == "msft train 'a b.yaml' --set 'x={}'"
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}")  # another one's
    assert shell_command(command) == "/opt/env/bin/python -m msft train 'a b.yaml' --set 'x={}'"
