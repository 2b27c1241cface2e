"""The demo's six sub-datasets, made by code.

Three are small and carelessly labelled, three are larger, clean and harder. Nothing about their
curves is scripted: each is a rule and a number of rows, and for three of them a share of training
rows whose label is wrong, as in a file that somebody typed in a hurry. Validation and test rows
follow the rule, and no prompt occurs twice in a sub-dataset.
"""

from collections.abc import Callable
from functools import partial
from random import Random
from string import ascii_lowercase, ascii_uppercase, digits

from msft.example import Example, Split

HELD_OUT = {"validation": 150, "test": 400}
WRONG = 0.45
MISLABELLED = ("teams", "shelves", "gates")
"""The sub-datasets with wrong training labels, and the share of these labels."""

Pairs = list[tuple[str, str]]
"""Prompts and completions."""


def _looked_up(
    word: str, size: int, keys: str, labels: str, clutter: str, seed: int
) -> dict[str, Pairs]:
    """The key decides; three characters of clutter tell the rows apart; WRONG of them are wrong."""
    shuffled = list(keys)
    Random(f"{word} rule").shuffle(shuffled)  # the same rule for every seed
    rule = {key: labels[number % len(labels)] for number, key in enumerate(shuffled)}
    random = Random(f"{word} {seed}")

    def draw() -> tuple[str, str]:
        key = random.choice(keys)
        return f"{word} {key} {_word(random, 3, clutter)}:", rule[key]

    made = _split(draw, size)
    for number, (prompt, right) in enumerate(made["train"]):
        if random.random() < WRONG:
            wrong = random.choice([label for label in labels if label != right])
            made["train"][number] = (prompt, wrong)
    return made


def _clean(
    word: str, size: int, length: int, letters: str, answer: Callable[[str], str], seed: int
) -> dict[str, Pairs]:
    """The answer follows from the letters by a rule."""
    random = Random(f"{word} {seed}")

    def draw() -> tuple[str, str]:
        drawn = _word(random, length, letters)
        return f"{word} {drawn}:", answer(drawn)

    return _split(draw, size)


def _split(draw: Callable[[], tuple[str, str]], size: int) -> dict[str, Pairs]:
    """Distinct prompts, the held-out splits first."""
    made: dict[str, str] = {}
    while len(made) < size + sum(HELD_OUT.values()):
        prompt, completion = draw()
        made[prompt] = completion
    pairs = list(made.items())
    first = HELD_OUT["validation"]
    end = first + HELD_OUT["test"]
    return {"train": pairs[end:], "validation": pairs[:first], "test": pairs[first:end]}


def _word(random: Random, length: int, letters: str) -> str:
    return "".join(random.choice(letters) for _ in range(length))


_SUCCESSORS = str.maketrans(ascii_lowercase, ascii_lowercase[1:] + "a")
TASKS: dict[str, Callable[[int], dict[str, Pairs]]] = {
    # `team C 407:` → the team's colour, which the letter decides (8 letters, 4 colours). 45 % of
    # the labels are wrong: the letter's rule is found in two or three epochs, then the running
    # numbers are learned by heart together with the mistakes. The smallest: overfits early.
    "teams": partial(_looked_up, "team", 160, ascii_uppercase[:8], "rgby", digits),
    # `shelf K cfa:` → the shelf, which the capital decides (12 capitals, 6 shelves). 45 % wrong,
    # 20 rows for each capital: overfits early, after `teams` as a rule.
    "shelves": partial(_looked_up, "shelf", 240, ascii_uppercase[6:18], "123456", "abcdefghij"),
    # `gate T 093:` → the gate, which the letter decides (12 letters, 4 gates). 45 % wrong:
    # overfits early.
    "gates": partial(_looked_up, "gate", 240, ascii_uppercase[14:], "nesw", digits),
    # `next cat:` → `dbu`, each letter's successor. Nothing but the rule explains these clean rows;
    # it is found at about epoch 4 and then kept: peaks in the middle, and hardly falls.
    "successors": partial(
        _clean, "next", 400, 3, ascii_lowercase, lambda word: word.translate(_SUCCESSORS)
    ),
    # `reverse word:` → `drow`. Slow, still improving when the noisy ones have long fallen.
    "reversals": partial(_clean, "reverse", 600, 4, ascii_lowercase, lambda word: word[::-1]),
    # `sort dcba:` → `abcd`, four letters of a to p: half is learned quickly, the rest late.
    "sorting": partial(
        _clean, "sort", 600, 4, ascii_lowercase[:16], lambda word: "".join(sorted(word))
    ),
}
"""The rows of each split by seed: the prompt's word, the number of train rows, and their rule."""


def splits(name: str, seed: int) -> dict[str, Split]:
    """The splits of one of the six sub-datasets; every seed draws other rows."""
    return {
        split: Split(
            tuple(
                Example(prompt, completion, where=f"{name}, {split} row {number}")
                for number, (prompt, completion) in enumerate(pairs, start=1)
            ),
            "prompt+completion",
        )
        for split, pairs in TASKS[name](seed).items()
    }
