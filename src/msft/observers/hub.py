"""`push_to_hub`: the result of a run with its model card, as a model of the Hugging Face hub.

`hub.json` in the run folder says what was uploaded. So a second call uploads nothing, and a call
after a failed upload tries again without training.
"""

import json
from collections.abc import Callable
from typing import Any

from msft.errors import HubError, RecipeError
from msft.files import DAMAGED, kind_of, read_text
from msft.recipe.recipe import Recipe
from msft.report.card import is_hub_name
from msft.run.folder import RunFolder, write_json
from msft.store.store import MANIFEST


def refuse_unpushable(recipe: Recipe) -> None:
    """RecipeError where the hub would refuse an upload for want of a token."""
    if recipe.use_peft and not recipe.merge_adapter and not is_hub_name(recipe.model()):
        raise RecipeError(
            f"push_to_hub is true, but the result would be an adapter of {recipe.model()}, which "
            "the hub does not have, so nobody could load it; set merge_adapter: true",
            ("push_to_hub",),
        )
    import huggingface_hub

    if huggingface_hub.get_token() is None:
        raise RecipeError(
            "push_to_hub is true, but there is no token for the hub; run `hf auth login` or set "
            "HF_TOKEN, or set push_to_hub to false",
            ("push_to_hub",),
        )


def push(recipe: Recipe, folder: RunFolder, best: str, notice: Callable[[str], None]) -> None:
    """Upload `best/`, unless this checkpoint is there already.

    best: its id.
    """
    if _is_there(recipe, folder, best):
        return
    import huggingface_hub

    api = huggingface_hub.HfApi()
    name = recipe.hub_model_id or folder.path.resolve().name
    try:
        repo = api.create_repo(name, private=recipe.hub_private_repo, exist_ok=True).repo_id
        done = api.upload_folder(
            repo_id=repo,
            folder_path=folder.best,
            commit_message=f"msft: checkpoint {best}",
            ignore_patterns=[MANIFEST],
        )
    except Exception as error:  # of the network, the hub or its library
        why = " ".join(str(error).split())
        raise HubError(
            f"{folder.best} was not uploaded to {name}: {why}. The model is complete in that "
            "folder; run the same command again to upload it"
        ) from error
    write_json(folder.hub, {"repo": repo, "checkpoint": best, "commit": done.oid})
    notice(f"uploaded to {done.commit_url}")


def _is_there(recipe: Recipe, folder: RunFolder, best: str) -> bool:
    """Whether this checkpoint was uploaded to the place that the recipe names; a run folder may
    have been renamed since."""
    done, asked = _uploaded(folder), recipe.hub_model_id
    repo = str(done.get("repo", ""))
    same = asked is None or repo == asked or repo.endswith(f"/{asked}")
    return done.get("checkpoint") == best and same


def _uploaded(folder: RunFolder) -> dict[str, Any]:
    """The content of `hub.json`; empty without a readable one."""
    try:
        return dict(json.loads(read_text(folder.hub))) if kind_of(folder.hub) else {}
    except DAMAGED:
        return {}
