"""Variability of trainings: against runs whose differences are known."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from deepnets.analysis.commands.variability import variability_of
from deepnets.errors import UserError
from deepnets.results.export import load_results
from deepnets.runs.contents import Code, Origin
from deepnets.runs.execute import run
from deepnets.runs.folder import RunFolder
from tests.analyzing import analyze
from tests.command import row


def test_errors_shares_and_disagreement_by_hand() -> None:
    wrong = np.array([[1, 1, 0, 0], [1, 0, 0, 0], [1, 0, 1, 0]], dtype=bool)
    found = variability_of(wrong)
    assert found.errors.tolist() == [50, 25, 50]
    np.testing.assert_allclose(found.share, [1, 1 / 3, 1 / 3, 0])
    assert found.disagreement.tolist() == [[0, 25, 50], [25, 0, 25], [50, 25, 0]]
    assert found.mean_disagreement == pytest.approx(100 / 3)


def test_images_that_fall_each_by_its_own_chance_deviate_as_much_as_that_predicts() -> None:
    rng = np.random.default_rng(0)
    chance = rng.beta(0.3, 1.5, size=2000)
    found = variability_of(rng.random((300, 2000)) < chance)
    assert found.independent_deviation == pytest.approx(100 * np.sqrt((chance * (1 - chance)).sum()) / 2000, rel=0.02)
    assert found.deviation == pytest.approx(found.independent_deviation, rel=0.12)
    together = variability_of(np.repeat(rng.random((300, 20)) < 0.2, 100, axis=1))
    assert together.deviation > 5 * together.independent_deviation


def test_the_command_compares_runs_that_differ_in_their_seed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for seed in (0, 1):
        folder = RunFolder(tmp_path / "net" / f"seed{seed}")
        small = ("model.depth=8", "model.widths=[4,4,4]", "epochs=1", "device=cpu", f"seed={seed}")
        folder.freeze(row(tmp_path, *small).config, Origin())
        run(folder)
    assert analyze("variability", tmp_path / "net", "--output", tmp_path / "results") == 0
    with (tmp_path / "results" / "variability_runs.csv").open() as file:
        errors = [float(line["error"]) for line in csv.DictReader(file)]
    stored = [RunFolder(tmp_path / "net" / f"seed{seed}").result.test_error for seed in (0, 1)]
    assert errors == pytest.approx(stored, rel=1e-5)
    (finding,) = json.loads((tmp_path / "results" / "variability.json").read_text())["findings"]
    assert finding["always_right"] + finding["never_right"] + finding["disagreement"] / 100 == pytest.approx(1)
    assert "net: 2 runs, errors" in capsys.readouterr().out
    assert {file.suffix for file in (tmp_path / "results").glob("variability_runs.*")} == {".csv", ".png", ".svg"}
    with pytest.raises(UserError, match="1 of these runs store which images"):
        analyze("variability", tmp_path / "net" / "seed0", "--output", tmp_path / "one")
    result = folder.result
    result.model_copy(update={"code": {"0": Code(hash="0" * 16, modules={"mine": "1"})}}).write(folder.path)
    with pytest.raises(UserError, match=r"several nets \(different versions of your own code"):
        analyze("variability", tmp_path / "net")
    with pytest.warns(UserWarning, match="net: different versions of your own code trained it"):
        results = load_results(tmp_path / "net")
    assert set(results["code"]) == {"", "0" * 16}
    assert set(results["column"]) == {"full"}
    other = RunFolder(tmp_path / "net" / "seed1 by another rate")
    other.freeze(row(tmp_path, *small, "optimizer.lr=0.2").config, Origin())
    run(other)
    result.write(folder.path)
    with pytest.raises(UserError, match=r"several nets \(different settings"):
        analyze("variability", tmp_path / "net")
