"""Numbers quoted in prose, each with where it is on record: `8.36<!-- cell("resnet20", "median", "he2015_table6") -->`.

A mark stands right behind its number and is an expression of `deepnets.results.records.numbers_of`.
"""

import re
from pathlib import Path

from deepnets.results.records import numbers_of

MARKED = re.compile(r"(\S+?)<!-- (.+?) -->")


def quoted(text: str, records: Path) -> list[tuple[str, str]]:
    """What stands in the text and what the records say, for each marked number."""
    evaluate = numbers_of(records, "").from_string
    return [(shown, evaluate(f"{{{{ {mark} }}}}").render()) for shown, mark in MARKED.findall(text)]
