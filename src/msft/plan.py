"""The plan: what a run will cost, from recipe and data alone.

How many stages a search takes is what it finds out, so mSFT has a best case (one roll-out per
sub-dataset, the largest leaving first) and a worst case (`max_stages` roll-outs on everything).
"""

from dataclasses import dataclass

from msft.corpus import Corpus
from msft.flops import inference_flops, look_ahead_flops, train_flops
from msft.recipe import Recipe
from msft.validation import table

LOOK_AHEAD_UPDATES = 100


@dataclass(frozen=True, slots=True)
class Cost:
    """Tokens of one method, at least and at most."""

    train: tuple[int, int]
    evaluations: tuple[int, int]
    lookahead: int = 0


def costs(recipe: Recipe, corpus: Corpus) -> dict[str, Cost]:
    """Training tokens and numbers of evaluations of every method with this recipe."""
    tokens = {n: sum(len(r.tokens) for r in d.train.rows) for n, d in corpus.datasets.items()}
    total, count = sum(tokens.values()), len(tokens)
    epochs, budget, ticks = recipe.num_train_epochs, recipe.compute_budget, recipe.evals_per_epoch
    sft = (round(total * epochs),) * 2
    sft_ticks = (round(epochs * ticks) + 1,) * 2
    left = sorted(tokens.values(), reverse=True)
    rows = {n: len(d.train.rows) for n, d in corpus.datasets.items()}
    mean_row = total / max(1, sum(rows.values()))
    steps = -(-sum(rows.values()) // recipe.train_batch_size) * epochs
    ahead = round(
        min(LOOK_AHEAD_UPDATES, steps) * sum(min(128, n) for n in rows.values()) * mean_row
    )
    roll = round(budget * ticks)
    options = recipe.method_options if recipe.method == "msft" else {}
    shortest = min(
        roll, int(options.get("patience") or roll) + (not recipe.peak_rule.include_start)
    )
    stages = int(options.get("max_stages") or 2 * count)
    fewest_stages = 1 if options.get("drop_ties") == "all" else min(count, stages)
    kept = float(options.get("rehearsal_fraction") or 0)
    fewest = sum(sum(left[stage:]) + kept * sum(left[:stage]) for stage in range(fewest_stages))
    return {
        "sft": Cost(sft, sft_ticks),
        "continual": Cost((round(total * budget),) * 2, (count * roll + 1,) * 2),
        "dynamix": Cost(sft, sft_ticks, ahead),
        "ies": Cost((round(total * min(3, epochs)), sft[1]), sft_ticks),
        "sro": Cost((sft[0], 2 * sft[1]), (sft_ticks[0], 2 * sft_ticks[1])),
        "soft_sro": Cost((2 * sft[0],) * 2, (2 * sft_ticks[0],) * 2),
        "msft": Cost(
            (round(fewest * shortest / ticks), round(total * budget * stages)),
            (fewest_stages * shortest + 1, stages * roll + 1),
        ),
    }


def plan_text(recipe: Recipe, corpus: Corpus, num_parameters: int) -> str:
    """Costs of all methods beside each other, the recipe's marked, then memory and disk."""
    evaluation = sum(len(r.tokens) for d in corpus.datasets.values() for r in d.validation.rows)
    rows: list[tuple[str, ...]] = [
        ("", "method", "train tokens", "evaluations", "PFLOPs", "of it evaluation")
    ]
    for name, cost in costs(recipe, corpus).items():
        ends = []
        for end in (0, 1):
            trained = train_flops(num_parameters, cost.train[end])
            ahead = look_ahead_flops(num_parameters, cost.lookahead)
            scored = inference_flops(num_parameters, cost.evaluations[end] * evaluation)
            ends.append((trained + ahead + scored, scored))
        share = ends[1][1] / max(1, ends[1][0])
        rows.append(
            (
                "→" if name == recipe.method else "",
                name,
                _range(*(f"{tokens:,}" for tokens in cost.train)),
                _range(*(str(number) for number in cost.evaluations)),
                _range(*(f"{total / 1e15:.4g}" for total, _ in ends)),
                f"{share:.0%}",
            )
        )
    weights, count = 4 * num_parameters, len(corpus.datasets)
    epoch_rows = sum(len(d.train.rows) for d in corpus.datasets.values())
    lines = [
        f"{recipe.model_name_or_path}: {num_parameters:,} parameters, {count} sub-datasets, "
        f"{epoch_rows:,} rows and {-(-epoch_rows // recipe.train_batch_size):,} steps an epoch",
        "",
        *table(rows),
        "",
        f"memory: {4 * weights / 1e9:.2f} GB for weights, gradients and moments, and activations",
        f"disk: at most {(count + 3) * weights / 1e9:.2f} GB of weights and "
        f"{4 * weights / 1e9:.2f} GB of moments at once; less while candidates fit into memory",
        "A range is the best and the worst case: how many stages a search takes is what it finds.",
    ]
    return "\n".join(lines)


def _range(low: str, high: str) -> str:
    return low if low == high else f"{low} to {high}"
