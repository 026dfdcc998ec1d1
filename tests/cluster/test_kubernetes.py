"""The manifest against what the operator's API (kubeflow.org/v2beta1) defines and requires."""

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from doubletime.cluster.batch_system import Launch
from doubletime.cluster.kubernetes import MPIJob, manifest
from doubletime.errors import LaunchError

# The part of the published API that a manifest may use: each field's type; "!" where the operator
# or Kubernetes requires it; a set of values where only those are taken.
_QUANTITY = (str, int)
_CONTAINER = {
    "name!": str,
    "image!": str,
    "command": [str],
    "workingDir": str,
    "resources": {"limits": {"cpu": _QUANTITY, "memory": _QUANTITY, "nvidia.com/gpu": _QUANTITY}},
    "volumeMounts": [{"name!": str, "mountPath!": str}],
}
_VOLUME = {
    "name!": str,
    "emptyDir": {"medium": {"", "Memory"}, "sizeLimit": _QUANTITY},
    "persistentVolumeClaim": {"claimName!": str},
}
_REPLICAS = {
    "replicas!": int,
    "restartPolicy!": {"Never", "OnFailure"},
    "template!": {"spec!": {"containers!": [_CONTAINER], "volumes": [_VOLUME]}},
}
_API = {
    "apiVersion!": {"kubeflow.org/v2beta1"},
    "kind!": {"MPIJob"},
    "metadata!": {"name!": str, "namespace": str},
    "spec!": {
        "slotsPerWorker!": int,
        "sshAuthMountPath!": str,
        "mpiImplementation!": {"OpenMPI", "Intel", "MPICH"},
        "launcherCreationPolicy": {"AtStartup", "WaitForWorkersReady"},
        "runPolicy!": {"cleanPodPolicy!": {"None", "Running", "All"}, "backoffLimit": int},
        "mpiReplicaSpecs!": {"Launcher!": _REPLICAS, "Worker": _REPLICAS},
    },
}


def _check(value, api, at="manifest"):
    if isinstance(api, dict):
        assert isinstance(value, dict), at
        known = {name.removesuffix("!"): part for name, part in api.items()}
        assert value.keys() <= known.keys(), at
        required = {name[:-1] for name in api if name.endswith("!")}
        assert required <= value.keys(), at
        for name, part in value.items():
            _check(part, known[name], f"{at}.{name}")
    elif isinstance(api, list):
        assert isinstance(value, list), at
        assert value, at
        for index, part in enumerate(value):
            _check(part, api[0], f"{at}[{index}]")
    elif isinstance(api, set):
        assert value in api, at
    else:
        assert isinstance(value, api), f"{at}: {value!r}"


def _manifest(launch=None, **asked):
    job = MPIJob(**{"name": "train", "image": "ada/train:1", "nodes": 2, **asked})
    found = yaml.safe_load(manifest(job, launch or Launch(["train.py"])))
    _check(found, _API)
    return found["spec"]


@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"per_host": 2, "cpus": "4", "memory": "8Gi", "mpi": "intel", "namespace": "ml"},
        {
            "gpus": 8,
            "volumes": {"/data": "data", "/out": "out"},
            "folder": "/app",
            "mpi": "openmpi",
        },
    ],
)
def test_it_is_an_mpijob(asked):
    spec = _manifest(**asked)
    names = set()
    for role in ("Launcher", "Worker"):
        pod = spec["mpiReplicaSpecs"][role]["template"]["spec"]
        mounted = {mount["name"] for mount in pod["containers"][0].get("volumeMounts", [])}
        assert mounted == {volume["name"] for volume in pod.get("volumes", [])}
        names |= mounted
    assert names == {"shm", *(f"volume-{i + 1}" for i in range(len(asked.get("volumes", ()))))}


def test_the_launcher_runs_on_what_the_operator_lists():
    launch = Launch(["train.py", "--epochs", "5"], "mpi", {"A": "b c"}, max_restarts=2)
    spec = _manifest(launch, gpus=4)
    roles = spec["mpiReplicaSpecs"]
    assert roles["Launcher"]["template"]["spec"]["containers"][0]["command"] == [
        *("doubletime", "run", "--hostfile", "/etc/mpi/hostfile", "--ssh-command"),
        "ssh -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null",
        *("--backend", "mpi", "--env", "A=b c", "--max-restarts", "2"),
        *("train.py", "--epochs", "5"),
    ]
    assert spec["slotsPerWorker"] == 4
    assert roles["Launcher"]["replicas"] == 1  # the operator takes no other
    assert roles["Worker"]["replicas"] == 2
    worker = roles["Worker"]["template"]["spec"]["containers"][0]
    assert worker["resources"]["limits"] == {"nvidia.com/gpu": 4}


# What a YAML file may hold as it is: printable, no surrogates.
_TEXT = st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"]) | st.just(" "))


@given(st.lists(_TEXT | st.sampled_from(["no", "1e3", "0x1", "12:30", "~", "a:", "-", "=", "<<"])))
def test_texts_stay_texts(arguments):
    spec = _manifest(Launch(["train.py", *arguments]))
    container = spec["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]["containers"][0]
    assert container["command"][-1 - len(arguments) :] == ["train.py", *arguments]


@pytest.mark.parametrize(
    ("asked", "what"),
    [
        ({"nodes": 0}, "no hosts to run on"),
        ({"mpi": "lam"}, "none of mpich, openmpi, intel"),
        ({"name": "My_Job"}, "lower-case letters"),
        ({"name": "a" * 60}, "at most 63"),
        ({"memory": "8 GB"}, "no quantity"),
        ({"image": ""}, "the name of no image"),
        ({"image": "my image"}, "the name of no image"),
    ],
)
def test_what_cannot_be_asked_is_refused(asked, what):
    with pytest.raises(LaunchError, match=what):
        _manifest(**asked)
