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
        "36 kinds: config, tokenizer, safetensors or index missing, empty, no JSON, of a wrong "
        "type, truncated, a pipe, a link, an LFS pointer, a pickle; absurd sizes in the config",
        "exit 2 in seconds, with the file's name; nothing is written",
        "test_model_folders.py::test_a_broken_model_folder_is_refused_with_the_name_of_the_file",
    ),
    (
        "code in a model folder",
        "remote code in config or tokenizer, a pickle with a payload beside or instead of weights",
        "exit 2; the payload does not run",
        "test_model_folders.py::test_code_in_a_model_folder_does_not_run",
    ),
    (
        "conversation that begins with the assistant",
        "`messages` or `conversations` whose first turn answers nothing",
        "exit 2 with file and line",
        "test_conversations.py::test_a_conversation_that_begins_with_the_assistant_is_refused",
    ),
    (
        "chat template that fails",
        "raises, is no template, divides by zero, reaches for Python's insides, wants 10 GB",
        "exit 2 with file and line of the row and the line of the template",
        "test_conversations.py::test_a_template_that_fails_names_the_row_and_its_own_line",
    ),
    (
        "chat template that never ends",
        "loops within loops",
        "exit 2 after 5 s, with the row",
        "test_conversations.py::test_a_template_that_never_ends_is_stopped",
    ),
    (
        "10,000 messages in a row",
        "a conversation whose answers would each need all turns before them again",
        "exit 2 at once; up to 2,000 turns that do not fit max_length are left out at once too",
        "test_conversations.py::test_a_conversation_without_end_is_refused_at_once",
    ),
    (
        "own metric or method that cannot be imported",
        "syntax error, import error, exception, `sys.exit`, no function",
        "exit 2 with file and line",
        "test_own_code.py::test_code_that_cannot_be_imported_is_refused_with_its_place",
    ),
    (
        "own metric or method that ends the program",
        "`sys.exit` when it is called",
        "exit 1, said; a run is not taken for done",
        "test_own_code.py::test_sys_exit_in_a_call_is_an_error",
    ),
    (
        "wrong schedule",
        "28 kinds: unknown names, no stages, negative or absurd rows and epochs, wrong types",
        "exit 2 with the place in the file; nothing is trained",
        "test_schedules.py::test_a_wrong_schedule_is_refused_with_its_place",
    ),
    (
        "Parquet file that unpacks without end",
        "a file of 1 kB that unpacks to 8 GB",
        "exit 2 within seconds and within 4 GB",
        "test_bounds.py::test_a_small_parquet_file_that_unpacks_to_8_gb_is_refused",
    ),
    (
        "gzip file that unpacks without end",
        "blank lines, short rows or one long line",
        "exit 2 within seconds and 1 GB",
        "test_bounds.py::test_a_small_gzip_file_that_unpacks_without_end_is_refused",
    ),
    (
        "Parquet value that Python has not",
        "a date in the year 3000000, an unknown time zone",
        "exit 2 with file, row and column",
        "test_bounds.py::test_a_value_of_parquet_that_cannot_be_read_is_refused_with_its_row",
    ),
    (
        "paths that cannot be",
        "`~nosuchuser`, names of 300 characters",
        "exit 2 with the path",
        "test_system.py::test_paths_that_cannot_be_are_refused",
    ),
    (
        "path of 50,000 characters",
        "a recipe names a file by a name or a path that no system allows",
        "exit 2 in a few words",
        "test_bounds.py::test_a_path_that_is_too_long_is_refused_in_a_few_words",
    ),
    (
        "plan of 10,000 epochs",
        "a count that would take minutes",
        "exit 2 after 20 s with the keys to change; methods beside the recipe's own are left out",
        "test_bounds.py::test_a_plan_of_10000_epochs_is_answered",
    ),
    (
        "out of memory on the CPU",
        "memory does not hold a micro-batch, or not even a row",
        "the batch is split, with equal losses; else exit 1 with what to set, and it goes on later",
        "test_bounds.py::test_memory_that_runs_out_on_the_cpu_splits_the_batch",
    ),
    (
        "escapes and credentials on the command line",
        "in `--set`, `--out`, names of models, methods, commands; https://user:token@host",
        "control characters become \ufffd, credentials ***, in every message",
        "test_terminal.py::test_escapes_and_credentials_on_the_command_line_are_not_printed",
    ),
    (
        "escapes in messages of transformers",
        "a config whose model_type holds escapes and a URL with a token",
        "the same",
        "test_terminal.py::test_messages_of_transformers_carry_no_escapes",
    ),
    (
        "escapes in rows and templates",
        "`msft validate --show` of rows that would clear the screen",
        "the same",
        "test_terminal.py::test_rows_and_templates_are_shown_without_escapes",
    ),
    (
        "HTML in the model card",
        "a model folder whose name is HTML and YAML",
        "escaped Markdown; the front matter has no key more",
        "test_terminal.py::test_the_model_card_is_markdown_and_nothing_else",
    ),
    (
        "other version or device on resume",
        "another torch, transformers or kind of device",
        "said and recorded, exit 0",
        "test_versions.py::test_another_version_or_device_is_said_and_recorded",
    ),
    (
        "other version or device on resume, deterministic",
        "the same where the recipe promises the same bits",
        "exit 2; the folder stays as it was",
        "test_versions.py::test_deterministic_runs_refuse_it",
    ),
    (
        "other number of threads on resume",
        "the number of threads is no device",
        "goes on without a word",
        "test_versions.py::test_the_number_of_threads_is_no_device",
    ),
]
"""Name, what it is, its right outcome, and the test that proves it."""
