"""Whether ranks that should hold the same parameters do: a few numbers a parameter are compared."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from doubletime.errors import TrainingError

_NAMED = 3
_PIECE = 1 << 20  # elements looked at together: the sums need room of 8 bytes each
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def check_alike(model: nn.Module, when: str, group: dist.ProcessGroup | None = None) -> None:
    """Compare the bits of all parameters by sums over them; collective, one message of 16 bytes each.

    Args:
        model: this rank's; of what is sharded, what it holds.
        when: to name it, such as "after step 3 of epoch 1".
        group: the ranks that should hold the same; all by default.

    Raises:
        TrainingError: if a parameter differs; it names it, and the ranks.
    """
    if not dist.is_initialized() or dist.get_world_size(group) == 1:
        return
    named = list(model.named_parameters())
    mine = torch.stack([fingerprint(parameter) for _, parameter in named])
    everyone = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
    dist.all_gather(everyone, mine, group=group)
    found = differences([name for name, _ in named], everyone)
    if not found:
        return
    ranks = range(len(everyone)) if group is None else dist.get_process_group_ranks(group)
    first, others = next(iter(found.items()))
    named_ranks = ", ".join(str(ranks[other]) for other in others)
    more = f"; so do {_listed(list(found)[1:])}" if len(found) > 1 else ""
    raise TrainingError(
        f"{when}, {first} on rank{'s' * (len(others) > 1)} {named_ranks} differs from rank "
        f"{ranks[0]}'s{more}",
        "something changes parameters on some ranks only: make every rank run the same code on them; "
        "--resume auto goes back to the last checkpoint",
    )


def differences(names: list[str], fingerprints: list[Tensor]) -> dict[str, list[int]]:
    """Which parameters differ from the first rank's, and on which ranks. Pure.

    Args:
        names: of the parameters.
        fingerprints: of each rank, a row each parameter.
    """
    unequal = torch.stack([(each != fingerprints[0]).any(dim=1) for each in fingerprints], dim=1)
    return {
        name: [int(rank) for rank in row.nonzero()]
        for name, row in zip(names, unequal, strict=True)
        if bool(row.any())
    }


@torch.no_grad()
def fingerprint(parameter: Tensor) -> Tensor:
    """Two sums over a parameter's bits, int64 (2,): plain, and weighted by the place; of what is here."""
    local = parameter.to_local() if isinstance(parameter, DTensor) else parameter
    bits = torch.view_as_real(local) if local.is_complex() else local.detach()
    bits = bits.contiguous().view(_BITS[bits.element_size()]).flatten()
    sums = torch.zeros(2, dtype=torch.int64, device=bits.device)
    for number, piece in enumerate(bits.split(_PIECE)):
        wide = piece.long()
        sums[0] += wide.sum()
        places = torch.arange(1, len(wide) + 1, device=wide.device)
        sums[1] += (wide * places).sum() + number * sums[0]
    return sums


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more
