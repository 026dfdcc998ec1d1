"""Which MPI library ranks would load."""

from doubletime.cluster import implementations
from doubletime.cluster.loaded import Library
from ranks import run_command, venv

PROGRAM = """
from doubletime.cluster import implementations, loaded
print(implementations.find(), loaded.Library().name(), sep="\\n")
"""


def test_it_is_that_of_the_mpiexec_beside_this_python(mpi):
    done = run_command([str(venv(mpi) / "bin" / "python"), "-c", PROGRAM], mpi=mpi).check()
    launcher, library = done.stdout.splitlines()
    assert launcher == library


def test_a_question_that_nobody_waits_for_leaves_nothing():
    question = Library()
    question.close()
    question.close()
    assert Library().name() == str(implementations.find())
