"""What `make` installs, what pyproject.toml promises, and whose warnings fail a test."""

import re
import sys
import tomllib
import warnings
from collections.abc import Iterator
from importlib.metadata import distributions, version
from pathlib import Path
from types import ModuleType

import pytest
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
VENV = Path(sys.prefix)
NOT_OURS = {"msft", "pip", "setuptools"}
"""msft itself, and what every new venv of Python 3.11 has."""


def locked() -> dict[str, str]:
    """The versions in constraints.txt for this Python and platform, by name."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = [Requirement(line) for line in lines if not line.startswith("#")]
    return {
        canonicalize_name(pin.name): str(pin.specifier).removeprefix("==")
        for pin in pins
        if pin.marker is None or pin.marker.evaluate()
    }


def declared() -> Iterator[Requirement]:
    """Every requirement of pyproject.toml, extras included."""
    extras = PROJECT["optional-dependencies"].values()
    for text in [*PROJECT["dependencies"], *(each for extra in extras for each in extra)]:
        if not text.startswith("msft["):
            yield Requirement(text)


def floor(requirement: Requirement) -> Version:
    """The lowest version that a requirement allows."""
    (lowest,) = [each.version for each in requirement.specifier if each.operator in (">=", "==")]
    return Version(lowest)


@pytest.mark.skipif(VENV != ROOT / ".venv", reason="only .venv has the packages of constraints.txt")
def test_make_installs_the_packages_of_the_lock_and_no_others() -> None:
    found = {canonicalize_name(each.name): Version(each.version) for each in distributions()}
    pins = {name: Version(pin) for name, pin in locked().items()}
    for name in found.keys() - NOT_OURS:
        assert name in pins, f"{name} is installed and not in constraints.txt; run `make lock`"
        assert found[name].public == pins[name].public, (
            f"{name}: run `make clean`, then `make test`"
        )


@pytest.mark.skipif(VENV != ROOT / ".venv-lowest", reason="only `make test-lowest` has them")
def test_the_lower_bounds_are_the_versions_that_are_tested() -> None:
    found = {each.name: Version(Version(version(each.name)).public) for each in declared()}
    assert found == {each.name: floor(each) for each in declared()}


def test_the_lock_is_inside_the_ranges() -> None:
    pins = locked()
    wrong = {
        each.name: (pins.get(canonicalize_name(each.name)), str(each.specifier))
        for each in declared()
        if canonicalize_name(each.name) in pins
        and not each.specifier.contains(pins[canonicalize_name(each.name)])
    }
    assert wrong == {}


@pytest.mark.parametrize("python", ["3.11", "3.12"])
def test_the_lock_has_one_version_of_each_package_for_each_python(python: str) -> None:
    here = {
        **default_environment(),
        "python_version": python,
        "python_full_version": f"{python}.9",
        "extra": "",
    }
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = [Requirement(line) for line in lines if not line.startswith("#")]
    names = [pin.name for pin in pins if pin.marker is None or pin.marker.evaluate(here)]
    assert sorted(names) == sorted(set(names))
    wanted = {canonicalize_name(Requirement(each).name) for each in PROJECT["dependencies"]}
    assert wanted <= set(names)


def module(name: str) -> ModuleType:
    """A module whose `call` warns of something that is deprecated."""
    made = ModuleType(name)
    code = "import warnings\ndef call(): warnings.warn('old, use new', FutureWarning)"
    exec(code, made.__dict__)  # noqa: S102
    return made


@pytest.mark.parametrize("package", ["transformers.modeling_utils", "neighbour", "msfts"])
def test_a_deprecation_inside_another_package_fails_no_test(package: str) -> None:
    with warnings.catch_warnings(record=True) as seen:
        module(package).call()
    assert [each.category for each in seen] == [FutureWarning]


@pytest.mark.parametrize("ours", ["msft", "msft.engine.simple", "test_packages", "conftest"])
def test_a_deprecation_of_our_own_code_fails_a_test(ours: str) -> None:
    with pytest.raises(FutureWarning, match=re.escape("old, use new")):
        module(ours).call()
