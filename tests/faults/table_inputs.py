"""Faults of inputs, signals and surroundings: what each is, its right outcome, and its test."""

INPUTS: list[tuple[str, str, str, str]] = [
    (
        "signal while libraries load",
        "SIGTERM or SIGINT at any moment from the first line of the program on",
        "exit 4 at once, with the command that goes on; no traceback",
        "test_signals.py::test_a_signal_while_libraries_load_gives_4",
    ),
    (
        "signal at the first line of the log",
        "SIGTERM or SIGINT just before or after the first event is written",
        "exit 4; the same command goes on",
        "test_signals.py::test_a_signal_at_the_first_lines_of_the_log_gives_4",
    ),
    (
        "signal at any moment of a run",
        "SIGTERM or SIGINT, again and again",
        "exit 4 each time; log, verdicts, summary and weights end as those of a run left alone",
        "test_signals.py::test_a_signal_at_any_moment_of_a_run_gives_4_and_the_run_goes_on_to_the_same_end",
    ),
    (
        "a second signal",
        "another one while the first is still being answered, also in the middle of a long write",
        "exit 4 at once; what is there is as after a kill, and goes on",
        "test_signals.py::test_a_second_signal_does_not_wait_for_what_the_first_one_saves",
    ),
    (
        "signal after the end",
        "SIGTERM while Python is ending",
        "the exit code of the work that is done",
        "test_signals.py::test_a_signal_after_the_end_does_not_change_the_exit_code",
    ),
    (
        "broken model folder",
        "36 kinds: config, tokenizer, safetensors or index missing, empty, no JSON, of a wrong type, "
        "truncated, a pipe, a link, an LFS pointer, a pickle; absurd sizes in the config",
        "exit 2 in seconds, with the file's name; nothing is written",
        "test_model_folders.py::test_a_broken_model_folder_is_refused_with_the_name_of_the_file",
    ),
    (
        "code in a model folder",
        "remote code in config or tokenizer, a pickle with a payload beside or instead of weights",
        "exit 2; the payload does not run",
        "test_model_folders.py::test_code_in_a_model_folder_does_not_run",
    ),
]
"""Name, what it is, its right outcome, and the test that proves it."""
