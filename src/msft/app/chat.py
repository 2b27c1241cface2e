"""`msft chat`: a result and its base, asked the same questions.

A run knows its base: an adapter names it, else the recipe of the run does. Both are asked in the
very same tokens, those of the result's tokenizer and chat template, as they were when the run
scored them. Each goes on with its own answers, which are the likeliest ones, as in an evaluation.
"""

import json
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from msft.app.audit import ALL, CHOICE, CLEAN
from msft.data.encoding import encoded_prompts, templated
from msft.engine.model.folders import CONFIG, base_of, is_adapter
from msft.engine.model.tokenizers import load_context, load_tokenizer
from msft.errors import DataError, LogError, NoRoom, RecipeError, UsageError
from msft.example import Example, Message
from msft.files import DAMAGED, read_text
from msft.recipe.recipe import Recipe, load_recipe
from msft.run.folder import RunFolder, read_history, refuse_audit
from msft.run.rows import read_samples
from msft.search.rollout import BASE
from msft.store.store import MANIFEST
from msft.text import counted, listed, shown

if TYPE_CHECKING:
    from torch import Tensor

    from msft.engine.model.loading import LoadedModel

RESULT, BASE_MODEL, MODEL = "result", "base", "model"
"""The parts of a model in a conversation: a result and its base, or a model without one."""
_TURN = re.compile(r"(system|user|assistant|tool): ")


@dataclass(frozen=True, slots=True)
class ChatOptions:
    """Options of a conversation.

    plain: without the chat template; what is typed is the whole prompt. None: as in the run.
    """

    system: str | None = None
    plain: bool | None = None
    max_new_tokens: int = 256


@dataclass(frozen=True, slots=True)
class ModelNames:
    """The models that a name on the command line stands for.

    model: name or path of the model to load. base: that of its base; None: the model talks alone.
    run: the folder of the run that made the model.
    trust: the recipe of the run trusts the code of its model.
    """

    model: str
    base: str | None = None
    run: Path | None = None
    trust: bool = False
    notes: tuple[str, ...] = ()


def resolved_names(name: str, with_base: bool = True, trust: bool = False) -> ModelNames:
    """The model of a run folder, of its `best/`, or of anything that `msft eval` takes."""
    path = Path(name)
    if not path.is_dir():
        return ModelNames(name, trust=trust)
    refuse_audit(path)
    path = _chosen(path if path.name else path.resolve())
    run = RunFolder(path.parent if path.name == "best" else path)
    if run.log.exists() and not run.is_audit():
        return _of_run(run, with_base, trust)
    if is_adapter(name):
        return ModelNames(name, base_of(name) if with_base else None, trust=trust)
    _refuse_several(path)
    return ModelNames(name, trust=trust)


def _chosen(folder: Path) -> Path:
    """The run that `msft train --audit` chose, where this is its folder."""
    if (folder / CHOICE).is_file():
        with suppress(*DAMAGED):
            chosen = json.loads(read_text(folder / CHOICE))["chosen"]
            if chosen in (ALL, CLEAN):
                return folder / str(chosen)
        raise UsageError(
            f"{folder / CHOICE} is damaged; name the run that you mean: {folder / ALL} or "
            f"{folder / CLEAN}"
        )
    return folder


def _refuse_several(folder: Path) -> None:
    """UsageError for a folder that has runs in it, and no model."""
    runs = sorted(log.parent for log in folder.glob("*/run.jsonl"))
    models = [str(run) for run in runs if not RunFolder(run).is_audit()]
    if models and not (folder / CONFIG).exists():
        more = ", …" if len(models) > 4 else ""
        raise UsageError(
            f"{folder} has {counted(len(models), 'run')} in it; name one of them: "
            f"{', '.join(models[:4])}{more}"
        )


def _of_run(run: RunFolder, with_base: bool, trust: bool) -> ModelNames:
    """The best model of a run so far, and the base that the run began with."""
    notes, recipe, finished = list[str](), None, False
    with suppress(RecipeError, OSError):
        recipe = load_recipe(run.recipe)
    with suppress(LogError, UsageError):  # a damaged log is no matter of the model
        finished = read_history(run.path).ended is not None
    trust = trust or (recipe is not None and recipe.trust_remote_code)
    best = str(run.best)
    base = _base_of_run(run, recipe)
    if not (run.best / CONFIG).exists() and not is_adapter(best):
        raise UsageError(_no_model(run, finished, base))
    if not finished:
        notes.append(f"the run in {run.path} is not finished; this is its best model so far")
    if not with_base:
        return ModelNames(best, None, run.path, trust, tuple(notes))
    if base is None:
        notes.append(f"{run.recipe} cannot be read, so the base is not known")
    elif _checkpoint(run.best) == BASE:
        notes.append("the result of this run is the base model itself, so one model answers")
        base = None
    return ModelNames(best, base, run.path, trust, tuple(notes))


def _base_of_run(run: RunFolder, recipe: Recipe | None) -> str | None:
    if is_adapter(str(run.best)):
        return base_of(str(run.best))
    with suppress(RecipeError):
        return None if recipe is None else recipe.model()
    return None


def _no_model(run: RunFolder, finished: bool, base: str | None) -> str:
    if finished:
        return (
            f"{run.best} has no model in it, but the run is finished: it was removed or damaged. "
            "Run the same `msft train` again, which makes it anew from the checkpoints"
        )
    ask = "" if base is None else f", or ask the base alone: msft chat {base}"
    return (
        f"{run.path} has no {run.best.name}/ yet: no checkpoint was better than the base so far. "
        f"Let the run go on (`msft train` with --out {run.path}){ask}"
    )


def _checkpoint(folder: Path) -> str | None:
    """The id of the checkpoint in a `best/`; None where its manifest is missing or damaged."""
    with suppress(*DAMAGED):
        found = json.loads(read_text(folder / MANIFEST))["checkpoint"]
        return str(found)
    return None


@dataclass(slots=True)
class ChatModel:
    """A loaded model, and its conversation.

    who: the result, its base, or a model by itself.
    loaded: the model, with the tokenizer of its prompts.
    context: the most tokens that the model takes; None: its config has no limit.
    turns: the messages so far, under a chat template.
    """

    who: str
    name: str
    loaded: "LoadedModel"
    ends: list[int]
    context: int | None
    turns: list[Message] = field(default_factory=list)


EndedBy = Literal["end_token", "max_new_tokens", "stopped"]


@dataclass(slots=True)
class ChatAnswer:
    """An answer of a model: `write` writes it, token by token.

    most: the most tokens of it.
    tokens: those so far, without the one that ends it.
    """

    model: ChatModel
    prompt: list[int]
    most: int
    tokens: list[int] = field(default_factory=list)
    ended_by: EndedBy = "stopped"

    @property
    def text(self) -> str:
        """The answer so far, without half a character at its end."""
        from msft.scoring.evaluation import texts_of

        text = texts_of(self.model.loaded.tokenizer)(self.tokens)
        return text.rstrip("\ufffd") if self.ended_by == "stopped" else text

    def write(self, told: Callable[[], None] = lambda: None) -> str:
        """Let `generate` of transformers write the likeliest answer, without the generation
        settings of the model's own. Ctrl-C leaves it as it is.

        told: is called after each token.
        """
        import torch
        from transformers import GenerationConfig

        model, ends = self.model.loaded.model, sorted(self.model.ends)
        prompt = torch.tensor([self.prompt], device=model.device)
        model.generation_config = GenerationConfig()  # type: ignore[no-untyped-call]
        model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            generation_config=GenerationConfig(  # type: ignore[no-untyped-call]
                do_sample=False, max_new_tokens=self.most, eos_token_id=ends, pad_token_id=ends[0]
            ),
            streamer=WrittenTokens(self, told),
        )
        return self.text

    def content(self) -> dict[str, Any]:
        return {
            "of": self.model.who,
            "model": self.model.name,
            "text": self.text,
            "tokens": len(self.tokens),
            "ended_by": self.ended_by,
        }


class WrittenTokens:
    """A streamer of transformers: takes the prompt first, then token after token."""

    def __init__(self, answer: ChatAnswer, told: Callable[[], None]) -> None:
        self.answer = answer
        self._told = told
        self._begun = False

    def put(self, tokens: "Tensor") -> None:
        answer, token = self.answer, int(tokens.flatten()[-1])
        if not self._begun:
            self._begun = True
        elif token in answer.model.ends:
            answer.ended_by = "end_token"
        else:
            answer.tokens.append(token)
            if len(answer.tokens) == answer.most:
                answer.ended_by = "max_new_tokens"
        self._told()

    def end(self) -> None:
        """Everything is in the answer already."""


class Chat:
    """The models, and the conversation that each of them has had.

    under_template: a typed text is a turn of a conversation, not a prompt of its own.
    """

    def __init__(self, models: list[ChatModel], options: ChatOptions) -> None:
        self.models = models
        self.options = options
        has_template = bool(models[0].loaded.tokenizer.chat_template)
        self.under_template = has_template and not options.plain
        if options.system is not None and not self.under_template:
            why = "--plain leaves it out" if options.plain else f"{models[0].name} has none"
            raise UsageError(
                f"--system goes with a chat template, but {why}; put the text before your prompt"
            )
        self.forget()
        self._prompt(models[0], "?")  # a template that refuses the system prompt says so now

    def forget(self) -> None:
        """Begin a new conversation."""
        system = self.options.system
        for model in self.models:
            model.turns = [] if system is None else [Message("system", system)]

    def ask(self, text: str) -> list[ChatAnswer]:
        """An answer of each model, to be written. A question that has no place is refused by all of
        them."""
        try:
            text.encode()
        except UnicodeEncodeError:
            raise UsageError("the prompt is no text: its bytes are not UTF-8") from None
        prompts = [self._prompt(model, text) for model in self.models]
        return [
            ChatAnswer(model, prompt, self._limit(model, len(prompt)))
            for model, prompt in zip(self.models, prompts, strict=True)
        ]

    def keep(self, text: str, answers: list[ChatAnswer]) -> None:
        """Let the conversations go on with this question and these answers."""
        for each in answers:
            each.model.turns += [Message("user", text), Message("assistant", each.text)]

    def _prompt(self, model: ChatModel, text: str) -> list[int]:
        """The tokens of a question, as those of a row."""
        tokenizer = model.loaded.tokenizer
        if not self.under_template:
            return encoded_prompts([Example(text, "")], tokenizer)[0]
        turns = [*model.turns, Message("user", text)]
        try:
            whole = templated(tokenizer, turns, True, "this conversation")
        except DataError as error:
            raise UsageError(
                f"{str(error).split('; mend the')[0]}; leave --system out if it has no place in "
                "the template, or ask without the template: --plain"
            ) from error
        found: list[int] = tokenizer.encode(whole, add_special_tokens=False)
        return found

    def _limit(self, model: ChatModel, prompt: int) -> int:
        """The most tokens of an answer."""
        most, places = self.options.max_new_tokens, model.context
        if prompt == 0:
            raise UsageError("the prompt has no token; expected a text")
        if places is not None and prompt >= places:
            raise UsageError(
                f"the conversation has {prompt:,} tokens, and the model has places for {places:,}; "
                "begin a new one (/new), or ask for less"
            )
        return most if places is None else min(most, places - prompt)


def load_chat(named: ModelNames, options: ChatOptions, notice: Callable[[str], None]) -> Chat:
    """Load what a name stands for."""
    trust = named.trust
    names = [named.model, *([named.base] if named.base else [])]
    tokenizer = load_tokenizer(named.model, trust)
    context = load_context(named.model, trust)
    _refuse_no_memory(names, trust)
    for note in named.notes:
        notice(note)
    undecided = options.plain is None and options.system is None
    if undecided and tokenizer.chat_template and named.run is not None:
        prompt = _plain_prompt(RunFolder(named.run))
        if prompt is not None:
            options = replace(options, plain=True)
            notice(
                "this run trained no conversations, so what you type is the whole prompt, as in "
                f"{shown(prompt)}; --no-plain asks under the chat template"
            )
    alone = named.base is None and named.run is None
    return Chat(
        [
            _loaded(who, name, trust, tokenizer, context)
            for who, name in zip((MODEL if alone else RESULT, BASE_MODEL), names, strict=False)
        ],
        options,
    )


def _loaded(who: str, name: str, trust: bool, tokenizer: Any, context: int | None) -> ChatModel:
    """A model: on a GPU in the numbers that it was published in, on a CPU in fp32."""
    import torch

    from msft.engine.kernels import device_here
    from msft.engine.model.loading import end_tokens, load_model

    device = device_here()
    loaded = load_model(name, torch.device("cpu"), trust, tokenizer, own_attention=True)
    ends = end_tokens(loaded)
    if device.type == "cuda":
        loaded = replace(loaded, model=loaded.model.to(loaded.export_dtype).to(device))
    loaded.model.eval()
    return ChatModel(who, name, loaded, ends, context)


def _refuse_no_memory(names: list[str], trust: bool) -> None:
    """NoRoom where the machine has not the memory that the weights take."""
    from msft.engine.kernels import device_here
    from msft.engine.memory import room_of
    from msft.engine.model.loading import published_dtype
    from msft.engine.model.shape import named_shape

    device = device_here()
    on_cuda = device.type == "cuda"

    def needed(name: str) -> int:
        each = published_dtype(name, trust).itemsize if on_cuda else 4
        return named_shape(name, trust).parameters * each

    sizes, free = [needed(name) for name in names], room_of(device).free
    if sum(sizes) > free:
        where = "the GPU" if on_cuda else "this machine"
        alone = "; --no-base asks the first alone" if len(names) > 1 else ""
        each = listed(
            f"{name} {size / 1e9:.2f} GB" for name, size in zip(names, sizes, strict=True)
        )
        raise NoRoom(
            f"{where} has {free / 1e9:.2f} GB of memory free, but the weights of {each} do not fit "
            f"into it{alone}. Close other programs, or use a larger machine"
        )


def _plain_prompt(run: RunFolder) -> str | None:
    """A prompt of a run that trained no conversations, where its samples show that."""
    held: Mapping[str, Any] = read_samples(run.samples).get(BASE, {})
    prompts = [each.prompt for rows in held.values() for each in rows]
    plain = prompts and not any(_TURN.match(prompt) for prompt in prompts)
    return prompts[0] if plain else None
