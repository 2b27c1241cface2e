"""What can go wrong, and the exit code of each.

Their messages are complete: what was found, what was expected and what to do.
So the command line prints the message alone; for all other exceptions it offers a traceback.
"""

from typing import ClassVar

from msft.text import masked

Place = tuple[str | int, ...]
"""Where a value stands in a recipe: keys and list indices from the top."""

DONE, FAILED, WRONG, NO_ROOM, STOPPED = 0, 1, 2, 3, 4
"""Exit codes, as the README has them."""


class Explained(Exception):
    """An error whose message needs no traceback, and holds no key: libraries say what a server
    answered, and a server may answer with what it was sent."""

    exit_code: int = FAILED

    def __init__(self, message: str = "") -> None:
        super().__init__(masked(str(message)))


class RecipeError(Explained, ValueError):
    """A wrong recipe; `place` says which key, so that the line can be found.

    because: other keys that this follows from. If one of them is wrong itself, this may not be.
    """

    exit_code = WRONG

    def __init__(self, message: str, place: Place = (), because: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.place = place
        self.because = because


class OptionError(ValueError):
    """An option that does not fit, or contradicts another one; `option` says which.

    because: as of a `RecipeError`.
    """

    def __init__(self, message: str, option: str, because: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.option = option
        self.place: Place = (option,)
        self.because = because


class YamlError(Explained, ValueError):
    """A file that is not YAML, or YAML that could do harm; `line` counts from 1."""

    exit_code = WRONG

    def __init__(self, message: str, line: int | None = None) -> None:
        super().__init__(message)
        self.line = line


class DataError(Explained, ValueError):
    """Data that cannot be used; the message starts with the file and the line."""

    exit_code = WRONG


class UsageError(Explained, ValueError):
    """A command was given something that it cannot work with."""

    exit_code = WRONG


class WrongWeights(Explained, ValueError):
    """A file's tensors are not those of the model that its config.json describes."""

    exit_code = WRONG


class HubError(Explained):
    """The hub did not take a model; the run is finished and its folder complete."""


class WrongMethod(Explained, ValueError):
    """A method of the user's own did what no method may do."""

    exit_code = WRONG


class Diverged(Explained):
    """The method, the recipe or the data is not what it was when the log was written."""

    exit_code = WRONG


class NoRoom(Explained):
    """The run cannot fit; nothing was started."""

    exit_code = NO_ROOM


class LogError(Explained):
    """The log cannot be used as it is; the message says why and what to do."""


class NotAFile(Explained, OSError):
    """A link, a pipe or a folder has the name of a file of ours, or the other way round."""

    exit_code = WRONG


class DiskFull(Explained, OSError):
    """A file could not be written for lack of space; what was there before is whole."""


class SystemFault(Explained, OSError):
    """The system does not do what a file needs; the message names the file and what to do."""


class StoreError(Explained):
    """A checkpoint that is needed cannot be kept or found."""


class NotReproducible(Explained):
    """Training a lost checkpoint again did not go as the log says it went."""


class BadScore(Explained):
    """An evaluation gave no usable number, so nothing may be decided from it."""


class NotANumber(Explained):
    """A loss was NaN or infinite; the step was not taken."""


class RunsFailed(Explained):
    """Some runs failed, or their logs cannot be read; the others are done."""


class RankFailed(Explained):
    """Something went wrong in another process of this run, which ends in all of them.

    said: rank 0 says it, so this one need not.
    """

    def __init__(self, message: str, exit_code: int, said: bool) -> None:
        super().__init__(message)
        self.exit_code = exit_code
        self.said = said


class RanksDisagree(Explained):
    """The processes of a run came to different results."""


class Unsuited(Exception):
    """A fast path does not compute what this model does; another path takes over."""


class NotRecorded(Exception):
    """This model's step cannot be recorded; it waits for the host, say."""


class Stopped(BaseException):
    """A signal asked the run to stop; what is done is safe. Not for `except Exception` to take."""

    exit_code: ClassVar[int] = STOPPED
