"""Any tensor as a flat, contiguous one that shares its memory where it can, and back."""

from __future__ import annotations

import ctypes

import torch


def flattened(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor's elements in a row: a view of the same memory if contiguous, else a copy."""
    plain = tensor.detach()
    if plain.is_conj() or plain.is_neg():
        plain = plain.resolve_conj().resolve_neg()
    if not plain.is_contiguous():
        return plain.contiguous().view(-1)
    if plain.is_inference() and plain.numel() and not plain.is_cuda:
        return _alias(plain)
    return plain.view(-1)


def written_back(flat: torch.Tensor, tensor: torch.Tensor) -> None:
    """After an operation wrote into `flat`: bring it into the tensor if that is other memory."""
    if flat.numel() and flat.data_ptr() != tensor.data_ptr():
        with torch.inference_mode(tensor.is_inference()), torch.no_grad():
            tensor.detach().copy_(flat.view(tensor.shape))


def _alias(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory as an ordinary tensor: inference tensors refuse writes from other threads."""
    nbytes = tensor.numel() * tensor.element_size()
    memory = (ctypes.c_byte * nbytes).from_address(tensor.data_ptr())
    return torch.frombuffer(memory, dtype=tensor.dtype)
