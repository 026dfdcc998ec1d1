"""A run as people see it: lines off a terminal, a bar on one, a table at the end."""

import io
from dataclasses import replace

import pytest
from rich.console import Console

from doubletime.reporting.console import (
    COLUMNS_VARIABLE,
    Watch,
    comparison_table,
    open_console,
    show_metrics,
)
from doubletime.training.loop import EpochDone, Notice, RunDone, RunStarted, StepDone

STARTED = RunStarted(
    task="toy",
    session="2 ranks over mpi",
    world_size=2,
    threads=1,
    samples=1000,
    test_samples=200,
    global_batch=500,
    epochs=1,
    steps=2,
    parameters=12345,
    seed=0,
    noun="images",
)
STEPS = [StepDone(1, 1, 2.5, 500), StepDone(1, 2, 1.5, 500)]
EPOCH = EpochDone(1, 2.0, {"accuracy": 0.875, "loss": 1.25}, 4321.0, 0.125, 2.0, 1.0)
ONE = RunDone("toy", 1, 1, "images", 1, 2.0, {"accuracy": 0.875}, 1000.0, 0.0, 1.0, 1.5)
TWO = RunDone("toy", 2, 1, "images", 1, 2.0, {"accuracy": 0.88}, 1900.0, 0.125, 0.53, 1.0)


def _shown(*events, terminal=False, columns=200):
    text = io.StringIO()
    console = Console(
        file=text,
        width=columns,
        force_terminal=terminal,
        force_interactive=terminal,
        highlight=False,
    )
    with Watch(console) as watch:
        for event in events:
            watch(event)
    return text.getvalue()


def test_off_a_terminal_lines_and_no_escape_codes():
    text = _shown(Notice("take care"), STARTED, *STEPS, EPOCH, TWO)
    assert "\x1b" not in text
    assert "\r" not in text
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert lines[:4] == [
        "note: take care",
        "toy: 1,000 images to train, 200 to test; 12,345 parameters; global batch 500, "
        "1 epoch of 2 steps, seed 0",
        "2 ranks over mpi",
        "epoch 1/1 loss 2.0000 test accuracy 87.50%, loss 1.2500 4,321 images/s waiting 12.5% 3 s",
    ]
    assert any(line.split() == ["images/s", "1,900"] for line in lines)


def test_a_bar_on_a_terminal_with_loss_and_epoch():
    text = _shown(STARTED, *STEPS, EPOCH, terminal=True)
    assert "\x1b" in text
    assert "epoch 1/1" in text
    assert "loss 2.500" in text
    assert text.endswith("\x1b[?25h") or "\x1b[?25h" in text  # the cursor is back


def test_an_error_leaves_the_terminal_in_order():
    text = io.StringIO()
    console = Console(file=text, force_terminal=True, force_interactive=True)
    try:
        with Watch(console) as watch:
            watch(STARTED)
            raise ValueError
    except ValueError:
        pass
    assert text.getvalue().count("\x1b[?25h") >= text.getvalue().count("\x1b[?25l") > 0


def test_words_in_brackets_are_shown_as_they_are():
    assert "note: [bold]as written[/bold]" in _shown(Notice("[bold]as written[/bold]"))


def test_comparison_names_speed_up_and_waiting():
    text = io.StringIO()
    Console(file=text, width=100).print(comparison_table(ONE, TWO))
    rows = {
        tuple(words[:-2]): words[-2:]
        for words in (line.split() for line in text.getvalue().splitlines())
        if len(words) > 2
    }
    assert rows[("images/s",)] == ["1,000", "1,900"]
    assert rows[("speed-up",)] == ["1.00", "1.90"]
    assert rows[("waiting", "for", "communication")] == ["-", "12.5%"]
    assert rows[("test", "accuracy")] == ["87.50%", "88.00%"]
    assert rows[("threads", "per", "rank")] == ["1", "1"]


def test_a_rank_behind_a_pipe_draws_where_its_starter_has_a_terminal(monkeypatch):
    monkeypatch.setattr("sys.stdout", io.StringIO())
    monkeypatch.setenv(COLUMNS_VARIABLE, "77")
    assert (open_console().is_terminal, open_console().width) == (True, 77)
    monkeypatch.delenv(COLUMNS_VARIABLE)
    assert not open_console().is_terminal


def test_words():
    assert show_metrics({"accuracy": 0.5, "loss": 2.0}) == ["accuracy 50.00%", "loss 2.0000"]
    assert show_metrics({"accuracy": 0.5, "loss": 2.0}, only_main=True) == ["accuracy 50.00%"]


@pytest.mark.parametrize(
    ("share", "shown"), [(0.5, "50.0%"), (0.1, "1/10"), (0.0032, "1/312"), (1.5, "150.0%")]
)
def test_what_was_sent_is_told_where_it_is_not_all(share, shown):
    assert "sent, of" not in _shown(TWO)
    [line] = [
        line for line in _shown(replace(TWO, sent_share=share)).splitlines() if "sent" in line
    ]
    assert line.split()[-1] == shown
