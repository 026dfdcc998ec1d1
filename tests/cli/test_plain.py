"""Command lines of `run` that are read without typer's validation."""

import subprocess
import sys
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from typer.core import TyperCommand

from doubletime.cli import plain
from doubletime.cli.verbs import command

COMMAND = command("run")
OPTIONS = [each for each in COMMAND.params if each.name != "program"]
WORDS = st.sampled_from(
    ["a:1,b:2", "x/y z", "", "A=B", "0", "1", "3", "-1", "007", "²", "1.5", "no"]
)
PROGRAMS = st.sampled_from([[], ["--", "x.py", "-n", "9"], ["--", "-m", "m"], ["p", "--help"]])


@st.composite
def lines(draw):
    """Options of every kind, with values that fit and that do not, and a program."""
    line = []
    for option in draw(st.lists(st.sampled_from(OPTIONS), max_size=5)):
        line.append(draw(st.sampled_from([*option.opts, *option.secondary_opts])))
        if not option.is_flag:
            line.append(draw(WORDS))
    return [*line, *draw(PROGRAMS)]


def context():
    return COMMAND.context_class(COMMAND, info_name="run", **COMMAND.context_settings)


def outcome(read):
    """What comes of it: arguments, None, or the words of a mistake."""
    try:
        values = read()
    except Exception as error:
        return repr(error)
    # An option that may be repeated and is not given: typer hands over an empty tuple.
    return values and {name: None if value == () else value for name, value in values.items()}


@given(lines())
def test_they_mean_what_typer_takes_them_for(line):
    def typers():
        of_typer = context()
        TyperCommand.parse_args(COMMAND, of_typer, [*line])
        return of_typer.params

    assert outcome(lambda: plain.read(COMMAND, context(), line)) in (None, outcome(typers))


def test_what_most_people_say_is_plain():
    line = "-n4 --hosts=a,b --no-bind --env A=B --env C=D --log-folder logs --tag-output -- x.py --lr 1"
    read = plain.read(COMMAND, context(), line.split())
    assert read is not None
    assert (read["ranks"], read["hosts"], read["bind"]) == (4, "a,b", False)
    assert (read["env"], read["log_folder"]) == (["A=B", "C=D"], Path("logs"))
    assert (read["tag_output"], read["max_restarts"]) == (True, 0)
    assert (read["per_host"], read["program"]) == (None, ["x.py", "--lr", "1"])


def test_they_start_without_what_typer_loads_to_validate():
    program = (
        "import sys; from doubletime.cli.main import main\n"
        "sys.argv[1:] = ['run', '--dry-run', '-n', '2', sys.executable, '--version']\n"
        "try: main()\n"
        "finally: print([name for name in ('pydantic', 'rich', 'torch') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"
