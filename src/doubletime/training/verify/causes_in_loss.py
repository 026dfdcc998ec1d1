"""Causes in a loss whose value for a batch does not follow from those for its shares; see `causes`."""

from __future__ import annotations

from doubletime.training.verify.cause import Cause
from doubletime.training.verify.evidence import Evidence, listed
from doubletime.training.verify.records import GRADIENTS


def is_indivisible(evidence: Evidence) -> bool:
    """Whether one process finds another gradient for the shares than for the batch, as ranks did."""
    shares = evidence.one.shares
    is_seen = any(each.kind == GRADIENTS for each in evidence.differences)
    return is_seen and shares is not None and shares.training > evidence.tolerance


def batch_normalization(evidence: Evidence) -> Cause | None:
    """Moments of a rank's share are not those of the global batch."""
    shares = evidence.one.shares
    if not is_indivisible(evidence) or shares is None or not shares.normalizations:
        return None
    if shares.normalizations_fixed > evidence.tolerance and (
        shares.normalizations_fixed > shares.training / 2
    ):
        return None
    return Cause(
        "BatchNorm over local batches",
        f"{listed(list(shares.normalizations))} takes the mean and variance of one rank's share, not of the "
        "global batch; without that, the mean of the shares' gradients is the whole batch's to "
        f"{shares.normalizations_fixed:.0e}",
        "return dt.SyncBatchNorm.convert(model) from model(), or train with --sync-batchnorm; GroupNorm and "
        "LayerNorm look at one sample at a time",
    )


def mixing_model(evidence: Evidence) -> Cause | None:
    """In training, and in training only, something other than a batch normalization looks across samples."""
    shares = evidence.one.shares
    if not is_indivisible(evidence) or shares is None or batch_normalization(evidence):
        return None
    if changed_gradients(evidence):
        return None
    if shares.evaluation > evidence.tolerance or shares.summed <= evidence.tolerance:
        return None
    return Cause(
        "the model looks across the samples of a batch",
        "in training mode a sample's output depends on the others of its batch, of which a rank has its "
        "share only; in evaluation mode it does not",
        "have the module look at one sample at a time, or gather what it needs over the ranks",
    )


def summed_loss(evidence: Evidence) -> Cause | None:
    """A sum over a share is N times smaller than over the batch, and the mean over ranks leaves it so."""
    shares = evidence.one.shares
    if not is_indivisible(evidence) or shares is None or shares.summed > evidence.tolerance:
        return None
    return Cause(
        "the loss is a sum",
        f"the loss of a batch is the sum of those of its shares, not their mean: on {evidence.ranks} ranks "
        f"gradients are {evidence.ranks} times smaller than on 1",
        'return the mean over the samples: reduction="mean", or divide by their number',
    )


def other_mean(evidence: Evidence) -> Cause | None:
    """Such as a mean over tokens that are no padding, of which shares have different numbers."""
    shares = evidence.one.shares
    if not is_indivisible(evidence) or shares is None:
        return None
    if changed_gradients(evidence):
        return None
    if batch_normalization(evidence) or mixing_model(evidence) or summed_loss(evidence):
        return None
    return Cause(
        "the loss is no mean over samples",
        "the weighted mean of the shares' losses is not the whole batch's, in evaluation mode neither: it is "
        "a mean over something that shares have different numbers of (tokens that are no padding, boxes), "
        "or it compares samples of a batch with each other",
        "find one loss for each sample, then return their mean",
    )


def changed_gradients(evidence: Evidence) -> Cause | None:
    """Clipping, most often: what is clipped must be the mean."""
    shares = evidence.one.shares
    if not is_indivisible(evidence) or shares is None or shares.mean_loss > evidence.tolerance:
        return None
    return Cause(
        "gradients are changed before they are averaged",
        "the mean of the shares' losses is the whole batch's loss, but the mean of their gradients is not "
        "its gradient: a hook on a parameter or a backward of one's own clips or scales each rank's",
        "change gradients after the mean: in the optimizer, or in a hook that it calls before its step",
    )
