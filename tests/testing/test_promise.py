"""Equal runs under another amount of memory: all bytes but `disk` and the checksum behind it."""

import json
from pathlib import Path

from mortal import STORES, Case, left_by, quick_folder
from msft.testing import promised_log, promised_summary


def test_memory_changes_disk_and_crc_and_no_other_byte() -> None:
    with quick_folder() as place:
        logs: dict[str, bytes] = {}
        for store, memory in STORES.items():
            folder = place / store
            history = Case("msft", {}, compute_budget=2).run(folder, memory)
            logs[store] = left_by(history, folder).log
        assert len({*logs.values()}) > 1, "memory has made a difference"
        assert len({promised_log(place / store / "run.jsonl") for store in STORES}) == 1
        first = json.loads(promised_log(place / "disk" / "run.jsonl").splitlines()[2])
        assert not {"disk", "crc"} & first.keys()
        assert first["scores"]


def test_a_summary_is_promised_without_its_disk(tmp_path: Path) -> None:
    (tmp_path / "summary.json").write_text('{"method": "msft", "disk": {"peak_copies": 3}}')
    assert promised_summary(tmp_path / "summary.json") == {"method": "msft"}
