"""Options typed beside a sweep, a protocol or a scale that sets some of their values."""

import json
import re
from collections.abc import Sequence
from typing import Any

from omegaconf import DictConfig

from deepnets.config.compose import ABSENT, Composed, composed, key_of, selected, value_at
from deepnets.config.identity import flat, is_execution
from deepnets.config.schema import Row
from deepnets.errors import UserError

NODES = ("model", "dataset", "optimizer", "schedule")
WIDTHS = ([16, 32, 64], [64, 128, 256, 512])  # those of which scale=deep has a quarter
PAGES = ("sweep", "protocol")  # the groups whose files set values of other groups' options


def check_options(row: Row) -> None:
    """Refuse an option that would be trained with a value of another one, set by the row's sweep or protocol.

    `model=resnet56` in a sweep that sets `model.depth` to 110 would be a net of 110 layers by the name of another. Free
    are the options that the sweep has on its axes, values in which an option is like the one it replaces, and options
    beside which every such value is typed.

    Raises:
        UserError: names the values, ready to paste.
    """
    pages = [f"{group}={row.choices[group]}" for group in PAGES if row.choices.get(group)]
    if not pages:
        return
    scale = f"scale={row.choices['scale']}"
    page = composed(tuple(word for word in row.overrides if key_of(word) in {*PAGES, "scale"}), row.search)
    axes, own = _options_on_axes(page), page.choices
    typed = {word.partition("=")[0].lstrip("+~") for word in row.overrides}
    for group in sorted(typed & own.keys() - {*PAGES, "scale"}):
        option = row.choices[group]
        if is_execution(group) or option in (own[group], *axes.get(group, [])):
            continue
        replaced, chosen = _words({**row.choices, **own}), _words(row.choices)
        alternatives = (replaced, chosen, (*chosen, *pages))
        alike, alone, here = (composed((*words, scale), row.search).config for words in alternatives)
        others = tuple(f"{key.replace('/', '.')}." for key in typed - {group} if not group.startswith(f"{key}/"))
        overruled = {
            key: (value_at(row.config, key), selected(alone, key, ABSENT))
            for key in _differing(group.replace("/", "."), alike, alone, here)
            if not f"{key}.".startswith(others)
        }
        if overruled := {key: values for key, values in overruled.items() if values[0] != values[1]}:
            raise UserError(_message(f"{group}={option}", " and ".join(pages), overruled))


def check_widths(row: Row) -> None:
    """Refuse scale=deep for a model of other widths than those of which it has a quarter, unless widths are typed.

    Raises:
        UserError: names the model's widths.
    """
    typed = any(word.lstrip("+").startswith("model.widths=") for word in row.overrides)
    if row.config.scale.name != "deep" or typed:
        return
    model = row.choices["model"]
    widths = selected(composed((f"model={model}",), row.search).config, "model.widths")
    if widths not in WIDTHS:
        raise UserError(
            f"scale=deep trains a quarter of the widths {' or '.join(map(str, WIDTHS))}; model={model} has "
            f"{widths or 'none'}: choose another model or scale, or add model.widths=[...]"
        )


def _options_on_axes(page: Composed) -> dict[str, list[str]]:
    """By axis of the sweep and of each entry of its union, the values."""
    found: dict[str, list[str]] = {}
    for axes in (page.hydra.sweeper.params or {}, *(page.config.sweep.union if page.config.sweep else ())):
        for axis, values in axes.items():
            words = re.split(r"[,\s]+", values) if isinstance(values, str) else values
            found.setdefault(axis, []).extend(words if isinstance(words, Sequence) else [words])
    return found


def _words(choices: dict[str, str]) -> list[str]:
    return sorted(f"{group}={option}" for group, option in choices.items() if group.split("/")[0] in NODES)


def _differing(node: str, *configs: DictConfig) -> list[str]:
    """The keys below `node` in which the second configuration differs from the first and the third from the second."""
    before, usual, after = (flat(selected(config, node, resolve=False), node) for config in configs)
    return [key for key in after if after[key] != usual.get(key, ABSENT) != before.get(key, ABSENT)]


def _message(option: str, pages: str, overruled: dict[str, tuple[Any, Any]]) -> str:
    found = [
        f"{key} ({'' if own is ABSENT else f'{json.dumps(own)} of the option, '}{json.dumps(value)} here)"
        for key, (value, own) in overruled.items()
    ]
    remedy = [
        f"~{key}" if own is ABSENT else f"{key}={json.dumps(own, separators=(',', ':'))}"
        for key, (_, own) in overruled.items()
    ]
    remedies = f"Add {' '.join(remedy)}, or other values, or leave {option} out"
    return f"{option}: fixed by {pages}: {', '.join(found)}. {remedies}"
