"""Fashion-MNIST: 70,000 real images, from the first source that answers, checked before use.

Xiao, Rasul and Vollgraf, arXiv:1708.07747 (2017). MIT licence.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import shutil
import subprocess
import tempfile
import urllib.request
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from doubletime.errors import DataError

# SHA-256 of each file's content, uncompressed: the sources' gzip headers differ (Debian's lack name
# and time; with those put back, the files have the MD5 sums that the data set's README publishes).
_DIGESTS_BY_STEM = {
    "train-images-idx3-ubyte": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
    "train-labels-idx1-ubyte": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
    "t10k-images-idx3-ubyte": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
    "t10k-labels-idx1-ubyte": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
}
DIGESTS = {f"{stem}.gz": digest for stem, digest in _DIGESTS_BY_STEM.items()}
FOLDER_VARIABLE = "DOUBLETIME_DATA"

_DEBIAN_PACKAGE = "dataset-fashion-mnist"
_DEBIAN_FOLDER = Path("/usr/share/datasets/fashion-mnist")
_ADDRESS = "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/"
_CONNECT_S = 10.0  # a public address that stays silent for so long is taken for absent
_APT_S = 120.0


def cache_folder() -> Path:
    """Where fetched files stay."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "doubletime" / "fashion-mnist"


def fetch() -> Path:
    """Find the four files, fetching them into the cache where need be.

    Asked in this order: the folder that DOUBLETIME_DATA names, the cache, the installed Debian
    package, `apt-get download` of it (needs no root), the data set's public address. Processes
    that fetch at once do not disturb each other: the cache is filled by one rename.

    Returns:
        A folder that holds the four files, their content checked.

    Raises:
        DataError: if no source has them, with what each said; or if DOUBLETIME_DATA names a
            folder that does not hold them: an explicit choice is not passed over.
    """
    chosen = os.environ.get(FOLDER_VARIABLE)
    if chosen:
        check(Path(chosen))
        return Path(chosen)
    said: list[str] = []
    for name, source in _SOURCES:
        try:
            folder = source()
            check(folder)
        except (DataError, OSError, subprocess.SubprocessError) as error:
            said.append(f"{name}: {_first_line(error)}")
        else:
            return folder
    raise DataError(
        "Fashion-MNIST could not be had:\n  " + "\n  ".join(said),
        f"put {', '.join(DIGESTS)} into a folder and set {FOLDER_VARIABLE} to it",
    )


def check(folder: Path) -> None:
    """Compare the content of the four files with what was published.

    Raises:
        DataError: if one is missing or damaged.
    """
    for name in DIGESTS:
        _content(folder, name)


def load(folder: Path, part: str) -> tuple[Tensor, Tensor]:
    """Read one part, checked.

    Args:
        folder: as `fetch` returned it.
        part: "train" (60,000 samples) or "t10k" (10,000).

    Returns:
        Images, float32 (samples, 1, 28, 28), zero mean and unit variance over the training set;
        labels, int64 (samples,), 0 to 9.

    Raises:
        DataError: if a file is missing or damaged.
    """
    pixels = np.frombuffer(_content(folder, f"{part}-images-idx3-ubyte.gz"), np.uint8, offset=16)
    labels = np.frombuffer(_content(folder, f"{part}-labels-idx1-ubyte.gz"), np.uint8, offset=8)
    images = torch.from_numpy(pixels.astype(np.float32).reshape(-1, 1, 28, 28))
    images.div_(255).sub_(0.2860).div_(0.3530)
    return images, torch.from_numpy(labels.astype(np.int64))


def _content(folder: Path, name: str) -> bytes:
    """One file's uncompressed content, checked."""
    path = folder / name
    if not path.is_file():
        raise DataError(f"there is no {name} in {folder}")
    try:
        content = gzip.decompress(path.read_bytes())
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} is damaged: {error}", "delete it and fetch it again") from error
    found = hashlib.sha256(content).hexdigest()
    if found != DIGESTS[name]:
        raise DataError(
            f"{path} is not the published file: SHA-256 {found[:12]}… of its content, "
            f"{DIGESTS[name][:12]}… expected",
            "delete it and fetch it again",
        )
    return content


def _from_cache() -> Path:
    folder = cache_folder()
    if not folder.is_dir():
        raise DataError(f"there is no {folder} yet")
    return folder


def _from_debian() -> Path:
    if not _DEBIAN_FOLDER.is_dir():
        raise DataError(f"{_DEBIAN_PACKAGE} is not installed")
    return _DEBIAN_FOLDER


def _from_apt() -> Path:
    """Download Debian's package and unpack it, as any user, without installing it."""
    if shutil.which("apt-get") is None or shutil.which("dpkg") is None:
        raise DataError("this is no Debian")
    with tempfile.TemporaryDirectory(prefix="doubletime-") as name:
        folder = Path(name)
        download = ["-qq", "download", _DEBIAN_PACKAGE]
        try:
            _run(["apt-get", *download], folder)
        except DataError:
            # No list of packages, as in a fresh container: fetch one into the folder, which
            # needs no root either.
            (folder / "lists" / "partial").mkdir(parents=True)
            own = ["-o", f"Dir::State::Lists={folder}/lists", "-o", f"Dir::Cache={folder}/cache"]
            _run(["apt-get", *own, "-qq", "update"], folder)
            _run(["apt-get", *own, *download], folder)
        packages = list(folder.glob("*.deb"))
        if not packages:
            raise DataError(f"apt-get downloaded no {_DEBIAN_PACKAGE}")
        _run(["dpkg", "-x", packages[0].name, "unpacked"], folder)
        return _keep(folder / "unpacked" / _DEBIAN_FOLDER.relative_to("/"))


def _from_address() -> Path:
    with tempfile.TemporaryDirectory(prefix="doubletime-") as name:
        for file_name in DIGESTS:
            with urllib.request.urlopen(_ADDRESS + file_name, timeout=_CONNECT_S) as answer:
                (Path(name) / file_name).write_bytes(answer.read())
        return _keep(Path(name))


_SOURCES: tuple[tuple[str, Callable[[], Path]], ...] = (
    ("cache", _from_cache),
    ("Debian's package", _from_debian),
    (f"apt-get download {_DEBIAN_PACKAGE}", _from_apt),
    (_ADDRESS, _from_address),
)


def _run(command: list[str], folder: Path) -> None:
    done = subprocess.run(
        command,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_APT_S,
        check=False,
    )
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        raise DataError(lines[0] if lines else f"{command[0]} ended with {done.returncode}")


def _keep(found: Path) -> Path:
    """Put checked files into the cache, all or none; another process may do so meanwhile."""
    check(found)
    target = cache_folder()
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".fetching-", dir=target.parent) as name:
        partial = Path(name) / "files"
        partial.mkdir()
        for file_name in DIGESTS:
            shutil.copyfile(found / file_name, partial / file_name)
        _move(partial, target)
    return target


def _move(folder: Path, target: Path) -> None:
    """Rename, unless a good cache is there by now; a damaged one makes room."""
    try:
        folder.rename(target)
    except OSError:
        try:
            check(target)
        except DataError:
            shutil.rmtree(target, ignore_errors=True)
            folder.rename(target)


def _first_line(error: Exception) -> str:
    what = error.what if isinstance(error, DataError) else str(error) or type(error).__name__
    return what.splitlines()[0]
