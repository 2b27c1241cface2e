"""Benchmarks of science and medicine."""

from msft.benchmarks.benchmark import TEST_IS_HIDDEN, Benchmark, Row, keyed, labelled
from msft.benchmarks.grading import LETTER, PHRASE
from msft.benchmarks.prompts import Item, written
from msft.search.draws import shuffled


def _openbookqa(row: Row) -> Item:
    """question_stem, choices {"text", "label"}, answerKey "A" to "D"."""
    return keyed(row["question_stem"], row)


def _arc(row: Row) -> Item:
    """question, choices {"text", "label"}, answerKey "A" to "E", or "1" to "5" in some rows."""
    return keyed(row["question"], row)


def _sciq(row: Row) -> Item:
    """question, correct_answer, distractor1 to distractor3, support.

    The right choice has a column of its own, so the order is made here, from the question alone:
    the same in every run, and no place is right more often than others. The support is left out:
    it contains the answer.
    """
    found = (row["correct_answer"], row["distractor1"], row["distractor2"], row["distractor3"])
    order = shuffled(len(found), 0, "sciq", row["question"])
    return Item(row["question"], tuple(found[n] for n in order), order.index(0))


def _medmcqa(row: Row) -> Item:
    """question, opa, opb, opc, opd, cop 0 to 3 (test: -1), subject_name, exp."""
    choices = (row["opa"], row["opb"], row["opc"], row["opd"])
    subject = row["subject_name"] or ""
    return Item(row["question"], choices, labelled(row["cop"], "0123"), subject=subject)


_MEDICAL = {
    "Anatomy": ("Anatomy",),
    "Physiology & Biochemistry": ("Physiology", "Biochemistry"),
    "Pathology & Microbiology": ("Pathology", "Microbiology"),
    "Pharmacology": ("Pharmacology",),
    "Medicine & Skin": ("Medicine", "Skin"),
    "Surgery, Orthopaedics & Anaesthesia": ("Surgery", "Orthopaedics", "Anaesthesia"),
    "Gynaecology & Pediatrics": ("Gynaecology & Obstetrics", "Pediatrics"),
    "Eye & ENT": ("Ophthalmology", "ENT"),
    "Dental": ("Dental",),
    "Forensic, Psychiatry & Radiology": ("Forensic Medicine", "Psychiatry", "Radiology"),
    "Preventive Medicine & unknown": ("Social & Preventive Medicine", "Unknown"),
}
"""The 21 subjects of MedMCQA in eleven groups. The paper has eleven too, but names two only,
Pharmacology and Forensic, Psychiatry & Radiology; the others are ours (docs/benchmarks.md)."""

MEDICAL_GROUPS = {subject: group for group, subjects in _MEDICAL.items() for subject in subjects}

SCIENCE: dict[str, Benchmark] = {
    "openbookqa": Benchmark("allenai/openbookqa:main", "science", _openbookqa, LETTER),
    "sciq": Benchmark("allenai/sciq", "science", _sciq, PHRASE, letters=written),
    "arc_easy": Benchmark("allenai/ai2_arc:ARC-Easy", "science", _arc, LETTER),
    "arc_challenge": Benchmark("allenai/ai2_arc:ARC-Challenge", "science", _arc, LETTER),
    "medmcqa": Benchmark(
        "openlifescienceai/medmcqa",
        "science",
        _medmcqa,
        LETTER,
        splits=TEST_IS_HIDDEN,
        subject_groups=MEDICAL_GROUPS,
    ),
}
