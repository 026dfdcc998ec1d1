"""Causes, each a function from the evidence to what it proves; in the order in which they are told.

What stands first may bring about what stands later.
"""

from __future__ import annotations

from collections.abc import Callable

from doubletime.training.verify.cause import Cause
from doubletime.training.verify.causes_in_loss import (
    batch_normalization,
    changed_gradients,
    is_indivisible,
    mixing_model,
    other_mean,
    summed_loss,
)
from doubletime.training.verify.evidence import Evidence, listed
from doubletime.training.verify.records import BUFFERS, PARAMETERS
from doubletime.units import plural

_REPORT = "--backend gloo tells whether it is the backend's; report it with the task, if you can"


def divided_data(evidence: Evidence) -> Cause | None:
    """The task gives each rank a part, and the loop divides that again."""
    here, there = evidence.start.samples, evidence.many.start[0].samples
    if here == there:
        return None
    return Cause(
        "the data depends on the ranks",
        f"train_data() gives {plural(here, 'sample')} to 1 process, and {there:,} to each of "
        f"{evidence.ranks} ranks",
        "return the whole data on every rank: doubletime divides it",
    )


def global_batch(evidence: Evidence) -> Cause | None:
    """A global batch that grows with the ranks is another algorithm."""
    here, there = evidence.start.global_batch, evidence.many.start[0].global_batch
    if here == there:
        return None
    return Cause(
        "the global batch depends on the ranks",
        f"it is {here} on 1 process, and {there} on {evidence.ranks} ranks",
        "give global_batch as one number: the samples of a step over all ranks",
    )


def random_data(evidence: Evidence) -> Cause | None:
    """An augmentation, most often."""
    if evidence.one.is_repeatable:
        return None
    return Cause(
        "samples are random",
        "the same sample, fetched twice by one process, is not the same",
        "have __getitem__ draw from a generator that is seeded by the sample's index, or verify "
        "without the augmentation",
    )


def strange_samples(evidence: Evidence) -> Cause | None:
    """Ranks were given other samples than one process, or some twice."""
    if divided_data(evidence) or global_batch(evidence) or random_data(evidence):
        return None
    found = list(evidence.strange_samples())
    if not found:
        return None
    step, rank, _ = found[0]
    places = [place for at, other, place in found if (at, other) == (step, rank)]
    repeated, dropped = evidence.sample_counts(step)
    counts = []
    if repeated:
        counts.append(f"{plural(repeated, 'sample')} came more than once")
    if dropped:
        counts.append(f"{plural(dropped, 'sample')} of 1 process did not come")
    more = f"; in that step {' and '.join(counts)}" if counts else ""
    return Cause(
        "ranks get other samples",
        f"step {step}, rank {rank}: {plural(len(places), 'sample')} of the global batch, the first at "
        f"place {places[0]}, differ from those that 1 process gets there{more}",
        "have train_data() and its __getitem__ depend on nothing but the index: not on rank, host, time "
        "or the order of calls",
    )


def unlike_start(evidence: Evidence) -> Cause | None:
    """Parameters as model() makes them; DistributedDataParallel overwrites them with rank 0's."""
    for rank, start in enumerate(evidence.many.start):
        names = [
            name for name, state in evidence.start.state.items() if start.state.get(name) != state
        ]
        names += [name for name in start.state if name not in evidence.start.state]
        if names:
            return Cause(
                "model() depends on the rank",
                f"{listed(names)}, as made by model() on rank {rank}, is not what it is on 1 process; "
                "training goes on with rank 0's, which hides it",
                "draw parameters from torch's default generator, which doubletime seeds alike, and seed "
                "nothing by rank in model()",
            )
    return None


def foreign_randomness(evidence: Evidence) -> Cause | None:
    """Generators that no seed of ours reaches, on one process or on ranks."""
    steps = [*evidence.one.account.before, *evidence.many.before]
    found = sorted({name for step in steps for before in step for name in before.foreign})
    if not found or not evidence.differences:
        return None
    return Cause(
        "random numbers of another library",
        f"the loss draws from {' and '.join(found)}, which no seed of the task reaches: neither is equality "
        "defined, nor does a run repeat",
        "draw from torch (torch.rand, torch.randint), whose generator doubletime seeds for each rank",
    )


def kept_randomness(evidence: Evidence) -> Cause | None:
    """Draws that have no mean to put in their place."""
    steps = [*evidence.one.account.before, *evidence.many.before]
    found = sorted({name for step in steps for before in step for name in before.kept})
    if not found or not evidence.differences:
        return None
    return Cause(
        "random choices",
        f"the loss makes random choices ({listed(found)}), which ranks make otherwise than 1 process: "
        "equality is not defined",
        "verify a task whose loss() leaves them out; a draw with a mean (dropout, noise) needs no change",
    )


def alike_ranks(evidence: Evidence) -> Cause | None:
    """Ranks that drop out the same units of different samples."""
    found = evidence.alike_ranks()
    if found is None:
        return None
    step, one, other = found
    names = evidence.many.before[step - 1][one]
    return Cause(
        "ranks are seeded alike",
        f"step {step}: ranks {one} and {other} draw the same random numbers "
        f"({listed([*names.replaced, *names.kept])}), so that their samples share one dropout or noise",
        "leave the seed to doubletime, which gives each rank its own: no torch.manual_seed in loss(), "
        "optimizer(), train_data() or a module",
    )


def unreached(evidence: Evidence) -> Cause | None:
    """DistributedDataParallel would wait for these gradients."""
    for step, ranks in enumerate(evidence.many.before, 1):
        without = {rank: before.unreached for rank, before in enumerate(ranks) if before.unreached}
        if not without:
            continue
        names = listed(list(next(iter(without.values()))))
        if len(without) == len(ranks):
            return Cause(
                "parameters without a gradient",
                f"step {step}: the loss does not depend on {names}",
                "use it, remove it, or freeze it with requires_grad_(False)",
            )
        who = listed([str(rank) for rank in without])
        return Cause(
            "a parameter that gets no gradient on some rank",
            f"step {step}: on rank {who} the loss does not depend on {names}, on other ranks it does: they "
            "would wait for each other for ever",
            "have the loss touch it on every rank, if only by adding 0 * parameter.sum()",
        )
    return None


def other_computation(evidence: Evidence) -> Cause | None:
    """The same samples and parameters, and another loss."""
    shares = evidence.one.shares
    if shares is None or not evidence.differences or not evidence.many.before:
        return None
    if is_indivisible(evidence) or unlike_start(evidence) or next(evidence.strange_samples(), None):
        return None
    if kept_randomness(evidence) or foreign_randomness(evidence):
        return None
    for rank, (before, wanted) in enumerate(
        zip(evidence.many.before[0], shares.losses, strict=True)
    ):
        if abs(before.loss - wanted) > 1e-3 * abs(wanted):
            return Cause(
                "loss() or the model depends on the rank",
                f"step 1: of the same samples, with the same parameters, rank {rank} finds a loss of "
                f"{before.loss:.6g}, one process {wanted:.6g}",
                "look for what differs there: rank, world size, device, a file on its host",
            )
    return None


def settings(evidence: Evidence) -> Cause | None:
    """A learning rate that grows with the ranks, though the global batch does not."""
    for step, (one, ranks) in enumerate(
        zip(evidence.one.account.after, evidence.many.after, strict=False), 1
    ):
        for rank, after in enumerate(ranks):
            for group, (here, there) in enumerate(
                zip(one[0].settings, after.settings, strict=False)
            ):
                for name in here.keys() | there.keys():
                    if here.get(name) != there.get(name):
                        return Cause(
                            "the optimizer depends on the ranks",
                            f"step {step}: {name} of parameter group {group} is {here.get(name):g} on 1 "
                            f"process, and {there.get(name):g} on rank {rank} of {evidence.ranks}",
                            "give it as on 1 process: the global batch is the same on any number of ranks, "
                            "and so is the mean gradient",
                        )
    return None


def drifting_parameters(evidence: Evidence) -> Cause | None:
    """Ranks no longer train one model."""
    found = evidence.drifted(PARAMETERS)
    if found is None:
        return None
    step, rank, name = found
    return Cause(
        "parameters differ between ranks",
        f"after step {step} {name} is not on rank {rank} what it is on rank 0",
        "have every rank update alike: the same optimizer settings, and nothing that changes parameters "
        "by rank",
    )


def drifting_buffers(evidence: Evidence) -> Cause | None:
    """Each rank's have seen its own share; rank 0's win."""
    if batch_normalization(evidence):
        return None
    found, differs = evidence.drifted(BUFFERS), evidence.differ(BUFFERS)
    if found is None or differs is None:
        return None
    step, rank, name = found
    return Cause(
        "buffers differ between ranks",
        f"after step {step} {name} is not on rank {rank} what it is on rank 0: it follows each rank's own "
        "samples, and rank 0's goes on",
        "average what goes into it over the ranks (dt.average, dt.all_reduce), or keep it out of "
        "the model's buffers",
    )


def communication(evidence: Evidence) -> Cause | None:
    """The mean gradient is not the ranks' gradients' mean, in the task's own precision."""
    found = evidence.many.averaging
    bound = evidence.averaging_bound
    worst = max(found, key=lambda name: found[name], default="")
    if not worst or found[worst] <= bound:
        return None
    return Cause(
        "the mean over the ranks is wrong",
        f"the mean gradient of {worst} is {found[worst]:.0e} off the mean of the ranks' own gradients, where "
        f"rounding explains {bound:.0e}",
        f"look for a communication hook or a compression of gradients; {_REPORT}",
    )


def dead(evidence: Evidence) -> Cause | None:
    """Two models that stand still are equal, and show nothing."""
    steps = evidence.one.dead_steps
    if steps:
        return Cause(
            "gradients are zero",
            f"in step {listed([str(step) for step in steps])} every gradient of 1 process is 0: ranks that "
            "compute nothing would be found equal",
            "look for a loss that does not depend on the parameters, units that are all off, or a batch "
            "without a signal; --steps or --seed takes other batches",
        )
    if not evidence.one.has_moved:
        return Cause(
            "parameters do not move",
            "no step of 1 process changes a parameter, so that nothing is shown of the optimizer",
            "give the optimizer a learning rate above 0 in these steps; --steps takes more of them",
        )
    return None


def unknown(evidence: Evidence) -> Cause | None:
    """What no other function knows."""
    if not evidence.differences:
        return None
    return Cause(
        "not known",
        "samples, parameters, settings and the mean over the ranks are as they must be, and the loss of a "
        "batch is the mean of its shares'",
        f"look for what depends on the rank in the model's backward pass or the optimizer; {_REPORT}",
    )


CAUSES: tuple[Callable[[Evidence], Cause | None], ...] = (
    divided_data,
    global_batch,
    random_data,
    strange_samples,
    unlike_start,
    foreign_randomness,
    kept_randomness,
    alike_ranks,
    unreached,
    batch_normalization,
    mixing_model,
    summed_loss,
    changed_gradients,
    other_mean,
    other_computation,
    settings,
    drifting_parameters,
    drifting_buffers,
    communication,
    dead,
)


def find(evidence: Evidence) -> tuple[Cause, ...]:
    """All causes that the evidence proves; `unknown` where there is a difference and none is proved."""
    found = [cause for function in CAUSES if (cause := function(evidence)) is not None]
    if not found and (cause := unknown(evidence)) is not None:
        found.append(cause)
    return tuple(found)
