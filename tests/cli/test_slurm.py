"""`doubletime slurm`: the script it writes, and what it refuses before anything waits in a queue."""

import sys

import pytest

from ranks import run_command

_SLURM = [sys.executable, "-m", "doubletime", "slurm"]


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "train.py").write_text("print('hi')\n")
    return tmp_path


def test_it_prints_the_script(folder):
    words = [
        *_SLURM,
        "-N",
        "2",
        "--per-host",
        "4",
        "--option",
        "--exclusive",
        "train.py",
        "--epochs=3",
        "-N",
        "x",
    ]
    done = run_command(words, cwd=folder).check()
    assert "#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=4\n" in done.stdout
    assert "#SBATCH --exclusive\n" in done.stdout
    assert f"#SBATCH --chdir={folder}\n" in done.stdout
    last = done.stdout.splitlines()[-1]
    assert last == f"exec {sys.executable} -m doubletime run train.py --epochs=3 -N x"
    # It may have been meant for Slurm.
    assert done.stderr.startswith("note: -N after train.py's own words is its own too")
    assert "doubletime slurm -N … train.py" in done.stderr


def test_options_stand_after_the_program_too(folder):
    words = [*_SLURM, "train.py", "-N", "4", "--time", "5", "--epochs", "3"]
    done = run_command(words, cwd=folder).check()
    assert "#SBATCH --nodes=4\n" in done.stdout
    assert "#SBATCH --time=5\n" in done.stdout
    assert done.stdout.endswith("-m doubletime run train.py --epochs 3\n")
    assert done.stderr == ""


def test_what_could_be_either_s_is_told(folder):
    words = [*_SLURM, "-N", "4", "train.py"]
    done = run_command([*words, "--output", "x.log"], cwd=folder).check()
    assert "#SBATCH --output=x.log\n" in done.stdout
    assert done.stderr.startswith("note: --output x.log after train.py is taken as slurm's")
    done = run_command([*words, "--", "--output", "x.log"], cwd=folder).check()
    assert done.stdout.endswith("-m doubletime run train.py --output x.log\n")
    assert done.stderr == ""


def test_options_of_the_program_alone_are_nothing_to_note(folder):
    done = run_command([*_SLURM, "train.py", "--epochs=3", "-x"], cwd=folder).check()
    assert done.stderr == ""


def test_it_writes_a_file_and_says_how_to_submit_it(folder):
    words = [*_SLURM, "-N", "2", "--save", "job.sh", "-m", "json.tool", "--help"]
    done = run_command(words, cwd=folder).check()
    assert done.stdout == ""
    assert "sbatch job.sh" in done.stderr
    script = (folder / "job.sh").read_text()
    assert "#SBATCH --job-name=json.tool\n" in script
    assert script.endswith("-m doubletime run -m json.tool --help\n")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["missing.py"], "there is no script missing.py"),
        (["--time", "1h", "train.py"], "'1h' is no time that Slurm knows"),
        (["--env", "A", "train.py"], "--env 'A' is no NAME=VALUE"),
        (["--save", "no/such/job.sh", "train.py"], "no/such/job.sh cannot be written"),
        (["--submit", "train.py"], "there is no sbatch here"),
    ],
)
def test_what_cannot_be_is_refused(folder, words, said):
    done = run_command([*_SLURM, *words], cwd=folder, env={"PATH": "/nowhere"})
    assert done.exit_code == 1
    assert said in done.stderr
