"""The pages: links lead somewhere, files that are named exist, and no page is too long to read."""

import pkgutil
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import fields
from pathlib import Path

from msft.cli import COMMANDS
from msft.recipe.dataset import DatasetSpec
from msft.recipe.foreign_keys import ALIASES
from msft.recipe.recipe import load_recipe, recipe_keys
from rooms import SOURCE, files

ROOT = SOURCE.parents[1]
CHANGELOG = ROOT / "CHANGELOG.md"
FOR_PROGRAMS = ROOT / "docs" / "llms.txt"
PAGES = [
    *(
        ROOT / name
        for name in ("README.md", "CONTRIBUTING.md", "AGENTS.md", "skills/msft/SKILL.md")
    ),
    *sorted((ROOT / "docs").rglob("*.md")),
    FOR_PROGRAMS,
]
"""The changelog is not among them: it grows, and it may name what is gone."""

MOST_WORDS = 1500

ROOMS = sorted({Path(file).parts[0] for file in files() if "/" in file})

FENCED = re.compile(r"^ *```.*?^ *```", re.DOTALL | re.MULTILINE)
CODE = re.compile(r"`[^`\n]+`")
LINK = re.compile(r"\]\(([^)\s]+)\)|(?:src|srcset)=\"([^\"]+)\"")
ANCHOR = re.compile(r'<a id="([^"]+)">')
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
SOURCE_PATH = re.compile(r"src/msft/[\w./-]*\w|src/msft/")
OTHER_PATH = re.compile(r"\b(?:bench|examples|recipes|tests)/[\w./-]*\.(?:py|yaml)\b")
ROOM_FILE = re.compile(rf"`(?:{'|'.join(ROOMS)})/(?:[\w/-]*\.py|[\w/-]*/)?`")
BARE_FILE = re.compile(r"`[\w-]+\.py`")
DOTTED = re.compile(r"(?<![\w.])msft(?:\.[A-Za-z_]\w*)+")


def anchors_of(page: Path) -> set[str]:
    """What a link to a part of the page may name, as GitHub makes it from headings."""
    prose = FENCED.sub("", page.read_text())
    slugs = [
        re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        for heading in HEADING.findall(prose)
    ]
    return {*ANCHOR.findall(prose), *slugs}


def broken_links(page: Path) -> Iterator[str]:
    prose = CODE.sub("", FENCED.sub("", page.read_text()))
    for link in (first or second for first, second in LINK.findall(prose)):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.is_file() or (anchor and anchor not in anchors_of(target)):
            yield link


def missing_files(page: Path) -> Iterator[str]:
    """Names of files that are not there: by their path, within their room, or alone."""
    text = page.read_text()
    for name in (*SOURCE_PATH.findall(text), *OTHER_PATH.findall(text)):
        if not (ROOT / name).exists():
            yield name
    for name in (each.strip("`") for each in ROOM_FILE.findall(text)):
        if not (SOURCE / name).exists():
            yield name
    for name in (each.strip("`") for each in BARE_FILE.findall(text)):
        if not any(True for top in ("src", "tests", "bench") for _ in (ROOT / top).rglob(name)):
            yield name


def unknown_names(page: Path) -> Iterator[str]:
    """Names of the package that cannot be imported."""
    for name in DOTTED.findall(page.read_text()):
        if not name.endswith(".py"):
            try:
                pkgutil.resolve_name(name)
            except (ImportError, AttributeError):
                yield name


def found_in(pages: Sequence[Path], look: Callable[[Path], Iterable[str]]) -> list[str]:
    """What is wrong, with the page that it stands in."""
    return [f"{page.relative_to(ROOT)}: {wrong}" for page in pages for wrong in look(page)]


def test_every_link_leads_to_a_file_and_a_heading() -> None:
    assert found_in([*PAGES, CHANGELOG], broken_links) == []


def test_every_file_that_a_page_names_exists() -> None:
    assert found_in(PAGES, missing_files) == []


def test_every_name_of_the_package_that_a_page_uses_can_be_imported() -> None:
    assert found_in(PAGES, unknown_names) == []


def words_of(page: Path) -> list[str]:
    """The rules of a table are no words."""
    return [word for word in page.read_text().split() if word.strip("|-:")]


def test_a_page_is_short_enough_to_be_read() -> None:
    words = {str(page.relative_to(ROOT)): len(words_of(page)) for page in PAGES}
    assert {page: count for page, count in words.items() if count > MOST_WORDS} == {}


def test_the_map_of_the_readme_lists_every_room() -> None:
    page = (ROOT / "README.md").read_text()
    assert [room for room in ROOMS if f"| `{room}/` |" not in page] == []


def test_the_keys_of_other_tools_stand_beside_keys_that_there_are() -> None:
    page = (ROOT / "docs" / "coming-from.md").read_text()
    lines = [line.strip("|").split(" | ") for line in page.splitlines() if line.startswith("| `")]
    pairs = [(theirs, ours) for theirs, ours, _ in (line for line in lines if len(line) == 3)]
    known = {*recipe_keys(), *(field.name for field in fields(DatasetSpec))}
    named = [key for _, ours in pairs for key in re.findall(r"`([^`]+)`", ours)]
    assert len(named) > 30
    assert [key for key in named if key not in known] == []
    asked = " ".join(theirs for theirs, _ in pairs)
    assert [key for key in ALIASES if f"`{key}`" not in asked] == [], "keys that are read as ours"


def test_the_page_for_programs_has_every_command_and_a_recipe_that_can_be_read(
    tmp_path: Path,
) -> None:
    page = FOR_PROGRAMS.read_text()
    assert re.findall(r"^- msft (\w+)", page, re.MULTILINE) == sorted(
        COMMANDS, key=lambda name: page.index(f"- msft {name}")
    )
    lines = [line[4:] for line in page.splitlines() if line.startswith("    ")]
    (tmp_path / "recipe.yaml").write_text("\n".join(lines))
    assert load_recipe(tmp_path / "recipe.yaml").ema_decay == 0.99
    skill = (ROOT / "skills" / "msft" / "SKILL.md").read_text()
    assert {*re.findall(r"`msft (\w+)", skill)} < {*COMMANDS}


def test_every_page_stands_in_the_index() -> None:
    index = (ROOT / "docs" / "README.md").read_text()
    pages = [page.name for page in (ROOT / "docs").glob("*.md") if page.name != "README.md"]
    assert [name for name in pages if f"]({name})" not in index] == []


def test_the_readme_shows_the_point_on_its_first_screens() -> None:
    """The picture, the commands and the table of results, before about sixty rendered lines."""
    text = (ROOT / "README.md").read_text()
    above = "\n".join(text.splitlines()[:40])
    assert len(text.split()) <= 1000
    for sign in ("<picture>", "make demo", "msft init", "| --- |", "docs/paper.md", "CITATION.cff"):
        assert sign in above
