"""Fashion-MNIST: 70,000 real images of clothes in 10 classes.

Xiao, Rasul and Vollgraf, arXiv:1708.07747 (2017). MIT licence.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from doubletime.training.tasks.fetching import DataSet

# The files with Debian's gzip headers, name and time put back, have the MD5 sums that the data set's
# README publishes.
_DIGESTS_BY_STEM = {
    "train-images-idx3-ubyte": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
    "train-labels-idx1-ubyte": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
    "t10k-images-idx3-ubyte": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
    "t10k-labels-idx1-ubyte": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
}
FILES = DataSet(
    name="fashion-mnist",
    title="Fashion-MNIST",
    digests={f"{stem}.gz": digest for stem, digest in _DIGESTS_BY_STEM.items()},
    package="dataset-fashion-mnist",
    package_folder=Path("/usr/share/datasets/fashion-mnist"),
    files_at="https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
)


def load(folder: Path, part: str) -> tuple[Tensor, Tensor]:
    """Read one part, checked.

    Args:
        folder: as `FILES.fetch` returned it.
        part: "train" (60,000 samples) or "t10k" (10,000).

    Returns:
        Images, float32 (samples, 1, 28, 28), zero mean and unit variance over the training set;
        labels, int64 (samples,), 0 to 9.

    Raises:
        DataError: if a file is missing or damaged.
    """
    pixels = FILES.content(folder, f"{part}-images-idx3-ubyte.gz")
    classes = FILES.content(folder, f"{part}-labels-idx1-ubyte.gz")
    values = np.frombuffer(pixels, np.uint8, offset=16).astype(np.float32)
    images = torch.from_numpy(values.reshape(-1, 1, 28, 28)).div_(255).sub_(0.2860).div_(0.3530)
    return images, torch.from_numpy(np.frombuffer(classes, np.uint8, offset=8).astype(np.int64))
