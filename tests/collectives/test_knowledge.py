"""Where files are looked for, which are used, and what is said of the others."""

import pytest

from doubletime.collectives import knowledge
from doubletime.collectives.choice import Choice
from doubletime.collectives.cluster import Cluster
from doubletime.collectives.knowledge import ASSUMED, Text
from doubletime.collectives.profile import Estimate, Level, Profile
from doubletime.collectives.table import Decision, Measured, Table

HERE = Cluster(("node1", "node2"), (1, 1), "MPICH 5.0.2", "mpi")
ELSEWHERE = Cluster(("node8", "node9"), (1, 1), "MPICH 5.0.2", "mpi")
ONE = Estimate(1.0, 1.0, 1.0)


def profile(cluster):
    return Profile(cluster, None, Level(ONE, ONE, 0.0, 0.0, ONE, ONE), ONE, (), "", "").text()


def table(cluster):
    decision = Decision(1024, Choice("ring"), 1.0, 1.0)
    return Table((Measured(cluster, "all_reduce", (decision,), "", ""),)).text()


def test_files_of_this_cluster_are_used():
    known = knowledge.judge((Text("p", profile(HERE)), Text("t", table(HERE))), HERE)
    assert known.complaints == ()
    assert known.parameters.between.alpha_s == 1.0
    assert known.table.find(HERE, "all_reduce") is not None


def test_nothing_is_said_where_nothing_was_measured(tmp_path):
    known = knowledge.judge(knowledge.read({"XDG_CONFIG_HOME": str(tmp_path)}), HERE)
    assert known == knowledge.Knowledge(ASSUMED, Table())


@pytest.mark.parametrize(
    ("texts", "complaints"),
    [
        ((Text("p", profile(ELSEWHERE)), Text("t", None)), [("p is not used", "node8", "assumed")]),
        (
            (Text("p", None), Text("t", table(ELSEWHERE))),
            [("t is not used", "node8", "cost model")],
        ),
        (
            (Text("p", "x = ["), Text("t", "y = [")),
            [("p is not used", "not a cluster profile"), ("t is not used", "not a decision table")],
        ),
        ((Text("p", None, "denied"), Text("t", table(HERE))), [("p is not used: denied",)]),
    ],
)
def test_files_that_do_not_fit_are_named_and_left(texts, complaints):
    known = knowledge.judge(texts, HERE)
    assert known.parameters == ASSUMED
    for complaint, words in zip(known.complaints, complaints, strict=True):
        for word in words:
            assert word in complaint
    assert bool(known.table.measured) == (texts[1].content == table(HERE))


def test_a_file_that_was_named_and_is_not_there_is_told(tmp_path):
    named = tmp_path / "gone.toml"
    known = knowledge.judge(knowledge.read({"DOUBLETIME_PROFILE": str(named)}), HERE)
    assert known.complaints == (
        f"{named} is not used: DOUBLETIME_PROFILE names it, and it is not there; "
        "auto goes by what is assumed of clusters",
    )


def test_a_folder_and_bytes_that_are_no_text_are_told(tmp_path):
    file = tmp_path / "doubletime" / "profile.toml"
    file.mkdir(parents=True)
    (tmp_path / "doubletime" / "profile.table.toml").write_bytes(b"\xff\xfe\x00")
    known = knowledge.judge(knowledge.read({"XDG_CONFIG_HOME": str(tmp_path)}), HERE)
    assert len(known.complaints) == 2
