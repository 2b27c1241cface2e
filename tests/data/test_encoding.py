"""Encoding: all rows of a split at once give the tokens that each gives alone."""

from pathlib import Path
from typing import Any

import pytest

from msft.data.encoding import encoded_choices, encoded_examples, encoded_split, encoded_texts
from msft.engine.model.tokenizers import load_tokenizer, tiny_tokenizer
from msft.example import Example, Message

TEXTS = [
    "",
    " ",
    "short",
    "a much longer text, \n\n with lines ",
    "Grüße, 世界 😀",
    "an <eos> in it",
]


def cutting(folder: Path, **options: Any) -> Any:
    """A tokenizer whose tokenizer.json asks for truncation and padding and opens every text."""
    from tokenizers.processors import TemplateProcessing

    made = tiny_tokenizer()
    made.backend_tokenizer.enable_truncation(4)
    made.backend_tokenizer.enable_padding(length=9, pad_id=1, pad_token=made.pad_token)
    made.backend_tokenizer.post_processor = TemplateProcessing(
        single="<eos> $A", pair="<eos> $A $B", special_tokens=[("<eos>", 0)]
    )
    made.backend_tokenizer.save(str(folder / "tokenizer.json"))
    from transformers import PreTrainedTokenizerFast

    loaded = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_file=str(folder / "tokenizer.json"),
        eos_token=made.eos_token,
        pad_token=made.pad_token,
        **options,
    )
    assert loaded.backend_tokenizer.truncation is not None
    return loaded


@pytest.mark.parametrize("special", [False, True])
def test_a_batch_is_every_text_by_itself(special: bool, tmp_path: Path) -> None:
    tiny = tiny_tokenizer()
    alone = [tiny.encode(text, add_special_tokens=special) for text in TEXTS]
    assert encoded_texts(TEXTS, tiny_tokenizer(), special) == alone
    opened = [[0, *tokens] if special else tokens for tokens in alone]
    assert encoded_texts(TEXTS, cutting(tmp_path), special) == opened, "never cut or padded"
    assert encoded_texts([], tiny, special) == []


def test_special_tokens_in_a_text_may_be_plain_text(tmp_path: Path) -> None:
    tokenizer = cutting(tmp_path, split_special_tokens=True)
    (found,) = encoded_texts(["an <eos> in it"], tokenizer, special=False)
    assert len(found) == len("an <eos> in it")
    assert tokenizer.decode(found) == "an <eos> in it"


def test_a_saved_tokenizer_encodes_as_the_one_it_was(tmp_path: Path) -> None:
    tiny_tokenizer().save_pretrained(tmp_path)
    loaded = load_tokenizer(str(tmp_path))
    assert encoded_texts(TEXTS, loaded, True) == encoded_texts(TEXTS, tiny_tokenizer(), True)


def test_rows_of_all_kinds_keep_their_order() -> None:
    chat = (Message("user", "Hi"), Message("assistant", "Ho"))
    examples = [Example("one", "1"), Example("", "Ho", chat), Example("three", "33")]
    together = encoded_examples(examples, tiny_tokenizer())
    assert together == [encoded_examples([e], tiny_tokenizer())[0] for e in examples]
    texts = [tiny_tokenizer().decode(row.tokens) for row in together]
    assert texts == ["one1<eos>", "user: Hi\nassistant: Ho<eos>", "three33<eos>"]
    assert [row.answer_tokens for row in together] == [2, 3, 3]


def test_every_choice_follows_its_own_prompt() -> None:
    examples = [
        Example("p", "a", choices=("a", "bb"), answer=0),
        Example("qq", "c", choices=("c", "d", "eee"), answer=0),
    ]
    rows = encoded_choices(examples, tiny_tokenizer(), "shots ")
    texts = [[tiny_tokenizer().decode(row.tokens) for row in group] for group in rows]
    assert texts == [["shots pa", "shots pbb"], ["shots qqc", "shots qqd", "shots qqeee"]]
    assert [[row.answer_tokens for row in group] for group in rows] == [[1, 2], [1, 1, 3]]


def test_every_choice_of_a_scored_row_must_fit() -> None:
    rows = [
        Example("Q", " a", choices=(" a", " b"), answer=0, where="fits"),
        Example("Q", " a", choices=(" a", " bbbbbbbb"), answer=0, where="does not"),
        Example("Q", " é", choices=(" é", " ééé"), answer=0, where="fits by a hair"),
    ]
    scored = encoded_split(rows, tiny_tokenizer(), 8, scored=True)
    assert scored.too_long == ("does not",)
    assert [example.where for example in scored.examples] == ["fits", "fits by a hair"]
    assert encoded_split(rows, tiny_tokenizer(), 8).too_long == (), "only the right one is trained"
