"""Fashion-MNIST comes from the first source that answers, whole and checked, or a task says so."""

import functools
import gzip
import http.server
import subprocess
import sys
import threading

import pytest
import torch

from doubletime.errors import DataError
from doubletime.training import fashion_mnist
from doubletime.training.builtin import Digits, FashionMnist


@pytest.fixture(scope="session")
def real_folder():
    try:
        return fashion_mnist.fetch()
    except DataError as error:
        pytest.skip(str(error))


@pytest.fixture
def _no_source(tmp_path, monkeypatch):
    """An empty cache, no Debian, an address where nobody listens."""
    monkeypatch.delenv("DOUBLETIME_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(fashion_mnist, "_DEBIAN_FOLDER", tmp_path / "absent")
    monkeypatch.setattr(fashion_mnist, "_ADDRESS", "http://127.0.0.1:9/")


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@pytest.fixture
def address(real_folder):
    """The real files, served on this machine."""
    handler = functools.partial(_Quiet, directory=str(real_folder))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.timeout(300)
def test_the_real_images(real_folder):
    images, labels = fashion_mnist.load(real_folder, "train")
    assert images.shape == (60_000, 1, 28, 28)
    assert images.dtype == torch.float32
    assert torch.bincount(labels).tolist() == [6000] * 10
    assert abs(float(images.mean())) < 1e-3
    assert abs(float(images.std()) - 1) < 1e-3
    images, labels = fashion_mnist.load(real_folder, "t10k")
    assert images.shape == (10_000, 1, 28, 28)
    assert torch.bincount(labels).tolist() == [1000] * 10


def test_a_named_folder_is_used_or_refused_but_not_passed_over(real_folder, tmp_path, monkeypatch):
    monkeypatch.setenv("DOUBLETIME_DATA", str(real_folder))
    assert fashion_mnist.fetch() == real_folder
    monkeypatch.setenv("DOUBLETIME_DATA", str(tmp_path))
    with pytest.raises(DataError, match=r"there is no train-images-idx3-ubyte\.gz in"):
        fashion_mnist.fetch()


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"no gzip at all", "is damaged: Not a gzipped file"),
        (gzip.compress(b"x" * 1000)[:-12], "is damaged: "),
        (gzip.compress(b"other content"), "is not the published file: SHA-256 "),
    ],
    ids=["no gzip", "torn", "another"],
)
def test_a_damaged_file_is_refused(tmp_path, content, what):
    for name in fashion_mnist.DIGESTS:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=what):
        fashion_mnist.check(tmp_path)


@pytest.mark.usefixtures("_no_source")
def test_where_nobody_answers_each_is_named_and_digits_stand_in():
    with pytest.raises(DataError) as caught:
        FashionMnist().prepare()
    title, *said = caught.value.what.splitlines()
    assert title == "Fashion-MNIST could not be had:"
    sources = ["cache", "Debian's package", "apt-get download dataset-fashion-mnist", "https://"]
    assert len(said) == len(sources)
    for line, source in zip(said, sources, strict=True):
        assert line.strip().startswith(source)
    assert "DOUBLETIME_DATA" in caught.value.remedy
    assert isinstance(FashionMnist().substitute(), Digits)


@pytest.mark.usefixtures("_no_source")
def test_the_public_address_fills_the_cache_and_a_damaged_cache_is_replaced(address, monkeypatch):
    monkeypatch.setattr(fashion_mnist, "_ADDRESS", address)
    cache = fashion_mnist.cache_folder()
    cache.mkdir(parents=True)
    (cache / "train-images-idx3-ubyte.gz").write_bytes(b"torn")
    assert fashion_mnist.fetch() == cache
    fashion_mnist.check(cache)
    assert [path.name for path in cache.parent.iterdir()] == [cache.name]
    monkeypatch.setattr(fashion_mnist, "_ADDRESS", "http://127.0.0.1:9/")
    assert fashion_mnist.fetch() == cache


@pytest.mark.usefixtures("_no_source")
def test_processes_that_fetch_at_once_share_one_cache(address, tmp_path):
    program = (
        "import sys, pathlib; from doubletime.training import fashion_mnist as f; "
        "f._ADDRESS, f._DEBIAN_FOLDER = sys.argv[1], pathlib.Path(sys.argv[2]); print(f.fetch())"
    )
    command = [sys.executable, "-c", program, address, str(tmp_path / "absent")]
    started = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    said = [process.communicate(timeout=90)[0].strip() for process in started]
    assert said == [str(fashion_mnist.cache_folder())] * 2
    fashion_mnist.check(fashion_mnist.cache_folder())
    assert [process.returncode for process in started] == [0, 0]


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
