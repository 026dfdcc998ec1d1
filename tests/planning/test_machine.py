"""What stands beside a figure."""

import os

from doubletime.planning.machine import cpu_model, describe


def test_cpu_model_is_the_first_that_the_system_names(tmp_path):
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor\t: 0\nmodel name\t: Fast: 9000\n\nmodel name\t: Other\n")
    assert cpu_model(cpuinfo) == "Fast: 9000"


def test_cpu_model_falls_back_to_the_architecture(tmp_path):
    empty = tmp_path / "cpuinfo"
    empty.write_text("processor\t: 0\n")
    assert cpu_model(empty) == cpu_model(tmp_path / "absent") == os.uname().machine


def test_caption_names_what_a_reader_must_know():
    here = describe("MPICH 5.0.2")
    assert here.cores == os.cpu_count()
    for known in (here.cpu, "MPICH 5.0.2", here.torch, here.date[:10]):
        assert known in here.show()
