"""A metric of the user's own in a run: what changed in it, and what it may not change."""

import json
import sys
from pathlib import Path

import pytest
from toys import rows, write_lines

import msft
from mortal import unseal
from msft.errors import Diverged
from msft.own_code import source_digest

pytestmark = pytest.mark.usefixtures("no_reports")

METRIC = "def close(prompt, said, reference):\n    return float(said[:1] == reference[:1])\n"


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "closeness", raising=False)
    (tmp_path / "closeness.py").write_text(METRIC)
    write_lines(tmp_path / "first.jsonl", rows("first", 12))
    path = tmp_path / "recipe.yaml"
    path.write_text(
        "{model_name_or_path: tiny, method: sft, num_train_epochs: 1, evals_per_epoch: 1,\n"
        " datasets: [{name: first, train: first.jsonl, validation_fraction: 0.3,\n"
        "            metric: 'closeness:close'}]}\n"
    )
    return path


def test_a_changed_metric_is_not_mixed_into_a_started_run(recipe: Path) -> None:
    done = msft.train(recipe, "out", quiet=True).summary
    log, metric = Path("out/run.jsonl"), Path("closeness.py")
    assert msft.train(recipe, "out", quiet=True).summary == done
    metric.write_text(METRIC.replace("[:1]", "[:2]"))
    with pytest.raises(
        Diverged, match=r"fingerprint.metric closeness:close was .*start in another"
    ):
        msft.train(recipe, "out", quiet=True)
    first, rest = unseal(log).split(b"\n", 1)
    opened = json.loads(first)
    del opened["fingerprint"]["metric closeness:close"]
    log.write_bytes(json.dumps(opened, separators=(",", ":")).encode() + b"\n" + rest)
    assert msft.train(recipe, "out", quiet=True).summary == done, "an older log says nothing of it"


def test_a_changed_metric_is_the_one_that_scores(recipe: Path) -> None:
    """In one process, as in a notebook; also where another module defines it."""
    scores = []
    Path("defines.py").write_text("def close(prompt, said, reference):\n    return 0.25\n")
    for text in (METRIC.replace("float", "2.0 +"), "from defines import close\n"):
        Path("closeness.py").write_text(text)
        found = msft.evaluate("tiny", recipe, split="validation", quiet=True)
        scores.append(found["datasets"]["first"])
    Path("defines.py").write_text("def close(prompt, said, reference):\n    return 0.75\n")
    scores.append(msft.evaluate("tiny", recipe, split="validation", quiet=True)["mean"])
    assert scores[0] >= 2.0
    assert scores[1:] == [0.25, 0.75]


def test_the_files_that_name_and_that_define_a_metric_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "defined.py").write_text(METRIC)
    (tmp_path / "named.py").write_text("from defined import close\n")
    digests = [source_digest("defined:close"), source_digest("named:close")]
    (tmp_path / "defined.py").write_text(METRIC + "\n")
    digests += [source_digest("defined:close"), source_digest("named:close")]
    assert len({*digests}) == 4
    assert source_digest("math:dist") is None
