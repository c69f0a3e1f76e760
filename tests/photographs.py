"""Writes trees of real JPEGs in ImageNet's format: crops of the two photographs that scikit-learn ships."""

import io
import shutil
import tarfile
from pathlib import Path

import numpy as np
import scipy.io
from PIL import Image
from sklearn.datasets import load_sample_images

from deepnets.data.imagenet import ARCHIVES

SIZES = ((500, 375), (300, 400), (320, 240), (160, 150))  # width, height


def jpeg(photograph: int, seed: int, kind: str = "RGB", largest: int = 4, tint: np.ndarray | None = None) -> bytes:
    """Return a crop of one of the two photographs as RGB, L (grey), CMYK, or EXIF, whose tag turns it."""
    generator = np.random.default_rng((photograph, seed))
    whole = Image.fromarray(load_sample_images().images[photograph])
    width, height = SIZES[len(SIZES) - 1 - int(generator.integers(largest))]
    left, top = (int(generator.integers(1 + rest)) for rest in (whole.width - width, whole.height - height))
    image = whole.crop((left, top, left + width, top + height))
    if tint is not None:
        image = Image.fromarray((np.asarray(image) * tint).astype(np.uint8))
    exif = Image.Exif()
    if kind == "EXIF":
        exif[0x0112] = 6
    written = io.BytesIO()
    image.convert("RGB" if kind == "EXIF" else kind).save(written, "JPEG", quality=92, exif=exif)
    return written.getvalue()


def photograph_tree(
    folder: Path, classes: int, train: int, val: int, largest: int = 1, *, mixed: bool | None = None
) -> Path:
    """Write `train` and `val` files for each class; a class is one of the photographs, tinted if there are over two.
    With two classes, or with `mixed`, half of the files are grey, CMYK or EXIF-tagged.
    """
    tints = np.random.default_rng(0).uniform(0.4, 1.0, (classes, 3))
    for split, count in (("train", train), ("val", val)):
        for label in range(classes):
            place = folder / split / f"n{label:08}"
            place.mkdir(parents=True)
            for number in range(count):
                is_mixed = classes == 2 if mixed is None else mixed
                kind = ("RGB", "RGB", "RGB", "L", "CMYK", "EXIF")[number % 6] if is_mixed else "RGB"
                tint = tints[label] if classes > 2 else None
                content = jpeg(label % 2, number + (split == "val") * train, kind, largest, tint)
                (place / f"{split}_{number:04}.JPEG").write_bytes(content)
    return folder


def archives(tree: Path, folder: Path) -> None:
    """Write the three archives of ImageNet's site with the images of the tree; the last class has number 1."""
    folder.mkdir()
    wnids = sorted(path.name for path in (tree / "train").iterdir())
    with tarfile.open(folder / ARCHIVES[1], "w") as train:
        for wnid in wnids:
            inner = io.BytesIO()
            with tarfile.open(fileobj=inner, mode="w") as of_class:
                for file in sorted((tree / "train" / wnid).iterdir()):
                    of_class.add(file, file.name)
            member = tarfile.TarInfo(f"{wnid}.tar")
            member.size = inner.tell()
            inner.seek(0)
            train.addfile(member, inner)
    flat = [(file, wnid) for wnid in wnids for file in sorted((tree / "val" / wnid).iterdir())]
    with tarfile.open(folder / ARCHIVES[2], "w") as val:
        for number, (file, _) in enumerate(flat, 1):
            val.add(file, f"ILSVRC2012_val_{number:08}.JPEG")
    synsets = np.array(
        [(number, wnid, f"words {number}", "", 0, [], 0, 3) for number, wnid in enumerate(wnids[::-1], 1)],
        dtype=[(name, object) for name in ("ILSVRC2012_ID", "WNID", "words", "gloss", "num_children", "c", "h", "n")],
    )
    kit = folder / "ILSVRC2012_devkit_t12"
    (kit / "data").mkdir(parents=True)
    scipy.io.savemat(kit / "data" / "meta.mat", {"synsets": synsets})
    labels = "".join(f"{len(wnids) - wnids.index(wnid)}\n" for _, wnid in flat)
    (kit / "data" / "ILSVRC2012_validation_ground_truth.txt").write_text(labels)
    with tarfile.open(folder / ARCHIVES[0], "w:gz") as devkit:
        devkit.add(kit, kit.name)
    shutil.rmtree(kit)
