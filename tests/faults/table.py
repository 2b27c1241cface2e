"""The faults that msft is tested against: what happens, the right outcome, and the test of it."""

from dataclasses import dataclass

from table_inputs import INPUTS


@dataclass(frozen=True)
class Fault:
    """test: `file.py::function` within tests/faults."""

    name: str
    what: str
    outcome: str
    test: str


_AGAIN = "set aside, named, trained again; log and weights are those of a run left alone"
_BEST = "test_a_damaged_best_checkpoint_is_trained_again_and_never_becomes_the_result"

FAULTS = [
    Fault(
        "damaged checkpoint",
        "a bit of the best checkpoint so far is flipped, or its file cut, before a resume",
        _AGAIN,
        f"test_checkpoints.py::{_BEST}",
    ),
    Fault(
        "checkpoint that is none",
        "the tensor file is a folder, a link, a dangling link or a pipe; the folder is a file",
        _AGAIN + "; no link is followed, no pipe is waited for",
        f"test_checkpoints.py::{_BEST}",
    ),
    Fault(
        "swapped checkpoint",
        "a whole checkpoint stands under the name of another one",
        _AGAIN,
        f"test_checkpoints.py::{_BEST}",
    ),
    Fault(
        "unreadable checkpoint",
        "the disk gives EIO or no permission for a tensor file",
        "set aside and trained again; where the disk fails twice, exit 1, and a later call goes on",
        "test_checkpoints.py::test_a_checkpoint_that_the_disk_does_not_give_is_trained_again",
    ),
    Fault(
        "damaged moments",
        "a bit of an optimizer's moments is flipped before a resume",
        _AGAIN,
        "test_checkpoints.py::test_damaged_moments_are_trained_again",
    ),
    Fault(
        "damaged best/ of a run that goes on",
        "best/ and its checkpoint are the same damaged file",
        "best/ is taken away until its checkpoint is trained again",
        "test_checkpoints.py::test_a_resumed_run_does_not_keep_a_damaged_best_folder_beside_it",
    ),
    Fault(
        "damaged result",
        "a bit of the weights in best/ of a finished run is flipped, then `msft train` is called",
        "trained again; the same weights",
        "test_checkpoints.py::test_a_finished_run_whose_result_was_damaged_trains_it_again",
    ),
    Fault(
        "incomplete result",
        "files of best/, best/ itself or checkpoints/ of a finished run are gone or changed",
        "mended from what is whole, without training",
        "test_checkpoints.py::test_a_finished_folder_is_mended_from_what_is_whole_without_training",
    ),
    Fault(
        "folder of an earlier version",
        "manifests name no checkpoint, best/ has no manifest",
        "goes on; what cannot be checked is said",
        "test_checkpoints.py::test_folders_of_earlier_versions_resume_and_stay",
    ),
    Fault(
        "tensors that are not the model's",
        "a tensor is missing, renamed, extra, of another shape or of whole numbers",
        "exit 2 with the tensor's name; nothing is started",
        "test_weights.py::test_tensors_that_are_not_the_models_are_refused_with_their_names",
    ),
    Fault(
        "another model type",
        "config.json is that of another family, with or without its class",
        "exit 2 with what contradicts, or the tensors that are missing",
        "test_weights.py::test_another_model_type_over_the_same_file_is_refused",
    ),
    Fault(
        "wrong weights in eval, plan, replay",
        "the same in every command that loads weights",
        "exit 2 with the tensor's name",
        "test_weights.py::test_every_command_that_loads_weights_refuses_them",
    ),
    Fault(
        "weights that only look wrong",
        "tied output weights, buffers of old files, half precision",
        "loaded",
        "test_weights.py::test_what_legitimately_differs_still_loads",
    ),
    Fault(
        "planted files",
        "a link, a dangling link or a pipe has the name of a file or folder of a run",
        "exit 2 with its name; not followed, not waited for, nothing changed",
        "test_storage.py::"
        "test_what_is_planted_under_our_names_is_refused_not_followed_not_waited_for",
    ),
    Fault(
        "planted temporary files",
        "a file, a link or a pipe has the name of a temporary file or an unfinished checkpoint",
        "replaced; what a link points to is not touched",
        "test_storage.py::test_what_is_planted_under_the_names_of_temporary_files_is_replaced",
    ),
    Fault(
        "a pipe in a report's folder",
        "`msft report` finds a pipe where a run has a file",
        "exit 2 for the log, else the report without it",
        "test_storage.py::test_a_report_waits_for_no_pipe",
    ),
    Fault(
        "disk full while a checkpoint is written",
        "a small disk fills up in the middle of a run",
        "exit 1 with the path, what it needs and what is free; no temporary is left; goes on later",
        "test_storage.py::test_a_full_disk_says_which_file_how_much_and_what_to_do",
    ),
    Fault(
        "limit on the size of files",
        "`ulimit -f` stops the write of a checkpoint",
        "as a full disk",
        "test_storage.py::test_a_limit_on_files_is_met_like_a_full_disk",
    ),
    Fault(
        "disk full at the log",
        "a line of run.jsonl can be written in part only",
        "exit 1; the log ends with a whole line; goes on later to the same bytes",
        "test_storage.py::test_a_log_that_cannot_be_written_keeps_whole_lines",
    ),
    Fault(
        "error of the system",
        "EIO, ESTALE, EPERM and others, in every command",
        "exit 1 with the file and what to do; goes on later",
        "test_system.py::test_an_error_of_the_system_names_the_file_and_what_to_do",
    ),
    Fault(
        "no inodes",
        "the disk has free bytes, but no room for files",
        "exit 1; told from a full disk",
        "test_system.py::test_a_disk_without_inodes_is_told_from_a_full_one",
    ),
    Fault(
        "run folder that goes away",
        "removed or renamed while a run goes on",
        "exit 1; nothing is made in its place",
        "test_system.py::test_a_run_folder_that_goes_away_under_a_run_is_named_and_not_made_again",
    ),
    Fault(
        "damaged recipe.yaml of a run",
        "empty, not UTF-8, not YAML, of other types",
        "exit 2 with its name",
        "test_system.py::test_a_damaged_recipe_of_a_run_is_named",
    ),
    Fault(
        "log that no run wrote",
        "30 kinds: wrong types, NaN, missing fields, unknown names, wrong order",
        "exit 1 with file and line",
        "test_logs.py::test_a_log_that_no_run_wrote_is_refused_with_its_line",
    ),
    Fault(
        "damaged files beside a log",
        "the other files are no text or no JSON",
        "the report without them",
        "test_logs.py::test_damaged_files_beside_a_log_end_no_report",
    ),
    *(Fault(*row) for row in INPUTS),
]
