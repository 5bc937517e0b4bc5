"""Looks for words that a stranger has to guess at, in code, comments and documentation; the field has better ones.

Usage: python tools/words.py [FILE ...]   (default: all files of the project)
Prints each place with what to write instead, and ends with status 1 if there is one.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
KINDS = (".py", ".pyi", ".cu", ".cuh", ".md", ".html", ".sh", ".toml")
EXEMPT = ("tools/words.py", "tests/app/test_words.py", "benchmarks/results/")  # this list, its test, records
VERBS = "takes?|costs?|needs?|holds?|ha(?:s|ve)|g[ia]ves?|leaves?|makes?|says?|do(?:es)?"

INSTEAD = {
    r"\bput(?:s|ting)? off\b|(?<!\")\bput_off\b": "deferred",  # "put_off" is a key of MultilevelILU's report
    r"\bcrowded\b": "dropped_by_fill_limit; 'dropped because the row was full'",
    r"\bnobody\b": "say who: 'no other thread', 'no caller'",
    r"\bso (?:many|few)\b": "give the number, or 'that many'",
    r"\bbeside\b": "next to, together with, compared with, in addition to",
    r"\btold\b": "reported, stated, given",
    r"\bout of reach\b": "too large, too slow: say why",
    r"\bof the house\b|\bin the house\b": "of finelu, in finelu",
    r"\bdearer?\b": "expensive, more expensive",
    r"\bcomes? home\b": "returns",
    r"\bin silence\b": "silently",
    # coined words
    r"\bcrews?\b": "worker pool",
    r"\bmailbox(?:es)?\b": "shared control block",
    r"\bmeetings?\b": "pattern intersections",
    # old forms
    r"\bbut for\b": "except for, up to (rounding)",
    r"\bfor want of\b": "without, for lack of",
    r"\bas of\b": "as in, such as, at",
    r"\bha(?:s|ve) not(?: the\b|(?=[,;.]))": "does not have the",
    r"\b(?:is|are) no more\b(?! than)": "ends, no longer exists",
    r"(?<!there )\b(?-i:is|are|was|were) (?-i:none)\b": "there is no ..., is not a ...",
    r"\bin the place of\b": "instead of",
    r"\btakes? [\d.]+ (?:ms|s|us|ns) for \d": "'takes 1.9 ms instead of 3.2 ms'",
    # headless relatives as nouns, and "of" as a topic
    r"\bwhat there (?:is|are|was|were)\b": "say the noun",
    r"\bwhoever\b": "name the caller, the thread, the function",
    r"\bwhat (?:is|was|are|were) (?:there|left|kept|stored|known)\b": "say the noun: 'the stored entries', 'the rest'",
    rf"\bwhat (?:it|they) (?:{VERBS})\b": "say the noun: 'their time', 'its values'",
    r"(?:\"\"\"|# |// )(?-i:Of) ": "begin with the subject: 'The force of ...', 'Factors with ...'",
}
PATTERN = re.compile("|".join(f"(?P<w{k}>{pattern})" for k, pattern in enumerate(INSTEAD)), re.IGNORECASE)
SUGGESTIONS = list(INSTEAD.values())


def project_files() -> list[Path]:
    """The files of the project that hold words: what git tracks or would track."""
    listed = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files", "--cached", "--others", "--exclude-standard"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    return [ROOT / name for name in listed if name.endswith(KINDS) and not name.startswith(EXEMPT)]


def found(path: Path) -> Iterator[str]:
    """`file:line: "word": what to write instead`, for each such word in a file."""
    for number, line in enumerate(path.read_text().splitlines(), 1):
        for match in PATTERN.finditer(line):
            yield f'{path}:{number}: "{match.group()}": {SUGGESTIONS[int((match.lastgroup or "w0")[1:])]}'


def main(arguments: Sequence[str]) -> int:
    paths = [Path(name) for name in arguments] or project_files()
    lines = [line for path in paths if path.is_file() for line in found(path)]
    print("\n".join(lines) if lines else "words: all plain")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
