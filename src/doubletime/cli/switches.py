"""The options of `doubletime train` that change how a task is trained, not where."""

from __future__ import annotations

from typing import Annotated

import typer

from doubletime.training.switches import Switches, SwitchOptions

_PANEL = "How to train"

LrOption = Annotated[
    float | None,
    typer.Option(
        help="Learning rate in place of the task's own; its schedule is scaled alike.",
        rich_help_panel=_PANEL,
    ),
]
ScaleLrOption = Annotated[
    str,
    typer.Option(
        metavar="linear|sqrt|none",
        help="Multiply the learning rate as --global-batch does the task's batch, or by the root of that.",
        rich_help_panel=_PANEL,
    ),
]
WarmupOption = Annotated[
    str,
    typer.Option(
        metavar="EPOCHS|Nsteps",
        help="Let the learning rate rise for so long: 5, 0.5 or 200steps.",
        rich_help_panel=_PANEL,
    ),
]
OptimizerOption = Annotated[
    str | None,
    typer.Option(
        metavar="lars|lamb",
        help="In place of the task's, for large batches; with --lr.",
        rich_help_panel=_PANEL,
    ),
]
AccumulateOption = Annotated[
    int,
    typer.Option(
        metavar="PARTS",
        help="Compute each rank's share of a batch in so many parts: less memory, one message.",
        rich_help_panel=_PANEL,
    ),
]
ClipNormOption = Annotated[
    float | None,
    typer.Option(help="Largest norm of the gradient, over all parameters.", rich_help_panel=_PANEL),
]
PrecisionOption = Annotated[
    str,
    typer.Option(
        metavar="fp32|bf16|fp16",
        help="Of forward passes; fp32: the model's.",
        rich_help_panel=_PANEL,
    ),
]
CheckpointActivationsOption = Annotated[
    bool,
    typer.Option(
        "--checkpoint-activations",
        help="Compute activations twice instead of keeping them: less memory.",
        rich_help_panel=_PANEL,
    ),
]
CompileOption = Annotated[
    bool,
    typer.Option("--compile", help="Compile the model by torch.compile.", rich_help_panel=_PANEL),
]
OnNanOption = Annotated[
    str,
    typer.Option(
        metavar="stop|skip[:N]",
        help="At a loss or gradient that is not finite: stop, or skip up to N steps (10).",
        rich_help_panel=_PANEL,
    ),
]
SyncBatchnormOption = Annotated[
    bool,
    typer.Option(
        "--sync-batchnorm",
        help="BatchNorm over the global batch, on any device.",
        rich_help_panel=_PANEL,
    ),
]
CheckEveryOption = Annotated[
    int,
    typer.Option(
        metavar="STEPS",
        help="Check so often that all ranks hold the same parameters; 0: never.",
        rich_help_panel=_PANEL,
    ),
]
ReproducibleOption = Annotated[
    bool,
    typer.Option(
        "--reproducible",
        help="The same bits on 1, 2, 4 or 8 ranks, and after any restart; slower.",
        rich_help_panel=_PANEL,
    ),
]
ScheduleOption = Annotated[
    str | None,
    typer.Option(
        metavar="gpipe|1f1b|interleaved|zero_bubble|zbv",
        help="In which order the stages of a pipeline compute.  [default: 1f1b]",
        rich_help_panel=_PANEL,
    ),
]
MicrobatchesOption = Annotated[
    int,
    typer.Option(
        metavar="PARTS",
        help="Into how many parts a pipeline divides each batch; 0: four a stage.",
        rich_help_panel=_PANEL,
    ),
]


def words(options: SwitchOptions) -> list[str]:
    """The options as they stand on a command line; those at rest are left out.

    Raises:
        TrainingError: if one is out of range, before any rank is started.
    """
    found = []
    for name, value in Switches.of(options).turned().items():
        option = f"--{name.replace('_', '-')}"
        found += [option] if value is True else [option, str(value)]
    return found
