"""What killed processes of a job leave in /tmp."""

from __future__ import annotations

import shutil
import subprocess
import time
from pathlib import Path

from doubletime.cluster.leftovers import remove_topologies


def test_files_of_proxies_that_are_dead_are_removed(tmp_path: Path) -> None:
    """They belong to whoever lived when they were made: none is removed while that may be so."""
    program = shutil.copy(str(shutil.which("sleep")), tmp_path / "some_proxy")
    began_s = time.time() - 1
    names = ["hydra_hwloc_xmlfile_a", "another"]
    with subprocess.Popen([program, "60"]) as proxy:
        try:
            for name in names:
                (tmp_path / name).touch()
            remove_topologies(began_s, tmp_path, "some_proxy")
            assert all((tmp_path / name).exists() for name in names)
        finally:
            proxy.kill()
    remove_topologies(time.time() + 60, tmp_path, "some_proxy")
    assert (tmp_path / names[0]).exists()  # older than the job
    remove_topologies(began_s, tmp_path, "some_proxy")
    assert not (tmp_path / names[0]).exists()
    assert (tmp_path / names[1]).exists()
