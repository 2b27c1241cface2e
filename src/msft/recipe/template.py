"""The recipe that `msft init` writes."""

RECIPE = """\
# msft validate recipe.yaml --show 2     what the model will see
# msft plan recipe.yaml                  what it will cost
# msft train recipe.yaml                 train; run it again to resume

model_name_or_path: smollm2-135m   # hub name, folder, .gguf file, smollm2-135m or tiny
method: msft                       # sft continual dynamix ies sro soft_sro msft
output_dir: runs/mine
seed: 20
compute_budget: 3                  # msft, continual: epochs per roll-out
num_train_epochs: 10               # the other methods
evals_per_epoch: 4
learning_rate: 1e-5
train_batch_size: 64               # samples per optimizer step, whatever the memory
max_length: 512                    # longer rows are left out and counted

# Scores are noisy. With a few hundred validation rows, consider:
# peaks: {smooth: 1, min_delta: 0.005, include_start: false}
# method_options: {patience: 6, rehearsal_fraction: 0.1}

datasets:
  - name: first                    # letters, digits, . _ -
    train: data/first.train.jsonl  # .jsonl .json .csv .parquet: prompt+completion, messages,
    validation_fraction: 0.1       #   alpaca or sharegpt rows; or validation: a file
    test: data/first.test.jsonl    # optional; never used to decide
    metric: accuracy               # greedy answer equals the reference; or nll; or module:function
  - name: second
    train: data/second.train.jsonl
    validation: data/second.valid.jsonl
    metric: nll                    # for free text without a checkable answer
  # - {name: sciq, benchmark: sciq, train_rows: 1800}   # built in; docs/benchmarks.md has all
"""
