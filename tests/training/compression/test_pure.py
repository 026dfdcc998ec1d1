"""What needs no ranks: the words of `--compress`, the quantiser, the selector, what is kept."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from doubletime.errors import TrainingError
from doubletime.training.compression import spec
from doubletime.training.compression.codec import Half, Int8
from doubletime.training.compression.residuals import Residuals
from doubletime.training.compression.spec import Compression
from doubletime.training.compression.topk import largest

NUMBERS = st.floats(-1e6, 1e6, width=32)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("fp16", Compression("fp16")),
        ("int8", Compression("int8")),
        ("powersgd:2", Compression("powersgd", 2)),
        ("topk:0.01", Compression("topk", 0.01)),
        ("topk:1e-3", Compression("topk", 0.001)),
    ],
)
def test_words_are_read_and_written(text: str, found: Compression) -> None:
    assert spec.parse(text) == found
    assert spec.parse(str(found)) == found


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "there is no compression ''"),
        ("gzip", "there is no compression 'gzip'"),
        ("fp16:2", "fp16 takes no number"),
        ("powersgd", "has no rank of 1 or more"),
        ("powersgd:0", "has no rank of 1 or more"),
        ("powersgd:1.5", "has no rank of 1 or more"),
        ("topk", "has no share of the elements"),
        ("topk:0", "has no share of the elements"),
        ("topk:2", "has no share of the elements"),
        ("topk:nan", "has no share of the elements"),
    ],
)
def test_what_is_none_is_refused_with_what_there_is(text: str, what: str) -> None:
    with pytest.raises(TrainingError, match=what) as caught:
        spec.parse(text)
    assert caught.value.remedy


@given(st.lists(NUMBERS, min_size=1, max_size=40), st.integers(1, 9))
def test_int8_is_off_by_half_a_level_at_most(numbers: list[float], block: int) -> None:
    count = -(-len(numbers) // block) * block
    padded = torch.zeros(count)
    padded[: len(numbers)] = torch.tensor(numbers)
    codec = Int8(block)
    assert 0 <= codec.nbytes(count) - (count + count // block * 4) < 8
    blocks, found = padded.view(-1, block), _there_and_back(codec, padded).view(-1, block)
    levels = blocks.abs().amax(1, keepdim=True) / 127
    assert bool(((found - blocks).abs() <= levels * 0.5001).all())


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("codec", [Int8(4), Half(torch.float16), Half(torch.bfloat16)])
def test_what_is_not_finite_stays_so(codec: Int8 | Half, bad: float) -> None:
    numbers = torch.tensor([1.0, bad, 0.0, -2.0, 1.0, 2.0, 3.0, 4.0])
    found = _there_and_back(codec, numbers)
    assert not torch.isfinite(found[1])
    torch.testing.assert_close(found[4:], numbers[4:], rtol=0.01, atol=0.02)


def test_many_pieces_are_one_message() -> None:
    numbers = torch.randn(300 * 1024, generator=torch.Generator().manual_seed(0))
    assert torch.equal(_there_and_back(Half(torch.float16), numbers), numbers.half().float())
    found = _there_and_back(Int8(1024), numbers)
    levels = numbers.view(-1, 1024).abs().amax(1, keepdim=True) / 127
    assert bool(((found - numbers).view(-1, 1024).abs() <= levels * 0.5001).all())


def _there_and_back(codec: Int8 | Half, numbers: torch.Tensor) -> torch.Tensor:
    message = torch.zeros(codec.nbytes(numbers.numel()), dtype=torch.uint8)
    codec.encode(numbers, message)
    found = torch.full_like(numbers, -77.0)
    for where, decoded in codec.decode(message, numbers.numel(), numbers.dtype):
        found[where] = decoded
    return found


@given(st.lists(NUMBERS, min_size=1, max_size=60), st.data())
def test_the_largest_are_chosen(numbers: list[float], data: st.DataObject) -> None:
    count = data.draw(st.integers(1, len(numbers)))
    tensor = torch.tensor(numbers)
    chosen = largest(tensor, count)
    assert len(set(chosen.tolist())) == count
    expected = sorted(tensor.abs().tolist())[-count:]
    assert sorted(tensor[chosen].abs().tolist()) == expected


@pytest.mark.parametrize("kind", ["normal", "equal", "sparse", "sorted", "periodic", "zero", "nan"])
@pytest.mark.parametrize("share", [0.0001, 0.01, 0.2, 0.6])
def test_of_many_the_largest_are_chosen_too(kind: str, share: float) -> None:
    """Where a sample gives a threshold, and where it misleads."""
    count = 200_000
    generator = torch.Generator().manual_seed(3)
    numbers = torch.randn(count, generator=generator)
    if kind == "equal":
        numbers = numbers.sign()
    elif kind == "sparse":
        numbers[torch.rand(count, generator=generator) < 0.999] = 0
    elif kind == "sorted":
        numbers = numbers.sort().values
    elif kind == "periodic":  # whatever the sample sees is large
        numbers = numbers * 1e-3
        numbers[:: count // (1 << 14)] = 5.0
    elif kind == "zero":
        numbers = torch.zeros(count)
    elif kind == "nan":
        numbers[[5, 1777]] = float("nan")
    wanted = int(share * count)
    chosen = largest(numbers, wanted)
    assert chosen.unique().numel() == wanted
    magnitudes = numbers.abs().nan_to_num(nan=float("inf"))
    expected = magnitudes.sort().values[-wanted:]
    assert torch.equal(magnitudes[chosen].sort().values, expected)


def test_what_is_kept_belongs_to_parameters_however_they_lie() -> None:
    first, second, third = (nn.Parameter(torch.zeros(size)) for size in (2, 3, 1))
    names = {first: "a", second: "b", third: "c"}
    residuals = Residuals()
    residuals.of([first, second, third], torch.zeros(6)).copy_(torch.arange(6.0))
    assert residuals.of([third, first], torch.zeros(3)).tolist() == [5, 0, 1]
    assert residuals.of([second], torch.zeros(3)).tolist() == [2, 3, 4]
    residuals.of([second], torch.zeros(3)).add_(1)
    state = residuals.state(names)
    assert {name: kept.tolist() for name, kept in state.items()} == {
        "a": [0, 1],
        "b": [3, 4, 5],
        "c": [5],
    }
    other = Residuals()
    other.of([first, second, third], torch.ones(6))
    other.load({"b": state["b"]}, names)
    assert other.of([second, first, third], torch.zeros(6)).tolist() == [3, 4, 5, 0, 0, 0]
