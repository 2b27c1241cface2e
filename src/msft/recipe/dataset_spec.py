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
    shown,
)
from msft.errors import OptionError, RecipeError

METRICS = ("accuracy", "nll")
FUNCTION = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*", re.ASCII)
IN_MEMORY = re.compile(r"<\d+ rows in memory>")

_NAME = re.compile(r"[A-Za-z0-9._-]{1,100}")
_RESERVED = {"CON", "PRN", "AUX", "NUL", *(f"{p}{n}" for p in ("COM", "LPT") for n in range(1, 10))}


class Rows(Protocol):
    """Rows in memory: a list of dicts, or a `datasets.Dataset`."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Any]: ...


Source = str | Rows


@dataclass(frozen=True, slots=True)
class DatasetSpec:
    """A sub-dataset as the recipe names it.

    benchmark: a built-in one, with its own reader, prompt and grader.
    path: a folder with train, validation and test files, or a hub name (`owner/name`, or
        `owner/name:configuration`).
    train, validation, test: files; from Python also rows in memory.
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

    @staticmethod
    def from_mapping(mapping: Any) -> "DatasetSpec":
        if isinstance(mapping, DatasetSpec):
            return mapping
        if not isinstance(mapping, Mapping):
            raise RecipeError(
                f"a sub-dataset is {shown(mapping)}; expected keys and values such as "
                "`name: mine` and `train: mine.jsonl`"
            )
        with recipe_place():
            refuse_unknown(mapping, option_names(DatasetSpec), "key of a sub-dataset:")
        if "name" not in mapping:
            raise RecipeError("name is missing in a sub-dataset; add `name: ` and a short name")
        return DatasetSpec(**mapping)

    def __post_init__(self) -> None:
        _check_name(self.name)
        what = f"sub-dataset {self.name!r}"
        for split in ("train", "validation", "test"):
            object.__setattr__(self, split, _source(getattr(self, split), what, split))
        fit_fields(self, what, except_for=("name", "train", "validation", "test"))
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
                ".csv or .parquet file"
            )
        if self.train is not None and self.path is not None:
            raise RecipeError(
                f"{what}: both train and path; keep train for a file, or path for a folder or a "
                "hub name",
                ("path",),
            )
        if self.path is None and self.validation is None and self.validation_fraction is None:
            raise RecipeError(
                f"{what}: neither validation nor validation_fraction, but a checkpoint can only "
                "be chosen on rows that were not trained; add one, e.g. "
                "`validation_fraction: 0.1`"
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


def _source(source: Any, what: str, split: str) -> Any:
    if source is None:
        return None
    if isinstance(source, os.PathLike):
        source = os.fspath(source)
    if isinstance(source, str):
        if IN_MEMORY.fullmatch(source):
            raise RecipeError(
                f"{what}: {split} was given from Python as rows in memory ({source}) and they are "
                "not in this file; write them to a .jsonl file and name it here",
                (split,),
            )
        with recipe_place():
            return checked_text(source, f"{what}: {split}", split)
    if isinstance(source, Sequence) and not isinstance(source, bytes):
        if len(source) and all(isinstance(item, str) for item in source):
            raise RecipeError(
                f"{what}: {split} is {shown(source)}; expected one file; join the files, or name "
                "each as a sub-dataset of its own",
                (split,),
            )
        return tuple(source)
    if type(source).__module__.split(".")[0] == "datasets" and hasattr(source, "__len__"):
        return source
    raise RecipeError(
        f"{what}: {split} is {shown(source)}; expected a file, or from Python a list of dicts or a "
        "datasets.Dataset that is not streamed",
        (split,),
    )


def specs_of(datasets: Any) -> tuple[DatasetSpec, ...]:
    """The sub-datasets of a recipe, checked one by one."""
    if isinstance(datasets, str | Mapping) or not isinstance(datasets, Sequence):
        raise RecipeError(
            f"datasets is {shown(datasets)}; expected a list, each item with a name and its files",
            ("datasets",),
        )
    specs: list[DatasetSpec] = []
    for number, item in enumerate(datasets):
        with recipe_place("datasets", number):
            specs.append(DatasetSpec.from_mapping(item))
    return tuple(specs)
