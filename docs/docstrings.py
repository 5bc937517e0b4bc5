"""For the pages: lines of a docstring that begin a parameter or follow a sentence's end stay lines; lists are lists."""

import re
from importlib import import_module
from inspect import Parameter, Signature, getdoc, signature

import griffe

PARAMETER = re.compile(r" *[\w, ./*()]{1,40} : ")


def legible(text: str) -> str:
    """Markdown that shows the lines of `text` that matter."""
    lines: list[str] = []
    listed = False
    for line in text.split("\n"):
        begins = line.startswith("- ")
        goes_on = bool(lines and lines[-1] and line)
        if goes_on and begins != listed and not line.startswith(" "):
            lines.append("")  # a list begins or ends
        elif goes_on and (PARAMETER.match(line) or lines[-1].endswith(".")):
            lines[-1] += "  "
        listed = begins or (listed and line.startswith(" "))
        lines.append(line)
    return "\n".join(lines)


class Lines(griffe.Extension):
    def on_attribute_instance(self, *, attr, **_) -> None:
        """cg = CG.solve is a function that is made as finelu is imported: it is shown as that."""
        if re.fullmatch(r"[A-Za-z]+\.solve", str(attr.value)):
            function = getattr(import_module(attr.module.path), attr.name)
            plain = [p.replace(annotation=Parameter.empty) for p in signature(function).parameters.values()]
            text = f"`{attr.name}{Signature(plain)}`\n\n{getdoc(function)}"
            attr.docstring = griffe.Docstring(text, parent=attr)
            attr.value = None

    def on_instance(self, *, obj, **_) -> None:
        if obj.docstring is not None:
            obj.docstring.value = legible(obj.docstring.value)
