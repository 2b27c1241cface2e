"""The demo: its mixture is what its docstrings say, and its runs end in one honest table."""

import re
import runpy
import shutil
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from msft.app import demo
from msft.benchmarks import synthetic
from msft.data.corpus import load_corpus
from msft.engine.model.tokenizers import tiny_tokenizer
from msft.recipe.recipe import load_recipe
from msft.report.audit_page import Audit, AuditedDataset
from msft.search.judging import Estimate
from rooms import SOURCE

ROOT = SOURCE.parents[1]
PICTURE, README = ROOT / "bench" / "readme_picture.py", (ROOT / "README.md").read_text()


@pytest.mark.parametrize("name", synthetic.TASKS)
def test_every_prompt_occurs_once_and_another_seed_is_another_draw(name: str) -> None:
    made = synthetic.TASKS[name](0)
    prompts = [prompt for pairs in made.values() for prompt, _ in pairs]
    assert len(prompts) == len(set(prompts))
    assert {split: len(made[split]) for split in ("validation", "test")} == synthetic.HELD_OUT
    assert made == synthetic.TASKS[name](0)
    assert made != synthetic.TASKS[name](1)


@pytest.mark.parametrize("name", synthetic.MISLABELLED)
def test_held_out_rows_follow_the_rule_and_about_the_said_share_of_train_rows_does_not(
    name: str,
) -> None:
    made = synthetic.TASKS[name](0)
    rule: dict[str, str] = {}
    for prompt, answer in made["validation"] + made["test"]:
        assert rule.setdefault(prompt.split()[1], answer) == answer
    wrong = [rule[prompt.split()[1]] != answer for prompt, answer in made["train"]]
    assert sum(wrong) / len(wrong) == pytest.approx(synthetic.WRONG, abs=0.12)


@pytest.mark.parametrize(
    ("name", "prompt", "answer"),
    [
        ("successors", "next", lambda w: "".join(chr((ord(c) - 96) % 26 + 97) for c in w)),
        ("reversals", "reverse", lambda w: w[::-1]),
        ("sorting", "sort", lambda w: "".join(sorted(w))),
    ],
)
def test_clean_rows_are_right(name: str, prompt: str, answer: object) -> None:
    assert callable(answer)
    for pairs in synthetic.TASKS[name](3).values():
        for question, said in pairs:
            word, _, rest = question.partition(" ")
            assert (word, said) == (prompt, answer(rest.rstrip(":")))


def test_the_recipe_in_recipes_is_the_demo_s() -> None:
    root = Path(__file__).parents[2]
    assert (root / "recipes" / "tiny.yaml").read_text() == demo.RECIPE.read_text()
    recipe = load_recipe(demo.RECIPE)
    corpus = load_corpus(recipe, tiny_tokenizer())
    assert list(corpus.datasets) == list(synthetic.TASKS)
    assert corpus.has_test


@pytest.mark.usefixtures("warm")
def test_three_runs_and_the_table_and_a_second_call_prints_it_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    short = demo.RECIPE.read_text()
    for old, new in (
        ("budget: 4", "budget: 2"),
        ("{exclude: ", "{max_stages: 1, exclude: "),
        ("epochs: 8", "epochs: 1"),
        (", benchmark", ", train_rows: 32, validation_rows: 20, test_rows: 20, benchmark"),
    ):
        assert old in short
        short = short.replace(old, new)
    quick = tmp_path / "quick.yaml"
    quick.write_text(short)
    with monkeypatch.context() as broken:
        broken.setattr(sys, "executable", "/bin/false")  # the processes beside it fail
        demo.run_demo(tmp_path / "out", 0, quick, cores=2)
    first = capsys.readouterr().out
    assert first.count("stage 0") == 3, "who failed is trained here"
    alone = (tmp_path / "out" / "sft" / "run.jsonl").read_bytes()
    shutil.rmtree(tmp_path / "out" / "sft")
    demo.run_demo(tmp_path / "out", 0, quick, cores=2)
    again = capsys.readouterr().out
    assert "In processes of their own: SFT with cosine decay" in " ".join(again.split())
    assert (tmp_path / "out" / "sft" / "run.jsonl").read_bytes() == alone
    table = first[first.index("test (reported)") :]
    assert table in again
    assert "stage 0" in first
    assert "stage 0" not in again
    assert (tmp_path / "out" / "report.html").exists()
    for run in ("sft", "sft-ema", "msft"):
        assert (tmp_path / "out" / run / "report.html").exists()
    assert load_recipe(tmp_path / "out" / "sft" / "recipe.yaml").lr_scheduler_type == "cosine"
    decays = {
        run: load_recipe(tmp_path / "out" / run / "recipe.yaml").ema_decay
        for run in ("sft", "sft-ema", "msft")
    }
    assert decays == {"sft": None, "sft-ema": 0.98, "msft": 0.98}
    told = " ".join(again.split())
    planted = "About 45 % of the training labels of teams, shelves and gates are wrong"
    page = (tmp_path / "out" / "report.html").read_text()
    for where in (told, " ".join(page.split())):
        assert planted in where
        assert "The audit missed" in where, "32 rows are too few"
    assert "The search of mSFT" in page
    assert '<a href="./audit/report.html">audit</a>' in page
    assert max(len(line) for line in (first + again).splitlines() if " " in line) <= 80
    drawn = tmp_path / "drawn"
    drawn.mkdir()
    with monkeypatch.context() as asked:
        asked.setattr(sys, "argv", ["picture", str(tmp_path / "out"), str(drawn)])
        runpy.run_path(str(PICTURE), run_name="__main__")
    assert {path.name for path in drawn.iterdir()} == {*re.findall(r"demo-\S+\.svg", README)}
    for path in drawn.iterdir():
        texts = [*ElementTree.parse(path).getroot().itertext()]  # noqa: S314  our own
        assert texts.count("audit: cannot tell") == 6
    with pytest.raises(ValueError, match="seed 0"):
        demo.run_demo(tmp_path / "out", 1, quick)


def test_the_estimate_of_the_audit_goes_from_the_least_share_to_the_most() -> None:
    found = [
        AuditedDataset(
            name, "accuracy", "spoiled", 0.8, 0.5, None, Estimate(share, 0.2, 0.6), 1, 9, ""
        )
        for name, share in zip(synthetic.MISLABELLED, (0.4, 0.32, 0.47), strict=True)
    ]
    said = demo._audited(Audit(1, found, {}, {}))
    assert said == (
        "The audit found all of them and no other. It estimates that 32 to 47 % are wrong."
    )
