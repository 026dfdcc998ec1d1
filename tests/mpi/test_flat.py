"""Flat views of any tensor."""

import pytest
import torch

from doubletime.mpi.flat import flattened, written_back

SHAPED = {
    "0-dim": lambda: torch.tensor(3.0),
    "empty": lambda: torch.empty(0, 4),
    "contiguous": lambda: torch.arange(6.0).view(2, 3),
    "transposed": lambda: torch.arange(6.0).view(2, 3).t(),
    "strided": lambda: torch.arange(12.0)[::2],
    "conjugate": lambda: torch.tensor([1 + 2j, 3 - 1j]).conj(),
    "leaf": lambda: torch.arange(4.0, requires_grad=True),
}


@pytest.mark.parametrize("name", SHAPED)
def test_written_through_a_flat_view_the_tensor_holds_the_values(name):
    tensor = SHAPED[name]()
    flat = flattened(tensor)
    assert flat.dim() == 1
    assert flat.is_contiguous()
    assert torch.equal(flat.view(tensor.shape), tensor.detach().resolve_conj())
    flat.mul_(2)
    expected = flat.clone().view(tensor.shape)
    written_back(flat, tensor)
    assert torch.equal(tensor.detach().resolve_conj(), expected)


def test_inference_tensors_can_be_written_from_outside():
    with torch.inference_mode():
        tensor = torch.ones(3)
    flat = flattened(tensor)
    flat.mul_(2)
    written_back(flat, tensor)
    assert tensor.tolist() == [2, 2, 2]


def test_contiguous_tensors_are_not_copied():
    tensor = torch.arange(6.0).view(2, 3)
    assert flattened(tensor).data_ptr() == tensor.data_ptr()
