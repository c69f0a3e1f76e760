"""Types of options: what argparse hands on, or the reason why it does not."""

import argparse
from collections.abc import Callable, Sequence

MOST = 10**9


def count(text: str) -> int:
    """A whole number of 1 or more."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text}: must be a whole number, 1 or more")
    if (number := int(text[:20])) > MOST or len(text) > 20:
        raise argparse.ArgumentTypeError(f"{text}: must be at most {MOST}")
    return number


def whole(text: str) -> int:
    """A whole number of 0 or more."""
    return 0 if text == "0" else count(text)


def counts(text: str) -> list[int]:
    """Some of them, with commas."""
    return [count(part) for part in text.split(",")]


def some_of(known: Sequence[str]) -> Callable[[str], list[str]]:
    """A type of names with commas, all of them `known`."""

    def names(text: str) -> list[str]:
        if unknown := [name for name in text.split(",") if name not in known]:
            raise argparse.ArgumentTypeError(f"{','.join(unknown)}: choose from {', '.join(known)}")
        return text.split(",")

    return names
