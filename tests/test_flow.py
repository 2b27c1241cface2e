"""How far a run travels before its first training step: how many files a reader must open, and how
often the way goes from one file to another. Calls are counted once, at the first time; what an
import runs, lambdas and comprehensions do not count."""

import json
import subprocess
from itertools import pairwise
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "msft"
MOST_FILES, MOST_CHANGES = 60, 150

TRAVEL = """
import json, sys
from pathlib import Path

source, out = sys.argv[1:]
seen, way = set(), []

class FirstStep(BaseException):
    pass

def called(frame, event, argument):
    code = frame.f_code
    if event != "call" or not code.co_filename.startswith(source) or code.co_name.startswith("<"):
        return
    caller = frame.f_back
    while caller is not None:
        if caller.f_code.co_filename.startswith("<frozen importlib"):
            return
        caller = caller.f_back
    if code.co_qualname.endswith("Engine.work"):
        sys.setprofile(None)
        raise FirstStep
    if (code.co_filename, code.co_qualname) not in seen:
        seen.add((code.co_filename, code.co_qualname))
        way.append(str(Path(code.co_filename).relative_to(source)))

from msft.cli import main

sys.setprofile(called)
try:
    main(["train", "recipes/tiny.yaml", "--out", out, "--quiet"])
except FirstStep:
    print(json.dumps(way))
"""


def test_the_way_to_the_first_step_is_short(warm: str, tmp_path: Path) -> None:
    (tmp_path / "travel.py").write_text(TRAVEL)
    done = subprocess.run(
        [warm, str(tmp_path / "travel.py"), str(SOURCE), str(tmp_path / "run")],
        cwd=SOURCE.parents[1],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    way = json.loads(done.stdout)
    changes = sum(one != other for one, other in pairwise(way))
    assert len({*way}) <= MOST_FILES, sorted({*way})
    assert changes <= MOST_CHANGES
