"""Trees of real JPEGs: crops of the photographs that scikit-learn ships, as ImageNet's files are."""

import io
from pathlib import Path

import numpy as np
from PIL import Image
from sklearn.datasets import load_sample_images

SIZES = ((500, 375), (300, 400), (320, 240), (160, 150))  # width, height


def jpeg(photograph: int, seed: int, kind: str = "RGB", largest: int = 4, quality: int = 92) -> bytes:
    """A crop of one of the two photographs: RGB, L (grey), CMYK, or EXIF, turned by its tag."""
    generator = np.random.default_rng((photograph, seed))
    whole = Image.fromarray(load_sample_images().images[photograph])
    width, height = SIZES[len(SIZES) - 1 - int(generator.integers(largest))]
    left, top = (int(generator.integers(1 + rest)) for rest in (whole.width - width, whole.height - height))
    image = whole.crop((left, top, left + width, top + height))
    exif = Image.Exif()
    if kind == "EXIF":
        exif[0x0112] = 6
    written = io.BytesIO()
    image.convert("RGB" if kind == "EXIF" else kind).save(written, "JPEG", quality=quality, exif=exif)
    return written.getvalue()


def photograph_tree(folder: Path, classes: int, train: int, val: int, largest: int = 1) -> Path:
    """`train` and `val` files for each class, which are one of the photographs, of one of several colours."""
    tints = np.random.default_rng(0).uniform(0.4, 1.0, (classes, 3))
    for split, count in (("train", train), ("val", val)):
        for label in range(classes):
            place = folder / split / f"n{label:08}"
            place.mkdir(parents=True)
            for number in range(count):
                kind = ("RGB", "RGB", "RGB", "L", "CMYK", "EXIF")[number % 6] if classes == 2 else "RGB"
                content = jpeg(label % 2, number + (split == "val") * train, kind, largest)
                if classes > 2:
                    pixels = np.asarray(Image.open(io.BytesIO(content))) * tints[label]
                    written = io.BytesIO()
                    Image.fromarray(pixels.astype(np.uint8)).save(written, "JPEG")
                    content = written.getvalue()
                (place / f"{split}_{number:04}.JPEG").write_bytes(content)
    return folder
