"""The seeds that the claims of a grid lack for their next look."""

from collections.abc import Sequence
from pathlib import Path

from deepnets.config.claim import claims_of
from deepnets.config.schema import Row
from deepnets.config.sweep import SWEEPS
from deepnets.results.claims import OTHER_DEPTH, are_of_other_depth
from deepnets.results.finding import LOOKS
from deepnets.results.read import read_runs
from deepnets.results.sheet import print_sheet
from deepnets.results.sheets import claim_sheets
from deepnets.results.table import tables_of
from deepnets.runs.folder import run_folders
from deepnets.runs.naming import folders_of
from deepnets.system.printing import console_for

SHOWN = ("claim", "error", "outcome", "n", "next")


def show_seeds(rows: Sequence[Row]) -> None:
    """Print, for a sweep with claims, what each has shown in the grid's folder, and the seeds its next look needs."""
    if not (claims := claims_of(rows[0].config.sweep)):
        return
    grids = dict.fromkeys(folder.path.parents[1] for folder in folders_of(list(rows)))
    begun = [grid for grid in grids if grid.is_dir() and run_folders(grid)]
    console = console_for()
    places = [place.removeprefix("file://") for place in rows[0].search.places if place.startswith("file://")]
    own = Path(places[0]) / "sweep" if places else None
    tables = tables_of(read_runs(begun), own=own) if begun else []
    sheets = [sheet for table in tables for sheet in claim_sheets(table)]
    console.print()
    if not sheets:
        file = f"{rows[0].choices['sweep']}.yaml"
        folder = own if own and (own / file).is_file() else SWEEPS
        is_shallow = are_of_other_depth((row.config.model for row in rows), folder / file)
        words = (
            f"not tested: {OTHER_DEPTH}"
            if is_shallow
            else f"each is looked at with {', '.join(map(str, LOOKS))} seeds of its rows"
        )
        console.print(f"claims     {len(claims)}, {words}")
    for sheet in sheets:
        print_sheet(console, sheet.of(SHOWN) if sheet.lines else sheet)
