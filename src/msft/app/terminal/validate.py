"""What `msft validate` prints: data as found, and rows as the model sees them."""

from collections import Counter
from collections.abc import Sequence
from string import ascii_uppercase
from typing import Any

from msft.data.corpus import Corpus, SubDataset, later_epochs
from msft.data.encoding import EncodedSplit, Tokenizer
from msft.example import Encoded, Example
from msft.recipe.recipe import Recipe
from msft.search.curves import SELECTION, TEST
from msft.text import WIDTH, broken, counted, fitted, table

COLUMNS = (
    "sub-dataset",
    "format",
    "metric",
    "train",
    "valid",
    "test",
    "shots",
    "tokens",
    "answer",
    "mean",
    "longest",
    "labels in %",
)
ABOUT_COLUMNS = (
    "train, valid, test: rows; tokens: of all train rows; answer: those of them that are trained "
    "on; mean, longest: tokens of a train row"
)
FREE = "free"
MOST_LABELS = 8
"""The most different answers whose shares are shown."""


def validation_text(recipe: Recipe, corpus: Corpus, width: int = WIDTH) -> str:
    """One line per sub-dataset, then what there is to note; sentences are not wrapped."""
    rows = [_row(dataset) for dataset in corpus.scored.values()]
    lines = [*table([COLUMNS, *rows], width, COLUMNS.index("tokens")), ""]
    sizes = corpus.epochs(recipe)
    for epoch, size in sizes.items():
        parts = {"row": size.rows, "token": size.tokens, "step": size.steps}
        which = "one epoch" if len(sizes) == 1 else f"from epoch {epoch} on, one epoch"
        lines.append(f"{which}: " + ", ".join(counted(n, noun) for noun, n in parts.items()))
    lines.append(ABOUT_COLUMNS)
    lines += [f"note: {note}" for note in corpus.epoch_notes(recipe)]
    for dataset in corpus.scored.values():
        if said := watched_text(dataset):
            lines.append(f"{dataset.name}: {said}")
    if any(dataset.exemplars for dataset in corpus.scored.values()):
        lines.append(
            "shots: exemplars that stand before every scored row; they are rows of train which are "
            "not trained"
        )
    if any(row[-1] == FREE for row in rows):
        lines.append(
            f"{FREE}: more than {MOST_LABELS} different answers, or some that begin alike, so no "
            "shares of labels"
        )
    for dataset in corpus.scored.values():
        lines += [f"note: {dataset.name}: {note}" for note in dataset.notes]
    lines += [f"note: {note}" for note in corpus.remarks]
    if corpus.note:
        lines.append(f"note: {corpus.note}")
    return "\n".join(lines)


def _row(dataset: SubDataset) -> tuple[str, ...]:
    counts = _counts(dataset)
    *first, longest = (n if isinstance(n, str) else f"{n:,}" for n in counts.values())
    if dataset.watched:
        form, metric, _, valid, test, shots, *_ = first
        return (dataset.name, form, metric, "watched", valid, test, shots, "", "", "", "", "")
    mean = f"{counts['tokens'] / counts['train_rows']:.1f}"
    labels = balance([_label(example) for example in dataset.train.examples])
    return (dataset.name, *first, mean, longest, labels)


def watched_text(dataset: SubDataset) -> str:
    """That a sub-dataset is watched, and its guard; empty without either."""
    guard = dataset.spec.guard
    texts = ["watched: it is scored at every tick and never trained"] if dataset.watched else []
    if guard is not None:
        texts.append(
            f"guard: a checkpoint that surely loses more than {guard.max_drop:g} is not kept"
        )
    return "; ".join(texts)


def validation_content(
    recipe: Recipe, corpus: Corpus, tokenizer: Tokenizer, show: int
) -> dict[str, Any]:
    """The same for programs, with `show` rows of each sub-dataset as the model sees them."""
    datasets = corpus.datasets.values()
    trained = sum(len(dataset.train.rows) for dataset in datasets)
    sizes = corpus.epochs(recipe)
    first = sizes[0]
    return {
        "datasets": {dataset.name: _content(dataset, tokenizer, show) for dataset in datasets},
        "watched": {name: _content(each, tokenizer, show) for name, each in corpus.watched.items()},
        "guards": {n: d.spec.guard.max_drop for n, d in corpus.scored.items() if d.spec.guard},
        "train_rows": trained,
        "train_tokens": sum(len(row.tokens) for d in datasets for row in d.train.rows),
        "epoch_rows": first.rows,
        "epoch_tokens": first.tokens,
        "steps_per_epoch": first.steps,
        **later_epochs(sizes),
        "has_test": corpus.has_test,
        **({"selection_split": corpus.selection} if corpus.selection == TEST else {}),
        "notes": [
            *recipe.notes,
            *corpus.remarks,
            *corpus.epoch_notes(recipe),
            *([corpus.note] if corpus.note and corpus.selection == TEST else []),
        ],
    }


def _content(dataset: SubDataset, tokenizer: Tokenizer, show: int) -> dict[str, Any]:
    shown = [marked(row, tokenizer) for row in _rows(dataset).rows[:show]]
    return {**_counts(dataset), "notes": list(dataset.notes), "shown": shown}


def _rows(dataset: SubDataset) -> EncodedSplit:
    """The rows that are shown: those that are trained, else those that are watched."""
    return next(iter(dataset.given.values())) if dataset.watched else dataset.train


def _counts(dataset: SubDataset) -> dict[str, Any]:
    """Format, metric and counts in the order of the table; the longest row stands last."""
    rows, given = dataset.train.rows, dataset.given
    return {
        "format": dataset.format,
        "metric": dataset.spec.metric,
        "train_rows": len(rows),
        "validation_rows": len(given[SELECTION].rows) if SELECTION in given else 0,
        "test_rows": len(given[TEST].rows) if TEST in given else 0,
        "shots": len(dataset.exemplars),
        "tokens": sum(len(row.tokens) for row in rows),
        "answer_tokens": sum(row.answer_tokens for row in rows),
        "longest": max((len(row.tokens) for row in rows), default=0),
    }


def balance(labels: Sequence[str]) -> str:
    """The share of each answer in per cent, e.g. `A 26 B 24 C 50`; `free`: too many differ, or
    they begin alike.

    Long answers are cut, all alike, from 12 characters down to 3, until they take 50 together.
    """
    counts = Counter(labels)
    if len(counts) > MOST_LABELS or "" in counts:
        return FREE
    shares = {label: f"{100 * count / len(labels):.0f}" for label, count in counts.items()}
    for longest in (*range(min(12, max(map(len, counts))), 3, -1), 3):
        text = " ".join(sorted(f"{label[:longest]} {share}" for label, share in shares.items()))
        if len(text) <= 50:
            break
    return text if len({label[:longest] for label in counts}) == len(counts) else FREE


def _label(example: Example) -> str:
    """The label of the right answer; for own choices its letter."""
    if example.label or example.answer is None:
        return example.label or example.completion.strip()
    return ascii_uppercase[example.answer] if example.answer < 26 else ""


def shown_rows(corpus: Corpus, tokenizer: Tokenizer, count: int, width: int = WIDTH) -> str:
    """Rows as the model sees them, answer tokens between ⟦ and ⟧.

    A line begins with two spaces, and what of it does not fit with `… ` on the lines below it, so
    that breaks in the data can be told from those of the screen.
    """
    lines: list[str] = []
    for dataset in corpus.scored.values():
        pairs = zip(_rows(dataset).examples, _rows(dataset).rows, strict=True)
        for example, row in list(pairs)[:count]:
            size = counted(len(row.tokens), "token")
            lines += ["", fitted(f"--- {dataset.name} ({example.where}), {size}", width)]
            for line in printable(marked(row, tokenizer)).split("\n"):
                lines += broken(f"  {line}", width, "… ")
    return "\n".join(lines)


def marked(row: Encoded, tokenizer: Tokenizer) -> str:
    """A row as text with its answers marked."""
    text, start = "", 0
    for end in range(1, len(row.tokens) + 1):
        if end == len(row.tokens) or row.answer[end] != row.answer[start]:
            piece = tokenizer.decode(row.tokens[start:end], skip_special_tokens=False)
            text += f"⟦{piece}⟧" if row.answer[start] else piece
            start = end
    return text


def printable(text: str) -> str:
    """Text that cannot move the cursor or colour the terminal."""
    return "".join(c if c.isprintable() or c == "\n" else f"\\x{ord(c):02x}" for c in text)
