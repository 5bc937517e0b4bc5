"""For the pages: blocks of ```math, which GitHub shows, too, become MathML, which browsers show without a script."""

import re

from latex2mathml.converter import convert

BLOCK = re.compile(r"^```math\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def mathml(formula: str) -> str:
    """The MathML of a formula in TeX. Raises ValueError for a command or an environment without one."""
    found = convert(" ".join(formula.split()), display="block")
    if "\\" in found or "<mi>&</mi>" in found:
        raise ValueError(f"no MathML is known for a part of {formula!r}")
    return found


def on_page_markdown(markdown: str, **_: object) -> str:
    """Called by MkDocs for each page."""
    return BLOCK.sub(lambda block: f'<div class="formula">{mathml(block[1])}</div>', markdown)
