"""Mutants that a reader has found to change nothing that anybody could see, with the reason."""

from mutant_changes import Key

JUDGED: dict[Key, str] = {}
