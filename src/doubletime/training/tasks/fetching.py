"""Published files, from the first source that answers, checked before use."""

from __future__ import annotations

import gzip
import hashlib
import io
import lzma
import os
import shutil
import subprocess
import tarfile
import tempfile
import urllib.request
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from doubletime.errors import DataError

FOLDER_VARIABLE = "DOUBLETIME_DATA"

_CONNECT_S = 10.0  # a public address that stays silent for so long is taken for absent
_APT_S = 120.0


@dataclass(frozen=True)
class DataSet:
    """Gzipped files that others publish, also as a Debian package.

    Attributes:
        name: of its folder in the cache.
        title: how people call it.
        digests: the SHA-256 of each file's content, uncompressed, by the file's name. (Of the
            content, as the sources' gzip headers differ: Debian's lack name and time.)
        package: Debian's.
        package_folder: where that one puts the files.
        files_at: a public address below which the files are; or
        package_at: one of a Debian package that holds them.
    """

    name: str
    title: str
    digests: Mapping[str, str]
    package: str
    package_folder: Path
    files_at: str | None = None
    package_at: str | None = None

    @property
    def cache(self) -> Path:
        """Where fetched files stay."""
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        return Path(base) / "doubletime" / self.name

    def fetch(self) -> Path:
        """Find the files, fetching them into the cache where need be.

        Asked in this order: the folder that DOUBLETIME_DATA names, the cache, the installed Debian
        package, `apt-get download` of it (needs no root), the public address. Processes that fetch
        at once do not disturb each other: the cache is filled by one rename.

        Returns:
            A folder that holds the files, their content checked.

        Raises:
            DataError: if no source has them, with what each said; or if DOUBLETIME_DATA names a
                folder that does not hold them: an explicit choice is not passed over.
        """
        chosen = os.environ.get(FOLDER_VARIABLE)
        if chosen:
            self.check(Path(chosen))
            return Path(chosen)
        said: list[str] = []
        for name, source in self._sources():
            try:
                folder = source()
                self.check(folder)
            except (DataError, OSError, subprocess.SubprocessError) as error:
                said.append(f"{name}: {_first_line(error)}")
            else:
                return folder
        raise DataError(
            f"{self.title} could not be had:\n  " + "\n  ".join(said),
            f"put {', '.join(self.digests)} into a folder and set {FOLDER_VARIABLE} to it",
        )

    def check(self, folder: Path) -> None:
        """Compare the content of the files with what was published.

        Raises:
            DataError: if one is missing or damaged.
        """
        for name in self.digests:
            self.content(folder, name)

    def content(self, folder: Path, name: str) -> bytes:
        """One file's uncompressed content, checked.

        Raises:
            DataError: if it is missing or damaged.
        """
        path = folder / name
        if not path.is_file():
            raise DataError(f"there is no {name} in {folder}")
        try:
            content = gzip.decompress(path.read_bytes())
        except (OSError, EOFError, zlib.error) as error:
            raise DataError(
                f"{path} is damaged: {error}", "delete it and fetch it again"
            ) from error
        found = hashlib.sha256(content).hexdigest()
        if found != self.digests[name]:
            raise DataError(
                f"{path} is not the published file: SHA-256 {found[:12]}… of its content, "
                f"{self.digests[name][:12]}… expected",
                "delete it and fetch it again",
            )
        return content

    def _sources(self) -> Iterator[tuple[str, Callable[[], Path]]]:
        yield "cache", self._from_cache
        yield "Debian's package", self._from_debian
        yield f"apt-get download {self.package}", self._from_apt
        if self.files_at is not None:
            yield self.files_at, self._from_files
        if self.package_at is not None:
            yield self.package_at, self._from_package

    def _from_cache(self) -> Path:
        if not self.cache.is_dir():
            raise DataError(f"there is no {self.cache} yet")
        return self.cache

    def _from_debian(self) -> Path:
        if not self.package_folder.is_dir():
            raise DataError(f"{self.package} is not installed")
        return self.package_folder

    def _from_apt(self) -> Path:
        """Download Debian's package and unpack it, as any user, without installing it."""
        if shutil.which("apt-get") is None or shutil.which("dpkg") is None:
            raise DataError("this is no Debian")
        with tempfile.TemporaryDirectory(prefix="doubletime-") as name:
            folder = Path(name)
            download = ["-qq", "download", self.package]
            try:
                _run(["apt-get", *download], folder)
            except DataError:
                # No list of packages, as in a fresh container: fetch one into the folder, which
                # needs no root either.
                (folder / "lists" / "partial").mkdir(parents=True)
                own = [
                    "-o",
                    f"Dir::State::Lists={folder}/lists",
                    "-o",
                    f"Dir::Cache={folder}/cache",
                ]
                _run(["apt-get", *own, "-qq", "update"], folder)
                _run(["apt-get", *own, *download], folder)
            packages = list(folder.glob("*.deb"))
            if not packages:
                raise DataError(f"apt-get downloaded no {self.package}")
            _run(["dpkg", "-x", packages[0].name, "unpacked"], folder)
            return self._keep(folder / "unpacked" / self.package_folder.relative_to("/"))

    def _from_files(self) -> Path:
        with tempfile.TemporaryDirectory(prefix="doubletime-") as name:
            for file_name in self.digests:
                (Path(name) / file_name).write_bytes(_answer(f"{self.files_at}{file_name}"))
            return self._keep(Path(name))

    def _from_package(self) -> Path:
        with tempfile.TemporaryDirectory(prefix="doubletime-") as name:
            wanted = [str(self.package_folder.relative_to("/") / file) for file in self.digests]
            for path, content in _unpacked(_answer(self.package_at or ""), wanted):
                (Path(name) / Path(path).name).write_bytes(content)
            return self._keep(Path(name))

    def _keep(self, found: Path) -> Path:
        """Put checked files into the cache, all or none; another process may do so meanwhile."""
        self.check(found)
        target = self.cache
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".fetching-", dir=target.parent) as name:
            partial = Path(name) / "files"
            partial.mkdir()
            for file_name in self.digests:
                shutil.copyfile(found / file_name, partial / file_name)
            self._move(partial, target)
        return target

    def _move(self, folder: Path, target: Path) -> None:
        """Rename, unless a good cache is there by now; a damaged one makes room."""
        try:
            folder.rename(target)
        except OSError:
            try:
                self.check(target)
            except DataError:
                shutil.rmtree(target, ignore_errors=True)
                folder.rename(target)


def _answer(address: str) -> bytes:
    with urllib.request.urlopen(address, timeout=_CONNECT_S) as answer:
        content: bytes = answer.read()
    return content


def _unpacked(package: bytes, wanted: list[str]) -> Iterator[tuple[str, bytes]]:
    """The wanted files of a Debian package: an `ar` archive whose data.tar holds them (deb(5)).

    Raises:
        DataError: if it is none, or lacks one of them.
    """
    archive = io.BytesIO(package)
    if archive.read(8) != b"!<arch>\n":
        raise DataError("what came is no Debian package")
    while header := archive.read(60):
        name, size = header[:16].decode("ascii", "replace").strip(" /"), header[48:58].strip()
        if len(header) < 60 or not size.isdigit():
            break
        content = archive.read(int(size) + int(size) % 2)  # members begin at even places
        if name.startswith("data.tar"):
            try:
                with tarfile.open(fileobj=io.BytesIO(content)) as tar:
                    members = {member.name.removeprefix("./"): member for member in tar}
                    for path in wanted:
                        file = tar.extractfile(members[path])
                        if file is not None:
                            yield path, file.read()
            except (tarfile.TarError, lzma.LZMAError, zlib.error, KeyError, EOFError) as error:
                raise DataError(f"the Debian package that came is damaged: {error}") from error
            return
    raise DataError("the Debian package that came is damaged: it has no data.tar")


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


def _first_line(error: Exception) -> str:
    what = error.what if isinstance(error, DataError) else str(error) or type(error).__name__
    return what.splitlines()[0]
