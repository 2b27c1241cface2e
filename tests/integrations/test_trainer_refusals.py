"""What a trainer cannot do is refused by name, before anything starts."""

from collections.abc import Callable
from inspect import signature
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from peft import LoraConfig, PrefixTuningConfig, PromptTuningConfig, get_peft_model
from trainers import (
    TOKENIZER,
    answers,
    mixture,
    plain_trainer,
    settings,
    sft_trainer,
    tokenized,
)
from transformers import EarlyStoppingCallback
from transformers.trainer_pt_utils import AcceleratorConfig

from msft.engine.model.loading import tiny_model
from msft.errors import DataError, RecipeError, UsageError
from msft.integrations.refusals import TAKEN_KEYS, unused_length
from msft.integrations.rows import corpus_of, notes_of, prepared_rows
from msft.integrations.trainer import train
from msft.recipe.dataset import DatasetSpec
from msft.recipe.foreign_keys import ALIASES
from msft.recipe.recipe import recipe_keys


@pytest.fixture(scope="module")
def trainer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return sft_trainer(tmp_path_factory.mktemp("refused"))


def refusal(trainer: Any, folder: Path, data: Any = None, **keys: Any) -> str:
    """What is said; nothing may have been started or written."""
    with pytest.raises((UsageError, RecipeError, DataError)) as said:
        train(trainer, data or mixture(), folder / "run", **{"quiet": True, **keys})
    assert said.value.exit_code == 2
    assert not (folder / "run").exists()
    assert trainer.state.global_step == 0
    assert trainer.optimizer is None
    return str(said.value)


ARGUMENTS: list[tuple[str, Any, str, str]] = [
    ("packing", True, "msft", "packing is True, but a packed sequence mixes rows"),
    ("eval_packing", True, "msft", "eval_packing is True"),
    ("load_best_model_at_end", True, "msft", "load_best_model_at_end is True"),
    ("auto_find_batch_size", True, "msft", "auto_find_batch_size is True"),
    ("max_steps", 500, "msft", "max_steps is 500, but lengths are in epochs"),
    ("fp16", True, "msft", "fp16 is True, but its loss scale"),
    ("deepspeed", "zero3.json", "msft", "DeepSpeed is on"),
    ("lr_scheduler_type", "linear", "msft", 'set lr_scheduler_type="constant" in SFTConfig'),
    ("lr_scheduler_type", "polynomial", "sft", "expected one of constant,"),
    ("accelerator_config", AcceleratorConfig(split_batches=True), "msft", "split_batches is True"),
]


@pytest.mark.parametrize(("key", "value", "method", "words"), ARGUMENTS)
def test_an_argument_is_refused_by_its_name(
    key: str,
    value: Any,
    method: str,
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    trainer: Any,
) -> None:
    monkeypatch.setattr(trainer.args, key, value)
    assert words in refusal(trainer, tmp_path, method=method)


def test_several_things_are_said_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trainer: Any
) -> None:
    monkeypatch.setattr(trainer.args, "packing", True)
    monkeypatch.setattr(trainer.args, "lr_scheduler_type", "cosine")
    said = refusal(trainer, tmp_path, method="dynamix")
    assert said.splitlines()[0] == "2 things must change first:"
    assert "method dynamix asks for the losses of single rows" in said
    assert "packing" in said
    assert "lr_scheduler_type" not in said  # dynamix does not roll back


def _plateau(trainer: Any) -> Any:
    optimizer = torch.optim.SGD(trainer.model.parameters())
    return torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)


def _adapted(config: Any) -> Callable[[Any], Any]:
    """A model with an adapter of peft."""
    return lambda trainer: get_peft_model(tiny_model(len(TOKENIZER)), config)


ADAPTERS = {
    "PROMPT_TUNING": PromptTuningConfig(num_virtual_tokens=2, task_type="CAUSAL_LM"),
    "PREFIX_TUNING": PrefixTuningConfig(num_virtual_tokens=2, task_type="CAUSAL_LM"),
    "an activated LoRA": LoraConfig(
        target_modules="all-linear", alora_invocation_tokens=[5], task_type="CAUSAL_LM"
    ),
}
"""Adapters that would not be scored."""
PARTS: list[tuple[str, Callable[[Any], Any], str, str]] = [
    ("_run_epoch", lambda t: None, "msft", "transformers 5.17 and later have it"),
    ("model_init", lambda t: print, "msft", "the trainer has a model_init"),
    ("processing_class", lambda t: None, "msft", "processing_class is NoneType; expected the"),
    ("is_fsdp_enabled", lambda t: True, "msft", "FSDP is on"),
    ("is_deepspeed_enabled", lambda t: True, "msft", "DeepSpeed is on"),
    ("lr_scheduler", _plateau, "sft", "ReduceLROnPlateau, which cannot be set to a step"),
    ("lr_scheduler", _plateau, "msft", "a scheduler of your own"),
    (
        "model",
        lambda t: tiny_model(len(TOKENIZER)).requires_grad_(False),
        "msft",
        "every weight of the LlamaForCausalLM is frozen",
    ),
    *(
        ("model", _adapted(config), "msft", f"adapter 'default' is {kind}, which does not work")
        for kind, config in ADAPTERS.items()
    ),
]


@pytest.mark.parametrize(("part", "make", "method", "words"), PARTS)
def test_a_part_of_the_trainer_is_refused_by_its_name(
    part: str,
    make: Callable[[Any], Any],
    method: str,
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    trainer: Any,
) -> None:
    monkeypatch.setattr(trainer, part, make(trainer))
    assert words in refusal(trainer, tmp_path, method=method)


def test_an_older_trl_that_forgets_its_formatting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trainer: Any
) -> None:
    monkeypatch.delattr(trainer, "_formatting_func")
    assert "TRL 1.16 does" in refusal(trainer, tmp_path)


def test_several_processes_or_devices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trainer: Any
) -> None:
    whole = trainer.args
    for key, words in {"world_size": "2 processes were", "n_gpu": "sees 2 GPUs"}.items():
        many = SimpleNamespace(**{**vars(whole), "world_size": 1, "n_gpu": 1, key: 2})
        monkeypatch.setattr(trainer, "args", many)
        assert words in refusal(trainer, tmp_path)


def test_early_stopping_and_no_trainer_at_all(tmp_path: Path, trainer: Any) -> None:
    stops = EarlyStoppingCallback(3)
    trainer.add_callback(stops)
    assert "EarlyStoppingCallback stops a whole run" in refusal(trainer, tmp_path)
    trainer.remove_callback(stops)
    with pytest.raises(UsageError, match="trainer is a str; expected a transformers Trainer"):
        train("sft", mixture())


KEYS: list[tuple[str, Any, str]] = [
    ("learning_rate", 1e-4, "it is the trainer's: args.learning_rate"),
    ("ema_decay", 0.9, "ema_decay means nothing over a trainer"),
    ("compute_bugdet", 3, "unknown key 'compute_bugdet'; did you mean 'compute_budget'?"),
    ("method_options", {"patients": 3}, "did you mean 'patience'?"),
    ("peaks", {"by": "probability"}, "these rows have no choices"),
    ("metric", "bleu", "metric is 'bleu'; expected accuracy, nll"),
    ("method", "mfst", "did you mean 'msft'?"),
    ("method", "ies", "compute_loss of a Trainer gives one number"),
]


@pytest.mark.parametrize(("key", "value", "words"), KEYS)
def test_a_key_of_the_call_is_refused(
    key: str, value: Any, words: str, tmp_path: Path, trainer: Any
) -> None:
    assert words in refusal(trainer, tmp_path, **{key: value})


def test_every_key_of_a_recipe_is_taken_or_refused(tmp_path: Path, trainer: Any) -> None:
    """None is accepted and ignored; the docs name those that are taken."""
    page = (Path(__file__).parents[2] / "docs" / "trainer.md").read_text()
    (taken,) = (line for line in page.splitlines() if line.startswith("| others |"))
    for key in [*recipe_keys(), *ALIASES]:
        if key in signature(train).parameters:
            continue
        if key in TAKEN_KEYS:
            assert f"`{key}`" in taken, key
            assert f"`{key}`" in str(train.__doc__), key
        else:
            assert refusal(trainer, tmp_path, **{key: 1}).startswith(f"{key} "), key
    assert set(TAKEN_KEYS) <= set(recipe_keys())
    said = refusal(trainer, tmp_path, use_peft=True)
    assert "give the SFTTrainer peft_config=LoraConfig(…)" in said
    assert "BitsAndBytesConfig(load_in_4bit=True)" in refusal(trainer, tmp_path, load_in_4bit=True)
    assert "merge_and_unload()" in refusal(trainer, tmp_path, merge_adapter=True)
    assert "of one device" in refusal(trainer, tmp_path, sharding="full")
    assert "take these rows out of what" in refusal(trainer, tmp_path, exclude_rows="out.jsonl")
    assert "args.max_length" in refusal(trainer, tmp_path, sequence_len=64)
    assert "args.gradient_acc" in refusal(trainer, tmp_path, gradient_accumulation_steps=2)


def test_a_budget_of_rollouts_that_a_method_does_not_have_is_noted() -> None:
    keys = {"compute_budget": 2}
    assert list(unused_length(keys, "sft", 3.0)) == [
        "compute_budget is not used by sft; args.num_train_epochs (3) is"
    ]
    assert not [*unused_length(keys, "msft", 3.0), *unused_length({}, "sft", 3.0)]


def dpo_trainer(folder: Path) -> Any:
    from datasets import Dataset  # type: ignore[import-untyped]
    from trl import DPOConfig, DPOTrainer  # type: ignore[attr-defined]

    pair = {"prompt": "add 1 =", "chosen": " 7", "rejected": " 8"}
    return DPOTrainer(
        model=tiny_model(len(TOKENIZER)),
        ref_model=tiny_model(len(TOKENIZER)),
        args=DPOConfig(**settings(folder)),
        train_dataset=Dataset.from_list([pair] * 2),
        processing_class=TOKENIZER,
    )


def test_a_trainer_of_another_loss_is_refused_by_its_own_name(tmp_path: Path) -> None:
    said = refusal(dpo_trainer(tmp_path), tmp_path)
    assert said.startswith("trainer is a DPOTrainer of TRL, whose rows and loss are not those of ")
    assert "SFTTrainer or a transformers Trainer" in said
    assert "formatting_func" not in said


def test_a_trainer_of_ones_own_over_sfttrainer_is_not(tmp_path: Path, trainer: Any) -> None:
    class Mine(type(trainer)):  # type: ignore[misc]
        pass

    kept, trainer.__class__ = trainer.__class__, Mine
    try:
        assert "packing" in refusal(trainer, tmp_path, packing=True)  # not its kind
    finally:
        trainer.__class__ = kept


SHAPE: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1}
SHAPE |= {"num_attention_heads": 4, "vocab_size": len(TOKENIZER)}


def _llava() -> Any:
    vision = {**SHAPE, "model_type": "clip_vision_model", "image_size": 8, "patch_size": 4}
    text = {**SHAPE, "model_type": "llama"}
    config = transformers.LlavaConfig(vision_config=vision, text_config=text)
    return transformers.LlavaForConditionalGeneration(config)


def _of(config: str, model: str) -> Any:
    return getattr(transformers, model)(getattr(transformers, config)(**SHAPE))


MODELS: dict[str, tuple[Callable[[], Any], str]] = {
    "classifier": (
        lambda: _of("LlamaConfig", "LlamaForSequenceClassification"),
        "the model is a LlamaForSequenceClassification, which is no causal language model; load "
        "it with AutoModelForCausalLM",
    ),
    "masked": (
        lambda: _of("BertConfig", "BertForMaskedLM"),
        "the model is a BertForMaskedLM, which is no causal language model",
    ),
    "body": (lambda: _of("LlamaConfig", "LlamaModel"), "the model is a LlamaModel, which is no"),
    "multimodal": (
        _llava,
        "the model is a LlavaForConditionalGeneration: llava is a multimodal model; msft trains "
        "text-only decoder models, such as Llama, Qwen or Mamba; its text part is a llama model: "
        "give a folder or hub name of a LlamaForCausalLM",
    ),
}


@pytest.mark.parametrize("kind", MODELS)
def test_a_model_that_is_no_causal_one_is_refused_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    make, words = MODELS[kind]
    trainer = plain_trainer(tmp_path)
    monkeypatch.setattr(trainer, "model", make())
    assert refusal(trainer, tmp_path).startswith(words)


ROWS = answers("add", 0, 4, 7)
OTHERS = answers("add", 9, 12, 7)
LONG = [{"prompt": f"add {'1 ' * 80}=", "completion": " 2"}]
DATA: dict[str, tuple[Any, str]] = {
    "no names": ([ROWS], "expected names with their rows"),
    "no splits": ({"a": ROWS}, "expected its splits"),
    "no validation": ({"a": {"train": ROWS}}, "datasets['a'] has no validation rows"),
    "eval": ({"a": {"train": ROWS, "eval": OTHERS}}, "unknown key of datasets['a']: 'eval'"),
    "no rows": ({"a": {"train": [], "validation": OTHERS}}, "a, train: no rows"),
    "a stream": ({"a": {"train": iter(ROWS), "validation": OTHERS}}, "not streamed"),
    "a file": ({"a": {"train": "a.jsonl", "validation": OTHERS}}, "expected a list of dicts"),
    "dropped": (
        {"a": {"train": ROWS + LONG, "validation": OTHERS}},
        "a, train: 1 of 5 rows would be dropped, since no token of the answer is left within "
        "max_length (64)",
    ),
    "texts": (
        {"a": {"train": ROWS, "validation": [{"text": "add 9 = 7"}]}},
        "a, validation: 1 of 1 row with no prompt before the answer",
    ),
    "columns": (
        {"a": {"train": [{"question": "1"}], "validation": OTHERS}},
        "a, train: SFTTrainer cannot take these rows (columns question)",
    ),
    "a leak": (
        {"a": {"train": ROWS, "validation": ROWS[:2]}},
        "2 of 2 validation rows of a are also in train",
    ),
}


@pytest.mark.parametrize("case", DATA)
def test_rows_that_cannot_be_used(tmp_path: Path, trainer: Any, case: str) -> None:
    data, words = DATA[case]
    assert words in refusal(trainer, tmp_path, data)


def test_rows_of_a_plain_trainer(tmp_path: Path) -> None:
    trainer = plain_trainer(tmp_path)
    good = tokenized(OTHERS)

    def said(change: Callable[[dict[str, Any]], dict[str, Any]]) -> str:
        bad = tokenized(ROWS).map(change)
        return refusal(trainer, tmp_path, {"a": {"train": bad, "validation": good}})

    silent = said(lambda row: {"labels": [-100] * len(row["labels"])})
    assert "a, train: 4 of 4 rows would be trained on nothing" in silent
    shifted = said(lambda row: {"labels": [*row["labels"][1:], 0]})
    assert "a label is neither its token nor -100" in shifted
    raw = {"a": {"train": ROWS, "validation": OTHERS}}
    assert "expected tokenized rows: input_ids and labels" in refusal(trainer, tmp_path, raw)
    assert len(TOKENIZER) == trainer.model.config.vocab_size


def test_what_a_person_should_know_is_said(tmp_path: Path) -> None:
    """An SFTTrainer over texts trains the prompts of other rows too."""
    trainer = sft_trainer(tmp_path, rows=[{"text": "add 1 = 7"}], max_length=9)
    trainer.eval_dataset = trainer.train_dataset
    spec = DatasetSpec("a", train=ROWS + OTHERS, validation=answers("add", 20, 22, 7), metric="nll")
    rows = prepared_rows(trainer, [spec], quiet=True)
    corpus, _ = corpus_of(rows, [spec], TOKENIZER)
    first, *notes = notes_of(trainer, rows, corpus)
    assert "eval_dataset, eval_strategy and compute_metrics are not used" in first
    lengths = [len(TOKENIZER.encode(row["prompt"] + row["completion"])) for row in ROWS + OTHERS]
    assert notes == [
        f"a: train: {sum(length >= 8 for length in lengths)} of 7 rows with max_length (9) tokens; "
        "the trainer cut what was longer",
        "a: validation: 2 of 2 rows with max_length (9) tokens; the trainer cut what was longer",
        "a: prompts are trained too; set completion_only_loss=True to train completions only (by "
        "itself SFTTrainer goes by its train_dataset)",
        "no sub-dataset has test rows, so nothing is scored on test",
    ]


def test_rows_that_are_trained_with_other_numbers_are_noted(trainer: Any) -> None:
    name = "a sum of this number and of"
    spec = DatasetSpec("a", train=answers(name, 0, 4, 7), validation=answers(name, 9, 12, 7))
    corpus, _ = corpus_of(prepared_rows(trainer, [spec], quiet=True), [spec], TOKENIZER)
    (note,) = corpus.datasets["a"].notes
    assert note.startswith("validation: 3 of 3 rows ask what trained rows ask with other numbers")


def test_the_special_token_after_an_answer_ends_it(tmp_path: Path, trainer: Any) -> None:
    spec = DatasetSpec("a", train=ROWS, validation=OTHERS)
    rows = prepared_rows(trainer, [spec], quiet=True)
    corpus, ends = corpus_of(rows, [spec], TOKENIZER)
    assert ends == [TOKENIZER.eos_token_id]
    row = corpus.datasets["a"].rows_of("validation")
    assert (row.examples[0].prompt, row.examples[0].completion) == ("add 9 =", " 7")
    assert row.rows[0].tokens[-1] == TOKENIZER.eos_token_id
    assert TOKENIZER.decode(row.rows[0].prompt) == "add 9 ="
