"""Many conversations at once: each gives the tokens, marks and errors that it gives alone."""

import random
from collections.abc import Sequence
from typing import Any

import pytest

from msft.data import encoding
from msft.data.encoding import Borders, encoded_examples, in_parts
from msft.data.formats import example_of
from msft.engine.model.tokenizers import tiny_tokenizer
from msft.errors import DataError
from msft.example import Encoded, Example

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TEMPLATES = {
    "chatml": CHATML,
    "no borders": "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}",
    "answers end in a border": "{% for m in messages %}{{ m.role }}: {{ m.content }}"
    "{{ eos_token if m.role == 'assistant' else '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}",
    "stripped": "{{ bos_token or '' }}{% for m in messages %}<|h|>{{ m.role }}<|/h|>\n\n"
    "{{ m.content | trim }}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|h|>assistant<|/h|>\n\n{% endif %}",
    "thinking": "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{{ m.content.split('</think>')[-1] if not loop.last else m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
    "tools": "{% if tools %}[{{ tools | tojson }}]{% endif %}{% for m in messages %}<|im_start|>"
    "{{ m.role }}\n{{ m.content }}{% for c in m.tool_calls %}{{ c.function | tojson }}{% endfor %}"
    "<|im_end|>{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
    "prompt goes on": "{% for m in messages %}<|im_start|>{{ m.role }}{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant{% endif %}",
    "fails": "{% for m in messages %}{% if 'zwei' in m.content %}{{ raise_exception('no zwei') }}"
    "{% endif %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
}
PIECES = ["one", "Zwei", "zwei ", " ", "\n", "\n\n", "<|im_end|>", "<|im_", "end|>", "<eos>", "é"]
PIECES += [
    "<think>a</think>",
    "世界",
    "😀",
    "<|h|>",
    "  two",
    "user:",
    "\t",
    "＜|im_end|＞",
    "a" * 30,
]


def trained(kind: str) -> Any:
    """A tokenizer that merges over blanks and lines, as those of models do."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
    from tokenizers.trainers import BpeTrainer, UnigramTrainer
    from transformers import PreTrainedTokenizerFast

    specials = ["<eos>", "<|im_start|>", "<|im_end|>", "<|h|>", "<|/h|>"]
    texts = [" ".join(PIECES), "assistant\none two", "assistant: one\n\n", "user: zwei"] * 3
    if kind == "metaspace":
        core = Tokenizer(models.Unigram())
        core.normalizer = normalizers.NFKC()
        core.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
        trainer = UnigramTrainer(vocab_size=150, special_tokens=["<unk>"], unk_token="<unk>")  # noqa: S106
        core.train_from_iterator(texts, trainer)
    else:
        core = Tokenizer(models.BPE())
        core.pre_tokenizer = pre_tokenizers.ByteLevel(
            add_prefix_space=kind == "prefix", use_regex=kind != "whole"
        )
        core.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        core.train_from_iterator(
            texts, BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False)
        )
        if kind == "prepend":
            core.normalizer = normalizers.Prepend("_")
    strip = kind == "strips"
    core.add_special_tokens(
        [AddedToken(each, normalized=False, special=True, rstrip=strip) for each in specials]
    )
    core.add_tokens([AddedToken("two", normalized=True)])
    if kind != "bpe":
        core.add_tokens([AddedToken("end|>x", normalized=False)])  # so `<|im_end|>` is no border
    ends = {"eos_token": specials[0], "pad_token": specials[0]}
    return PreTrainedTokenizerFast(tokenizer_object=core, **ends)  # type: ignore[no-untyped-call]


KINDS = ("bpe", "prefix", "whole", "prepend", "strips", "metaspace")


def row(draw: random.Random, number: int, tools: bool) -> Example:
    def said() -> str:
        return "".join(draw.choices(PIECES, k=draw.randint(1, 5))).strip(" ") or "x"

    turns: list[dict[str, Any]] = [{"role": "system", "content": said()}] * draw.randint(0, 1)
    for _ in range(draw.randint(1, 3)):
        turns.append({"role": "user", "content": said()})
        answer = said()
        turns.append({"role": "assistant", "content": answer if answer.strip() else "y"})
        if tools and draw.random() < 0.3:
            call = {"name": "f", "arguments": {"a": said()}}
            turns[-1] = {"role": "assistant", "content": "", "tool_calls": [{"function": call}]}
            turns.append({"role": "tool", "content": said()})
            turns.append({"role": "assistant", "content": "done"})
    return example_of({"messages": turns}, f"row {number}")[0]


def alone(rows: Sequence[Example], tokenizer: Any, most: int | None) -> list[Encoded] | str:
    try:
        return [encoding._chat(each, tokenizer, most) for each in rows]
    except DataError as error:
        return str(error)


def together(rows: Sequence[Example], tokenizer: Any, most: int | None) -> list[Encoded] | str:
    try:
        return encoded_examples(rows, tokenizer, most)
    except DataError as error:
        return str(error)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", TEMPLATES)
def test_together_is_each_alone(kind: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer, draw = trained(kind), random.Random(f"{kind} {name}")
    tokenizer.chat_template = TEMPLATES[name]
    rows = [row(draw, number, tools=name == "tools") for number in range(60)]
    known = [encoding._chats([each], tokenizer, None, None) for each in _good(rows, tokenizer)]
    assert encoded_examples(_good(rows, tokenizer), tokenizer) == [each for (each,) in known]
    monkeypatch.setattr(encoding, "PART_ROWS", 7)
    for most in (None, 40):
        assert together(rows, tokenizer, most) == alone(rows, tokenizer, most)


def _good(rows: Sequence[Example], tokenizer: Any) -> list[Example]:
    return [each for each in rows if not isinstance(alone([each], tokenizer, None), str)]


def test_conversations_are_not_encoded_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer, draw = trained("bpe"), random.Random(1)
    tokenizer.chat_template = CHATML
    rows = _good([row(draw, number, tools=False) for number in range(50)], tokenizer)
    calls: list[int] = []

    class Counted:
        def __init__(self, core: Any) -> None:
            self.core = core

        def __getattr__(self, name: str) -> Any:
            return getattr(self.core, name)

        def encode_batch_fast(self, texts: list[str], **how: Any) -> Any:
            calls.append(sum(map(len, texts)))
            return self.core.encode_batch_fast(texts, **how)

    monkeypatch.setattr(tokenizer, "_tokenizer", Counted(tokenizer._tokenizer))
    monkeypatch.setattr(encoding, "_chat", None)
    encoded_examples(rows, tokenizer)
    whole, rest = calls
    assert len(rows) > 30
    assert 0 < rest < whole / 3, "only what follows the last border of the first turns"


def test_a_border_shares_no_character_with_another_token() -> None:
    def borders(*texts: str) -> set[str]:
        found = Borders(dict.fromkeys(texts, 0), "\0".join(["", *texts, ""]))
        return {text for text in texts if found.is_alone(text)}

    assert borders("<|a|>", "<|b|>", "</s>") == {"<|a|>", "<|b|>", "</s>"}
    assert borders("<a>", "<a>b") == set(), "one is the start of the other"
    assert borders("<a>", "b<a>c", "d") == {"d"}, "one is in the other"
    assert borders("ab", "bc", "d") == {"d"}, "the end of one is the start of the other"
    assert borders("aba", "d") == {"d"}, "the same again may start in it"


def test_tokens_that_eat_blanks_are_no_borders() -> None:
    found = Borders.of(trained("strips"))
    assert found is not None
    assert set(found.tokens) == {"end|>x"}
    plain = Borders.of(trained("bpe"))
    assert plain is not None
    assert set(plain.tokens) == {"<eos>", "<|im_start|>", "<|im_end|>", "<|h|>", "<|/h|>"}
    tokenizer = trained("bpe")
    tokenizer.split_special_tokens = True
    assert Borders.of(tokenizer) is None
    assert Borders.of(object()) is None


def test_parts_keep_the_order_and_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoding, "PART_ROWS", 3)
    monkeypatch.setattr(encoding, "PART_SIZE", 10)
    texts = ["aaaa"] * 4 + ["b" * 50] + ["cc"] * 4
    parts = [list(part) for part in in_parts(texts, len)]
    assert parts == [["aaaa"] * 2, ["aaaa"] * 2, ["b" * 50], ["cc"] * 3, ["cc"]]
    assert list(in_parts([], len)) == []


def test_the_first_wrong_row_is_named() -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = (
        "{% for m in messages %}{% if 'no' in m.content %}{{ raise_exception('no') }}{% endif %}"
        "{{ m.content if loop.last or not 'cut' in m.content else '' }}{{ eos_token }}{% endfor %}"
    )
    user, answer = {"role": "user", "content": "u"}, {"role": "assistant", "content": "a"}

    def rows(*said: str) -> list[Example]:
        texts = [[user, {**answer, "content": text}, user, answer] for text in said]
        return [example_of({"messages": t}, f"row {n}")[0] for n, t in enumerate(texts)]

    assert len(encoded_examples(rows("a", "b"), tokenizer)) == 2
    with pytest.raises(DataError, match=r"^row 1: .*changes earlier turns"):
        encoded_examples(rows("a", "cut", "no"), tokenizer)
    with pytest.raises(DataError, match=r"^row 1: .*template failed in its line 1: no;"):
        encoded_examples(rows("a", "no", "cut"), tokenizer)


def test_a_slow_template_is_stopped_for_its_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoding, "SECONDS", 0.2)
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = (
        "{% for m in messages %}{{ m.content }}{% if 'slow' in m.content %}{% for i in "
        "range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}{% endif %}"
        "{{ eos_token }}{% endfor %}"
    )
    rows = [
        example_of({"messages": [{"role": "user", "content": text}, ANSWER]}, text)[0]
        for text in ("fine", "slow", "good")
    ]
    with pytest.raises(DataError, match=r"^slow: .*did not end within 0\.2 s"):
        encoded_examples(rows, tokenizer)


ANSWER = {"role": "assistant", "content": "a"}


def test_equal_tokens_are_one_number() -> None:
    rows = encoded_examples([Example("ab", "é" * 3), Example("b", "é")], trained("bpe"))
    assert rows[0].tokens[1] is rows[1].tokens[0]
