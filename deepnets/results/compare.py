"""Compares a record with your own run: what differs, and whether seeds explain it. Also pairs rows of two sweeps."""

import math
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deepnets.config.identity import flat
from deepnets.errors import UserError, listed
from deepnets.results.cell import middle
from deepnets.results.columns import Column, axes_of_rows, choice_of, columns_of, frame_of
from deepnets.results.published import Printed, true_difference
from deepnets.results.read import Run, example, read_runs
from deepnets.results.statistics import CONFIDENCE, FEWEST_SEEDS, WORST_ERROR, compare_pairs
from deepnets.results.table import comparison_sheet, errors_of
from deepnets.runs.code import changed_files
from deepnets.runs.contents import Code
from deepnets.runs.folder import folders_in
from deepnets.runs.log import TIME_COLUMNS
from deepnets.system.printing import NOTHING, Sheet, percent, setting_text, short_commit, signed

# Facts in result.json, and keys in config.yaml, that may change a run's bits but are not its settings.
NOTED = ("precision", "processes", "step", "threads", "device", "processor")
FROZEN = ("launcher.stacked", "batchnorm_kernel", "memory", "deterministic")
MOST_LINES, MOST_NAMES, LONGEST = 6, 3, 60  # lines of a group, names in the sentence, characters of a value
MORE_THAN_ROUNDING = 0.01  # rounding changes the first loss by a smaller share
LATER = {"test_right": "the test images that were right", "weights_sha256": "the final weights"}

Lines = dict[str, tuple[str, str]]  # the record's value and mine, by name
Pairs = dict[str, tuple[list[Run], list[Run]]]  # the runs of a row of A and of one of B, by a name for both


@dataclass(frozen=True)
class Compared:
    """The differences between two runs, with both errors, and a sentence about them.

    `names` are the two folders; `warnings` are about files that cannot be read.
    """

    names: tuple[str, str]
    differences: Sheet
    sentence: str
    warnings: tuple[str, ...]


def compare_runs(first: Path, second: Path) -> Compared | None:
    """Compare a record with your own run; each folder is a run's folder, or holds several seeds of one row.

    Of several seeds we compare the one that the other side has, or else the run with the median error. Returns None if
    a folder has several rows, or both folders have several runs.

    Raises:
        UserError: a folder is missing or has no run, or one of the two runs has not ended or contradicts itself.
    """
    sides = [[folder.path for folder in folders_in([path])] for path in (first, second)]
    if min(map(len, sides)) > 1 or any(len({path.parent for path in side}) > 1 for side in sides):
        return None
    row = {file.parent.resolve() for file in sides[0][0].parent.glob("*/config.yaml") if file.is_file()}
    # Read together, because `read_runs` must see the original to find a copy under other settings or another seed.
    runs = {run.folder.path: run for run in read_runs([*sides[0], *sides[1], *sorted(row)])}
    record, mine = _one_each([runs[path] for path in sides[0]], [runs[path] for path in sides[1]])
    for run in (record, mine):
        if run.contradiction:
            raise UserError(f"{run.folder}: contradicts itself: {run.contradiction}")
        if run.error is None:
            state = f"{run.state.name}: {run.state.reason}" if run.state.reason else run.state.name
            raise UserError(f"{run.folder}: has no final error to compare ({state})")
    groups = _groups(record, mine)
    seeds = [run for path, run in runs.items() if path in row and run is not mine and _is_seed_of(record, run)]
    errors = [_finite(run) for run in seeds]
    warnings = tuple(f"cannot be read: {file}" for run in (record, mine) for file in run.broken)
    several = [f", one of {len(side)} seeds" if len(side) > 1 else "" for side in sides]
    names = (f"record: {record.folder}{several[0]}", f"mine:   {mine.folder}{several[1]}")
    return Compared(names, _sheet(record, mine, groups, errors), _sentence(record, mine, groups, errors), warnings)


def pairs_of(first: Sequence[Run], second: Sequence[Run]) -> tuple[Pairs, list[str]]:
    """Pair the rows of A and B, and list the rows without a partner.

    Rows of the same name are paired. Each protocol is a column. If both sides have several, columns of the same label
    are paired; if a side has only one, it is paired with every column of the other side. If no name is in both, and
    each side has one column, rows are paired that have the same choices where those of either side vary: two grids may
    differ in what each keeps constant, such as the optimiser.

    Raises:
        UserError: no row has a partner.
    """
    a_columns, b_columns = columns_of(frame_of(first)), columns_of(frame_of(second))
    a_is_one, b_is_one = len(a_columns) == 1, len(b_columns) == 1
    pairs: Pairs = {}
    for a in a_columns:
        for b in b_columns:
            if a_is_one or b_is_one or a.label == b.label:
                label = "" if a_is_one and b_is_one else f" ({a.label if b_is_one else b.label})"
                pairs |= {f"{row}{label}": (a.rows[row], b.rows[row]) for row in a.rows if row in b.rows}
    if not pairs and a_is_one and b_is_one:
        pairs = _equal_choices(a_columns[0].rows, b_columns[0].rows)
    if not pairs:
        names = [listed(dict.fromkeys(run.row for run in runs)) for runs in (first, second)]
        raise UserError(
            f"no row is in both: A has {names[0]}; B has {names[1]}; to compare one row of each, name their folders"
        )
    paired = {id(run) for both in pairs.values() for runs in both for run in runs}
    alone = {side: _alone(columns, paired) for side, columns in (("A", a_columns), ("B", b_columns))}
    return pairs, [f"only in {side}: {', '.join(rows)}" for side, rows in alone.items() if rows]


def _equal_choices(a: Mapping[str, list[Run]], b: Mapping[str, list[Run]]) -> Pairs:
    """Pair rows as `pairs_of` says of grids without a common name, and name each pair by its choices.

    A record does not note the options that its name leaves out. Beside one, only what is in names counts.
    """
    runs = [[same[0] for same in side.values()] for side in (a, b)]
    known = all(run.options for side in runs for run in side)
    axes = axes_of_rows([*runs[0], *runs[1]])
    choices = [[{axis: choice_of(run, axis, known) for axis in axes} for run in side] for side in runs]
    vary = [axis for axis in axes if any(len({str(each[axis]) for each in side}) > 1 for side in choices)]
    rows: list[dict[str, list[list[Run]]]] = [defaultdict(list), defaultdict(list)]
    for side, named, by_name in zip((a, b), choices, rows, strict=True):
        for same, each in zip(side.values(), named, strict=True):
            words = [f"{axis}={setting_text(each[axis])}" for axis in vary if each[axis] is not None]
            by_name[", ".join(words)].append(same)
    unique = [name for name, those in rows[0].items() if len(those) == len(rows[1].get(name, ())) == 1]
    both = {name: (rows[0][name][0], rows[1][name][0]) for name in unique}
    return {name or " | ".join(runs[0].row for runs in pair): pair for name, pair in both.items()}


def _alone(columns: Sequence[Column], paired: Collection[int]) -> list[str]:
    return [
        f"{row} ({column.label})" if len(columns) > 1 else row
        for column in columns
        for row, runs in column.rows.items()
        if id(runs[0]) not in paired
    ]


def settings_beside(pairs: Pairs) -> Sheet:
    """Show a line for each setting and fact that differs; rows with the same difference share it."""
    rows_by_difference: dict[tuple[str, str, str], list[str]] = defaultdict(list)
    for row, (a_runs, b_runs) in pairs.items():
        a, b = _facts(a_runs), _facts(b_runs)
        for key in {**a, **b}:
            if a.get(key, NOTHING) != b.get(key, NOTHING):
                rows_by_difference[key, a.get(key, NOTHING), b.get(key, NOTHING)].append(row)
    lines = [
        (key, one, other, "all" if len(rows) == len(pairs) else ", ".join(rows))
        for (key, one, other), rows in rows_by_difference.items()
    ]
    note = "" if lines else "No setting differs."
    return Sheet("Settings and environment", ("setting", "A", "B", "rows"), tuple(lines), note=note)


def _facts(runs: Sequence[Run]) -> dict[str, str]:
    """Return a row's settings, seeds, device and versions; an entry has several values if the runs differ."""
    each = []
    for run in runs:
        facts = {name: run.result.get(name) for name in ("device", "precision", "threads", "commit")}
        facts |= {"torch": run.result.get("versions", {}).get("torch"), "own code": run.code or None}
        noted = {f"trained: {name}": value for name, value in facts.items() if value is not None}
        each.append({**run.settings, "seed": run.seed, **noted})
    return texts_of(each)


def errors_beside(pairs: Pairs) -> Sheet:
    """Show the median error of each row in A and in B."""
    header = ("row", "n A", "median A", "n B", "median B", "A minus B", "state A", "state B")
    lines = []
    for row, both in pairs.items():
        errors = [[run.error for run in runs if run.error is not None] for runs in both]
        a, b = map(middle, errors)
        difference = signed(a - b) if a is not None and b is not None and math.isfinite(a - b) else NOTHING
        states = [", ".join(dict.fromkeys(run.state.name for run in runs)) for runs in both]
        lines.append((row, str(len(errors[0])), percent(a), str(len(errors[1])), percent(b), difference, *states))
    return Sheet("Final test errors in percent", header, tuple(lines), frozenset(header[1:6]))


def tests_beside(pairs: Pairs) -> Sheet:
    """Test for each row whether the mean errors of A and B differ."""
    tested = []
    for row, both in pairs.items():
        rows = [runs[0].row for runs in both]
        names = rows if row == " | ".join(rows) else [row, row]
        a, b = (errors_of(f"{name}, {side}", runs) for name, side, runs in zip(names, "AB", both, strict=True))
        tested.append((a, b))
    return comparison_sheet("Do A and B differ?", compare_pairs(tested))


def texts_of(settings: Sequence[dict[str, Any]]) -> dict[str, str]:
    """Return the settings of several runs as a user types them; a key has several values if the runs differ."""
    texts = [{key: setting_text(value) for key, value in each.items()} for each in settings]
    keys = dict.fromkeys(key for each in texts for key in each)
    return {key: " or ".join(dict.fromkeys(each.get(key, NOTHING) for each in texts)) for key in keys}


def first_difference(record: Run, mine: Run) -> str:
    """Say where the bits of two runs begin to differ, e.g. "loss 3"; empty if all that both runs noted is equal."""
    one, other = (run.result.get("beginning") for run in (record, mine))
    if one and other:
        for number, (a, b) in enumerate(zip(one["losses"], other["losses"], strict=False), 1):
            if a != b:
                part = 0.0 if number > 1 or a is None or b is None else abs(a - b) / max(abs(a), abs(b))
                more = f" (by {part:.0%}, as with other initial weights or images)" if part > MORE_THAN_ROUNDING else ""
                return f"loss {number}{more}"
        if len(one["losses"]) == len(other["losses"]) and one["weights"] != other["weights"]:
            return f"the weights after the first {len(one['losses'])} losses"
    for number, (epoch, again) in enumerate(zip(record.history, mine.history, strict=False), 1):
        # As text, because nan is unequal to itself.
        if any(repr(epoch[name]) != repr(again[name]) for name in {*epoch} & {*again} - {*TIME_COLUMNS}):
            return f"epoch {number}"
    if len(record.history) != len(mine.history):
        return f"epoch {min(len(record.history), len(mine.history)) + 1}"
    noted = [name for name in LATER if name in record.result and name in mine.result]
    differing = [LATER[name] for name in noted if record.result[name] != mine.result[name]]
    return [*differing, *["the final error"] * (record.error != mine.error), ""][0]


def _one_each(records: Sequence[Run], mine: Sequence[Run]) -> tuple[Run, Run]:
    """Choose one run of each side; at least one side has a single run."""
    one, several = (mine[0], records) if len(mine) == 1 else (records[0], mine)
    other = next((run for run in several if run.seed == one.seed), example(several))
    return (other, one) if several is records else (one, other)


def _is_seed_of(record: Run, run: Run) -> bool:
    """Say whether a run has ended and equals the record except for its seed; arithmetic and code must be equal too."""
    same = run.experiment == record.experiment and run.code == record.code
    return same and run.error is not None and run.result.get("precision") == record.result.get("precision")


def _finite(run: Run) -> float:
    """Return the error in percent; a run that diverged counts as `WORST_ERROR`."""
    assert run.error is not None
    return min(run.error, WORST_ERROR)


def _groups(record: Run, mine: Run) -> dict[str, Lines]:
    """Group the differences by subject; the subject that may change a result most comes first."""
    one, other = record.result, mine.result
    versions, my_versions = ({**each.get("versions", {}), "Python": each.get("python")} for each in (one, other))
    executed, my_executed = (
        {name: run.result.get(name) for name in NOTED} | {name: flat(run.config).get(name) for name in FROZEN}
        for run in (record, mine)
    )
    commits = [{"deepnets": short_commit(each["commit"]) if each.get("commit") else None} for each in (one, other)]
    settings = {} if record.experiment == mine.experiment else _differing(record.settings, mine.settings)
    return {
        "settings": _differing({"seed": record.seed}, {"seed": mine.seed}) | settings,
        "data": _both_noted(one.get("data", {}), other.get("data", {})),
        "own code": _code(record, mine),
        "execution": _both_noted(executed, my_executed),
        "versions": _both_noted(versions, my_versions) | _both_noted(*commits),
        "beginning": _beginning(one.get("beginning"), other.get("beginning")),
    }


def _differing(one: Mapping[str, Any], other: Mapping[str, Any]) -> Lines:
    """Return the entries that differ, as a user types them; a dash stands for an entry that one side lacks."""
    texts = [{key: setting_text(value) for key, value in each.items()} for each in (one, other)]
    pairs = {key: (texts[0].get(key, NOTHING), texts[1].get(key, NOTHING)) for key in {**one, **other}}
    return {key: (a, b) for key, (a, b) in pairs.items() if a != b}


def _both_noted(one: Mapping[str, Any], other: Mapping[str, Any]) -> Lines:
    """Return the entries that both results have and that differ; older versions noted fewer entries."""
    noted = [key for key in one if one[key] is not None and other.get(key) is not None]
    return _differing({key: one[key] for key in noted}, {key: other[key] for key in noted})


def _code(record: Run, mine: Run) -> Lines:
    """Name the files of the user's code that differ, or all its versions if the code changed while a run trained."""
    if record.code == mine.code:
        return {}
    codes = [(run.result.get("code") or {}).values() for run in (record, mine)]
    before, now = ([Code.model_validate(each) for each in versions] for versions in codes)
    if len(before) == len(now) == 1:
        files = changed_files(record.folder, before[0], now[0])
        return {", ".join(files): (before[0].hash, now[0].hash)} if files else {}
    return _differing({"versions": record.code or NOTHING}, {"versions": mine.code or NOTHING})


def _beginning(one: dict[str, Any] | None, other: dict[str, Any] | None) -> Lines:
    """Show the first loss that differs; if all are equal, show the weights' checksums after them if these differ."""
    if not one or not other:
        return {}
    losses = _differing(*({f"loss {n}": loss for n, loss in enumerate(each["losses"], 1)} for each in (one, other)))
    weights = _differing({"weights then": one["weights"]}, {"weights then": other["weights"]})
    return dict([*losses.items(), *weights.items()][:1])


def _sheet(record: Run, mine: Run, groups: dict[str, Lines], errors: Sequence[float]) -> Sheet:
    """Show what differs, then both errors; the note says what is equal, and where one more seed would lie."""
    lines: list[tuple[str, ...]] = []
    notes: list[str] = []
    for group, differing in groups.items():
        for number, (key, values) in enumerate(list(differing.items())[:MOST_LINES]):
            shown = [value if len(value) <= LONGEST else f"{value[:LONGEST]}..." for value in values]
            lines.append(("" if number else group, key, *shown, ""))
        more = len(differing) - MOST_LINES
        notes += [f"{more} more {group} differ." for _ in range(more > 0)]
    by = signed(_finite(mine) - _finite(record))
    lines.append(("result", "test error in percent", percent(record.error), percent(mine.error), by))
    if interval := _interval(errors):
        mean, low, high = sum(interval) / 2, max(interval[0], 0), min(interval[1], WORST_ERROR)
        chance = f"one more run lies in {low:.2f} to {high:.2f} with {CONFIDENCE:.0%} probability"
        notes.append(f"{len(errors)} seeds of the record's row: mean {mean:.2f}; {chance}.")
    lacking = [name for name in ("data", "beginning") if not {name} <= record.result.keys() & mine.result.keys()]
    unneeded = ["own code"] * (not record.code and not mine.code)
    if equal := [group for group in groups if not groups[group] and group not in (*lacking, *unneeded)]:
        notes.append(f"Equal, as far as both noted it: {', '.join(equal)}.")
    if lacking:
        notes.append(f"Not noted by one or both: {', '.join(lacking)}.")
    return Sheet("Differences", ("about", "key", "record", "mine", "difference"), tuple(lines), note=" ".join(notes))


def _sentence(record: Run, mine: Run, groups: dict[str, Lines], errors: Sequence[float]) -> str:
    """Say whether my run is the same result, another experiment, or differs in bits, and whether seeds explain this."""
    place, settings = first_difference(record, mine), [key for key in groups["settings"] if key != "seed"]
    causes = [*groups["data"], *groups["own code"], *groups["execution"], *({"torch"} & {*groups["versions"]})]
    if not place and record.history and record.has_whole_history and mine.has_whole_history:
        though = f", though these differ: {_named(settings)}" if settings else ""
        return f"Mine is the same result bit for bit{though}."
    if settings:
        lead = f"Mine is another experiment, by {_named(settings)}: the"
    elif "seed" in groups["settings"]:
        lead = "The"
    elif place:
        has_processors = all("processor" in run.result for run in (record, mine))
        generation = "" if has_processors else "another generation of the processor with this name, or "
        usual = _named(causes) or f"{generation}another version of this code"
        lead = f"Settings and seed are equal, and bits differ from {place} on (usual cause: {usual}): the"
    else:
        lead = "Settings, seed and all that both noted are equal: the"
    apart = f"{lead} errors differ by {abs(_finite(mine) - _finite(record)):.2f} percent points"
    if (interval := _interval(errors)) is None:
        few = "fewer than three seeds of this row" if len(errors) < FEWEST_SEEDS else "seeds of equal error in this row"
        return f"{apart}; with {few} nothing can be said."
    low, high = interval
    within = f"within ±{(high - low) / 2:.2f} of its mean with {CONFIDENCE:.0%} probability"
    here = f"mine is {abs(_finite(mine) - (low + high) / 2):.2f} from it"
    if low <= _finite(mine) <= high:
        verdict = "seeds alone may differ so much" if settings or groups["own code"] else "seeds explain it"
    else:
        suspects = settings + causes + [*({"deepnets"} & {*groups["versions"]})]
        first = f"look first at: {_named(suspects)}" if suspects else "nothing else that both noted differs"
        verdict = f"seeds do not explain it; {first}"
    return f"{apart}; one more run of this row lies {within}, and {here}: {verdict}."


def _interval(errors: Sequence[float]) -> tuple[float, float] | None:
    """Return the interval of one more run's error in percent; None for too few seeds, or seeds without a spread."""
    interval = true_difference(errors, Printed(0.0))
    return interval if interval and interval[0] < interval[1] else None


def _named(names: Sequence[str]) -> str:
    names = list(dict.fromkeys(names))
    more = len(names) - MOST_NAMES
    return ", ".join(names[:MOST_NAMES]) + f" and {more} more" * (more > 0)
