"""The header of GGUF files, written here byte by byte."""

import struct
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from tokenizers.models import Unigram

from msft.data.encoding import encoded_texts
from msft.engine.model.shape import named_shape
from msft.engine.model.tokenizers import (
    begin_texts,
    gguf_header,
    load_context,
    load_tokenizer,
    read_header,
    read_once,
    refuse_misread,
    tiny_tokenizer,
)
from msft.errors import RecipeError

U32, I32, F32, BOOL, STRING, LIST, U64 = 4, 5, 6, 7, 8, 9, 10


def string(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


def entry(key: str, kind: int, value: bytes) -> bytes:
    return string(key) + struct.pack("<I", kind) + value


def listed(kind: int, values: list[bytes]) -> bytes:
    return struct.pack("<IQ", kind, len(values)) + b"".join(values)


def tensor(name: str, *shape: int) -> bytes:
    return string(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, 0, 0)


def header(entries: list[bytes], tensors: list[bytes]) -> bytes:
    counts = struct.pack("<IQQ", 3, len(tensors), len(entries))
    return b"GGUF" + counts + b"".join(entries) + b"".join(tensors)


ENTRIES = [
    entry("general.architecture", STRING, string("llama")),
    entry("tokenizer.ggml.tokens", LIST, listed(STRING, [string("<s>"), string("ü"), string("")])),
    entry("tokenizer.ggml.scores", LIST, listed(F32, [struct.pack("<f", 1.5)] * 3)),
    entry("nested", LIST, listed(LIST, [listed(BOOL, [b"\x01"] * 2), listed(STRING, [b"\0" * 8])])),
    entry("llama.context_length", U32, struct.pack("<I", 2048)),
    entry("tokenizer.ggml.eos_token_id", U32, struct.pack("<I", 2)),
    entry("small", I32, struct.pack("<i", -5)),
    entry("float", F32, struct.pack("<f", 0.5)),
    entry("yes", BOOL, b"\x01"),
    entry("large", U64, struct.pack("<Q", 2**40)),
]
TENSORS = [tensor("token_embd.weight", 8, 100), tensor("norm.weight", 8), tensor("cube", 2, 3, 4)]
WHOLE = header(ENTRIES, TENSORS)


def written(folder: Path, content: bytes) -> Path:
    path = folder / "model.gguf"
    path.write_bytes(content)
    return path


def test_scalars_are_read_and_lists_are_passed_over(tmp_path: Path) -> None:
    scalars, weights = read_header(written(tmp_path, WHOLE + b"weights that nobody reads"))
    assert scalars == {
        "general.architecture": "llama",
        "llama.context_length": 2048,
        "tokenizer.ggml.eos_token_id": 2,
        "small": -5,
        "float": 0.5,
        "yes": True,
        "large": 2**40,
    }
    assert weights == 8 * 100 + 8 + 2 * 3 * 4


def test_what_is_known_of_a_model_without_its_weights(tmp_path: Path) -> None:
    name = str(written(tmp_path, WHOLE))
    assert load_context(name) == 2048
    assert named_shape(name).parameters == 832
    assert load_context(str(written(tmp_path, header([], TENSORS)))) is None


def test_a_file_that_ends_anywhere_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    for length in range(len(WHOLE)):
        path.write_bytes(WHOLE[:length])
        with pytest.raises(RecipeError, match="is no readable GGUF file"):
            gguf_header(str(path))


HUGE = struct.pack("<Q", 2**62)


@pytest.mark.parametrize(
    "content",
    [
        b"PK\x03\x04" + WHOLE[4:],
        header([entry("a", 13, b"\0" * 8)], []),
        header([entry("a", LIST, struct.pack("<IQ", 13, 1) + b"\0" * 8)], []),
        header([HUGE + b"key"], []),
        header([entry("a", STRING, HUGE + b"text")], []),
        header([entry("a", LIST, struct.pack("<I", U64) + HUGE), ENTRIES[0]], []),
        header([entry("a", LIST, struct.pack("<IQ", U64, 2**59)), ENTRIES[0]], []),
        header([entry("a", LIST, struct.pack("<I", STRING) + HUGE)], []),
        header([], [string("t") + struct.pack("<I", 2**32 - 1)]),
        b"GGUF" + struct.pack("<I", 3) + HUGE + HUGE,
    ],
)
def test_a_damaged_file_is_refused_at_once(tmp_path: Path, content: bytes) -> None:
    path = str(written(tmp_path, content))
    for ask in (load_context, named_shape, load_tokenizer):
        with pytest.raises(RecipeError, match=r"model.gguf' is no readable GGUF file"):
            ask(path)


def test_a_file_is_read_once_for_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []

    def reader(path: str) -> object:
        read.append(path)
        return object()

    package = SimpleNamespace(GGUFReader=reader)  # another release may not have the other one
    monkeypatch.setitem(sys.modules, "gguf", package)
    with read_once():
        assert package.GGUFReader("a") is package.GGUFReader("a")
        assert package.GGUFReader("b") is not package.GGUFReader("a")
    assert read == ["a", "b"]
    with pytest.raises(ValueError, match="in the middle"), read_once():
        raise ValueError("in the middle")
    assert package.GGUFReader is reader


@pytest.mark.parametrize(
    ("asked", "tokens"),
    [
        ({"add_bos_token": True, "bos_token_id": 1}, [1, 67]),
        ({"add_bos_token": False, "bos_token_id": 1}, [67]),
        ({"add_bos_token": True}, [67]),
        ({"bos_token_id": 1}, [67]),
    ],
)
def test_a_text_begins_with_the_token_that_the_file_asks_for(
    asked: dict[str, object], tokens: list[int]
) -> None:
    tokenizer = tiny_tokenizer()
    begin_texts(tokenizer, {f"tokenizer.ggml.{key}": value for key, value in asked.items()})
    assert tokenizer("b").input_ids == tokens
    assert tokenizer.encode("b", add_special_tokens=False) == tokens[-1:]
    assert encoded_texts(["b"], tokenizer, special=True) == [tokens]


def test_a_tokenizer_that_transformers_misreads_is_refused() -> None:
    tokenizer = tiny_tokenizer()
    refuse_misread(tokenizer, {"general.architecture": "gemma3"}, "gemma.gguf")
    tokenizer._tokenizer.model = Unigram([("<unk>", 0.0), ("a", -1.0)], unk_id=0)
    refuse_misread(tokenizer, {"general.architecture": "llama"}, "llama.gguf")
    with pytest.raises(RecipeError, match=r"of Gemma's GGUF files wrongly; take 5\.22 or later"):
        refuse_misread(tokenizer, {"general.architecture": "gemma3"}, "gemma.gguf")
