"""`doubletime explain` as a user types it."""

import ast
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from doubletime.cli.verbs import app
from doubletime.collectives.catalogue import ALGORITHMS
from doubletime.errors import DoubletimeError
from ranks import run_command

EXPLAIN = [sys.executable, "-m", "doubletime", "explain"]
PLAIN = {"COLUMNS": "80", "NO_COLOR": None, "FORCE_COLOR": None}
PROFILE = """
hosts = ["one", "two"]
ranks_per_host = [1, 1]
mpi = "MPICH 5.0.2"
backend = "mpi"
gamma_s_per_byte = 1e-10
[inside]
alpha_s = 1e-6
beta_s_per_byte = 1e-10
[between]
alpha_s = 1e-5
beta_s_per_byte = 1e-9
"""


def explain(*arguments):
    """What the command prints, run in this process; raises what it ends with."""
    result = CliRunner().invoke(app, ["explain", *map(str, arguments)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_a_ring_as_a_learner_sees_it():
    job = run_command([*EXPLAIN, "ring", "-n", "4"], env=PLAIN).check()
    assert "\x1b" not in job.stdout
    assert job.stdout.startswith("ring all_reduce over 4 ranks, each on a host of its own\n")
    assert "Patarasuk & Yuan" in job.stdout
    assert "\n  rank 3  B→0  +A←2        +·123   ··23   ···3   ···3\n" in job.stdout
    assert "round 6 of 6 copy" in job.stdout
    assert "proved for 4 ranks" in job.stdout
    assert "  D = ((0+1)+2)+3" in job.stdout


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_every_collective_of_every_algorithm_is_explained_and_drawn(name, tmp_path):
    for collective in ALGORITHMS[name].collectives:
        text = explain(name, "-n", 5, "--collective", collective, "--cost", "--size", "1M")
        assert text.startswith(f"{name} {collective}")
        assert "proved" in text
        assert "assumed, not measured" in text
        assert "lower bound" in text
    assert f"drawn in {tmp_path}" in explain(name, "--draw", tmp_path / "it.svg")
    assert (tmp_path / "it.svg").stat().st_size > 10_000


def test_nothing_heavy_is_loaded_but_for_what_needs_it(tmp_path):
    heavy = ("torch", "matplotlib", "mpi4py")
    program = (
        "import sys; from doubletime.cli.verbs import app\n"
        "try: app(['explain', 'ring', '--rank', '0'])\n"
        f"except SystemExit: print([name for name in {heavy} if name in sys.modules])"
    )
    output = subprocess.run(
        [sys.executable, "-c", program],
        check=True, capture_output=True, text=True, timeout=60, cwd=tmp_path,
    ).stdout  # fmt: skip
    assert ast.literal_eval(output.splitlines()[-1]) == []


def test_a_profile_prices_it(tmp_path):
    file = tmp_path / "p.toml"
    file.write_text(PROFILE)
    text = explain("ring", "--profile", file, "--size", "16M")
    assert f"measured, {file}: between hosts α 10 µs, 1/β 1 GB/s" in text.replace("\n", " ")
    assert "lower bound            25.2 ms" in text


def test_a_level_that_was_not_measured_is_said_to_be_assumed(tmp_path):
    file = tmp_path / "p.toml"
    file.write_text(PROFILE.partition("[between]")[0])
    text = explain("ring", "--profile", file).replace("\n", " ")
    assert f"measured, {file} (assumed: between): between hosts α 60 µs" in text


def test_thousands_of_ranks_are_shown_from_one_of_them():
    text = explain("ring", "-n", 4096, "--rank", 7, "--cost")
    assert "what rank 7 does in 8190 rounds" in text
    assert "for this rank's rounds" in text
    assert "what rank 0 does" in explain("recursive_doubling", "-n", 1024)


def test_hosts_are_as_asked():
    assert "5 ranks on 2 hosts: 3, 2" in explain("ring", "-n", 5, "--hosts", 2)
    assert "4 ranks on 2 hosts: 3, 1" in explain("ring", "--ranks-per-host", "3,1")
    assert "6 ranks on 3 hosts, 2 on each" in explain(
        "two_level:linear+ring", "--hosts", 3, "--ranks-per-host", 2
    )
    assert "reduce with root 3 over" in explain("linear", "--collective", "reduce", "--root", 3)


def test_the_list():
    text = explain("--list")
    assert all(f"\n{name} " in text for name in ALGORITHMS)


@pytest.mark.parametrize(
    ("arguments", "what", "remedy"),
    [
        (["rings"], "no reduction algorithm is called 'rings'", "one of linear, binomial_tree"),
        (["ring", "--collective", "reduce"], "ring does not define reduce", "all_reduce"),
        (["two_level:ring+nope"], "no reduction algorithm", "INSIDE+BETWEEN"),
        (["ring", "--root", "1"], "all_reduce has no root", "leave root"),
        (["linear", "--collective", "reduce", "--root", "9"], "root 9 is none of 4", "0 to 3"),
        (["ring", "--rank", "4"], "there is no rank 4", "0 to 3"),
        (["ring", "--hosts", "5"], "4 ranks on 5 hosts", "-n 5 or more"),
        (["ring", "--ranks-per-host", "3,x"], "3,x is not a list", "3,1"),
        (["ring", "-n", "5", "--ranks-per-host", "3,1"], "is 4 ranks on 2 hosts", "leave out -n"),
        (["ring", "-n", "99999999999"], "more than any cluster has", "65536"),
        (["ring", "--hosts", "99999", "--ranks-per-host", "9"], "more than any", "65536"),
        (["ring", "--draw", "ring.jpg"], "cannot draw ring.jpg", ".svg, .png or .pdf"),
        (["ring", "--draw", "/nowhere/ring.svg"], "no folder /nowhere", "mkdir -p"),
        (["ring", "-n", "500", "--draw", "ring.svg"], "500 ranks cannot be read", "-n 32"),
        (["ring", "--cost", "--size", "big"], "'big' is not a size", "16M"),
        (["ring", "--profile", "/nowhere.toml"], "/nowhere.toml", "bench links"),
    ],
)
def test_what_cannot_be_is_refused_with_what_can(arguments, what, remedy):
    with pytest.raises(DoubletimeError) as caught:
        explain(*arguments)
    assert what in caught.value.what
    assert remedy in caught.value.remedy


@pytest.mark.parametrize("text", ["x = [", "[inside]\nalpha_s = 1\n", "inside = 3", ""])
def test_a_broken_profile_is_named(text, tmp_path):
    file = tmp_path / "broken.toml"
    file.write_text(text)
    with pytest.raises(DoubletimeError, match=r"broken\.toml"):
        explain("ring", "--profile", file)


def test_the_shell_sees_an_error_as_exit_code_1():
    job = run_command([*EXPLAIN, "rings"], env=PLAIN)
    assert job.exit_code == 1
    assert "no reduction algorithm is called 'rings'" in job.stderr
    assert "Traceback" not in job.stderr
