"""What equal runs have in common, whatever memory was free.

Checkpoints that memory has no room for go to disk. So the fields `disk` of a log follow the memory
that was free, and the checksum `crc` of every line follows `disk`. All other bytes are promised.
"""

import json
from pathlib import Path
from typing import Any


def promised_log(file: Path) -> bytes:
    """The bytes of a run.jsonl without `disk` and `crc`."""
    lines = []
    for line in file.read_bytes().splitlines():
        event = {k: v for k, v in json.loads(line).items() if k not in ("disk", "crc")}
        lines.append(json.dumps(event, separators=(",", ":"), ensure_ascii=False).encode() + b"\n")
    return b"".join(lines)


def promised_summary(file: Path) -> dict[str, Any]:
    """The content of a summary.json without `disk`."""
    return {key: value for key, value in json.loads(file.read_bytes()).items() if key != "disk"}
