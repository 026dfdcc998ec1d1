"""`doubletime k8s`: a manifest from a command line; what it may hold is tested in cluster."""

import sys

import pytest
import yaml

from ranks import run_command

_K8S = [sys.executable, "-m", "doubletime", "k8s", "--image", "ada/train:1"]


def test_it_prints_the_manifest(tmp_path):
    words = [
        *_K8S,
        "-N",
        "3",
        "--gpus",
        "2",
        "--volume",
        "data:/data",
        "my_train.py",
        "--memory=8Gi",
        "--",
        "--image",
        "x",
    ]
    done = run_command(words, cwd=tmp_path).check()
    found = yaml.safe_load(done.stdout)
    assert found["metadata"]["name"] == "my-train"
    assert found["spec"]["slotsPerWorker"] == 2
    roles = found["spec"]["mpiReplicaSpecs"]
    assert roles["Worker"]["replicas"] == 3
    worker = roles["Worker"]["template"]["spec"]["containers"][0]
    assert worker["resources"]["limits"]["memory"] == "8Gi"
    launcher = roles["Launcher"]["template"]["spec"]["containers"][0]
    assert launcher["command"][-3:] == ["my_train.py", "--image", "x"]
    assert launcher["volumeMounts"] == [{"name": "volume-1", "mountPath": "/data"}]


def test_it_writes_a_file_and_says_how_to_start_it(tmp_path):
    done = run_command([*_K8S, "--save", "job.yaml", "train.py"], cwd=tmp_path).check()
    assert done.stdout == ""
    assert "kubectl apply -f job.yaml" in done.stderr
    assert yaml.safe_load((tmp_path / "job.yaml").read_text())["kind"] == "MPIJob"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--volume", "data", "train.py"], "'data' is no CLAIM:FOLDER"),
        (["--name", "Train", "train.py"], "lower-case letters"),
        (["--mpi", "lam", "train.py"], "none of mpich, openmpi, intel"),
    ],
)
def test_what_cannot_be_is_refused(words, said):
    done = run_command([*_K8S, *words])
    assert done.exit_code == 1
    assert said in done.stderr
