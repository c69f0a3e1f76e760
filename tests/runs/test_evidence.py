"""What a result can be checked by: the first losses, a checksum of weights, and the test images it got right."""

from pathlib import Path

import numpy as np
import pytest
import torch

from deepnets.config.claim import claims_of
from deepnets.config.compose import compose
from deepnets.config.schema import Search
from deepnets.config.sweep_file import sweep_of
from deepnets.launch.grid import _claims_elsewhere, launch
from deepnets.results.verify import verify
from deepnets.run import load_run
from deepnets.runs.contents import packed, unpacked
from deepnets.runs.execute import run
from deepnets.runs.folder import RunFolder, run_folders
from deepnets.training.assembly import dataset_of, splits_of
from deepnets.training.fit import FIRST
from tests.command import row, train

NET = ["model=highway_fc10", "model.depth=4", "model.width=10", "dataset=digits", "epochs=2", "device=cpu", "threads=1"]
TABLE = ["sweep=digits_shortcuts", "model.depth=8", "epochs=1", "device=cpu", "threads=1"]


def finished(root: Path, *overrides: str) -> RunFolder:
    folder = RunFolder(root)
    folder.freeze(row(root, *NET, "precision=fp32", *overrides).config, {})
    run(folder)
    return folder


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return finished(tmp_path_factory.mktemp("run"))


def test_the_images_that_a_run_got_right_are_those_of_its_network(trained: RunFolder) -> None:
    model, config = load_run(trained.path)
    splits = splits_of(dataset_of(config), torch.device("cpu"))
    with torch.inference_mode():
        answers = model(splits.normalization(splits.test.images).permute(0, 3, 1, 2)).argmax(1)
    right = unpacked(trained.result["test_right"], trained.result["data"]["test"])
    assert np.array_equal(right, (answers == splits.test.labels).numpy())
    assert 100 * (1 - right.mean()) == pytest.approx(trained.result["test_error"], abs=1e-12)


@pytest.mark.slow
def test_several_processes_put_their_images_together_in_order(tmp_path: Path) -> None:
    done = train(*NET, "precision=fp32", "devices=3", "evaluation_batch_size=50", f"output_root={tmp_path}")
    assert done.returncode == 0, done.stderr
    (folder,) = run_folders(tmp_path)
    test_the_images_that_a_run_got_right_are_those_of_its_network(folder)
    assert verify([folder.path], "data") == 0


def test_a_run_again_begins_alike_and_one_of_another_seed_does_not(trained: RunFolder, tmp_path: Path) -> None:
    again, other = finished(tmp_path / "again").result, finished(tmp_path / "other", "seed=1").result
    beginning = trained.result["beginning"]
    assert len(beginning["losses"]) == FIRST
    assert again["beginning"] == beginning
    assert other["beginning"]["weights"] != beginning["weights"]


def test_a_budget_of_fewer_iterations_is_noted_whole(tmp_path: Path) -> None:
    assert len(finished(tmp_path, "epochs=null", "iterations=3").result["beginning"]["losses"]) == 3


def test_bits_survive_packing() -> None:
    right = torch.rand(1003, generator=torch.Generator().manual_seed(0)) < 0.5
    assert np.array_equal(unpacked(packed(right.numpy()), 1003), right.numpy())
    with pytest.raises(ValueError, match="126 bytes are not a bit for each of 2000 images"):
        unpacked(packed(right.numpy()), 2000)


def test_a_run_of_a_table_notes_under_which_claims_it_was_set_up(tmp_path: Path) -> None:
    options, root = tmp_path / "conf", tmp_path / "outputs"
    (options / "sweep").mkdir(parents=True)
    (options / "sweep" / "elsewhere.yaml").write_text(
        "sweep: {claims: [{claim: nothing is lower than digits_shortcuts/none, place: p}, "
        "{claim: nothing is lower than digits/none, place: p}]}"
    )
    claim = 'sweep.claims=[{claim: "identity is lower than none", place: Table 1}]'
    rows = [compose([*TABLE, claim, f"output_root={root}"], Search((f"file://{options}",)))]
    assert launch(rows) == 0
    (folder,) = run_folders(root)
    own = claims_of(rows[0].config.sweep)
    elsewhere, _ = claims_of(sweep_of(options / "sweep" / "elsewhere.yaml"))
    assert folder.result["claims"] == [own[0].hash, elsewhere.hash]
    assert folder.config.sweep.claims == []


def test_rows_of_a_figure_know_the_claims_of_a_table_about_them(tmp_path: Path) -> None:
    known = _claims_elsewhere(row(tmp_path, "sweep=he2015_fig6", "model=plain56"))
    assert [claim.second for claim in known].count("he2015_fig6/plain56") == 2
    assert {claim.second.partition("/")[0] for claim in known} == {"he2015_fig6"}
    assert _claims_elsewhere(row(tmp_path, "model=resnet20")) == []
