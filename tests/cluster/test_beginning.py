"""Whether hosts see the same program, and what is told where they do not."""

from __future__ import annotations

from pathlib import Path

import pytest

from doubletime.cluster.beginning import Roll, Sight, look, trouble

_SEEN = Sight("script train.py", "/shared", is_there=True, content=(10, 1))
_OTHER = _SEEN._replace(content=(10, 2))
_NONE = _SEEN._replace(is_there=False, content=None)
_NOWHERE = Sight("folder", "/shared", is_there=False, lacks_folder=True)


def test_a_script_is_known_by_its_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    script = tmp_path / "train.py"
    seen = look(["train.py"])._replace(machine="")
    assert seen == Sight("script train.py", str(tmp_path), is_there=False)
    script.write_text("print(1)\n")
    first = look(["train.py", "x"])
    assert first.is_there
    script.write_text("print(2)\n")
    assert look(["train.py"]).content != first.content


def test_another_folder_than_the_job_s_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    for folder, lacks in (("link", False), (".", False), ("..", True), ("none", True)):
        monkeypatch.setenv("DOUBLETIME_FOLDER", str(tmp_path / folder))
        assert look(["train.py"]).lacks_folder == lacks


@pytest.mark.parametrize(
    ("program", "is_there"),
    [
        (["--", "sh", "-c", "true"], True),
        (["--", "no-such-program"], False),
        (["-m", "json.tool"], True),
        (["-m", "no_such_module.part"], False),
        (["-m", ".x"], False),
        (["-m", "__main__"], False),
    ],
)
def test_programs_and_modules_are_looked_for(program: list[str], is_there: bool) -> None:
    assert look(program).is_there == is_there


def test_hosts_that_see_the_same_begin() -> None:
    assert trouble({"node1": _SEEN, "node2": _SEEN}, _SEEN) is None
    # A host from which the job is started, and that takes no part, need not see it.
    assert trouble({"node1": _SEEN, "node2": _SEEN}, _NONE) is None


def test_a_machine_that_goes_by_two_names_is_named() -> None:
    seen = {name: _SEEN._replace(machine="m1") for name in ("node1", "10.0.0.1")}
    seen["node2"] = _SEEN._replace(machine="m2")
    told = trouble(seen, _SEEN)
    assert told is not None
    assert told.startswith("hosts 10.0.0.1, node1 are one machine: ")
    assert "name it once" in told
    assert look(["train.py"]).machine == look(["other.py"]).machine != ""


@pytest.mark.parametrize(
    ("seen", "own", "told"),
    [
        (
            {"node1": _SEEN, "node2": _NONE, "node3": _NONE},
            _SEEN,
            "there is no script train.py on hosts node2, node3 (looked in /shared)\n",
        ),
        (
            {"node1": _SEEN, "node2": _NOWHERE},
            _SEEN,
            "there is no folder /shared on host node2\n",
        ),
        (
            {"node1": _SEEN, "node2": _OTHER},
            _SEEN,
            "script train.py on host node2 is another file than here (looked in /shared)\n",
        ),
        (
            {"node1": _OTHER, "node2": _SEEN, "node3": _SEEN},
            _NONE,
            "script train.py on host node1 is another file than on host node2",
        ),
    ],
)
def test_hosts_that_do_not_are_named(seen: dict[str, Sight], own: Sight, told: str) -> None:
    found = trouble(seen, own)
    assert found is not None
    assert told in found
    assert "a folder that all hosts share" in found
    assert found.count("remedy") == 1


def test_a_job_begins_when_all_have_come() -> None:
    roll = Roll(["node1", "node1", "node2"], _SEEN)
    assert roll.refusal(1000.0) is None  # whoever starts them has a limit of its own
    for rank in (0, 2):
        roll.enter(rank, _SEEN._asdict(), 0.0)
    assert not roll.may_begin()
    assert roll.refusal(10.0) is None
    told = roll.refusal(100.0)
    assert told is not None
    assert told.startswith("rank 1 on host node1 did not start within 100 s of the others\n")
    roll.enter(1, _SEEN._asdict(), 100.0)
    assert roll.may_begin()
    assert roll.refusal(100.0) is None


def test_one_error_names_all_hosts() -> None:
    roll = Roll(["node1", "node2", "node3"], _SEEN)
    roll.enter(0, _SEEN._asdict(), 0.0)
    roll.enter(1, _NONE._asdict(), 0.0)
    assert roll.refusal(0.1) is None  # another may come that sees none either
    assert not roll.may_begin()
    roll.enter(2, _NONE._asdict(), 0.2)
    told = roll.refusal(0.2)
    assert told is not None
    assert "hosts node2, node3" in told


def test_who_never_comes_keeps_no_known_trouble_back() -> None:
    roll = Roll(["node1", "node2"], _SEEN)
    roll.enter(1, {**_OTHER._asdict(), "content": [10, 2]}, 0.0)
    told = roll.refusal(4.0)
    assert told is not None
    assert "another file than here" in told


def test_nonsense_is_refused() -> None:
    roll = Roll(["node1"], _SEEN)
    with pytest.raises(ValueError, match="no rank 7"):
        roll.enter(7, _SEEN._asdict(), 0.0)
    with pytest.raises(TypeError):
        roll.enter(0, {"what": "x", "colour": "red"}, 0.0)
