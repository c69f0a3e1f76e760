"""What a result can be checked by: the first losses, a checksum of weights, and the test images it got right."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from deepnets.config.claim import claims_on_file
from deepnets.config.compose import compose
from deepnets.config.project import CONF
from deepnets.config.schema import Search
from deepnets.launch import reuse
from deepnets.launch.grid import launch
from deepnets.results.verify import verify
from deepnets.run import load_run
from deepnets.runs.contents import Origin, packed, unpacked
from deepnets.runs.execute import run
from deepnets.runs.folder import RunFolder, run_folders
from deepnets.runs.naming import folder_of
from deepnets.training.assembly import dataset_of, splits_of
from deepnets.training.fit import FIRST
from tests.command import row, train

NET = ["model=highway_fc10", "model.depth=4", "model.width=10", "dataset=digits", "epochs=2", "device=cpu", "threads=1"]
TABLE = ["sweep=digits_shortcuts", "model.depth=8", "epochs=1", "device=cpu", "threads=1"]


def finished(root: Path, *overrides: str) -> RunFolder:
    folder = RunFolder(root)
    folder.freeze(row(root, *NET, "precision=fp32", *overrides).config, Origin())
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
    right = unpacked(trained.result.test_right, trained.result.data["test"])
    assert np.array_equal(right, (answers == splits.test.labels).numpy())
    assert 100 * (1 - right.mean()) == pytest.approx(trained.result.test_error, abs=1e-12)


@pytest.mark.slow
def test_several_processes_put_their_images_together_in_order(tmp_path: Path) -> None:
    done = train(*NET, "precision=fp32", "devices=3", "evaluation_batch_size=50", f"output_root={tmp_path}")
    assert done.returncode == 0, done.stderr
    (folder,) = run_folders(tmp_path)
    test_the_images_that_a_run_got_right_are_those_of_its_network(folder)
    assert verify([folder.path], "data") == 0


def test_a_run_again_begins_alike_and_one_of_another_seed_does_not(trained: RunFolder, tmp_path: Path) -> None:
    again, other = finished(tmp_path / "again").result, finished(tmp_path / "other", "seed=1").result
    beginning = trained.result.beginning
    assert len(beginning.losses) == FIRST
    assert again.beginning == beginning
    assert other.beginning.weights != beginning.weights


def test_a_budget_of_fewer_iterations_is_noted_whole(tmp_path: Path) -> None:
    assert len(finished(tmp_path, "epochs=null", "iterations=3").result.beginning.losses) == 3


def test_bits_survive_packing() -> None:
    right = torch.rand(1003, generator=torch.Generator().manual_seed(0)) < 0.5
    assert np.array_equal(unpacked(packed(right.numpy()), 1003), right.numpy())
    with pytest.raises(ValueError, match="126 bytes are not a bit for each of 2000 images"):
        unpacked(packed(right.numpy()), 2000)


def test_a_run_notes_the_claims_of_all_sweep_files(tmp_path: Path) -> None:
    options, root = tmp_path / "conf", tmp_path / "outputs"
    (options / "sweep").mkdir(parents=True)
    (options / "sweep" / "mine.yaml").write_text(
        "sweep: {claims: [{claim: nothing is lower than digits_shortcuts/none, place: p},"
        "{sentence: it grows, rows: [none], quantity: nats, margin: 1, place: p}]}"
    )
    rows = [compose([*TABLE, f"output_root={root}"], Search((f"file://{options}",)))]
    assert launch(rows) == 0
    (folder,) = run_folders(root)
    mine, theirs = claims_on_file(options / "sweep"), claims_on_file(CONF / "sweep")
    assert folder.result.claims == [*theirs, *mine]
    assert [claim.partition("/")[0] for claim in mine] == ["mine", "mine"]
    assert len(theirs) > 100
    assert folder.config.sweep.claims == []
    assert launch([compose([*TABLE, f"output_root={tmp_path / 'pilot'}", "sweep.claims=[]"])]) == 0
    (pilot,) = run_folders(tmp_path / "pilot")
    assert pilot.result.claims == []
    assert str(pilot.path.relative_to(tmp_path / "pilot")) == str(folder.path.relative_to(root))


def test_a_repeated_seed_knows_only_the_claims_that_it_knew_the_first_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It brings bits that were seen before: among the records, in the folder to overwrite, or in another folder."""
    monkeypatch.setattr(reuse, "home", lambda: tmp_path)

    def launched(root: Path, *overrides: str) -> RunFolder:
        rows = [row(root, *NET, "precision=fp32", "epochs=1", *overrides)]
        assert launch(rows) == 0
        return folder_of(rows[0])

    first = launched(tmp_path / "outputs" / "records")
    assert len(first.result.claims) > 100
    kept = first.result.claims[:3]
    first.result.model_copy(update={"claims": [*kept[:2], kept[2].rpartition("/")[2]]}).write(first.path)
    assert launched(tmp_path / "again").result.claims == kept
    assert len(launched(tmp_path / "again", "seed=7").result.claims) > 100
    alone = launched(tmp_path / "alone", "seed=8")
    alone.result.model_copy(update={"claims": kept[1:]}).write(alone.path)
    assert launched(tmp_path / "alone", "seed=8", "overwrite=true").result.claims == kept[1:]
    assert launched(tmp_path / "alone", "seed=8", "name=beside").result.claims == kept[1:]
    assert len(launched(tmp_path / "outputs", "seed=9").result.claims) > 100
    here = launched(tmp_path / "outputs", "seed=9", "name=here")
    here.result.model_copy(update={"claims": kept[:1]}).write(here.path)
    assert launched(tmp_path / "elsewhere", "seed=9").result.claims == kept[:1]
    (here.path / "result.json").unlink()  # as if it had been stopped in its last epoch
    Origin(claims=kept[1:2]).write(here.path)
    stopped = launched(tmp_path / "outputs", "seed=9", "name=third")
    assert stopped.result.claims == kept[1:2]
    Origin(claims=[]).write(stopped.path)  # as if it had overwritten another
    for file in ("result.json", "checkpoint.pt", "checkpoint.previous.pt"):
        (stopped.path / file).unlink(missing_ok=True)
    shutil.rmtree(here.path)
    assert launched(tmp_path / "outputs", "seed=9", "name=third", "overwrite=true").result.claims == []
