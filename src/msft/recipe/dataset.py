"""One sub-dataset of a recipe: where its rows come from and how it is scored."""

import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from math import inf
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, PlainValidator

from msft.benchmarks import BENCHMARKS, PUBLIC
from msft.errors import OptionError, RecipeError
from msft.recipe.foreign_keys import FOREIGN_OF_DATASETS, meant_key, unknown_key
from msft.recipe.keys import (
    Template,
    Text,
    WrongKeys,
    mistakes_of,
    plain_options,
    writable,
)
from msft.search.options import Ge, Interval, fit_fields, refuse_unknown, unknown
from msft.text import shown

METRICS = ("accuracy", "nll", "contains", "f1", "rouge_l", "json_equal", "numeric", "regex")
WITH_OPTION = ("numeric", "regex")
FUNCTION = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*", re.ASCII)
SPLITS = ("train", "validation", "test")
MOST_COPIES = 1000
"""Rows of an epoch per training row: so many mean this sub-dataset alone."""

_NAME = re.compile(r"[A-Za-z0-9._-]{1,100}")
_IN_MEMORY = re.compile(r"<\d+ rows in memory>")


MemoryRows = Collection[Any]
"""Rows in memory: a list of dicts, or a `datasets.Dataset`."""
Source = str | tuple[str, ...] | MemoryRows
"""A file or a pattern of files, several of them, or rows."""

FIELDS = (
    "prompt",
    "completion",
    "choices",
    "answer",
    "messages",
    "tools",
    "conversations",
    "instruction",
    "input",
    "output",
    "text",
)
"""What `columns` may name: the fields of the row formats; and WEIGHT."""
WEIGHT = "weight"
"""The field of `columns` that is no field of a format: the weight of a row's loss."""
CHAT_KEYS = ("format", "chat_template", "system_prompt", "chat_template_kwargs")
"""Keys that say how conversations are written."""


def names_files(source: Any) -> bool:
    """Whether a split is given as files, not as rows."""
    several = isinstance(source, tuple) and len(source) > 0
    return isinstance(source, str) or (several and all(isinstance(item, str) for item in source))


def _name(given: str) -> str:
    if not _NAME.fullmatch(given) or given in (".", ".."):
        raise ValueError(
            "expected 1 to 100 of the characters A-Z a-z 0-9 . _ - (not only dots), since files "
            "are named after it; choose another name"
        )
    return given


def _metric(given: Any) -> str:
    """The name of a metric; with an option, `name: option` in one text."""
    name, option = given, None
    if isinstance(given, Mapping) and len(given) == 1:
        [(name, option)] = given.items()
    elif isinstance(given, str) and given.partition(":")[0] in WITH_OPTION:
        name, colon, option = given.partition(":")
        option = option.removeprefix(" ") if colon else None
    if name == "regex":
        return f"regex: {_pattern(option)}"
    if name == "numeric":
        tolerance = _tolerance(option)
        return f"numeric: {tolerance!r}" if tolerance else "numeric"
    if isinstance(given, str) and (given in METRICS or FUNCTION.fullmatch(given)):
        return given
    raise ValueError(
        f"expected {', '.join(METRICS[:-1])}, {{regex: PATTERN}}, {{numeric: TOLERANCE}}, "
        "or a function of yours as package.module:function"
    )


def metric_parts(metric: str) -> tuple[str, str | None]:
    """The name of a metric, and its option as text: the pattern of `regex`, the tolerance of
    `numeric`."""
    name, colon, option = metric.partition(": ")
    return name, option if colon else None


def _pattern(option: Any) -> str:
    if not isinstance(option, str) or not option:
        raise ValueError(
            "regex needs a pattern; expected {regex: PATTERN}, such as {regex: '[A-E]'}"
        )
    try:
        re.compile(writable(option))
    except re.error as error:
        raise ValueError(f"{shown(option)} is no regular expression: {error}; mend it") from error
    return option


def _tolerance(option: Any) -> float:
    try:
        tolerance = 0.0 if option is None else float(option)
    except (TypeError, ValueError):
        tolerance = -1.0
    if isinstance(option, bool) or not 0 <= tolerance < inf:
        raise ValueError(
            f"its tolerance is {shown(option)}; expected a number of 0 or more: {{numeric: 0.01}}"
        )
    return tolerance


def _benchmark(given: str) -> str:
    if given not in BENCHMARKS:
        raise unknown(given, [*BENCHMARKS], "benchmark")
    return given


def _source(given: Any) -> Any:
    """A file, several as a tuple, or rows as a tuple."""
    if isinstance(given, str | os.PathLike):
        return _file(given)
    if isinstance(given, Sequence) and not isinstance(given, bytes):
        if not len(given) or not all(isinstance(item, str | os.PathLike) for item in given):
            return tuple(given)
        names = tuple(_file(item) for item in given)
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"it names {name} twice; name it once")
        return names
    if type(given).__module__.split(".")[0] == "datasets" and hasattr(given, "__len__"):
        return given
    raise ValueError(
        "expected a file, or from Python a list of dicts or a datasets.Dataset that is not streamed"
    )


def _file(given: str | os.PathLike[str]) -> str:
    name = os.fspath(given)
    if _IN_MEMORY.fullmatch(name):
        raise ValueError(
            "it was given from Python as rows in memory, and they are not in this file; write them "
            "to a .jsonl file and name it here"
        )
    return writable(name)


def _columns(given: Any) -> dict[str, str]:
    if not isinstance(given, Mapping) or not given:
        raise ValueError(
            "expected our fields with your columns, such as {prompt: question, completion: answer}"
        )
    refuse_unknown(given, (*FIELDS, WEIGHT), "field in columns:")
    for field, column in given.items():
        try:
            if not isinstance(column, str):
                raise ValueError("expected the name of a column")
            writable(column)
        except ValueError as error:
            raise OptionError(f"columns: {field} is {shown(column)}; {error}", field) from error
    return dict(given)


def _system(given: Any) -> str:
    if isinstance(given, str) and given.strip() and "\0" not in given:
        return given
    raise ValueError("expected text, or leave the key out")


_VARIABLE = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_OF_ROWS = ("messages", "tools", "documents", "add_generation_prompt")
"""Variables of a chat template that rows fill."""


def _variables(given: Any) -> dict[str, Any]:
    if not isinstance(given, Mapping) or not given:
        raise ValueError(
            "expected variables of the chat template, such as {enable_thinking: false}"
        )
    for name in given:
        if not isinstance(name, str) or not _VARIABLE.fullmatch(name) or name in _OF_ROWS:
            raise ValueError(
                f"{shown(name)} is no variable that can be given; expected a name such as "
                "enable_thinking"
            )
    kept, mistakes = plain_options(given, "chat_template_kwargs")
    for mistake in mistakes:
        raise OptionError(str(mistake), "chat_template_kwargs")
    return kept


@dataclass(frozen=True, slots=True)
class Guard:
    """What a result may lose of a sub-dataset.

    max_drop: in score units, against the base model; a checkpoint that surely loses more is no
        result.
    """

    max_drop: Annotated[float, Ge(0)] = -1.0  # it must be given

    def __post_init__(self) -> None:
        if self.max_drop < 0:
            raise OptionError(
                "guard does not say what it allows; write e.g. guard: {max_drop: 0.02}", "max_drop"
            )


def _by_epoch(given: dict[Any, Any]) -> float | dict[int, float]:
    """The weights of epochs, in order of time; one that never changes is a number."""
    weights = dict[int, float]()
    for key, weight in given.items():
        epoch = int(key) if isinstance(key, str) and re.fullmatch("[0-9]{1,9}", key) else key
        if isinstance(epoch, bool) or not isinstance(epoch, int) or epoch < 0:
            raise ValueError(f"{shown(key)} is no epoch; expected 0, 1, 2, …: {{0: 1, 2: 0.5}}")
        number = isinstance(weight, int | float) and not isinstance(weight, bool)
        if not number or not 0 <= weight <= MOST_COPIES:
            raise ValueError(
                f"in epoch {epoch} it is {shown(weight)}; expected a number from 0 to {MOST_COPIES}"
            )
        weights[epoch] = float(weight)
    if 0 not in weights:
        raise ValueError("epoch 0, the first, has none; expected one: {0: 1, 2: 0.5}")
    weights = dict(sorted(weights.items()))
    if not any(weights.values()):
        raise ValueError("it is 0 in every epoch; expected a weight above 0 in one of them")
    return weights if len({*weights.values()}) > 1 else weights[0]


def weight_in(weight: float | Mapping[int, float], epoch: int) -> float:
    """The weight in an epoch."""
    if not isinstance(weight, Mapping):
        return weight
    return [each for first, each in weight.items() if first <= epoch][-1]


Weight = (
    Annotated[float, Interval(gt=0, le=MOST_COPIES)]
    | Annotated[dict[Any, Any], AfterValidator(_by_epoch)]
)


@dataclass(frozen=True, slots=True)
class DatasetSpec:
    """A sub-dataset as the recipe names it.

    benchmark: a built-in one, with its own reader, prompt and grader.
    path: a folder with train, validation and test files, or a hub name (`owner/name`, or
        `owner/name:configuration`).
    train, validation, test: a file, a pattern such as `b/*.jsonl`, or a list of them; from Python
        also rows in memory.
    columns: the column of each field, where rows name them otherwise; only these are read then.
    format: chat makes rows of prompt and completion turns of the user and the assistant, which the
        chat template writes; auto leaves them plain text.
    chat_template: of this sub-dataset's conversations, instead of the recipe's.
    system_prompt: for conversations that do not begin with one.
    chat_template_kwargs: values for variables of the chat template, such as enable_thinking.
    weight: rows of an epoch per training row: 0.5 is half of them, drawn anew each epoch, and 2 is
        each one twice. Several by the epochs from which on they hold: `{0: 1, 2: 0.5}`.
    validation_fraction: this share of the training rows is held out instead of `validation`.
    train_rows, validation_rows, test_rows: at most this many rows are used.
    metric: accuracy (the greedy completion equals the reference), nll, one that is built in
        (`scoring/metrics.py`), or a function of the user's as `package.module:function`.
    keep: never excluded.
    split_by: a column, or `subject` or `group` of a benchmark that has them; each value becomes a
        sub-dataset `name.value` of its own, to which the other keys apply.
    split_min_rows: values with fewer training rows are pooled as `name.other`.
    skip_bad_rows: a row that cannot be read is skipped and counted instead of refused.
    label_noise: this share of the training rows gets a wrong choice, for studies.
    watch: it is scored and never trained, as is one of `validation` or `test` alone.
    guard: what the result may lose of it at most.
    """

    name: Annotated[str, AfterValidator(_name)]
    benchmark: Annotated[str, AfterValidator(_benchmark)] | None = None
    path: Text | None = None
    train: Annotated[Source, PlainValidator(_source)] | None = None
    validation: Annotated[Source, PlainValidator(_source)] | None = None
    test: Annotated[Source, PlainValidator(_source)] | None = None
    columns: Annotated[Mapping[str, str], PlainValidator(_columns)] | None = None
    format: Literal["auto", "chat"] = "auto"
    chat_template: Template = None
    system_prompt: Annotated[str, PlainValidator(_system)] | None = None
    chat_template_kwargs: Annotated[Mapping[str, Any], PlainValidator(_variables)] | None = None
    validation_fraction: Annotated[float | None, Interval(gt=0, le=0.999)] = None
    train_rows: Annotated[int | None, Ge(1)] = None
    validation_rows: Annotated[int | None, Ge(1)] = None
    test_rows: Annotated[int | None, Ge(1)] = None
    metric: Annotated[str, PlainValidator(_metric)] = "accuracy"
    keep: bool = False
    split_by: Text | None = None
    split_min_rows: Annotated[int, Ge(1)] = 50
    num_fewshot: Annotated[int | None, Ge(0)] = None
    max_new_tokens: Annotated[int | None, Ge(1)] = None
    skip_bad_rows: bool = False
    label_noise: Annotated[float, Interval(ge=0, le=1)] = 0.0
    weight: Weight = 1.0
    watch: bool = False
    guard: Guard | None = None

    @property
    def is_own(self) -> bool:
        """Whether its rows come from files that the recipe names, split by split."""
        return self.path is None and self.benchmark is None

    @property
    def is_watched(self) -> bool:
        """Whether it is only scored: it says so, or has rows to be scored and none to be trained,
        nor a key that is about training."""
        scored = self.validation is not None or self.test is not None
        only_scored = self.is_own and scored and not self._keys_of_training()
        return self.train is None and (self.watch or only_scored)

    def _keys_of_training(self) -> list[str]:
        """The keys about training rows that are given."""
        defaults = {each.name: each.default for each in fields(self)}
        return [key for key in _OF_TRAINING if getattr(self, key) != defaults[key]]

    @staticmethod
    def from_mapping(
        mapping: Any, keys_of_recipe: Collection[str] = (), number: int = 0
    ) -> "DatasetSpec":
        """A sub-dataset from keys and values; one WrongKeys says everything that is wrong.

        number: of the sub-dataset, which stands in for a name that is missing.
        """
        if isinstance(mapping, DatasetSpec):
            return mapping
        stand_ins: dict[str, Any] = {"name": f"number-{number + 1}", **_STAND_INS}
        if not isinstance(mapping, Mapping):
            said = (
                f"a sub-dataset is {shown(mapping)}; expected keys and values such as "
                "`name: mine` and `train: mine.jsonl`"
            )
            raise WrongKeys([RecipeError(said)], DatasetSpec(**stand_ins))
        mistakes = list[RecipeError]()
        known = [key.name for key in fields(DatasetSpec)]
        given = {key: value for key, value in mapping.items() if key in known}
        for key in [key for key in mapping if key not in known]:
            error = unknown_key(key, known, FOREIGN_OF_DATASETS, keys_of_recipe, inside=True)
            mistakes += mistakes_of(error)
            needed = meant_key(key, FOREIGN_OF_DATASETS, _NEEDED)
            if needed and not any(_NEEDED.get(other) == _NEEDED[needed] for other in given):
                given[_NEEDED[needed]] = stand_ins[_NEEDED[needed]]
        if "name" not in given:
            given["name"] = stand_ins["name"]
            said = "name is missing in a sub-dataset; add `name: ` and a short name"
            mistakes.append(RecipeError(said, ("name",)))
        try:
            made = DatasetSpec(**given)
        except WrongKeys as error:
            raise WrongKeys([*mistakes, *error.mistakes], error.made) from error
        if mistakes:
            raise WrongKeys(mistakes, made)
        return made

    def __post_init__(self) -> None:
        mistakes = [each for error in fit_fields(self) for each in mistakes_of(error)]
        mistakes += self._contradictions()
        if mistakes:
            what = f"sub-dataset {shown(self.name)}: "
            named = [
                each
                if each.place == ("name",)
                else RecipeError(f"{what}{each}", each.place, each.because)
                for each in mistakes
            ]
            raise WrongKeys(named, self)

    def _contradictions(self) -> Iterator[RecipeError]:
        """Keys that do not go together, each of them fitting by itself."""
        if self.benchmark is not None:
            choices = self.benchmark in PUBLIC and not PUBLIC[self.benchmark].free
            if self.label_noise and not choices:
                yield RecipeError(
                    f"label_noise is {self.label_noise}, but the rows of {self.benchmark} "
                    "have no choices to take a wrong one from; leave label_noise out",
                    ("label_noise",),
                    because=("benchmark",),
                )
            for key, why in _BESIDE_BENCHMARK.items():
                if getattr(self, key) not in (None, "auto"):
                    said = f"both benchmark and {key}; a benchmark has {why}"
                    yield RecipeError(said, (key,), because=("benchmark",))
        if self.validation is not None and self.validation_fraction is not None:
            yield RecipeError(
                "both validation and validation_fraction; keep the one you mean",
                ("validation_fraction",),
            )
        if self.is_own and self.train is None and not self.is_watched:
            yield RecipeError(
                "neither train, path nor benchmark; add `train: ` with a .jsonl, .json, "
                ".csv, .tsv or .parquet file (one that is only watched has validation or test "
                "alone)",
                ("train",),
                because=("path", "benchmark"),
            )
        elif self.watch and self.train is not None:
            yield RecipeError(
                "both watch and train; watch: true is for one that is scored and never trained: "
                "leave one of the two out",
                ("watch",),
                because=("train",),
            )
        elif self.is_watched:
            yield from self._of_watched()
        if self.train is not None and self.path is not None and self.benchmark is None:
            yield RecipeError(
                "both train and path; keep train for a file, or path for a folder or a hub name",
                ("path",),
            )

    def _of_watched(self) -> Iterator[RecipeError]:
        """What a sub-dataset that is only watched has no use for."""
        if self.is_own and self.validation is None and self.test is None:
            yield RecipeError(
                "watch is true, but it names no rows; add `validation: ` with a file",
                ("watch",),
                because=("validation", "test"),
            )
        given = self._keys_of_training()
        given += ["num_fewshot"] if self.is_own and self.num_fewshot else []
        for key in given:
            yield RecipeError(
                f"{key} is {shown(getattr(self, key))}, but it is only watched and has no training "
                f"rows; leave {key} out",
                (key,),
                because=("watch", "train"),
            )
        if self.guard is not None and self.is_own and self.validation is None:
            yield RecipeError(
                "guard, but no validation rows, and test rows choose nothing; give its rows as "
                "validation, or leave guard out",
                ("guard",),
                because=("validation",),
            )


_BESIDE_BENCHMARK = {
    "columns": "columns of its own: leave columns out",
    **{
        key: f"prompts of its own, which go through no chat template: leave {key} out"
        for key in CHAT_KEYS
    },
    **{key: f"its own rows: leave {key} out, or give a folder of yours as path" for key in SPLITS},
}
"""Keys that contradict `benchmark`, and why."""
_OF_TRAINING = (
    *("train_rows", "validation_fraction", "keep", "weight", "label_noise"),
    *("split_by", "split_min_rows"),
)
"""Keys that say nothing of a sub-dataset that is only watched."""


_STAND_INS: dict[str, Any] = {"train": "x.jsonl", "validation_fraction": 0.1, "test": "x.jsonl"}
_NEEDED = {
    **dict.fromkeys(("train", "path", "benchmark"), "train"),
    **dict.fromkeys(("validation", "validation_fraction"), "validation_fraction"),
    "test": "test",
    "name": "name",
}
"""Needed keys that an unknown key may mean, and the key that gets a stand-in then, so that the
needed key is not called missing as well."""


def specs_of(
    datasets: Any, keys_of_recipe: Collection[str]
) -> tuple[tuple[DatasetSpec, ...], list[RecipeError]]:
    """The sub-datasets of a recipe, with defaults in place of what is wrong, and the mistakes."""
    if isinstance(datasets, str | Mapping) or not isinstance(datasets, Sequence):
        said = (
            f"datasets is {shown(datasets)}; expected a list, each item with a name and its files"
        )
        return (), [RecipeError(said, ("datasets",))]
    specs, mistakes = list[DatasetSpec](), list[RecipeError]()
    for number, item in enumerate(datasets):
        try:
            specs.append(DatasetSpec.from_mapping(item, keys_of_recipe, number))
        except WrongKeys as error:
            mistakes += mistakes_of(error, "datasets", number)
            specs.append(error.made)
    return tuple(specs), mistakes
