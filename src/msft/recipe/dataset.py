"""One sub-dataset of a recipe: where its rows come from and how it is scored."""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Protocol

from msft.benchmarks import BENCHMARKS, PUBLIC
from msft.checks import (
    Above,
    AtLeast,
    Between,
    checked_text,
    fit_fields,
    option_names,
    recipe_place,
    refuse_unknown,
)
from msft.errors import OptionError, RecipeError
from msft.recipe.foreign_keys import FOREIGN_OF_DATASETS, refuse_keys
from msft.text import shown

IN_MEMORY = re.compile(r"<\d+ rows in memory>")


class Rows(Protocol):
    """Rows in memory: a list of dicts, or a `datasets.Dataset`."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Any]: ...


Source = str | tuple[str, ...] | Rows
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
)
"""What `columns` may name: the fields of the row formats."""


def names_files(source: Any) -> bool:
    """Whether a split is given as files, not as rows."""
    several = isinstance(source, tuple) and len(source) > 0
    return isinstance(source, str) or (several and all(isinstance(item, str) for item in source))


def source_of(source: Any, what: str, split: str) -> Any:
    """A split of a sub-dataset, checked: a file, several as a tuple, or rows as a tuple."""
    if source is None:
        return None
    if isinstance(source, os.PathLike):
        source = os.fspath(source)
    if isinstance(source, str):
        return _file(source, what, split)
    if isinstance(source, Sequence) and not isinstance(source, bytes):
        if len(source) and all(isinstance(item, str | os.PathLike) for item in source):
            names = tuple(_file(os.fspath(item), what, split) for item in source)
            twice = next((name for name in names if names.count(name) > 1), None)
            if twice is not None:
                raise RecipeError(f"{what}: {split} names {twice} twice; name it once", (split,))
            return names
        return tuple(source)
    if type(source).__module__.split(".")[0] == "datasets" and hasattr(source, "__len__"):
        return source
    raise RecipeError(
        f"{what}: {split} is {shown(source)}; expected a file, or from Python a list of dicts or a "
        "datasets.Dataset that is not streamed",
        (split,),
    )


def _file(source: str, what: str, split: str) -> str:
    if IN_MEMORY.fullmatch(source):
        raise RecipeError(
            f"{what}: {split} was given from Python as rows in memory ({source}) and they are "
            "not in this file; write them to a .jsonl file and name it here",
            (split,),
        )
    with recipe_place():
        return checked_text(source, f"{what}: {split}", split)


def columns_of(given: Any, what: str, benchmark: str | None) -> dict[str, str] | None:
    """The block `columns`, checked and copied."""
    if given is None:
        return None
    at = f"{what}: columns"
    if not isinstance(given, Mapping) or not given:
        raise RecipeError(
            f"{at} is {shown(given)}; expected our fields with your columns, such as "
            "{prompt: question, completion: answer}",
            ("columns",),
        )
    if benchmark is not None:
        raise RecipeError(
            f"{what}: both benchmark and columns; a benchmark knows its own columns: leave columns "
            "out",
            ("columns",),
        )
    with recipe_place("columns"):
        refuse_unknown(given, FIELDS, f"field in the columns of {what}:")
        for field, column in given.items():
            if not isinstance(column, str):
                raise OptionError(
                    f"{at}: {field} is {shown(column)}; expected the name of a column", field
                )
            checked_text(column, f"{at}: {field}", field)
    return dict(given)


METRICS = ("accuracy", "nll")
FUNCTION = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*", re.ASCII)

MOST_COPIES = 1000
"""Rows of an epoch per training row: so many mean this sub-dataset alone."""

_NAME = re.compile(r"[A-Za-z0-9._-]{1,100}")
_RESERVED = {"CON", "PRN", "AUX", "NUL", *(f"{p}{n}" for p in ("COM", "LPT") for n in range(1, 10))}


@dataclass(frozen=True, slots=True)
class DatasetSpec:
    """A sub-dataset as the recipe names it.

    benchmark: a built-in one, with its own reader, prompt and grader.
    path: a folder with train, validation and test files, or a hub name (`owner/name`, or
        `owner/name:configuration`).
    train, validation, test: a file, a pattern such as `b/*.jsonl`, or a list of them; from Python
        also rows in memory.
    columns: the column of each field, where rows name them otherwise; only these are read then.
    weight: rows of an epoch per training row: 0.5 is half of them, drawn anew each epoch, and 2 is
        each one twice.
    validation_fraction: this share of the training rows is held out instead of `validation`.
    train_rows, validation_rows, test_rows: at most this many rows are used.
    metric: accuracy (the greedy completion equals the reference), nll, or a function of the
        user's as `package.module:function`.
    keep: never excluded.
    split_by: a column, or `subject` or `group` of a benchmark that has them; each value becomes a
        sub-dataset `name.value` of its own, to which the other keys apply.
    split_min_rows: values with fewer training rows are pooled as `name.other`.
    skip_bad_rows: a row that cannot be read is skipped and counted instead of refused.
    label_noise: this share of the training rows gets a wrong choice, for studies.
    """

    name: str
    benchmark: str | None = None
    path: str | None = None
    train: Source | None = None
    validation: Source | None = None
    test: Source | None = None
    columns: Mapping[str, str] | None = None
    validation_fraction: Annotated[float | None, Above(0), Between(0, 0.999)] = None
    train_rows: Annotated[int | None, AtLeast(1)] = None
    validation_rows: Annotated[int | None, AtLeast(1)] = None
    test_rows: Annotated[int | None, AtLeast(1)] = None
    metric: str = "accuracy"
    keep: bool = False
    split_by: str | None = None
    split_min_rows: Annotated[int, AtLeast(1)] = 50
    num_fewshot: Annotated[int | None, AtLeast(0)] = None
    max_new_tokens: Annotated[int | None, AtLeast(1)] = None
    skip_bad_rows: bool = False
    label_noise: Annotated[float, Between(0, 1)] = 0.0
    weight: Annotated[float, Above(0), Between(0, MOST_COPIES)] = 1.0

    @staticmethod
    def from_mapping(mapping: Any, keys_of_recipe: Sequence[str] = ()) -> "DatasetSpec":
        if isinstance(mapping, DatasetSpec):
            return mapping
        if not isinstance(mapping, Mapping):
            raise RecipeError(
                f"a sub-dataset is {shown(mapping)}; expected keys and values such as "
                "`name: mine` and `train: mine.jsonl`"
            )
        with recipe_place():
            known = option_names(DatasetSpec)
            refuse_keys(mapping, known, FOREIGN_OF_DATASETS, keys_of_recipe, inside=True)
        if "name" not in mapping:
            raise RecipeError(
                "name is missing in a sub-dataset; add `name: ` and a short name", ("name",)
            )
        return DatasetSpec(**mapping)

    def __post_init__(self) -> None:
        _check_name(self.name)
        what = f"sub-dataset {self.name!r}"
        for split in ("train", "validation", "test"):
            object.__setattr__(self, split, source_of(getattr(self, split), what, split))
        fit_fields(self, what, except_for=("name", "train", "validation", "test", "columns"))
        object.__setattr__(self, "columns", columns_of(self.columns, what, self.benchmark))
        self._check_metric(what)
        self._check_benchmark(what)
        self._check_sources(what)

    def _check_metric(self, what: str) -> None:
        if self.metric not in METRICS and not FUNCTION.fullmatch(self.metric):
            raise RecipeError(
                f"{what}: metric is {shown(self.metric)}; expected accuracy, nll, or a function "
                "of yours as package.module:function",
                ("metric",),
            )

    def _check_benchmark(self, what: str) -> None:
        if self.benchmark is None:
            return
        try:
            refuse_unknown([self.benchmark], BENCHMARKS, "benchmark")
        except OptionError as error:
            raise RecipeError(f"{what}: {error}", ("benchmark",)) from error
        if self.label_noise and (self.benchmark not in PUBLIC or PUBLIC[self.benchmark].free):
            raise RecipeError(
                f"{what}: label_noise is {self.label_noise}, but the rows of {self.benchmark} have "
                "no choices to take a wrong one from; leave label_noise out",
                ("label_noise",),
                because=("benchmark",),
            )

    def _check_sources(self, what: str) -> None:
        given = [key for key in ("train", "validation", "test") if getattr(self, key) is not None]
        if self.benchmark is not None and given:
            raise RecipeError(
                f"{what}: both benchmark and {given[0]}; a benchmark has its own rows: leave "
                f"{given[0]} out, or give a folder of yours as path",
                (given[0],),
            )
        if self.validation is not None and self.validation_fraction is not None:
            raise RecipeError(
                f"{what}: both validation and validation_fraction; keep the one you mean",
                ("validation_fraction",),
            )
        if self.benchmark is not None:
            return
        if self.train is None and self.path is None:
            raise RecipeError(
                f"{what}: neither train, path nor benchmark; add `train: ` with a .jsonl, .json, "
                ".csv or .parquet file",
                ("train",),
            )
        if self.train is not None and self.path is not None:
            raise RecipeError(
                f"{what}: both train and path; keep train for a file, or path for a folder or a "
                "hub name",
                ("path",),
            )


def _check_name(name: Any) -> None:
    if not isinstance(name, str):
        raise RecipeError(
            f"name is {shown(name)}; expected text; put it in quotes: name: '{shown(name)}'",
            ("name",),
        )
    if not _NAME.fullmatch(name) or name in (".", ".."):
        raise RecipeError(
            f"name is {shown(name)}; expected 1 to 100 of the characters A-Z a-z 0-9 . _ - (not "
            "only dots), since files are named after it; choose another name",
            ("name",),
        )
    if name.split(".")[0].upper() in _RESERVED:
        raise RecipeError(
            f"name is {name!r}, which Windows keeps for a device; choose another name", ("name",)
        )


def specs_of(datasets: Any, keys_of_recipe: Sequence[str] = ()) -> tuple[DatasetSpec, ...]:
    """The sub-datasets of a recipe, checked one by one."""
    if isinstance(datasets, str | Mapping) or not isinstance(datasets, Sequence):
        raise RecipeError(
            f"datasets is {shown(datasets)}; expected a list, each item with a name and its files",
            ("datasets",),
        )
    specs: list[DatasetSpec] = []
    for number, item in enumerate(datasets):
        with recipe_place("datasets", number):
            specs.append(DatasetSpec.from_mapping(item, keys_of_recipe))
    return tuple(specs)
