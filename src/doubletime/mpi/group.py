"""One group's machinery beneath the torch surface: a call becomes a job for the engine.

Every collective takes the same way: number and describe the call, bring its tensors before MPI, choose
shared memory or MPI, carry it out, and turn a wait that lasts too long into an error that names names.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from typing import Any

import torch
import torch.distributed as dist

from doubletime.errors import CollectiveError, UnsupportedError
from doubletime.mpi import library, staging
from doubletime.mpi.callbacks import Callbacks, depth
from doubletime.mpi.calls import Call, called_from
from doubletime.mpi.engine import Engine
from doubletime.mpi.engine import Job as EngineJob
from doubletime.mpi.flat import flattened, written_back
from doubletime.mpi.job import Job
from doubletime.mpi.operations import Transport
from doubletime.mpi.shared_memory import HostMemory, attach
from doubletime.mpi.types import Reduction
from doubletime.mpi.waiting import Condition, Operation
from doubletime.mpi.watchdog import Inquiry, explain
from doubletime.mpi.work import Work

# Between ranks of one host, larger tensors go through shared memory, smaller ones through MPI.
SHARED_FROM_NBYTES = 128 << 10
_ASK_AFTER_S = 1.0
_ASK_EVERY_S = 2.0
_DESERTED_FOR_S = 5.0
_SIGNATURE_NBYTES = 512
_LAST_WORK_S = 2.0

Body = Callable[..., Operation]


class Group:
    """A communicator, its communication thread and its record of calls.

    Args:
        job: the job it belongs to.
        ranks: its world ranks in the group's order.
        name: the same on all members, unlike any other living group's.
        timeout_s: how long an operation may wait, in seconds.
    """

    def __init__(self, job: Job, ranks: Sequence[int], name: str, timeout_s: float) -> None:
        self.job = job
        self.ranks = list(ranks)
        self.name = name
        self.timeout_s = timeout_s
        self.comm = job.communicator(ranks, name, timeout_s)
        self.message_comm = self.comm.Dup()
        self.rank: int = self.comm.Get_rank()
        self.world_size: int = self.comm.Get_size()
        self.most_tag: int = self.comm.Get_attr(job.mpi.TAG_UB)
        are_far = [job.hosts[rank] != job.host for rank in self.ranks]
        self.transport = Transport(job.mpi, self.comm, are_far)
        self.memory: HostMemory | None = attach(self.comm)
        self.engine = Engine(f"doubletime-{name}", job.inline_spin_s, job.thread_spin_s)
        self.callbacks = Callbacks(name)
        self._callbacks_lane: Group | None = None
        self._history = job.watchdog.history(name)
        job.at_leaving[name] = self._end_threads
        self._is_debugged = dist.get_debug_level() == dist.DebugLevel.DETAIL
        self._together: list[Work] | None = None
        # What monitored barriers need to remember: how many there were, and sends nobody may take.
        self.barriers = 0
        self.unanswered: list[Any] = []

    # -- ways in ----------------------------------------------------------------------------------

    def collective(
        self,
        name: str,
        tensors: Sequence[torch.Tensor],
        outputs: Sequence[int],
        body: Body,
        opts: Any,
        *,
        what: object,
        same: object,
        result: Sequence[torch.Tensor] | None = None,
        inputs: Sequence[torch.Tensor] | None = None,
    ) -> Work:
        """Start a collective.

        Args:
            name: as torch.distributed calls it.
            tensors: all tensors it reads or writes.
            outputs: the indices of those it writes.
            body: makes the operation from the tensors, flat and in host memory.
            opts: the c10d options: `asyncOp` and `timeout`.
            what: see `Call`.
            same: see `Call`; what is the same on all ranks.
            result: what the future holds; the outputs unless given.
            inputs: what it reads, for the profiler; all tensors unless given.
        """
        for tensor in tensors:
            if tensor.layout is not torch.strided:
                raise UnsupportedError(
                    f"{name} takes no sparse tensors over mpi (only all_reduce does); it got {tensor.layout}",
                    "make it dense: tensor.to_dense()",
                )
        call = self.enter(name, what, same)
        plan = staging.plan(tensors, outputs, library.is_cuda_aware)
        if plan is not None:
            plan.begin()
        outcome = [tensors[index] for index in outputs] if result is None else result
        work = Work(outcome, self.callbacks, plan.settle if plan is not None else None)
        operation = self._operation(call, tensors, outputs, body, plan)
        # The profiler takes an operation for asynchronous if it ends on another thread than it began.
        profiled = _begin_event(name, tensors if inputs is None else inputs, self.world_size)
        job = self.job_of(call, operation, work, opts, profiled)
        self.engine.run_or_queue(job, not opts.asyncOp and profiled is None)
        if self._together is not None:
            self._together.append(work)
        return work

    def message(
        self, name: str, tensor: torch.Tensor, post: Callable[[torch.Tensor, Work], Operation],
        *, what: object, peers: Sequence[int], is_output: bool,
    ) -> Work:  # fmt: skip
        """Start a point-to-point message; `post` makes its operation from the flat host tensor."""
        call = Call(0, name, what, what, called_from(depth=3))
        outputs = [0] if is_output else []
        plan = staging.plan([tensor], outputs, library.is_cuda_aware)
        if plan is not None:
            plan.begin()
        work = Work([tensor], self.callbacks, plan.settle if plan is not None else None)
        operation = _carried([tensor], outputs, lambda flat: post(flat, work), plan)
        profiled = _begin_event(name, [tensor], self.world_size)
        job = self.job_of(call, operation, work, None, profiled, peers)
        if profiled is None:
            work.belongs_to(self.engine, job)
        self.engine.look_after(job, may_finish_here=profiled is None)
        if self._together is not None:
            self._together.append(work)
        return work

    def start_together(self) -> None:
        """From now on remember the works that are started."""
        self._together = []

    def end_together(self) -> list[Work]:
        """The works since `start_together`."""
        works, self._together = self._together or [], None
        return works

    def lane(self) -> Group:
        """This group for the calling thread: callbacks have one of their own.

        An operation that a future's callback issues must not take part in the order of those that the
        program issues: the two interleave differently on each rank. So callbacks of this lane's futures
        issue on a second communicator, theirs on a third, and so on, made when first needed.
        """
        lane = self
        for _ in range(depth()):
            if lane._callbacks_lane is None:
                name = f"{lane.name}/callbacks"
                lane._callbacks_lane = Group(self.job, self.ranks, name, self.timeout_s)
            lane = lane._callbacks_lane
        return lane

    def close(self, error: Exception | None = None) -> None:
        """Let what is under way end (or fail with `error`), then give everything back."""
        self.job.at_leaving.pop(self.name, None)
        self.engine.stop(error)
        self.callbacks.stop(patience_s=1.0)
        if self._callbacks_lane is not None:
            self._callbacks_lane.close(error)
        self.job.watchdog.forget(self.name)
        if self.engine.broken is None and library.is_running():
            self.message_comm.Free()
            self.comm.Free()
        if self.memory is not None:
            self.memory.close()
            self.memory = None

    def _end_threads(self) -> None:
        """The program has ended on all ranks: what nobody waited for has a moment left to end by itself."""
        if not self.engine.is_idle_within(_LAST_WORK_S):
            self.engine.stop(
                CollectiveError(f"the program ended before the work of group {self.name!r}")
            )
        self.engine.stop()
        self.callbacks.stop(patience_s=1.0)

    # -- shared memory or MPI ---------------------------------------------------------------------

    def all_reduce(self, flat: torch.Tensor, reduction: Reduction) -> Operation:
        """The reduction of all ranks' tensors, in place."""
        memory = yield from self._shared(_nbytes(flat))
        way = self.transport if memory is None else memory
        yield from way.all_reduce(flat, reduction)

    def broadcast(self, flat: torch.Tensor, root: int) -> Operation:
        """Root's tensor becomes everyone's."""
        memory = yield from self._shared(_nbytes(flat))
        way = self.transport if memory is None else memory
        yield from way.broadcast(flat, root)

    def reduce_scatter(
        self, output: torch.Tensor, parts: Sequence[torch.Tensor], reduction: Reduction
    ) -> Operation:
        """The reduction of all ranks' `parts[rank]`; sizes may differ by rank."""
        even = len({part.numel() for part in parts}) == 1
        memory = yield from self._shared(sum(map(_nbytes, parts)) if even else 0)
        way = self.transport if memory is None else memory
        yield from way.reduce_scatter(output, parts, reduction)

    def all_gather(self, outputs: Sequence[torch.Tensor], part: torch.Tensor) -> Operation:
        """Every rank's tensor in `outputs`; sizes may differ by rank."""
        even = len({output.numel() for output in outputs}) == 1
        memory = yield from self._shared(_nbytes(part) if even else 0)
        way = self.transport if memory is None else memory
        yield from way.all_gather(outputs, part)

    def _shared(self, nbytes: int) -> Generator[Condition, None, HostMemory | None]:
        """The host's shared memory if a tensor of this size goes through it; the same on all ranks."""
        memory = self.memory
        if memory is None or nbytes < SHARED_FROM_NBYTES:
            return None
        yield from memory.reserve()
        return memory if memory.is_usable else None

    # -- how a call goes --------------------------------------------------------------------------

    def _operation(
        self,
        call: Call,
        tensors: Sequence[torch.Tensor],
        outputs: Sequence[int],
        body: Body,
        plan: Any,
    ) -> Operation:
        if self._is_debugged:
            yield from self._agree(call)
        yield from _carried(tensors, outputs, body, plan)

    def _agree(self, call: Call) -> Operation:
        """In debug mode: all ranks say what they are about to do, and stop if it differs."""
        text = f"{call.signature}\n{call}".encode()[:_SIGNATURE_NBYTES].ljust(_SIGNATURE_NBYTES)
        mine = torch.frombuffer(bytearray(text), dtype=torch.uint8)
        rows = torch.empty((self.world_size, _SIGNATURE_NBYTES), dtype=torch.uint8)
        yield from self.transport.all_gather(list(rows), mine)
        said = [bytes(row.tolist()).decode(errors="replace").rstrip().split("\n") for row in rows]
        if len({words[0] for words in said}) > 1:
            lines = "\n".join(
                f"  rank {self.ranks[rank]}: {words[-1]}" for rank, words in enumerate(said)
            )
            raise CollectiveError(
                f"the ranks of group {self.name!r} call different collectives, or the same with different "
                f"shapes or types:\n{lines}",
                "let all ranks of the group make the same calls in the same order",
            )

    def enter(self, name: str, what: object, same: object) -> Call:
        """Note that this rank begins its next collective; see `Call` for the arguments."""
        call = Call(self._history.entered + 1, name, what, same, called_from(depth=3))
        self._history.enter(call)
        return call

    def leave(self, call: Call) -> None:
        """Note that a call is over."""
        if call.number:
            self._history.finished = call.number

    def is_watched(self) -> bool:
        """Whether somebody wants to hear more of each call: a profiler, debug mode, a bundle."""
        return self._is_debugged or self._together is not None or torch.autograd._profiler_enabled()

    def job_of(
        self,
        call: Call,
        operation: Operation,
        work: Work,
        opts: Any,
        event: Any = None,
        peers: Sequence[int] | None = None,
    ) -> EngineJob:
        """The call as a job of the engine, with its timeout; `peers` are all other ranks unless given."""
        if peers is None:
            peers = [rank for rank in self.ranks if rank != self.job.rank]
        timeout_s = self.timeout_s
        if opts is not None and opts.timeout.total_seconds() > 0:
            timeout_s = opts.timeout.total_seconds()
        wait = _Wait(self, call, peers, timeout_s)

        def on_done(error: Exception | None) -> None:
            self.leave(call)
            if event is not None:
                event.__exit__(None, None, None)
            work.done(error)

        return EngineJob(operation, timeout_s, wait.look, wait.timed_out, on_done)


class _Wait:
    """Watches one operation that waits: has a peer left the program, or is the time over?"""

    def __init__(self, group: Group, call: Call, peers: Sequence[int], timeout_s: float) -> None:
        self._group = group
        self._call = call
        self._peers = peers
        self._timeout_s = timeout_s
        self._inquiry: Inquiry | None = None
        self._deserted_s: float | None = None

    def look(self, waited_s: float) -> None:
        """Ask the peers, without waiting for their answers, whether they are still there.

        Raises:
            CollectiveError: if one has come to the end of its program.
        """
        if waited_s < _ASK_AFTER_S or not self._peers:
            return
        now_s = time.monotonic()
        watchdog = self._group.job.watchdog
        if self._inquiry is None or now_s - self._inquiry.began_s > _ASK_EVERY_S:
            if self._inquiry is not None:
                watchdog.close(self._inquiry)
            self._inquiry = watchdog.inquire(self._group.name, self._call, self._peers)
        deserter = self._inquiry.deserter()
        if deserter is None:
            return
        # The one who left ends the job with its own exit code; only if it does not, this rank does.
        if self._deserted_s is None:
            self._deserted_s = now_s
        elif now_s - self._deserted_s > _DESERTED_FOR_S:
            raise CollectiveError(
                f"{self._call} waits in vain: rank {deserter.rank} on host {deserter.host} has come to "
                "the end of its program",
                "let all ranks make the same calls; a rank with less data must not leave early",
            )

    def timed_out(self) -> Exception:
        """The error that says who is missing and where they are."""
        watchdog = self._group.job.watchdog
        inquiry = watchdog.inquire(self._group.name, self._call, self._peers)
        lines = explain(self._call, inquiry.wait())
        watchdog.close(inquiry)
        story = (
            "".join(f"\n  {line}" for line in lines)
            or "\n  every rank has entered it: the network is stuck"
        )
        return CollectiveError(
            f"{self._call} on rank {self._group.job.rank} of group {self._group.name!r} timed out after "
            f"{self._timeout_s:g} s:{story}",
            "let all ranks make the same calls in the same order, or raise "
            "init_process_group(timeout=…) if one only takes longer",
        )


def _carried(
    tensors: Sequence[torch.Tensor], outputs: Sequence[int], body: Body, plan: Any
) -> Operation:
    """Flatten the tensors, carry out, and write back where a copy was made."""
    if plan is not None:
        plan.before()
    host = tensors if plan is None else plan.host
    flats = [flattened(tensor) for tensor in host]
    yield from body(*flats)
    for index in outputs:
        written_back(flats[index], host[index])
    if plan is not None:
        plan.after()


def _begin_event(name: str, tensors: Sequence[torch.Tensor], world_size: int) -> Any:
    """A profiler event `mpi:<name>` with the tensors' shapes; None when nothing is profiled."""
    if not torch.autograd._profiler_enabled():
        return None
    first = tensors[0] if tensors else None
    facts = {
        "Collective name": name,
        "Group size": world_size,
        "In msg nelems": sum(tensor.numel() for tensor in tensors[:1]),
        "dtype": str(first.dtype)[6:] if first is not None else "",
    }
    event = torch._C._profiler._RecordFunctionFast(f"mpi:{name}", list(tensors), facts)
    event.__enter__()
    return event


def _nbytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()
