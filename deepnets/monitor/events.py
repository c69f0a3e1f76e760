"""TensorBoard's files of events."""

import secrets
from pathlib import Path
from typing import Any

from torch.utils.tensorboard import SummaryWriter


def event_writer(folder: Path, **options: Any) -> SummaryWriter:
    """Writes a new file in `folder`, of a name that nobody can know: TensorBoard would follow a link of that name."""
    return SummaryWriter(str(folder), filename_suffix=f".{secrets.token_hex(8)}", **options)
