"""The token cache: tokens of many rows on disk, so that a command after `msft validate`, a resumed
run and the other processes of a run do not make them again.

It is a folder of this user. A file's name is a digest of all that its tokens depend on: the rows,
the tokenizer with its template, and the code that encodes. Another row is another file, so a file
is never out of date. A file is written under a name of its own and then renamed; what is damaged,
cut off or not ours is not read. A folder that others may write into is not used.
"""

import hashlib
import marshal
import os
import stat
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import fields
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from msft.example import Encoded, Example, Message
from msft.files import DAMAGED, open_to_read

PLACE = "MSFT_CACHE"
"""The variable in the environment that names the folder; empty: nothing is kept."""
LEAST = 2_000_000
"""Characters; to encode fewer rows takes half a second."""
MOST = 2**30
"""Bytes of the folder; what nobody has read for the longest time goes first."""

_UNREAD = {"where", "asks", "label", "subject", "others", "choices", "answer"}
"""What an example has beside what its tokens depend on."""
_OF_EXAMPLE = [f.name for f in fields(Example) if f.name not in _UNREAD | {"messages"}]
_OF_MESSAGE = [f.name for f in fields(Message)]
_NO_REFERENCES = 2
"""The last version of marshal that writes the same for what is equal."""
_PACKAGES = ("tokenizers", "transformers", "jinja2")
_CHANGING = ("strftime_now", "random", "lipsum")
"""Words of a template that may write the same row in another way tomorrow."""
_DIGEST = hashlib.sha256().digest_size


def place_of(examples: Sequence[Example], tokenizer: Any, most: int | None) -> Path | None:
    """The file for these rows, whether it exists or not; None: these rows are not cached.

    most: as of `encoded_examples`.
    """
    template = tokenizer.chat_template
    if any(word in str(template) for word in _CHANGING):
        return None
    folder = _folder()
    if folder is None:
        return None
    kind = type(tokenizer)
    said = (kind.__module__, kind.__qualname__, len(tokenizer), tokenizer.eos_token_id, most)
    try:
        digest = hashlib.sha256(_code())
        digest.update(repr((said, tokenizer.special_tokens_map, template)).encode())
        digest.update(_of_backend(tokenizer.backend_tokenizer, len(tokenizer)))
        for example in examples:
            digest.update(marshal.dumps(_content(example), _NO_REFERENCES))
    except (OSError, ImportError, ValueError):  # no files of ours; or a value of no plain type
        return None
    return folder / f"{digest.hexdigest()}.tokens"


def _content(example: Example) -> list[Any]:
    """All that the tokens of an example depend on, in plain types."""
    turns = [[getattr(turn, name) for name in _OF_MESSAGE] for turn in example.messages]
    return [turns, *(getattr(example, name) for name in _OF_EXAMPLE)]


def kept(place: Path, rows: int) -> list[Encoded] | None:
    """The rows of a file; None where it is not there, or not as it was written."""
    try:
        with open_to_read(place) as file:
            data = file.read()
        found = _unpacked(data, place.stem, rows)
        os.utime(place)  # so it stays longer than what nobody reads
    except DAMAGED:
        return None
    return found


def keep(place: Path, rows: Sequence[Encoded]) -> None:
    """Write a file, and remove the oldest where the folder has become too large. Where that cannot
    be done, nothing is kept."""
    data = _packed(rows, place.stem)
    if len(data) > MOST // 2:
        return
    with suppress(OSError):
        handle, name = tempfile.mkstemp(dir=place.parent, suffix=".part")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
            Path(name).replace(place)
        finally:
            with suppress(FileNotFoundError):
                Path(name).unlink()
        _shrink(place.parent)


def _folder() -> Path | None:
    """The folder of the cache, made if it is not there; None: there is none that is safe."""
    written = os.environ.get(PLACE)
    if written == "":
        return None
    home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    try:
        folder = Path(written or f"{home}/msft").expanduser() / "tokens"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.stat()
    except (OSError, RuntimeError):
        return None
    others = found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return None if others or found.st_uid != os.getuid() else folder


def _shrink(folder: Path) -> None:
    files = []
    for entry in os.scandir(folder):
        with suppress(FileNotFoundError):  # another process removed it
            found = entry.stat(follow_symlinks=False)
            files.append((found.st_mtime, found.st_size, entry.path))
    held = sum(size for _, size, _ in files)
    for _, size, path in sorted(files):
        if held <= MOST:
            break
        with suppress(FileNotFoundError):
            Path(path).unlink()
        held -= size


@lru_cache(1)
def _code() -> bytes:
    """Digests of the code that encodes: of the packages' versions, and of our own files."""
    own = [
        Path(__file__).with_name(name).read_bytes() for name in ("encoding.py", "token_cache.py")
    ]
    versions = repr([version(name) for name in _PACKAGES]).encode()
    return b"".join(hashlib.sha256(each).digest() for each in (versions, *own))


@lru_cache(1)
def _of_backend(backend: Any, size: int) -> bytes:
    """A digest of a tokenizer's vocabulary and of how it cuts texts."""
    return hashlib.sha256(backend.to_str().encode()).digest()


# A file: a digest of its name and of all that follows, then tensors as safetensors: how many tokens
# each row has, the tokens, and the marks as bits.


def _packed(rows: Sequence[Encoded], name: str) -> bytes:
    import numpy as np
    from safetensors.numpy import save

    lengths = np.array([len(row.tokens) for row in rows], np.uint32)
    tokens = np.fromiter((token for row in rows for token in row.tokens), np.uint32, lengths.sum())
    marks = np.fromiter((mark for row in rows for mark in row.answer), bool, len(tokens))
    if not len(tokens) or tokens.max() < 2**16:
        tokens = tokens.astype(np.uint16)
    body = save({"lengths": lengths, "tokens": tokens, "marks": np.packbits(marks)})
    return hashlib.sha256(name.encode() + body).digest() + body


def _unpacked(data: bytes, name: str, rows: int) -> list[Encoded]:
    """The rows in the bytes of a file; ValueError where they are not the file of this name, with so
    many rows."""
    import numpy as np
    from safetensors.numpy import load

    body = data[_DIGEST:]
    if data[:_DIGEST] != hashlib.sha256(name.encode() + body).digest():
        raise ValueError("a damaged file")
    found = load(body)
    lengths, tokens = found["lengths"], found["tokens"]
    if len(lengths) != rows:
        raise ValueError("other rows")
    marks = np.unpackbits(found["marks"], count=len(tokens)).astype(bool)
    numbers = np.arange(int(tokens.max()) + 1 if len(tokens) else 0).astype(object)  # shared
    ends = np.cumsum(lengths, dtype=np.int64).tolist()
    return [
        Encoded(tuple(numbers[tokens[first:last]].tolist()), tuple(marks[first:last].tolist()))
        for first, last in zip([0, *ends], ends, strict=False)
    ]
