"""Which engine trains: the recipe's, the one that suits the model, or one of the user's own."""

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
from families import OTHER_FAMILIES, own_model_of
from toys import recipe_of, write_data

import msft
from msft.cli import main
from msft.engine.model.tokenizers import tiny_tokenizer
from msft.errors import RecipeError, UsageError
from msft.example import Encoded
from msft.recipe.recipe import Recipe
from msft.run.engine import Generated, Likelihoods, StopRow
from msft.run.folder import RunFolder
from msft.run.log import RunEvent
from msft.search.feeds import Batch, Losses

pytestmark = pytest.mark.usefixtures("no_reports")


def opened_by(folder: Path) -> dict[str, Any]:
    first = RunFolder(folder).events()[0]
    assert isinstance(first, RunEvent)
    return dict(first.settings)


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_data(tmp_path)
    return tmp_path


# The recipe's key.


def test_both_engines_come_to_the_same_scores_and_only_the_simple_one_is_recorded(
    data: Path,
) -> None:
    by = {
        engine: msft.train(recipe_of(data, method="sft", engine=engine), data / engine)
        for engine in ("auto", "fast", "simple")
    }
    assert by["auto"].summary == by["fast"].summary
    best = [by[engine].summary["best"] for engine in ("fast", "simple")]
    assert best[0]["checkpoint"] == best[1]["checkpoint"]
    assert best[0]["validation"] == best[1]["validation"]
    assert best[0]["test"] == best[1]["test"]
    assert "engine" not in opened_by(data / "fast")
    assert opened_by(data / "simple")["engine"] == "simple"
    log = (data / "auto" / "run.jsonl").read_bytes()
    assert log == (data / "fast" / "run.jsonl").read_bytes()


def test_how_the_engine_computes_is_said_once_and_stands_beside_the_log(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fast = "fast engine: attention sdpa, steps eager, layers plain, optimizer torch, decoding plain"
    words = {"fast": fast, "simple": "simple engine: the model's own attention, padded rows"}
    for engine, how in words.items():
        notes: list[str] = []
        recipe = recipe_of(data, method="sft", engine=engine, num_train_epochs=1)
        for _ in range(2):  # the second time it is finished, and nothing is computed
            msft.train(recipe, data / engine, notice=notes.append)
        assert len([note for note in notes if note.startswith(how)]) == 1
        environments = json.loads((data / engine / "environment.json").read_text())
        assert [each["engine"].startswith(how) for each in environments] == [True]
    assert main(["env"]) == 0
    assert fast in " ".join(capsys.readouterr().out.split())
    assert main(["env", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["paths"]["attention"] == "sdpa"


def test_a_run_goes_on_with_its_own_engine_only(data: Path) -> None:
    msft.train(recipe_of(data, method="sft"), data / "out")
    with pytest.raises(RecipeError, match="engine was 'auto', now it is 'simple'"):
        msft.train(recipe_of(data, method="sft", engine="simple"), data / "out")


def test_a_folder_that_is_older_than_the_key_goes_on(data: Path) -> None:
    recipe = recipe_of(data, method="sft")
    summary = msft.train(recipe, data / "out").summary
    file = data / "out" / "recipe.yaml"
    lines = file.read_text().splitlines(keepends=True)
    young = ("engine:", "label_noise:")
    assert all(any(line.strip(" -").startswith(key) for line in lines) for key in young)
    kept = [line for line in lines if not line.strip(" -").startswith(young)]
    file.write_text("".join(kept))
    assert msft.train(recipe, data / "out").summary == summary


@pytest.mark.parametrize(("key", "value"), [("optim", "adamw_bf16"), ("torch_compile", True)])
def test_what_the_simple_engine_cannot_do_is_refused(data: Path, key: str, value: Any) -> None:
    recipe = recipe_of(data, method="sft", engine="simple", **{key: value})
    with pytest.raises(RecipeError, match=f"{key} is {value}, which the simple engine cannot do"):
        msft.train(recipe, data / "out")


# Models that the fast engine does not suit.


def saved(model: Any, folder: Path) -> Path:
    """A random model with the tiny tokenizer, as a folder."""
    model.save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture(scope="module", params=OTHER_FAMILIES)
def other(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = own_model_of(request.param, vocab_size=258)
    return saved(model, tmp_path_factory.mktemp("models") / request.param)


def test_a_model_that_packed_rows_do_not_suit_is_trained_by_the_simple_engine(
    data: Path, other: Path
) -> None:
    from transformers import AutoModelForCausalLM

    notes: list[str] = []
    keys: dict[str, Any] = {
        "model_name_or_path": str(other),
        "method": "sft",
        "num_train_epochs": 1,
    }
    keys |= {"max_length": 128}
    result = msft.train(recipe_of(data, **keys), data / "out", notice=notes.append)
    assert [note for note in notes if "the simple engine takes over" in note]
    assert opened_by(data / "out")["engine"] == "simple"
    losses = [
        json.loads(line)["loss"] for line in RunFolder(data / "out").steps.read_text().splitlines()
    ]
    assert sum(losses[-3:]) < sum(losses[:3])
    AutoModelForCausalLM.from_pretrained(result.best)
    with pytest.raises(RecipeError, match="engine is fast, which does not suit"):
        msft.train(recipe_of(data, **keys, engine="fast"), data / "fast")
    assert not (data / "fast").exists()


def test_eval_and_plan_take_the_engine_that_suits(
    data: Path, tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    mamba = saved(own_model_of("mamba", vocab_size=258), tmp_path_factory.mktemp("m") / "mamba")
    recipe = data / "recipe.yaml"
    recipe.write_text(recipe_of(data, model_name_or_path=str(mamba), method="sft").to_yaml())
    assert main(["eval", str(mamba), str(recipe)]) == 0
    out, err = capsys.readouterr()
    assert "the simple engine takes over" in err
    assert "upper" in out
    assert main(["plan", str(recipe), "--no-calibration"]) == 0
    assert main(["validate", str(recipe)]) == 0


@pytest.mark.parametrize("command", ["train", "plan", "validate", "eval"])
@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("t5", "t5 is an encoder-decoder"),
        (
            "llava",
            "its text part is a llama model: give a folder or hub name of a LlamaForCausalLM",
        ),
        ("gemma3", "gemma3 is a multimodal model; msft trains text-only decoder models"),
        ("qwen2_vl", "qwen2_vl is a multimodal model"),
    ],
)
def test_what_no_engine_can_run_is_refused_by_name(
    data: Path, capsys: pytest.CaptureFixture[str], command: str, kind: str, words: str
) -> None:
    from transformers import AutoConfig

    model = data / "model"
    AutoConfig.for_model(kind).save_pretrained(model)
    tiny_tokenizer().save_pretrained(model)
    recipe = data / "recipe.yaml"
    recipe.write_text(recipe_of(data, model_name_or_path=str(model), method="sft").to_yaml())
    before = ["eval", str(model)] if command == "eval" else [command]
    assert main([*before, str(recipe)]) == 2
    assert words in " ".join(capsys.readouterr().err.split())
    assert not (data / "runs").exists()


def test_a_model_whose_tokens_see_ahead_is_refused_by_name(data: Path) -> None:
    from transformers import BertConfig, BertLMHeadModel

    shape: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4}
    config = BertConfig(vocab_size=258, num_hidden_layers=2, **shape)
    model = saved(BertLMHeadModel(config), data / "bert")
    with pytest.raises(
        RecipeError, match="a bert model: its tokens see those that come after them"
    ):
        msft.train(recipe_of(data, model_name_or_path=str(model), method="sft"), data / "out")


def test_a_model_that_takes_rows_of_some_lengths_only_is_refused_by_name(data: Path) -> None:
    model = saved(own_model_of("reformer", vocab_size=258), data / "reformer")
    with pytest.raises(RecipeError, match=r"no engine can train .*reformer, a reformer model: it"):
        msft.train(recipe_of(data, model_name_or_path=str(model), method="sft"), data / "out")


FEW: dict[str, Any] = {"method": "sft", "num_train_epochs": 1, "train_batch_size": 4}
FEW |= {"max_length": 96, "bf16": False}


@pytest.mark.parametrize("family", ["gemma3n", "gemma4", "deepseek_v4", "ctrl"])
def test_a_family_that_was_refused_falsely_is_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, family: str
) -> None:
    monkeypatch.chdir(tmp_path)
    write_data(tmp_path, train=2, held_out=1)
    inputs = {"vocab_size_per_layer_input": 258} if family.startswith("gemma") else {}
    model = saved(own_model_of(family, vocab_size=258, **inputs), tmp_path / "model")
    recipe = recipe_of(tmp_path, model_name_or_path=str(model), **FEW)
    result = msft.train(recipe, tmp_path / "out")
    lines = RunFolder(tmp_path / "out").steps.read_text().splitlines()
    assert len(lines) == 2
    assert all(4 < json.loads(line)["loss"] < 8 for line in lines)  # log 258 is 5.6
    assert result.summary["best"]["validation"]


def test_rows_that_padding_changes_are_computed_one_at_a_time(data: Path) -> None:
    """Sparse attention: an index picks other keys in a row that is padded."""
    import torch

    from msft.data.corpus import load_corpus
    from msft.engine.build import engine_of
    from msft.engine.simple import answer_nll

    own = own_model_of("deepseek_v32", vocab_size=258, index_topk=6)
    with torch.no_grad():
        for parameter in own.parameters():
            if parameter.ndim > 1:
                parameter.mul_(4.0)
    model = saved(own, data / "sparse")
    recipe = recipe_of(data, model_name_or_path=str(model), **FEW)
    notes: list[str] = []
    corpus = load_corpus(recipe, tiny_tokenizer(), None)
    engine = engine_of(recipe, corpus, tiny_tokenizer(), torch.device("cpu"), notes.append)
    rows = [row for d in corpus.datasets.values() for row in d.train.rows[:12]]
    with torch.no_grad():
        alone = [answer_nll(own.eval(), [row]).item() for row in rows]
        padded = answer_nll(own, rows).tolist()
    assert padded != pytest.approx(alone, rel=1e-4)
    assert engine.predictor().measure(rows, [0] * len(rows))().rows == pytest.approx(alone)
    trained = Batch(tuple((name, place) for name in corpus.datasets for place in range(12)))
    means = [loss / row.answer_tokens for loss, row in zip(alone, rows, strict=True)]
    assert list(engine.work(trained)[0].rows) == pytest.approx(means, rel=1e-5)
    said = [note for note in notes if "takes one row at a time, which is slower" in note]
    assert len(said) == 1
    assert "one row at a time" in engine.how()


# An engine of one's own, written against the protocol alone.


class Counting:
    """Its weights are how often rows of each sub-dataset were trained."""

    num_parameters = 3
    num_trainable = 3

    def __init__(self) -> None:
        self.load(None)
        self.load_optimizer(None)

    def load(self, weights: Any | None) -> None:
        self.counts: dict[str, int] = dict(weights or {})

    def load_optimizer(self, moments: Any | None) -> None:
        self.steps: int = moments["steps"] if moments else 0

    def weights(self) -> Any:
        return dict(self.counts)

    def optimizer(self) -> Any:
        return {"steps": self.steps}

    def average(self, weights: Iterable[Any]) -> Any:
        held = list(weights)
        names = sorted({name for each in held for name in each})
        return {n: sum(each.get(n, 0) for each in held) / len(held) for n in names}

    def seed(self, number: int) -> None:
        """Nothing here is random."""

    def work(self, batch: Batch) -> tuple[Losses, int]:
        for name, _ in batch.rows:
            self.counts[name] = self.counts.get(name, 0) + 1
        self.steps += 1
        return Losses([1 / self.steps] * len(batch.rows)), len(batch.rows)

    def predictor(self) -> "Counting":
        return self

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        limits: Sequence[int],
        leaves: StopRow,
        groups: Sequence[int],
    ) -> Generated:
        return Generated([[5] for _ in prompts], len(prompts))

    def measure(self, rows: Sequence[Encoded], groups: Sequence[int]) -> Callable[[], Likelihoods]:
        trained = sum(self.counts.values())
        peak = 60  # after so many rows it gets worse again
        return lambda: Likelihoods([1 + abs(trained - peak) / 100] * len(rows), len(rows))

    def codec(self) -> "Counting":
        return self

    def write(self, payload: Any, folder: Path) -> None:
        (folder / "state.json").write_text(json.dumps(payload))

    def read(self, folder: Path) -> Any:
        return json.loads((folder / "state.json").read_text())

    def export(self, weights: Any | None, folder: Path) -> None:
        (folder / "counts.json").write_text(json.dumps(weights or {}))


@pytest.mark.parametrize("method", ["sft", "msft", "continual", "sro"])
def test_a_run_needs_nothing_of_an_engine_but_the_protocol(data: Path, method: str) -> None:
    recipe = recipe_of(data, method=method, num_train_epochs=1)
    result = msft.train(recipe, data / "out", engine=Counting())
    best = result.summary["best"]
    assert result.summary["status"] == "finished"
    counts = json.loads((result.best / "counts.json").read_text())
    if method == "sft":  # 48 of 3 x 48 rows a tick, measured by accuracy: nothing ever improves
        assert (best["checkpoint"], counts) == ("base", {})
    else:
        assert best["checkpoint"] != "base"
        assert sum(counts.values()) > 0
    assert opened_by(data / "out")["engine"] == "test_engines:Counting"
    assert (result.best / "README.md").exists()


def test_a_killed_run_of_an_engine_of_ones_own_leaves_the_same_bytes(data: Path) -> None:
    recipe = recipe_of(data, method="msft")
    msft.train(recipe, data / "alone", engine=Counting())

    class Killed(Counting):
        left = 7

        def work(self, batch: Batch) -> tuple[Losses, int]:
            self.left -= 1
            if self.left < 0:
                raise KeyboardInterrupt
            return super().work(batch)

    Killed.__module__, Killed.__qualname__ = Counting.__module__, Counting.__qualname__
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            msft.train(recipe, data / "killed", engine=Killed())
    msft.train(recipe, data / "killed", engine=Counting())
    for file in ("run.jsonl", "summary.json", "verdicts.jsonl", "best/counts.json"):
        assert (data / "killed" / file).read_bytes() == (data / "alone" / file).read_bytes()


def test_an_engine_may_be_made_from_recipe_and_corpus(data: Path) -> None:
    given: list[tuple[Recipe, list[str]]] = []

    def make(recipe: Recipe, corpus: Any) -> Counting:
        given.append((recipe, list(corpus.datasets)))
        return Counting()

    recipe = recipe_of(data, method="msft")
    msft.train(recipe, data / "out", engine=make)
    assert given == [(recipe, ["upper", "first", "vowel"])]


def test_two_engines_are_one_too_many(data: Path) -> None:
    with pytest.raises(UsageError, match="recipe says engine: simple"):
        msft.train(recipe_of(data, engine="simple"), data / "out", engine=Counting())
