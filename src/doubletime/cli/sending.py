"""The options of `doubletime train` that say what ranks send each other, and how often."""

from __future__ import annotations

from typing import Annotated

import typer

from doubletime.training.sending import Sending, SendingOptions

_PANEL = "What ranks send"

CompressOption = Annotated[
    str | None,
    typer.Option(
        metavar="fp16|bf16|int8|powersgd:RANK|topk:SHARE",
        help="Make gradients smaller before they are sent; powersgd:2 and topk:0.01 most.",
        rich_help_panel=_PANEL,
    ),
]
AlgorithmOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Reduction algorithm, as `doubletime explain` lists them, or auto.  "
        "[default: the backend's own]",
        rich_help_panel=_PANEL,
    ),
]
LocalStepsOption = Annotated[
    int | None,
    typer.Option(
        metavar="STEPS",
        help="Let each rank make so many steps by itself, then average parameters.",
        rich_help_panel=_PANEL,
    ),
]
LocalAfterOption = Annotated[
    int | None,
    typer.Option(
        metavar="STEPS",
        help="Let so many steps be synchronous before the local ones.",
        rich_help_panel=_PANEL,
    ),
]
OuterOption = Annotated[
    str | None,
    typer.Option(
        metavar="average|diloco",
        help="What happens after local steps: the plain mean, or an outer step with Nesterov's momentum.",
        rich_help_panel=_PANEL,
    ),
]
OuterLrOption = Annotated[
    float | None,
    typer.Option(help="Of that outer step.  [default: diloco's 0.7]", rich_help_panel=_PANEL),
]
OuterMomentumOption = Annotated[
    float | None,
    typer.Option(help="Of that outer step.  [default: diloco's 0.9]", rich_help_panel=_PANEL),
]


def words(options: SendingOptions) -> list[str]:
    """The options as they stand on a command line; those not given are left out.

    Raises:
        TrainingError: if one is out of range, or they do not go together, before any rank is started.
        ScheduleError: if there is no such algorithm.
    """
    found = []
    for name, value in Sending.of(options).given().items():
        found += [f"--{name.replace('_', '-')}", str(value)]
    return found
