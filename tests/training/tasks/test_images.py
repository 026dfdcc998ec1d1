"""Tasks on images: what their data is, and what stands in for it."""

import pytest
import torch

from doubletime.errors import DataError
from doubletime.training.tasks import fashion_mnist
from doubletime.training.tasks.images import Digits, FashionMnist, FashionMnistMlp


@pytest.mark.timeout(300)
def test_the_real_images():
    try:
        folder = fashion_mnist.FILES.fetch()
    except DataError as error:
        pytest.skip(str(error))
    images, labels = fashion_mnist.load(folder, "train")
    assert images.shape == (60_000, 1, 28, 28)
    assert images.dtype == torch.float32
    assert torch.bincount(labels).tolist() == [6000] * 10
    assert abs(float(images.mean())) < 1e-3
    assert abs(float(images.std()) - 1) < 1e-3
    images, labels = fashion_mnist.load(folder, "t10k")
    assert images.shape == (10_000, 1, 28, 28)
    assert torch.bincount(labels).tolist() == [1000] * 10


@pytest.mark.parametrize("kind", [FashionMnist, FashionMnistMlp])
def test_without_the_images_digits_stand_in(kind, tmp_path, monkeypatch):
    monkeypatch.setenv("DOUBLETIME_DATA", str(tmp_path))
    with pytest.raises(DataError, match=r"there is no train-images-idx3-ubyte\.gz in"):
        kind().prepare()
    assert isinstance(kind().substitute(), Digits)


def test_the_mlp_has_ten_million_parameters():
    model = FashionMnistMlp().model()
    assert sum(parameter.numel() for parameter in model.parameters()) == 10_020_874
    assert model(torch.zeros(2, 1, 28, 28)).shape == (2, 10)


def test_digits_are_split_without_overlap():
    task = Digits()
    images, labels = task.train_data()
    test_images, test_labels = task.test_data()
    assert images.shape == (1500, 1, 8, 8)
    assert test_images.shape == (297, 1, 8, 8)
    assert len(labels) + len(test_labels) == 1797
    assert sorted(labels.unique().tolist()) == list(range(10))
    assert float(images.max()) == 1.0
    assert task.model()(images[:3]).shape == (3, 10)
