"""`doubletime bench` as a user types it."""

import json
import os
import sys

import pytest

from ranks import run_command

BENCH = [sys.executable, "-m", "doubletime", "bench", "allreduce"]
PLAIN = {"COLUMNS": "120", "NO_COLOR": None, "FORCE_COLOR": None}


def test_two_ranks_are_started_measured_and_recorded(tmp_path):
    file = tmp_path / "figures.json"
    command = [*BENCH, "-n", "2", "--sizes", "4,64K", "--seconds", "0.02", "--json", str(file)]
    job = run_command(command, env=PLAIN).check()
    assert "\x1b" not in job.stdout
    assert "2 ranks" in job.stdout
    for shown in ("4 B", "64 KiB", "raw MPI", "speed/gloo", "busbw"):
        assert shown in job.stdout
    record = json.loads(file.read_text())
    assert set(record) == {"machine", "timings"}
    assert {"cpu", "cores", "threads", "mpi", "torch", "date"} <= set(record["machine"])
    measured = [(timing["nbytes"], timing["peer"]) for timing in record["timings"]]
    assert measured == [(n, peer) for n in (4, 65536) for peer in ("mpi", "gloo", "raw")]
    for timing in record["timings"]:
        assert timing["ranks"] == 2
        assert timing["best_s"] <= timing["lower_s"] <= timing["median_s"] <= timing["upper_s"]
        assert timing["algbw"] == pytest.approx(timing["nbytes"] / timing["median_s"])
        assert timing["busbw"] == pytest.approx(timing["algbw"])  # 2(p-1)/p is 1 for two ranks


@pytest.mark.parametrize("host", [os.uname().nodename, "elsewhere"])
def test_algorithms_are_timed_beside_it_bounded_and_drawn(tmp_path, host):
    profile, plot = tmp_path / "p.toml", tmp_path / "times.png"
    link = "alpha_s = 1e-5\nbeta_s_per_byte = 1e-9\n"
    cluster = f'hosts = ["{host}"]\nranks_per_host = [2]\nmpi = "MPICH"\nbackend = "mpi"\n'
    profile.write_text(f"{cluster}gamma_s_per_byte = 1e-10\n[inside]\n{link}[between]\n{link}")
    command = [*BENCH, "-n", "2", "--sizes", "4,64K", "--seconds", "0.02", "--against", ""]
    command += ["--algorithms", "ring,auto", "--profile", str(profile), "--plot", str(plot)]
    job = run_command(command, env=PLAIN).check()
    for shown in ("ring", "auto", f"drawn in {plot}"):
        assert shown in job.stdout
    assert ("of bound" in job.stdout) == (host != "elsewhere")
    assert ("it was measured on elsewhere" in job.stdout) == (host == "elsewhere")
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_under_a_launcher_the_ranks_measure_and_rank_0_alone_speaks():
    command = ["mpiexec", "-n", "3", *BENCH, "--sizes", "8", "--seconds", "0.01", "--against", ""]
    job = run_command(command, env=PLAIN).check()
    assert job.stdout.count("3 ranks") == 1
    assert "gloo" not in job.stdout


@pytest.mark.parametrize(
    ("arguments", "what", "remedy"),
    [
        (["--sizes", "5"], "5 bytes does not hold whole float32 values", "4:64M"),
        (["--sizes", "some"], "'some' is not a size", "16M"),
        (["--against", "nccl"], "'nccl'", "--against gloo,raw"),
        (["--algorithms", "rings"], "'rings'", "one of linear"),
        (["--plot", "times.txt"], "neither a PNG nor an SVG", "--plot times.png"),
        (["--profile", "/nowhere/p.toml"], "/nowhere/p.toml cannot be read", "bench links"),
        (["--json", "/nowhere/at/all.json"], "there is no folder /nowhere/at", "mkdir -p"),
        (["--json", "/proc/figures"], "/proc/figures cannot be written", "--json FILE"),
        (["--plot", "/proc/it.png"], "/proc/it.png cannot be written", "--plot FILE"),
    ],
)
def test_bad_request_is_refused_before_anything_starts(arguments, what, remedy):
    job = run_command([*BENCH, *arguments], env=PLAIN)
    assert job.exit_code in (1, 2)
    assert what in job.stderr
    assert remedy in job.stderr
    assert "Traceback" not in job.stderr


def test_rank_count_that_contradicts_the_launcher_is_refused():
    job = run_command(["mpiexec", "-n", "2", *BENCH, "-n", "3", "--sizes", "4"], env=PLAIN)
    assert job.exit_code != 0
    assert "-n 3 was asked for" in job.stderr


def test_a_folder_is_no_file_for_figures(tmp_path):
    done = run_command([*BENCH, "--json", str(tmp_path)])
    assert done.exit_code == 1
    assert done.stderr.startswith(f"{tmp_path} is a folder\n  remedy: --json ")
    assert done.seconds < 30
