"""Every example runs as its own first line says."""

import shlex

import pytest

from ranks import ROOT, run_command

EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
SAYS = {
    "point_to_point.py": ["rank 1 received [1.0, -1.0]"],
    "all_reduce.py": [f"rank {rank} has the sum 0" for rank in range(3)],
    "train_loop.py": ["epoch 1: loss", "epoch 5: loss 0.1"],
    "my_task.py": ["HandwrittenDigits: 1,437 samples to train", "epoch 8/8", "test accuracy"],
    "resumable.py": ["epoch 1: loss", "epoch 3: loss", "1797 samples, each seen 1 to 1 times"],
}
# Lines: what a newcomer reads at one go; what must survive a dying host is longer.
LONGEST = {"resumable.py": 90}


def test_every_example_is_known():
    assert {path.name for path in EXAMPLES} == set(SAYS)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_an_example_does_what_its_first_line_says(example, tmp_path):
    text = example.read_text()
    assert len(text.splitlines()) <= LONGEST.get(example.name, 60)
    first = text.splitlines()[0]
    assert first.startswith("# ")
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    done = run_command(shlex.split(first[2:]), cwd=tmp_path, timeout=90).check()
    for line in SAYS[example.name]:
        assert line in done.stdout
    # Nothing but what init() says about the job.
    assert [line for line in done.stderr.splitlines() if not line.startswith("doubletime: ")] == []
