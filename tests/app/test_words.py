"""tools/words.py: it finds the words and habits that it lists, and leaves plain sentences alone."""

import runpy
from pathlib import Path

import pytest

WORDS = runpy.run_path(str(Path(__file__).resolve().parents[2] / "tools" / "words.py"))


def count(tmp_path, line):
    """The number of places that the tool finds in a file with this line."""
    page = tmp_path / "page.md"
    page.write_text(f"{line}\n")
    return len(list(WORDS["found"](page)))


@pytest.mark.parametrize(
    "line",
    [
        "The row was crowded.",
        "It fails for want of memory.",
        "The same, but for rounding.",
        "A row that has not the sign of its diagonal.",
        "The places that F has not, with R = A - L U there.",
        "The factors are no more.",
        "An array that is none of theirs.",
        "A call takes 1.9 ms for 3.2.",
        "It keeps what is there.",
        "Threads share what they have.",
        "# Of factors with a coarse space, the cheaper form.",
        "A crew of helpers.",
    ],
)
def test_a_habit_is_found(tmp_path, line):
    assert count(tmp_path, line) == 1


@pytest.mark.parametrize(
    "line",
    [
        "The row limit was reached.",
        "A is symmetric up to rounding.",
        "There is none.",
        "if x is None:",
        "It takes no more than a pass: it is no more than a bound.",
        "A factorization takes 1.9 ms for each level.",
        "Of 77 systems it solves 72, and says what is wrong with the others.",
        '"""The force on the walls."""',
    ],
)
def test_a_plain_sentence_passes(tmp_path, line):
    assert count(tmp_path, line) == 0
