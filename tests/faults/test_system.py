"""What the system refuses: every command says which file, what happened and what to do."""

import errno
import os
import shutil
from pathlib import Path

import pytest
from program import Ended, run
from toy_runs import left_by, write_recipe

import msft
from msft.errors import DiskFull, Explained, SystemFault, UsageError


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a recipe and a finished run in `out`, which no test changes."""
    folder = tmp_path_factory.mktemp("finished")
    write_recipe(folder)
    ended = run("train", "recipe.yaml", "--out", "out", cwd=folder)
    assert ended.code == 0, ended.err
    return folder


@pytest.fixture
def folder(finished: Path, tmp_path: Path) -> Path:
    """A copy of it; the recipe names its rows by whole paths."""
    return Path(shutil.copytree(finished, tmp_path / "copy"))


FAILING = """
import os, sys
def fail(event, given):
    if event == {event!r} and str(given[0]).endswith({name!r}):
        raise OSError({code}, os.strerror({code}), given[0])
sys.addaudithook(fail)
"""


def said(ended: Ended) -> str:
    """The one message, on one line; nothing raw beside it."""
    assert "Traceback" not in ended.err, ended.err
    assert "traceback comes with" not in ended.err, ended.err
    assert "Errno" not in ended.err, ended.err
    return " ".join(ended.err[ended.err.index("msft: ") :].split())


TRAIN = ("train", "recipe.yaml", "--out", "new")
CASES = [
    (TRAIN, "open", "verdicts.jsonl", errno.EIO, 1, "verdicts.jsonl: Input/output error. What"),
    (TRAIN, "open", "verdicts.jsonl", errno.ESTALE, 1, "mount the network disk again"),
    (TRAIN, "os.mkdir", "checkpoints", errno.EPERM, 1, "checkpoints: Operation not permitted."),
    (TRAIN, "os.mkdir", "new", errno.EROFS, 1, "mount the disk so that it can be written"),
    (TRAIN, "open", "recipe.yaml.tmp", errno.ENOSPC, 1, "new/recipe.yaml needs "),
    (("report", "out"), "open", "run.jsonl", errno.EIO, 1, "out/run.jsonl: Input/output error."),
    (("report", "out"), "open", "report.html.tmp", errno.EDQUOT, 1, "Disk quota exceeded: out/"),
    (("init", "mine.yaml"), "open", "mine.yaml", errno.EACCES, 1, "mine.yaml: Permission denied."),
    (("analyze", "headroom", "out"), "open", "run.jsonl", errno.EMFILE, 1, "`ulimit -n`"),
    (("validate", "recipe.yaml"), "open", "upper.train.jsonl", errno.EIO, 2, "Input/output error"),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0][0]}-{case[3]}-{case[2]}")
def test_an_error_of_the_system_names_the_file_and_what_to_do(
    case: tuple[tuple[str, ...], str, str, int, int, str], folder: Path
) -> None:
    command, event, name, code, exit_code, message = case
    before = FAILING.format(event=event, name=name, code=code)
    ended = run(*command, cwd=folder, before=before)
    assert ended.code == exit_code, ended.err
    assert message in said(ended)
    if command is TRAIN:
        assert run(*TRAIN, cwd=folder).code == 0, "the same command goes on"
        assert left_by(folder / "new")["log"] == left_by(folder / "out")["log"]


UNNAMED = """
import os
def fail(handle):
    raise OSError({code}, os.strerror({code}))
os.fsync = fail
"""


def test_an_error_of_an_open_file_names_the_file_too(folder: Path) -> None:
    ended = run(*TRAIN, cwd=folder, before=UNNAMED.format(code=errno.EIO))
    assert ended.code == 1, ended.err
    assert "msft: new/run.lock: Input/output error. What was saved before is whole" in said(ended)


NO_INODES = (
    UNNAMED.format(code=errno.ENOSPC)
    + """
statvfs = os.statvfs
class Full:
    f_files, f_favail = 1000, 0
    def __init__(self, found):
        self.found = found
    def __getattr__(self, name):
        return getattr(self.found, name)
os.statvfs = lambda path: Full(statvfs(path))
"""
)


def test_a_disk_without_inodes_is_told_from_a_full_one(folder: Path) -> None:
    ended = run(*TRAIN, cwd=folder, before=NO_INODES)
    assert ended.code == 1, ended.err
    assert "but no inode: it holds as many files as it can" in said(ended)
    assert "remove files, then run the same command again" in said(ended)


@pytest.mark.parametrize("act", ['shutil.rmtree("new")', 'os.rename("new", "moved")'])
def test_a_run_folder_that_goes_away_under_a_run_is_named_and_not_made_again(
    act: str, folder: Path
) -> None:
    gone = (
        "import os, shutil\nfrom msft.run.log import Log\nappend = Log.append\n"
        "def going(log, event):\n    append(log, event)\n    if len(log.events) == 3:\n"
        f"        {act}\nLog.append = going\n"
    )
    ended = run(*TRAIN, cwd=folder, before=gone)
    assert ended.code == 1, ended.err
    assert "new was removed, renamed or replaced while the run went on" in said(ended)
    assert not (folder / "new").exists()
    if (folder / "moved").exists():
        assert run("train", "recipe.yaml", "--out", "moved", cwd=folder).code == 0
        assert left_by(folder / "moved") == left_by(folder / "out")


DAMAGED = [
    b"",
    b"\xff\x00",
    b"- a\n",
    b"datasets: 1\n",
    b"datasets: [1]\n",
    b"a: &b [*b]\n",
    b"{{{",
]


@pytest.mark.parametrize("content", DAMAGED, ids=lambda content: repr(content))
def test_a_damaged_recipe_of_a_run_is_named(content: bytes, folder: Path) -> None:
    (folder / "out/recipe.yaml").write_bytes(content)
    ended = run("train", "recipe.yaml", "--out", "out", cwd=folder)
    assert ended.code == 2, ended.err
    assert "out/recipe.yaml is damaged: it is not the recipe that msft wrote there" in said(ended)
    (folder / "out/recipe.yaml").unlink()
    assert run("train", "recipe.yaml", "--out", "out", cwd=folder).code == 0, "the cure holds"


LONG = "x" * 300
PATHS = [
    (("train", "recipe.yaml", "--out", LONG), "characters, 300 in one name; expected"),
    (("validate", "recipe.yaml", "--set", f"model_name_or_path={LONG}"), "File name too long"),
    (("validate", f"{LONG}.yaml"), "File name too long"),
    (("report", LONG), "File name too long"),
    (("validate", "recipe.yaml", "--set", "datasets.upper.train=~nosuchuser/a.jsonl"), "~nosuch"),
    (("plan", "recipe.yaml", "--set", "model_name_or_path=~nosuchuser/m"), "write the whole path"),
    (("validate", "recipe.yaml", "--data", "~nosuchuser/data"), "~nosuchuser"),
    (("eval", "~nosuchuser/m", "recipe.yaml"), "~nosuchuser"),
    (("train", "recipe.yaml", "--out", "~nosuchuser/run"), "write the whole path"),
    (("train", "recipe.yaml", "--set", "output_dir=~nosuchuser/run"), "write the whole path"),
    (("report", "~nosuchuser/run"), "~nosuchuser is the home folder of a user that is not known"),
    (("init", "~nosuchuser/recipe.yaml"), "write the whole path"),
]


@pytest.mark.parametrize(("command", "message"), PATHS)
def test_paths_that_cannot_be_are_refused(
    command: tuple[str, ...], message: str, folder: Path
) -> None:
    ended = run(*command, cwd=folder)
    assert ended.code == 2, ended.err
    assert message in said(ended)


def test_the_home_folder_is_meant_by_its_sign(folder: Path) -> None:
    """Not a folder of that name, which nobody would dare to remove."""
    home = f"import os; os.environ['HOME'] = {str(folder / 'home')!r}\n"
    for place in ("--out=~/a", "--set=output_dir=~/b"):
        assert run("train", "recipe.yaml", place, cwd=folder, before=home).code == 0
    assert {path.name for path in (folder / "home").iterdir()} == {"a", "b"}
    assert run("report", "~/a", cwd=folder, before=home).code == 0
    assert not (folder / "~").exists()


def test_the_python_interface_raises_errors_of_msft(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)

    def failing(code: int) -> None:
        def fail(path: object, *more: object, **others: object) -> None:
            raise OSError(code, os.strerror(code), path)

        monkeypatch.setattr(os, "mkdir", fail)

    expected: dict[int, type[Explained]] = {
        errno.EIO: SystemFault,
        errno.ENOSPC: DiskFull,
        errno.ENAMETOOLONG: UsageError,
    }
    for code, kind in expected.items():
        failing(code)
        with pytest.raises(kind):
            msft.train("recipe.yaml", "new", quiet=True)
    with pytest.raises(UsageError, match="~nosuchuser"):
        msft.evaluate("tiny", msft.load_recipe("recipe.yaml", ["data_dir=~nosuchuser"]))
