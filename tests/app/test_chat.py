"""`msft chat`: which models answer, in which tokens, and what a person and a program see."""

import io
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from shutil import copytree, rmtree
from typing import Any

import pytest
from toys import read_lines, recipe_of, write_data

import msft
from msft.app.chat import (
    Chat,
    ChatAnswer,
    ChatOptions,
    ModelNames,
    WrittenTokens,
    load_chat,
    resolved_names,
)
from msft.app.terminal.chat import converse
from msft.cli import main
from msft.errors import DONE, NO_ROOM, WRONG, UsageError

pytestmark = pytest.mark.usefixtures("no_reports")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run whose best is not the base."""
    folder = tmp_path_factory.mktemp("chat")
    write_data(folder)
    result = msft.train(recipe_of(folder, method="sft", num_train_epochs=4), folder / "run")
    assert result.summary["best"]["checkpoint"] != "base"
    return folder / "run"


@pytest.fixture
def copy(run: Path, tmp_path: Path) -> Path:
    return Path(copytree(run, tmp_path / "run"))


def asked(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main(["chat", *arguments, "--json"]) == DONE
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """What is said about wrong usage, in one line."""
    try:
        code = main(["chat", *arguments])
    except SystemExit as end:  # argparse
        code = int(str(end.code))
    out, errors = capsys.readouterr()
    assert (code, out) == (WRONG, ""), errors
    return " ".join(errors.split())


def chat_of(name: str | Path, plain: bool = False, **options: Any) -> Chat:
    options["plain"] = plain
    return load_chat(resolved_names(str(name)), ChatOptions(**options), lambda text: None)


# Who answers.


def test_a_run_is_asked_beside_the_base_of_its_recipe(run: Path) -> None:
    best = str(run / "best")
    assert resolved_names(str(run)) == resolved_names(best)
    named = resolved_names(str(run))
    assert (named.model, named.base, named.trust, named.notes) == (best, "tiny", False, ())
    assert resolved_names(str(run), with_base=False).base is None
    assert resolved_names("tiny") == ModelNames("tiny")


def test_the_answers_are_those_of_the_evaluation(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = str(run / "recipe.yaml")
    for model in (str(run / "best"), "tiny"):
        lines = str(tmp_path / "answers.jsonl")
        assert main(["eval", model, recipe, "--answers", lines, "--quiet"]) == DONE
    capsys.readouterr()
    said: dict[str, list[str]] = {}
    for model in ("tiny", str(run / "best")):
        assert main(["eval", model, recipe, "--answers", lines, "--quiet"]) == DONE
        rows = read_lines(Path(lines))
        first = next(row for row in rows if row["dataset"] == "upper")
        said[model] = [first["prompt"], first["prediction"]]
    capsys.readouterr()
    prompt = said["tiny"][0]
    words = [str(run), "--prompt", prompt, "--plain", "--max-new-tokens", "4"]
    found = asked(capsys, *words)
    assert [each["of"] for each in found["answers"]] == ["result", "base"]
    result, base = found["answers"]
    assert result["model"] == str(run / "best")
    assert said[result["model"]][1].startswith(result["text"])
    assert base["model"] == "tiny"
    assert base["text"] != result["text"]
    assert result["text"].strip()
    (alone,) = asked(capsys, *words, "--no-base")["answers"]
    assert alone == result
    (other,) = asked(capsys, "tiny", *words[1:])["answers"]
    assert other == {**base, "of": "model"}


def test_an_adapter_knows_its_base(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_data(tmp_path)
    keys: dict[str, Any] = {"use_peft": True, "lora_r": 4, "learning_rate": 1e-2}
    keys |= {"num_train_epochs": 1, "evals_per_epoch": 1, "load_in_4bit": True}
    msft.train(recipe_of(tmp_path, method="sft", **keys), tmp_path / "run", quiet=True)
    base = str((tmp_path / "run" / "base").resolve())
    assert resolved_names(str(tmp_path / "run")).base == base
    moved = (tmp_path / "run" / "best").rename(tmp_path / "adapter")
    assert resolved_names(str(moved)) == ModelNames(str(moved), base)
    capsys.readouterr()
    found = asked(capsys, str(moved), "--prompt", "upper abcd:", "--max-new-tokens", "3")
    assert [each["model"] for each in found["answers"]] == [str(moved), base]


def test_an_unfinished_run_has_its_best_so_far_or_says_what_to_do(
    copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = copy / "run.jsonl"
    log.write_bytes(b"".join(log.read_bytes().splitlines(keepends=True)[:-1]))
    named = resolved_names(str(copy))
    assert named.base == "tiny"
    assert named.notes == (f"the run in {copy} is not finished; this is its best model so far",)
    rmtree(copy / "best")
    said = refused(capsys, str(copy), "--prompt", "a")
    assert "has no best/ yet: no checkpoint was better than the base so far" in said
    assert "ask the base alone: msft chat tiny" in said


def test_where_the_base_is_the_result_one_model_answers(copy: Path) -> None:
    manifest = copy / "best" / "manifest.json"
    content = json.loads(manifest.read_text())
    assert content["checkpoint"] != "base"
    manifest.write_text(json.dumps({**content, "checkpoint": "base"}))
    named = resolved_names(str(copy))
    assert named.base is None
    assert "the result of this run is the base model itself" in named.notes[0]


def test_damaged_folders_and_wrong_names_are_refused(
    copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ask = ["--prompt", "a"]
    assert "there is no folder" in refused(capsys, "./nothing", *ask)
    assert "there is no such file" in refused(capsys, str(copy / "no.gguf"), *ask)
    (copy / "empty").mkdir()
    assert "empty/tokenizer.json: there is no such file" in refused(
        capsys, str(copy / "empty"), *ask
    )
    said = refused(capsys, str(copy.parent), *ask)
    assert f"has 1 run in it; name one of them: {copy}" in said
    weights = copy / "best" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    assert "is damaged: model.safetensors" in refused(capsys, str(copy), *ask)
    rmtree(copy / "best")
    assert "the run is finished: it was removed or damaged" in refused(capsys, str(copy), *ask)
    first, *rest = (copy / "run.jsonl").read_text().splitlines()
    audit = json.dumps({**json.loads(first), "method": "audit"})
    (copy / "run.jsonl").write_text("\n".join([audit, *rest]) + "\n")
    assert "is the folder of an audit" in refused(capsys, str(copy), *ask)


def test_a_recipe_that_cannot_be_read_leaves_the_base_unknown(copy: Path) -> None:
    (copy / "recipe.yaml").write_text("{")
    named = resolved_names(str(copy))
    assert (named.model, named.base) == (str(copy / "best"), None)
    assert "so the base is not known" in named.notes[0]


def test_the_folder_of_an_audited_training_stands_for_the_run_that_it_chose(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("all", "clean"):
        copytree(run, tmp_path / name)
    (tmp_path / "choice.json").write_text('{"chosen": "clean"}')
    assert resolved_names(str(tmp_path)).model == str(tmp_path / "clean" / "best")
    (tmp_path / "choice.json").write_text('{"chosen": "cl')
    assert "choice.json is damaged; name the run" in refused(capsys, str(tmp_path), "--prompt", "a")


def test_without_memory_nothing_is_loaded(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from msft.engine import memory

    room = memory.FreeMemory("cpu", 2_000_000, 2_000_000, 2_000_000)
    monkeypatch.setattr(memory, "room_of", lambda device: room)
    assert main(["chat", str(run), "--prompt", "a"]) == NO_ROOM
    said = " ".join(capsys.readouterr().err.split())
    assert "--no-base asks the first alone" in said
    assert main(["chat", str(run), "--prompt", "a", "--no-base", "--max-new-tokens", "1"]) == DONE


# In which tokens.


def prompt_of(chat: Chat, text: str, model: int = 0) -> str:
    tokens = chat._prompt(chat.models[model], text)
    tokenizer = chat.models[model].loaded.tokenizer
    return str(tokenizer.decode(tokens, skip_special_tokens=False))


def test_each_model_goes_on_with_its_own_answers_under_the_template(run: Path) -> None:
    chat = chat_of(run, max_new_tokens=3)
    assert prompt_of(chat, "hi") == "user: hi\nassistant: "
    answers = chat.ask("hi")
    for each in answers:
        each.write()
    chat.keep("hi", answers)
    first, second = (each.text for each in answers)
    assert first != second
    for number, text in enumerate((first, second)):
        whole = f"user: hi\nassistant: {text}<eos>user: more\nassistant: "
        assert prompt_of(chat, "more", number) == whole
    chat.forget()
    assert prompt_of(chat, "hi") == "user: hi\nassistant: "


def test_the_system_prompt_comes_first_and_stays(run: Path) -> None:
    chat = chat_of(run, system="be brief")
    assert prompt_of(chat, "hi") == "system: be brief\nuser: hi\nassistant: "
    chat.forget()
    assert prompt_of(chat, "hi") == "system: be brief\nuser: hi\nassistant: "


def test_without_a_template_a_line_is_the_prompt(run: Path) -> None:
    chat = chat_of(run, plain=True, max_new_tokens=2)
    answers = chat.ask("upper abcd:")
    for each in answers:
        each.write()
    chat.keep("upper abcd:", answers)
    assert prompt_of(chat, "upper abcd:") == "upper abcd:"
    with pytest.raises(UsageError, match="--plain leaves it out"):
        chat_of(run, plain=True, system="be brief")


def test_a_run_without_conversations_is_asked_in_plain_prompts(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [str(run), "--prompt", "upper abcd:", "--max-new-tokens", "4"]
    plain = asked(capsys, *words, "--plain")["answers"]
    templated = asked(capsys, *words, "--no-plain")["answers"]
    assert main(["chat", *words, "--json"]) == DONE
    printed = capsys.readouterr()
    assert json.loads(printed.out)["answers"] == plain != templated
    assert "what you type is the whole prompt" in printed.err
    named = resolved_names(str(run))
    assert load_chat(named, ChatOptions(system="be brief"), print).under_template


def test_a_template_that_has_no_place_for_a_system_prompt_says_so(
    copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for file in ("manifest.json", "chat_template.jinja"):
        (copy / "best" / file).unlink(missing_ok=True)
    config = copy / "best" / "tokenizer_config.json"
    refuses = "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
    config.write_text(json.dumps({**json.loads(config.read_text()), "chat_template": refuses}))
    said = refused(capsys, str(copy), "--prompt", "a", "--system", "b")
    assert "chat template failed in its line 1: no system; leave --system out" in said
    config.write_text(json.dumps({**json.loads(config.read_text()), "chat_template": None}))
    assert "best has none; put the text" in refused(
        capsys, str(copy), "--prompt", "a", "--system", "b"
    )
    assert asked(capsys, str(copy), "--prompt", "a")["chat_template"] is False


def test_a_conversation_that_has_no_place_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    said = refused(capsys, "tiny", "--prompt", "x" * 600, "--plain")
    assert "has 600 tokens, and the model has places for 512" in said
    (found,) = asked(capsys, "tiny", "--prompt", "x" * 509, "--plain")["answers"]
    assert (found["tokens"], found["ended_by"]) == (3, "max_new_tokens")


# What a person and a program see.


def test_a_text_on_standard_input_is_one_prompt(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("a\nb\n"))
    found = asked(capsys, "tiny", "--max-new-tokens", "2")
    assert (found["prompt"], found["answers"][0]["tokens"]) == ("a\nb", 2)
    for empty in (io.StringIO("\n"), None):
        monkeypatch.setattr(sys, "stdin", empty)
        assert "the prompt is empty" in refused(capsys, "tiny")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a\xff"), "utf-8"))
    assert "standard input is no text" in refused(capsys, "tiny")
    assert "its bytes are not UTF-8" in refused(capsys, "tiny", "--prompt", "a\udcff")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--prompt", " "], "the prompt is empty"),
        (["--max-new-tokens", "0"], "expected a whole number, 1 to"),
    ],
)
def test_wrong_flags_are_refused(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert said in refused(capsys, "tiny", *words)


def test_json_asks_for_one_prompt(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", Terminal(""))
    assert "--json goes with a single prompt" in refused(capsys, "tiny", "--json")


def test_in_a_pipe_answers_are_plain_lines(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [str(run), "--plain", "--prompt", "upper abcd:", "--max-new-tokens", "4"]
    result, base = (each["text"] for each in asked(capsys, *words)["answers"])
    assert main(["chat", *words]) == DONE
    out, errors = capsys.readouterr()
    assert re.fullmatch(
        rf"result:\s{run / 'best'}\n{re.escape(result)}\n\nbase: tiny\n{re.escape(base)}\n", out
    )
    assert "(base: left after 4 tokens; more with --max-new-tokens)" in errors
    assert main(["chat", *words, "--no-base"]) == DONE
    assert capsys.readouterr().out == f"{result}\n"


def test_the_program_of_the_page_gives_the_answer_of_msft_chat(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    copytree(run / "best", tmp_path / "runs" / "example" / "best")
    monkeypatch.chdir(tmp_path)
    page = Path(__file__).parents[2] / "docs" / "use-your-model.md"
    program = page.read_text().split("```python\n")[1].split("```")[0]
    question = "What is the capital of Italy?"
    names: dict[str, Any] = {}
    exec(program, names)  # noqa: S102
    said = capsys.readouterr().out
    words = ["runs/example/best", "--prompt", question, "--max-new-tokens", "40"]
    assert asked(capsys, *words)["answers"][0]["text"] == names["answer"].rstrip("\ufffd")
    assert said == f"{names['answer']}\n"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_new_conversation_and_questions_without_a_place(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    chat = chat_of(run, max_new_tokens=2)
    asked_for: list[str] = []
    ask = chat.ask

    def noted(text: str) -> list[ChatAnswer]:
        asked_for.append(text)
        return ask(text)

    monkeypatch.setattr(chat, "ask", noted)
    lines = ["a", "", " /new", "/usr/bin", "x" * 600]
    monkeypatch.setattr(sys, "stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
    converse(chat)
    out, errors = capsys.readouterr()
    assert asked_for == ["a", "/usr/bin", "x" * 600]
    assert [turn.content for turn in chat.models[0].turns][::2] == ["/usr/bin"], "after /new"
    assert "a line is the next turn, /new begins anew; at most 2 tokens" in " ".join(out.split())
    assert "the model has places for 512; begin a new one (/new)" in " ".join(errors.split())


def test_ctrl_c_leaves_an_answer_and_the_conversation_goes_on(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    chat = chat_of(run, plain=True, max_new_tokens=400)
    chat.models[1].ends = [255]
    seen: list[ChatAnswer] = []
    put = WrittenTokens.put

    def counted(streamer: WrittenTokens, tokens: Any) -> None:
        put(streamer, tokens)
        seen.append(streamer.answer)
        if len(streamer.answer.tokens) == 5 and streamer.answer.model is chat.models[1]:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(WrittenTokens, "put", counted)
    monkeypatch.setattr(sys, "stdin", io.StringIO("upper abcd:\n"))
    before = signal.getsignal(signal.SIGINT)
    converse(chat)
    assert signal.getsignal(signal.SIGINT) is before
    assert (len(seen[-1].tokens), seen[-1].ended_by) == (5, "stopped")


def test_an_answer_is_the_likeliest_whatever_habits_a_model_has() -> None:
    chat = load_chat(ModelNames("tiny"), ChatOptions(max_new_tokens=12), lambda text: None)
    model, ends = chat.models[0].loaded.model, chat.models[0].ends
    (plain,) = chat.ask("hi")
    plain.write()
    assert (len(plain.tokens), plain.ended_by) == (12, "max_new_tokens")
    model.generation_config.repetition_penalty = 5.0
    (again,) = chat.ask("hi")
    again.write()
    assert again.tokens == plain.tokens
    end = next(token for token in plain.tokens if token != plain.tokens[0])
    ends.append(end)
    (ended,) = chat.ask("hi")
    ended.write()
    assert (ended.tokens, ended.ended_by) == (plain.tokens[: plain.tokens.index(end)], "end_token")


def test_the_terminal_of_a_real_program(run: Path, warm: str) -> None:
    """Typed into a pseudo-terminal of 80 columns: side by side, and ended by Ctrl-D."""
    ours, theirs = pty.openpty()
    words = [warm, "-m", "msft", "chat", str(run), "--plain", "--max-new-tokens", "30"]
    environment = {**os.environ, "COLUMNS": "80", "TERM": "xterm"}
    with subprocess.Popen(
        words, stdin=theirs, stdout=theirs, stderr=theirs, env=environment
    ) as one:
        os.close(theirs)
        assert "Ctrl-D ends" in (seen := read_until(ours, "\n> "))
        assert f"result  {run / 'best'}" in seen
        os.write(ours, b"upper abcd:\n")
        answers = read_until(ours, "\n> ")
        os.write(ours, b"\x04")
        assert one.wait(60) == DONE
    os.close(ours)
    left = re.split(r"[\r\n]+", re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", answers))
    assert [line for line in left if re.fullmatch(r"result +base *", line)]
    assert max(map(len, left)) <= 80


def read_until(handle: int, sign: str) -> str:
    seen, end = "", time.monotonic() + 120
    while not seen.replace("\r", "").endswith(sign):
        assert time.monotonic() < end, seen
        if select.select([handle], [], [], 1)[0]:
            seen += os.read(handle, 65536).decode()
    return seen
