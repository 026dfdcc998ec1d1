"""Published files come from the first source that answers, whole and checked, or an error tells of each."""

import functools
import gzip
import hashlib
import http.server
import io
import os
import subprocess
import sys
import tarfile
import textwrap
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from doubletime.errors import DataError
from doubletime.training.tasks.fetching import DataSet

CONTENTS = {"first.gz": b"what was published\n" * 100, "second.gz": b"and this\n"}
NOWHERE = "http://127.0.0.1:9/"
FOLDER = Path("/usr/share/datasets/of-no-package")
# No list of packages names it: apt-get answers at once.
FILES = DataSet(
    name="files",
    title="The set of files",
    digests={name: hashlib.sha256(content).hexdigest() for name, content in CONTENTS.items()},
    package="dataset-of-no-package",
    package_folder=FOLDER,
    files_at=NOWHERE,
)


@pytest.fixture(autouse=True)
def _no_source(tmp_path, monkeypatch):
    """An empty cache, no Debian."""
    monkeypatch.delenv("DOUBLETIME_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path))


@pytest.fixture
def folder(tmp_path):
    """The files as they were published."""
    made = tmp_path / "published"
    made.mkdir()
    for name, content in CONTENTS.items():
        (made / name).write_bytes(gzip.compress(content))
    return made


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@pytest.fixture
def address(folder):
    """They, served on this machine."""
    handler = functools.partial(_Quiet, directory=str(folder))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_named_folder_is_used_or_refused_but_not_passed_over(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("DOUBLETIME_DATA", str(folder))
    assert FILES.fetch() == folder
    monkeypatch.setenv("DOUBLETIME_DATA", str(tmp_path))
    with pytest.raises(DataError, match=r"there is no first\.gz in"):
        FILES.fetch()


def test_an_installed_package_is_used(folder):
    assert replace(FILES, package_folder=folder).fetch() == folder


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
    for name in FILES.digests:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=what):
        FILES.check(tmp_path)


def test_where_nobody_answers_each_is_named():
    with pytest.raises(DataError) as caught:
        replace(FILES, package_at=f"{NOWHERE}files.deb").fetch()
    title, *said = caught.value.what.splitlines()
    assert title == "The set of files could not be had:"
    sources = [
        "cache: there is no ",
        "Debian's package: dataset-of-no-package is not installed",
        "apt-get download dataset-of-no-package: this is no Debian",
        f"{NOWHERE}: ",
        f"{NOWHERE}files.deb: ",
    ]
    assert len(said) == len(sources)
    for line, source in zip(said, sources, strict=True):
        assert line.strip().startswith(source)
    assert caught.value.remedy.startswith(
        "put first.gz, second.gz into a folder and set DOUBLETIME_"
    )


def test_the_public_address_fills_the_cache_and_a_damaged_cache_is_replaced(address):
    cache = FILES.cache
    cache.mkdir(parents=True)
    (cache / "first.gz").write_bytes(b"torn")
    assert replace(FILES, files_at=address).fetch() == cache
    FILES.check(cache)
    assert [path.name for path in cache.parent.iterdir()] == [cache.name]
    assert FILES.fetch() == cache


def test_processes_that_fetch_at_once_share_one_cache(address):
    program = textwrap.dedent("""
        import sys; sys.path.insert(0, sys.argv[1])
        from dataclasses import replace
        from test_fetching import FILES
        print(replace(FILES, files_at=sys.argv[2]).fetch())
    """)
    command = [sys.executable, "-c", program, str(Path(__file__).parent), address]
    started = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    said = [process.communicate(timeout=90)[0].strip() for process in started]
    assert said == [str(FILES.cache)] * 2
    FILES.check(FILES.cache)
    assert [process.returncode for process in started] == [0, 0]


def _member(name, content):
    """Of an `ar` archive: its name, time, owner, group, mode and size in columns; an even length."""
    head = f"{name:<16}{0:<12}{0:<6}{0:<6}{100644:<8}{len(content):<10}`\n"
    return head.encode() + content + b"\n" * (len(content) % 2)


def _package(files, compression="xz"):
    """A Debian package of these files, as deb(5) tells of it."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode=f"w:{compression}") as tar:
        for path, content in files.items():
            about = tarfile.TarInfo(f".{path}")
            about.size = len(content)
            tar.addfile(about, io.BytesIO(content))
    members = [_member("debian-binary", b"2.0\n"), _member("control.tar.xz", b"odd")]
    return b"!<arch>\n" + b"".join([*members, _member(f"data.tar.{compression}", data.getvalue())])


def _published():
    return {f"{FOLDER}/{name}": gzip.compress(content) for name, content in CONTENTS.items()}


@pytest.mark.parametrize("compression", ["xz", "gz"])
def test_a_debian_package_at_a_public_address_needs_no_debian(folder, address, compression):
    (folder / "files.deb").write_bytes(_package(_published(), compression))
    files = replace(FILES, package_at=f"{address}files.deb")
    assert files.fetch() == FILES.cache
    FILES.check(FILES.cache)


def test_what_we_take_for_a_debian_package_is_one_to_dpkg_too(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", os.defpath)
    (tmp_path / "files.deb").write_bytes(_package(_published()))
    try:
        listed = subprocess.run(
            ["dpkg-deb", "--fsys-tarfile", "files.deb"],
            cwd=tmp_path,
            capture_output=True,
            check=True,
        )
    except FileNotFoundError:
        pytest.skip("dpkg-deb is not installed")
    with tarfile.open(fileobj=io.BytesIO(listed.stdout)) as tar:
        assert tar.getnames() == [f".{FOLDER}/{name}" for name in CONTENTS]


@pytest.mark.parametrize(
    ("package", "what"),
    [
        (b"<html>", "what came is no Debian package"),
        (
            _package({}),
            "the Debian package that came is damaged: 'usr/share/datasets/of-no-package/",
        ),
        (_package(_published())[:-200], "the Debian package that came is damaged: "),
        (
            _package(_published())[:150],
            "the Debian package that came is damaged: it has no data.tar",
        ),
    ],
    ids=["no package", "lacks them", "torn", "ends early"],
)
def test_a_damaged_package_is_refused(folder, address, package, what):
    (folder / "files.deb").write_bytes(package)
    with pytest.raises(DataError) as caught:
        replace(FILES, package_at=f"{address}files.deb").fetch()
    assert what in caught.value.what.splitlines()[-1]
    assert not FILES.cache.exists()
