"""scripts/analyze.py on runs and on fresh networks: what it writes where, what it tells, and what it refuses."""

import csv
import importlib
import json
import re
import shutil
from argparse import Namespace
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from deepnets.analysis import lesion
from deepnets.analysis.commands import lesion as command
from deepnets.analysis.commands.output import Output
from deepnets.config.claim import claims_on_file, registered_on_file
from deepnets.config.quantity import Analysed
from deepnets.config.sweep import SWEEPS
from deepnets.errors import UserError
from deepnets.monitor.style import mark_stages, new_figure
from deepnets.results.registered import analysed_number, noted_by
from deepnets.runs.contents import Origin
from deepnets.runs.execute import run
from deepnets.runs.folder import RunFolder
from tests.command import ROOT, call, row

SMALL = ("model.depth=14", "model.widths=[4,4,4]", "epochs=2", "precision=fp32", "device=cpu")
OVERFLOWS = ("paths", "model.depth=8", "model/shortcut=scaled_0.5_1", "model.shortcut.shortcut_scale=1e30")
GATED = ("gates", "highway")  # the analyses of nets with gates
Analyze = Callable[..., int]


@pytest.fixture(scope="module")
def analyze() -> Iterator[Analyze]:
    """analyze("lesion", folder, "--draws", 2) within this process, which has torch and the digits at hand."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "scripts"))
        main = importlib.import_module("analyze").main
        yield lambda *words: main([str(word) for word in words])


def trained(path: Path, *overrides: str) -> RunFolder:
    folder = RunFolder(path / "seed0")
    folder.freeze(row(path, *SMALL, *overrides).config, Origin())
    run(folder)
    return folder


@pytest.fixture(scope="module")
def residual(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return trained(tmp_path_factory.mktemp("residual"), "model/ordering=full_preactivation")


@pytest.fixture(scope="module")
def highway(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return trained(tmp_path_factory.mktemp("highway"), "model/shortcut=highway_b2")


def rows(path: Path) -> list[dict[str, str]]:
    with path.open() as file:
        return list(csv.DictReader(file))


def figures(folder: Path) -> set[str]:
    """The figures of a results folder, each checked: a PNG that is not blank, and an SVG of its own that parses."""
    names = {path.stem for path in folder.glob("*.png")}
    for name in names:
        assert len(np.unique(np.asarray(Image.open(folder / f"{name}.png").convert("L")))) > 20
        text = (folder / f"{name}.svg").read_text()
        assert ElementTree.fromstring(text).tag.endswith("svg")
        assert 'href="http' not in text
    return names


def pictures(run_folder: Path) -> set[str]:
    """The names of TensorBoard's images of a run."""
    return set(EventAccumulator(str(run_folder), size_guidance={"images": 0}).Reload().Tags()["images"])


def test_lesions_of_a_run_lie_in_its_folder_and_begin_with_its_error(
    analyze: Analyze, residual: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    assert analyze("lesion", residual.path, "--draws", 2, "--most", 3) == 0
    results = residual.path / "analysis"
    single = rows(results / "lesion_single.csv")
    assert [int(line["unit"]) for line in single] == [0, 1, 2, 3, 4, 5, 6]
    assert [int(line["stage"]) for line in single] == [0, 1, 1, 2, 2, 3, 3]
    whole = residual.result.test_error
    assert float(single[0]["error"]) == pytest.approx(whole, abs=1e-3)
    random = rows(results / "lesion_random.csv")
    assert [int(line["deleted"]) for line in random] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert float(random[0]["error"]) == pytest.approx(whole, abs=1e-3)
    assert float(rows(results / "lesion_order.csv")[0]["kendall_tau"]) == 1
    counted = rows(results / "lesion_paths.csv")
    assert [line["surviving_paths"] for line in counted] == ["64", "64", "32", "32", "16", "16", "8", "8"]
    assert [line["error"] for line in counted] == [line["error"] for line in random]
    finding = json.loads((results / "lesion.json").read_text())["findings"][2]
    assert finding["rank_deleted"] == pytest.approx(-finding["rank_surviving"])
    assert figures(results) >= {"lesion_single", "lesion_random", "lesion_order"}
    assert pictures(residual.path) >= {"analysis/lesion_single", "analysis/lesion_random", "analysis/lesion_order"}
    told = capsys.readouterr().out.splitlines()
    assert f"the whole net has {whole:.2f}% test error; without one of 6 units it has" in told[1]
    assert told[-1].startswith("results")


def test_a_lesion_that_was_killed_resumes_with_the_batches_that_are_left(
    analyze: Analyze, residual: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["lesion", residual.path, "--only", "single", "--output"]
    analyze(*words, tmp_path / "whole")
    monkeypatch.setattr(command, "CACHED_VALUES", 2**14)  # several batches
    calls, sums_of = [], lesion.sums_of

    def killed(*given: Any) -> np.ndarray:
        calls.append(given)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return sums_of(*given)

    monkeypatch.setattr(lesion, "sums_of", killed)
    with pytest.raises(KeyboardInterrupt):
        analyze(*words, tmp_path / "killed")
    analyze(*words, tmp_path / "killed")
    batches = len(calls) - 1
    assert batches > 3
    analyze(*words, tmp_path / "again")
    assert len(calls) == 2 * batches + 1
    whole, killed_once = (rows(tmp_path / name / "lesion_single.csv") for name in ("whole", "killed"))
    assert [line["error"] for line in whole] == [line["error"] for line in killed_once]
    assert killed_once == rows(tmp_path / "again" / "lesion_single.csv")


def test_lesions_are_measured_in_the_precision_of_the_run(analyze: Analyze, tmp_path: Path) -> None:
    folder = trained(tmp_path, "model.depth=8", "epochs=1", "precision=bf16")
    analyze("lesion", folder.path, "--only", "single")
    whole, recorded = rows(folder.path / "analysis" / "lesion_single.csv")[0], rows(folder.path / "metrics.csv")[-1]
    for what in ("error", "loss"):
        assert float(whole[what]) == pytest.approx(float(recorded[f"test_{what}"]), rel=3e-6)  # six digits are kept


def test_highway_lesions_are_judged_on_the_training_set_and_runs_contrasted_in_one_figure(
    analyze: Analyze, highway: RunFolder, residual: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    analyze("lesion", highway.path, residual.path, "--only", "single", "--output", tmp_path)
    single = rows(tmp_path / "lesion_single.csv")
    assert len(single) == 14
    assert "train error" in capsys.readouterr().out.splitlines()[2]
    text = (tmp_path / "lesion_single.svg").read_text()
    assert "(train)" in text
    assert "(test)" in text
    assert not (highway.path / "analysis").exists()


@pytest.mark.slow
def test_a_part_that_a_net_is_too_small_for_is_left_out_of_it_with_the_reason(
    analyze: Analyze, residual: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["model.depth=8", "model.widths=[4,4,4]", "--images", 8, "--draws", 1, "--most", 2]
    assert analyze("lesion", *options, "--output", tmp_path / "alone") == 0
    told = capsys.readouterr().out
    assert re.search("order is left out for .*, untrained: no stage of this network has two units of equal shape", told)
    assert {file.name for file in (tmp_path / "alone").glob("*.csv")} == {
        f"lesion_{part}.csv" for part in ("single", "random", "paths")
    }
    with pytest.raises(UserError, match="no stage of this network has two units"):
        analyze("lesion", *options, "--only", "order", "--output", tmp_path / "asked")
    assert not (tmp_path / "asked").exists()
    small = trained(tmp_path / "small", "model.depth=8", "epochs=1")
    analyze("lesion", small.path, residual.path, *options[2:], "--output", tmp_path / "two")
    nets = [{line["run"] for line in rows(tmp_path / "two" / f"lesion_{part}.csv")} for part in ("single", "order")]
    assert [len(names) for names in nets] == [2, 1]
    assert nets[1] == {"/".join(residual.path.parts[-2:])}


def test_runs_beyond_the_colours_are_in_the_table_too(analyze: Analyze, residual: RunFolder, tmp_path: Path) -> None:
    copies = [tmp_path / f"row{number}" / "seed0" for number in range(7)]
    for copy in copies:
        shutil.copytree(residual.path, copy, ignore=shutil.ignore_patterns("analysis", "events*"))
    analyze("lesion", *copies, "--only", "single", "--images", 8, "--output", tmp_path / "results")
    lines = rows(tmp_path / "results" / "lesion_single.csv")
    assert {line["run"] for line in lines} == {f"row{number}/seed0" for number in range(7)}
    assert len(lines) == 7 * 7


def test_paths_of_a_fresh_network_go_below_the_outputs_and_agree_at_the_ends(analyze: Analyze, tmp_path: Path) -> None:
    options = [*SMALL, "model/ordering=full_preactivation", f"output_root={tmp_path}"]
    analyze("paths", *options, "--draws", 4, "--images", 4)
    (results,) = tmp_path.glob("analysis/digits_resnet,digits,*,seed0/analysis")
    lengths = rows(results / "paths_lengths.csv")
    assert [int(line["length"]) for line in lengths] == list(range(7))
    assert sum(float(line["share_of_paths"]) for line in lengths) == pytest.approx(1, abs=1e-5)
    for end in (lengths[0], lengths[-1]):  # a single path: nothing to cancel, and the images are the same
        assert float(end["norm_of_sum"]) == pytest.approx(float(end["count_times_norm"]), rel=1e-5)
    assert all(float(line["norm_of_sum"]) > 0 for line in lengths)
    assert figures(results) == {"paths_lengths"}
    found = json.loads((results / "paths.json").read_text())
    past, units = found["findings"][1], rows(results / "paths_units.csv")
    assert past["shortcut_product"] == pytest.approx(1)
    assert past["bypass_product"] == pytest.approx(np.prod([float(line["bypass_factor"]) for line in units]), rel=1e-4)
    assert re.search(r"product of 6 shortcuts 1 .* of the 6 units, number 1 \(by \S+\), number 3", past["sentence"])
    assert found["options"]["draws"] == 4
    assert pictures(results.parent) == {"analysis/paths_lengths"}


def test_a_split_of_fewer_images_than_asked_for_is_what_is_measured(analyze: Analyze, tmp_path: Path) -> None:
    options = ["model.depth=8", "model.widths=[4,4,4]", "dataset=synthetic", "dataset.source.test=3", "--draws", 8]
    for images in (3, 8):
        analyze("paths", *options, "--images", images, "--output", tmp_path / str(images))
    assert rows(tmp_path / "3" / "paths_lengths.csv") == rows(tmp_path / "8" / "paths_lengths.csv")


def test_what_is_measured_is_told_where_the_result_is_of_another_net(
    analyze: Analyze, residual: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = RunFolder(shutil.copytree(residual.path, tmp_path / "seed0"))
    words = ("lesion", folder.path, "--only", "single", "--images", 8, "--output", tmp_path / "results")
    analyze(*words)
    assert "epoch" not in capsys.readouterr().out
    folder.result.model_copy(update={"selected_epoch": 1, "selection": "best_validation"}).write(folder.path)
    analyze(*words)
    told = "the last; the result is of epoch 1, whose weights are not kept"
    assert told in capsys.readouterr().out
    (folder.path / "result.json").unlink()
    analyze(*words)
    assert "; the run has not finished" in capsys.readouterr().out


def test_the_epochs_of_one_run_are_repeated(analyze: Analyze, residual: RunFolder, highway: RunFolder) -> None:
    with pytest.raises(UserError, match="--epochs 1: repeats one run, but 2 were named"):
        analyze("gradients", residual.path, highway.path, "--epochs", 1)


def test_stages_are_marked_where_they_are_those_of_all_nets(analyze: Analyze) -> None:
    for nets, lines in (([[0, 0, 1, 1, 2, 2]] * 2, [2.5, 4.5]), ([[0, 0, 1, 1], [0, 1]], [])):
        axes = new_figure(1, 1).subplots()
        mark_stages(axes, nets)
        assert [line.get_xdata()[0] for line in axes.lines] == lines


def test_gates_of_a_run(
    analyze: Analyze, highway: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    analyze("gates", highway.path, "--sample", 5, "--classes", "0,7", "--output", tmp_path)
    blocks = rows(tmp_path / "gates_blocks.csv")
    assert len(blocks) == 6 * 4
    state = torch.load(highway.path / "checkpoint.pt", weights_only=True)["training"]["model"]
    bias = state["stages.0.0.shortcut.gate.2.bias"]  # of the second of the gate's two convolutions
    assert [float(line["bias"]) for line in blocks[:4]] == pytest.approx(bias.tolist(), rel=1e-5)
    assert all(0 < float(line["mean_gate"]) < 1 for line in blocks)
    assert figures(tmp_path) == {"gates_blocks", "gates_routing"}
    assert "class 7" in (tmp_path / "gates_routing.svg").read_text()
    assert "biases began at -2" in capsys.readouterr().out


def test_numbers_never_lie_beside_the_options_of_an_earlier_analysis(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def options(images: int | None, subject: Path = tmp_path) -> Namespace:
        changed = ["images"] if images else []
        return Namespace(output=None, subject=[str(subject)], images=images, changed=changed)

    def interrupted() -> None:
        with Output("gates", tmp_path, options(16)) as output:
            output.table("blocks", {"bias": [2.0]})
            raise KeyboardInterrupt

    (tmp_path / "config.yaml").touch()
    with Output("gates", tmp_path, options(None)) as output:
        output.table("blocks", {"bias": [1.0]})
    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert noted_by(tmp_path / "analysis", "gates")["changed"] == ["images"]
    assert "with other options: --images not given then, 16 now" in capsys.readouterr().out
    elsewhere = options(None, tmp_path / "another_run")
    elsewhere.output = tmp_path / "analysis"
    with Output("gates", elsewhere.output, elsewhere):
        pass
    assert noted_by(tmp_path / "analysis", "gates")["changed"] == ["subject"]
    (tmp_path / "analysis" / "gates.json").write_text("[")  # a damaged file is replaced
    with Output("gates", tmp_path, options(16)):
        pass
    assert noted_by(tmp_path / "analysis", "gates")["options"]["images"] == 16


@pytest.mark.slow
def test_gates_of_a_net_with_carry_gates_of_its_own(
    analyze: Analyze, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("dataset=digits", "model.depth=8", "model.widths=[4,4,4]", "model/shortcut=highway_separate_gates")
    analyze("gates", "--output", tmp_path, *words)
    assert {line["bias"] for line in rows(tmp_path / "gates_blocks.csv")} == {"-2"}
    assert "biases began at -2" in capsys.readouterr().out


@pytest.mark.slow
def test_routing_of_a_run_in_numbers(
    analyze: Analyze, highway: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    analyze("gates", highway.path, "--output", tmp_path)
    analyze("highway", highway.path, "--output", tmp_path)
    layers, blocks = rows(tmp_path / "highway_layers.csv"), rows(tmp_path / "gates_blocks.csv")
    for layer in layers:
        own = [float(block["mean_gate"]) for block in blocks if block["layer"] == layer["layer"]]
        assert float(layer["gate"]) == pytest.approx(np.mean(own), rel=1e-4)
    assert figures(tmp_path) >= {"highway_layers"}
    (finding,) = json.loads((tmp_path / "highway.json").read_text())["findings"]
    value, low, high = finding["bias_and_gate"]
    numbers = {line["measure"]: float(line["value"]) for line in rows(tmp_path / "highway_numbers.csv")}
    assert numbers["bias_and_gate"] == pytest.approx(value, rel=1e-5)
    assert low <= value <= high
    assert f"active, {value:.2f} ({low:.2f} to {high:.2f})" in capsys.readouterr().out


@pytest.mark.slow
def test_the_one_image_of_the_gates_is_that_of_the_whole_training_set(
    analyze: Analyze, highway: RunFolder, tmp_path: Path
) -> None:
    found = {}
    for images in ((), ("--images", 20)):
        for sample in (5, 1000):
            folder = tmp_path / f"{len(images)}{sample}"
            analyze("gates", highway.path, "--sample", sample, *images, "--output", folder)
            found[len(images), sample] = [line["sample_gate"] for line in rows(folder / "gates_blocks.csv")]
    assert found[0, 5] == found[2, 5]
    assert found[0, 1000] == found[2, 1000] != found[0, 5]


def test_a_subset_of_the_images_is_the_same_each_time(analyze: Analyze, residual: RunFolder, tmp_path: Path) -> None:
    for attempt in ("a", "b"):
        analyze("lesion", residual.path, "--only", "single", "--images", 50, "--output", tmp_path / attempt)
    first, second = (rows(tmp_path / attempt / "lesion_single.csv") for attempt in ("a", "b"))
    assert first == second
    assert {round(float(line["error"]) % 2, 6) for line in first} == {0}  # of 50 images, each is 2%


def test_a_run_that_trains_is_left_alone_unless_the_results_go_elsewhere(
    analyze: Analyze, residual: RunFolder, tmp_path: Path
) -> None:
    with residual.hold():
        with pytest.raises(UserError, match="another process"):
            analyze("paths", residual.path, "--draws", 1, "--images", 1)
        assert analyze("paths", residual.path, "--draws", 1, "--images", 1, "--output", tmp_path) == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("gates", "model.depth=8"), r"without gates \(Identity\)"),
        (("paths", "model.depth=8", "model/shortcut=none"), "single path"),
        (("paths", "nowhere"), "nowhere: not a run folder"),
        (("paths", "outputs/runs/net,epochs=5/seed0"), "epochs=5/seed0: not a run folder"),
        (("lesion", "sweep=digits_shortcuts"), "a sweep has many networks"),
        (("gates", "a", "b"), "a: not a run folder"),
        (("lesion", "nowhere", "model.depth=8"), "name run folders, or options"),
        (("lesion", "model.depth=8", "--images", 0), "--images 0"),
        (("paths", "model.depth=8", "--draws", 3), "at least one path for each image"),
        ((*OVERFLOWS, "--draws", 1, "--images", 1), "gradients of this network are not finite"),
        (("gates", "model/shortcut=highway_b2", "--classes", "11"), "whole numbers from 0 to 9"),
        (("gates", "model/shortcut=highway_b2", "--sample", -1), "0 to 1436"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_is_written(
    analyze: Analyze, tmp_path: Path, words: tuple[str | int, ...], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        analyze(*words, "--output", tmp_path / "results")
    assert not (tmp_path / "results").exists()


def test_the_command_ends_with_its_message_and_without_a_traceback() -> None:
    refused = call("analyze.py", "lesion", "nowhere")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert refused.stderr.strip().splitlines()[-1].startswith("error: nowhere: not a run folder")
    assert "Traceback" not in refused.stderr


def test_the_help_names_the_analyses(analyze: Analyze, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        analyze("--help")
    told = capsys.readouterr().out
    assert all(f"    {name} " in told for name in ("lesion", "paths", "gates"))


def test_what_cannot_be_written_is_refused_before_it_is_measured(analyze: Analyze, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="cannot be written"):
        analyze("shattering", "--output", tmp_path / "file" / "folder")


def test_runs_of_two_tables_keep_their_names_apart(analyze: Analyze, residual: RunFolder, tmp_path: Path) -> None:
    copies = [tmp_path / table / "row" / "seed0" for table in ("table", "table+scale=mini")]
    for copy in copies:
        shutil.copytree(residual.path, copy)
    analyze("lesion", *copies, "--only", "single", "--images", 8, "--output", tmp_path / "results")
    names = {line["run"] for line in rows(tmp_path / "results" / "lesion_single.csv")}
    assert names == {"table/row/seed0", "table+scale=mini/row/seed0"}


@pytest.mark.slow
def test_each_analysis_writes_the_columns_that_claims_read(
    analyze: Analyze, residual: RunFolder, highway: RunFolder, tmp_path: Path
) -> None:
    """On nets too small for the claims' units: their words, columns and reductions, without their ranges."""
    wanted = {claim.test.of for _, claim in registered_on_file(SWEEPS) if claim.test}
    measured = [of for of in wanted if isinstance(of, Analysed)]
    assert {of.analysis for of in measured} == {"lesion", "gradients", "paths", "gates", "highway", "shattering"}
    for of in sorted(measured, key=str):
        folder = tmp_path / of.analysis
        subject = [] if of.analysis == "shattering" else [(highway if of.analysis in GATED else residual).path]
        if not (folder / of.file).is_file():
            more = ["--depths", "2,4,24", "--draws", 2] if of.analysis == "shattering" else of.words.split()
            analyze(of.analysis, *subject, *more, "--output", folder)
        some = {name: value for name, value in of.where if isinstance(value, str) or name in ("beta", "keeps_shape")}
        changed = noted_by(folder, of.analysis)["changed"]
        number = analysed_number(folder, replace(of, options=(), where=tuple(some.items()), minus=()), free=changed)
        assert number is not None
        assert np.isfinite(number), of
    noted = json.loads((tmp_path / "shattering" / "shattering.json").read_text())["claims"]
    assert set(noted) == set(claims_on_file(SWEEPS))  # no run trained these nets, and so the analysis notes the claims
