"""Numbers quoted in prose, with a mark: `8.36<!-- cell("resnet20", "median", "he2015_table6") -->`.

A mark stands right behind its number; it is an expression of `deepnets.results.records.numbers_of`.
"""

import re
from pathlib import Path

from deepnets.results.records import numbers_of

MARKED = re.compile(r"(\S+?)<!-- (.+?) -->")


def quoted(text: str, records: Path) -> list[tuple[str, str]]:
    """Return, for each marked number, the number in the text and the number from the records."""
    evaluate = numbers_of(records, "").from_string
    return [(shown, evaluate(f"{{{{ {mark} }}}}").render()) for shown, mark in MARKED.findall(text)]
