"""The golden numbers of recipes/tiny.yaml: losses of the first 50 steps, and every decision.

python tests/golden/tiny.py writes tests/golden/tiny.json anew. Whoever changes a number changes
that file and says so in the CHANGELOG under *Numeric*.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

HERE = Path(__file__).parent
FILE = HERE / "tiny.json"
RECIPE = HERE.parents[1] / "recipes" / "tiny.yaml"
METHODS = {
    "sft": ["method=sft", "method_options={}", "ema_decay=null", "num_train_epochs=4"],
    "msft": ["method_options.max_stages=2"],
}
"""Each with the keys that it changes; both are shorter than the demo's."""
STEPS = 50
SHORT = {
    "sft": ["num_train_epochs=1"],
    "msft": ["compute_budget=2", "method_options.max_stages=1"],
}
"""How much of each is trained where only the losses of the first steps are looked at."""


def golden_of(method: str, folder: Path, changed: Sequence[str] = ()) -> dict[str, Any]:
    """Train the recipe by a method; its numbers."""
    import msft

    recipe = msft.load_recipe(RECIPE, [*METHODS[method], *changed])
    summary = msft.train(recipe, folder).summary
    lines = (folder / "steps.jsonl").read_text().splitlines()[:STEPS]
    stages = [
        {key: stage[key] for key in ("start", "active", "ticks", "peaks", "excluded")}
        for stage in summary["stages"]
    ]
    best = {key: summary["best"][key] for key in ("checkpoint", "validation", "test")}
    return {
        "losses": [json.loads(line)["loss"] for line in lines],
        "decisions": {"stages": stages, "best": best, "ended_by": summary["ended_by"]},
    }


def machine() -> dict[str, str]:
    """What rounding depends on; on another machine decisions may part after many steps."""
    import torch

    vendor = next(
        (
            line.split(":")[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("vendor_id")
        ),
        "unknown",
    )
    capability = torch.backends.cpu.get_cpu_capability()
    return {"torch": torch.__version__.split("+")[0], "capability": capability, "vendor": vendor}


def main() -> None:
    with TemporaryDirectory() as folder:
        golden = {method: golden_of(method, Path(folder) / method) for method in METHODS}
    FILE.write_text(json.dumps({"machine": machine(), **golden}, indent=1) + "\n")
    print(f"wrote {FILE}")


if __name__ == "__main__":
    main()
