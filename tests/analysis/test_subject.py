"""What is analysed: which images, in which order."""

from argparse import Namespace
from pathlib import Path

from PIL import Image

from deepnets.analysis.commands.subject import one_batch, subject_of


def test_images_of_a_class_folder_tree_do_not_come_class_by_class(tmp_path: Path) -> None:
    """Batch normalisation over groups of a batch would see one class in each."""
    for number in range(60):
        label = "cat" if number < 30 else "dog"
        for split in ("train", "test"):
            file = tmp_path / split / label / f"{number}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.new("L", (8, 8), number).save(file)
    words = ["model=resnet20", "model.depth=8", "dataset=image_folder", f"dataset.root={tmp_path}"]
    subject = subject_of(Namespace(subject=words, trust=[], device="cpu", output=tmp_path))
    for images in (40, 60):
        _, labels = one_batch(subject, images)
        first, second = labels.float().chunk(2)
        assert 0 < first.mean() < 1
        assert 0 < second.mean() < 1
