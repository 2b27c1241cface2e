"""Every causal-LM family of transformers that can be built small: does its result hold?

    python tests/family_sweep.py [--only NAME…] [--page docs/results/families.md]

By hand, not in CI; `tests/app/test_published.py` has ten of them. For each family: a random model
in bf16 with persistent buffers that are not zero, two steps of msft with `engine: auto`, then
`best/` is held against `save_pretrained` of the base and the loss of the trained weights.
"""

import argparse
import shutil
import signal
import sys
import tempfile
import traceback
from collections.abc import Mapping
from contextlib import redirect_stderr, redirect_stdout
from datetime import UTC, datetime
from io import StringIO
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from msft.errors import Explained

sys.path[:0] = [str(Path(__file__).parent / "app")]

from published import Auto, differences, train, write_base  # noqa: E402

SECONDS = 120
MOST = 20_000_000
"""Weights of a model that counts as small."""
SMALL: dict[str, Any] = {
    **dict.fromkeys(("hidden_size", "n_embd", "d_model", "dim", "embed_dim"), 32),
    **dict.fromkeys(("ffn_dim", "intermediate_size", "ffn_hidden_size", "n_inner"), 48),
    **dict.fromkeys(("d_inner", "d_ff", "dff", "mlp_hidden_size"), 48),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "num_layers", "n_layers"), 2),
    **dict.fromkeys(("num_attention_heads", "n_head", "num_heads", "n_heads"), 4),
    **dict.fromkeys(("num_key_value_heads", "num_kv_heads"), 4),
    **dict.fromkeys(("decoder_layers", "encoder_layers"), 2),
    **dict.fromkeys(("decoder_attention_heads", "encoder_attention_heads"), 4),
    **dict.fromkeys(("decoder_ffn_dim", "encoder_ffn_dim"), 48),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "max_sequence_length"), 128),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts"), 8),
    **dict.fromkeys(("moe_num_experts", "num_moe_experts"), 8),
    **dict.fromkeys(("num_experts_per_tok", "moe_k", "moe_topk", "top_k_experts", "moe_top_k"), 2),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size"), 16),
    **dict.fromkeys(("expert_ffn_hidden_size", "shared_intermediate_size"), 16),
    **dict.fromkeys(("mamba_d_ssm",), 64),
    "vocab_size": 258,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "pad_token_id": 1,
    "head_dim": 8,
    "kv_lora_rank": 8,
    "q_lora_rank": 8,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 4,
    "v_head_dim": 8,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "state_size": 8,
    "mamba_d_state": 8,
    "mamba_n_heads": 8,
    "mamba_d_head": 8,
    "mamba_n_groups": 1,
    "mamba_chunk_size": 8,
    "chunk_size": 8,
    "sliding_window": 64,
    "rotary_dim": 4,
    "use_mamba_kernels": False,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "word_embed_proj_dim": 32,
    "projection_dim": 32,
}
"""Sizes, by the names that configs give them."""
OWN: dict[str, dict[str, Any]] = {
    **{kind: {"head_dim": 4} for kind in ("axk1", "deepseek_v3", "longcat_flash", "youtu")},
    **{kind: {} for kind in ("mamba", "falcon_mamba")},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]], "window_size": 64},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "mamba2": {"num_heads": 8, "head_dim": 8, "expand": 2, "n_groups": 1},
    "bamba": {"mamba_n_heads": 8, "mamba_d_head": 8, "attn_layer_indices": [1]},
    "apertus": {"max_position_embeddings": 8192},
    "recurrent_gemma": {"lru_width": 32, "block_types": ["recurrent", "attention"]},
    "xlnet": {"d_head": 8},
    "falcon_h1": {"mamba_d_ssm": 32, "mamba_n_heads": 4},
    "nemotron_h": {
        "layers_block_type": ["mamba", "moe", "attention"],
        "mamba_num_heads": 8,
        "mamba_head_dim": 8,
        "n_groups": 1,
    },
    "xmod": {"default_language": "en_XX", "is_decoder": True},
    "zaya": {"num_experts_per_tok": 1},
    "dots1": {"n_shared_experts": 1},
    "gemma4_text": {"vocab_size_per_layer_input": 258, "hidden_size_per_layer_input": 8},
    "zamba": {"num_hidden_layers": 3, "layers_block_type": ["mamba", "mamba", "hybrid"]},
    "zamba2": {"num_hidden_layers": 3, "layers_block_type": ["mamba", "mamba", "hybrid"]},
}
"""Keys of one family."""


def small_config(kind: str) -> Any:
    """A config of a family with every size that is known made small."""
    made = CONFIG_MAPPING[kind]
    plain = made()
    known = {**vars(plain), **dict.fromkeys(made.__init__.__annotations__)}
    attributes = getattr(made, "attribute_map", {})
    given = {key: value for key, value in SMALL.items() if key in known or key in attributes}
    layers = next(
        (given[k] for k in ("num_hidden_layers", "n_layer", "num_layers") if k in given), 2
    )
    if "qk_rope_head_dim" in given:  # which is the size of a head, then
        given.pop("head_dim", None)
    fixed = isinstance(getattr(made, "layer_types", None), property)
    kinds = None if fixed else getattr(plain, "layer_types", None)
    if kinds and kind not in OWN:
        given["layer_types"] = [*dict.fromkeys(kinds)][:layers]
        given["layer_types"] += [kinds[0]] * (layers - len(given["layer_types"]))
    if isinstance(getattr(plain, "mlp_layer_types", None), list):
        given["mlp_layer_types"] = [*dict.fromkeys(plain.mlp_layer_types), "sparse"][:layers]
    return made(**{**given, **OWN.get(kind, {})})


class TooLong(Exception):
    """A family that does not come to an end."""


def alarm(*_: Any) -> None:
    raise TooLong(f"it took more than {SECONDS} s")


def tried(kind: str, folder: Path) -> tuple[str, str]:
    """What became of a family, in a word, and why."""
    stage = "not built small"
    signal.signal(signal.SIGALRM, alarm)
    signal.alarm(SECONDS)
    try:
        config = small_config(kind)
        with torch.device("meta"):
            size = Auto.from_config(config).num_parameters()
        if size > MOST:
            return stage, f"{size:,} weights at the sizes that the sweep knows to set"
        model = Auto.from_config(config)
        stage = "not saved by transformers"
        write_base(model, folder / "base")
        transformers.AutoModelForCausalLM.from_pretrained(folder / "base")
        stage = "refused"
        train(folder / "base", folder / "out")
        stage = "differs"
        found = differences(folder / "base", folder / "out")
        return ("passes", "") if not found else (stage, f"{len(found)}: {'; '.join(found)[:600]}")
    except Explained as error:
        return stage, str(error)
    except Exception as error:
        if "-v" in sys.argv:
            traceback.print_exc(file=sys.__stderr__)
        stage = "ends in an error" if stage == "refused" else stage
        return stage, f"{type(error).__name__}: {error}"
    finally:
        signal.alarm(0)


def page_of(found: Mapping[str, tuple[str, str]]) -> str:
    """The page in `docs/`."""
    passed = [kind for kind, (became, _) in found.items() if became == "passes"]
    rest = {kind: each for kind, each in found.items() if each[0] != "passes"}
    versions = f"transformers {transformers.__version__}, torch {torch.__version__}"
    lines = [
        "# Model families",
        "",
        "Every causal-LM family of transformers, each as a random model of two layers in bf16 "
        "whose persistent buffers are not zero. msft trains two steps with `engine: auto`. Then "
        "`best/` must have the tensors, dtypes, shards and configs that `save_pretrained` of the "
        "base writes, and transformers must compute from it the loss of the trained weights "
        "rounded to bf16.",
        "",
        f"Made by `python tests/family_sweep.py --page docs/results/families.md` on "
        f"{datetime.now(UTC):%Y-%m-%d} with {versions}, on a CPU.",
        "",
        f"**{len(passed)} of {len(found)} families pass**: {', '.join(sorted(passed))}.",
        "",
        "Encoders and prophetnet, xlm and cpmant see tokens that come after, so they are refused. "
        "Families with images or sound in them, and those that need keys of their own, are not "
        "built small by this script. The reasons are printed.",
        "",
        "| what happens | families |",
        "| --- | --- |",
    ]
    outcomes: dict[str, list[str]] = {}
    for kind, (became, _) in sorted(rest.items(), key=lambda item: (item[1][0], item[0])):
        outcomes.setdefault(became, []).append(kind)
    lines += [f"| {became} | {', '.join(kinds)} |" for became, kinds in outcomes.items()]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", nargs="*")
    parser.add_argument("--page", type=Path)
    parser.add_argument("-v", action="store_true")
    asked = parser.parse_args()
    transformers.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    found: dict[str, tuple[str, str]] = {}
    for kind in asked.only or sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES):
        folder = Path(tempfile.mkdtemp())
        with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
            found[kind] = tried(kind, folder)
        shutil.rmtree(folder)
        print(f"{kind}: {': '.join(found[kind])}"[:1500], flush=True)
    print(sum(became == "passes" for became, _ in found.values()), "of", len(found), "pass")
    if asked.page:
        asked.page.write_text(page_of(found))


if __name__ == "__main__":
    main()
