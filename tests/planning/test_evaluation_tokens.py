"""What an evaluation pushes through the model: counted, and by a decoder."""

from typing import Any

import torch

from msft.data.corpus import Corpus, load_corpus
from msft.engine.decode.decoder import Decoder
from msft.engine.model.loading import load_model
from msft.engine.model.tokenizers import tiny_tokenizer
from msft.planning.counting import evaluation_sizes
from msft.recipe.recipe import Recipe
from msft.scoring.evaluation import Evaluator

CPU = torch.device("cpu")


def corpus_of(recipe: Recipe) -> Corpus:
    return load_corpus(recipe, tiny_tokenizer(), 512)


def test_likelihoods_are_counted_to_the_token() -> None:
    """Choices and losses, behind a prefix that all rows share."""
    same = "the very same words at the start of a row, then "
    chosen = [
        {"prompt": f"{same}{word}", "choices": [" yes", " no"], "answer": 0}
        for word in ("one", "two", "three", "four")
    ]
    said = [{"prompt": row["prompt"], "completion": " so"} for row in chosen]
    recipe = Recipe(
        "tiny",
        [
            {"name": "written", "train": said[:2], "validation": said[2:]},
            {"name": "chosen", "train": chosen[:2], "validation": chosen[2:]},
            {"name": "said", "train": said[:2], "validation": said[2:], "metric": "nll"},
        ],
    )
    tasks = corpus_of(recipe).tasks(recipe)
    decoder = Decoder(load_model("tiny", CPU).model, [0], 4096)
    evaluator = Evaluator(tasks, decoder, tiny_tokenizer())
    sizes = evaluation_sizes(tasks, tiny_tokenizer(), stems=False)
    assert list(sizes) == [(name, "validation") for name in ("written", "chosen", "said")]
    for name in ("chosen", "said"):
        size = sizes[name, "validation"]
        assert size.tokens == evaluator.answered([name], "validation").tokens
        assert (size.rows, size.written, size.slots) == (2, 0, 0)
    assert sizes["said", "validation"].answers == 2 * len(" so|")
    # As on CUDA: the prefix once, and of each row the last word with a choice but its last token
    # (the words are too short to be worth computing once for both choices).
    tails = [
        len(word) + len(choice) - 1 for word in ("three", "four") for choice in (" yes", " no")
    ]
    fast = evaluation_sizes(tasks, tiny_tokenizer(), stems=True)["chosen", "validation"]
    assert fast.tokens == len(same) + sum(tails)


def test_a_generation_is_taken_to_be_as_long_as_its_reference() -> None:
    rows = [{"prompt": f"p{i}", "completion": "x" * (i + 1)} for i in range(6)]
    dataset = {"name": "a", "train": rows[:2], "validation": rows[2:], "max_new_tokens": 5}
    recipe = Recipe("tiny", [dataset])
    sizes = evaluation_sizes(corpus_of(recipe).tasks(recipe), tiny_tokenizer(), stems=False)
    size = sizes["a", "validation"]
    written = (4 - 1) + (5 - 1) + (5 - 1) + (5 - 1)  # with the end, within the limit, less the last
    assert (size.tokens, size.written) == (4 * 2 + written, written)
    assert size.slots == 4 * 2 + 4 * 5
    assert size.cut_short


def refuse(prediction: str, reference: str) -> float:
    """A metric that must not be called."""
    raise AssertionError(f"asked about {prediction!r} and {reference!r}")


def test_a_metric_of_the_users_own_is_not_called() -> None:
    rows = [{"prompt": f"p{i}", "completion": "xx"} for i in range(4)]
    dataset = {"name": "a", "train": rows[:2], "validation": rows[2:]}
    own = Recipe("tiny", [{**dataset, "metric": f"{__name__}:refuse"}])
    size = evaluation_sizes(corpus_of(own).tasks(own), tiny_tokenizer(), False)["a", "validation"]
    assert (size.rows, size.tokens, size.written) == (2, 2 * (2 + 2), 2 * 2)
    assert not size.cut_short


def test_a_plan_counts_every_row_in_full_where_the_run_does() -> None:
    """Both rows begin alike, which a decoder computes once: 40 tokens less."""
    chosen = [{"prompt": "x" * 40 + word, "choices": ["y", "n"], "answer": 0} for word in "abcd"]
    dataset = {"name": "a", "train": chosen[:2], "validation": chosen[2:]}
    for counted, tokens in ({"computed": 40 + 2 * 2 * 2, "every_row": 4 * 42}).items():
        keys: dict[str, Any] = {"evaluation_tokens": counted}
        recipe = Recipe("tiny", [dataset], **keys)
        sizes = evaluation_sizes(corpus_of(recipe).tasks(recipe), tiny_tokenizer(), stems=False)
        assert sizes["a", "validation"].tokens == tokens
