"""ProcessGroupMPI: the c10d surface whole; here its order, its messages and its bundles.

torch.distributed calls the methods with lists of tensors and an options object, from Python and (for
DistributedDataParallel and compiled functional collectives) from C++ through torch's trampoline.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any, cast

import torch
from torch._C import _distributed_c10d as c10d

from doubletime.mpi import messages, monitored
from doubletime.mpi.copies import Copies
from doubletime.mpi.reductions import Reductions
from doubletime.mpi.surface import listed, options
from doubletime.mpi.work import Together, Work


class ProcessGroupMPI(Reductions, Copies):
    """A torch.distributed process group over MPI; see `Surface` for its arguments."""

    # -- order ------------------------------------------------------------------------------------

    def barrier(self, opts: Any = None, timeout: Any = None) -> Work:
        """Nobody goes on before everyone has come."""
        opts = options(c10d.BarrierOptions, opts, timeout=timeout)
        group = self._group
        return group.collective("barrier", [], [], group.transport.barrier, opts, what="", same="")

    def monitored_barrier(
        self, timeout: timedelta | None = None, wait_all_ranks: bool = False
    ) -> None:
        """A barrier that names the ranks that do not come; see torch.distributed.monitored_barrier."""
        group = self._first_lane
        timeout_s = group.timeout_s if timeout is None else timeout.total_seconds()
        monitored.barrier(group, timeout_s, wait_all_ranks)

    # -- messages ---------------------------------------------------------------------------------

    def send(self, tensors: Any, destination: int, tag: int = 0) -> Work:
        """A message to a rank of the group."""
        (tensor,) = listed(tensors)
        if (other := self._elsewhere([tensor])) is not None:
            return cast(Work, other.send([tensor], destination, tag))
        return messages.send(self._first_lane, tensor, destination, tag)

    def recv(self, tensors: Any, source: int, tag: int = 0) -> Work:
        """A message from a rank of the group."""
        (tensor,) = listed(tensors)
        if (other := self._elsewhere([tensor])) is not None:
            return cast(Work, other.recv([tensor], source, tag))
        return messages.receive(self._first_lane, tensor, source, tag)

    def recv_anysource(self, tensors: Any, tag: int = 0) -> Work:
        """A message from whichever rank of the group sends one."""
        (tensor,) = listed(tensors)
        return messages.receive(self._first_lane, tensor, None, tag)

    # -- several at once --------------------------------------------------------------------------

    def _start_coalescing(self, device: torch.device) -> None:  # noqa: ARG002
        self._group.start_together()

    def _end_coalescing(self, device: torch.device) -> Together:  # noqa: ARG002
        return Together(self._group.end_together())
