"""Models divided by tensor parallelism: each computes what one process computes, to float64."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel
from torch.nn import functional

from doubletime.errors import MeshError
from doubletime.training.builtin import BUILTIN
from doubletime.training.tasks import language_models
from doubletime.training.tensor_parallel.apply import apply
from doubletime.training.tensor_parallel.derive import derive
from doubletime.training.tensor_parallel.plan import Plan
from doubletime.training.tensor_parallel.written import written

Call = Callable[[nn.Module], Tensor]
STEPS = 3


def _mesh(world_size: int) -> DeviceMesh:
    return init_device_mesh("cpu", (world_size,), mesh_dim_names=("tp",))


def _whole(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def _same(ours: Tensor | None, theirs: Tensor | None, what: str) -> None:
    assert (ours is None) == (theirs is None), what
    if ours is not None and theirs is not None:
        torch.testing.assert_close(
            _whole(ours.detach()),
            theirs.detach(),
            rtol=1e-9,
            atol=1e-11,
            msg=lambda m: f"{what}: {m}",
        )


def _train(model: nn.Module, call: Call, look: Callable[[nn.Module, Tensor, int], None]) -> None:
    """Some steps of SGD, each with random numbers of its own; `look` sees gradients and loss."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    for step in range(STEPS):
        torch.manual_seed(100 + step)
        optimizer.zero_grad()
        output = call(model)
        weights = torch.linspace(-1, 1, output.numel(), dtype=output.dtype).view_as(output)
        loss = (output * weights + output**2).sum()
        loss.backward()
        look(model, loss, step)
        optimizer.step()


def _expect_same(
    make: Callable[[], nn.Module],
    call: Call,
    world_size: int,
    divided: set[str],
    plan_of: Callable[[nn.Module, int], Plan] = derive,
) -> nn.Module:
    """Train the model divided and whole, compare all that can be; returns the divided one.

    Args:
        make: a model of any dtype.
        call: what the model gives for some fixed input.
        world_size: how many ranks divide it.
        divided: names of all modules that the plan must divide.
        plan_of: what makes the plan.
    """
    torch.manual_seed(3)
    alone = make().double()
    ours = copy.deepcopy(alone)
    if torch.distributed.get_rank() > 0:  # the first rank's values are to count
        with torch.no_grad():
            for tensor in ours.parameters():
                tensor.add_(1)
    plan = plan_of(ours, world_size)
    assert {split.module for split in plan.splits} == divided, plan.describe()
    apply(ours, _mesh(world_size), plan)
    held = sum((p.to_local() if isinstance(p, DTensor) else p).numel() for p in ours.parameters())
    assert held == plan.per_rank, plan.describe()
    seen: list[tuple[Tensor, dict[str, Tensor | None]]] = []

    def note(model: nn.Module, loss: Tensor, _: int) -> None:
        grads = {
            name: None if p.grad is None else p.grad.clone() for name, p in model.named_parameters()
        }
        seen.append((loss.detach(), grads))

    def compare(model: nn.Module, loss: Tensor, step: int) -> None:
        expected, grads = seen[step]
        _same(loss, expected, f"loss of step {step}")
        for name, parameter in model.named_parameters():
            _same(parameter.grad, grads[name], f"gradient of {name} in step {step}")

    _train(alone, call, note)
    _train(ours, call, compare)
    for (name, mine), theirs in zip(ours.named_parameters(), alone.parameters(), strict=True):
        _same(mine, theirs, name)
    for (name, mine), theirs in zip(ours.named_buffers(), alone.buffers(), strict=True):
        _same(mine, theirs, name)
    with torch.no_grad():
        _same(call(ours.eval()), call(alone.eval()), "in evaluation")
    return ours


def _inputs(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(7))


def mlp_with_dropout(rank: int, world_size: int) -> None:
    """Ranks drop the units that one process drops; an odd layer is left whole."""
    x = _inputs(6, 12)

    def make() -> nn.Module:
        return nn.Sequential(
            *(nn.Linear(12, 16), nn.GELU(), nn.Dropout(0.4), nn.Linear(16, 8), nn.Dropout(0.2)),
            *(nn.ReLU(inplace=True), nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Tanh()),
            nn.Linear(16, 3),
        )

    _expect_same(make, lambda net: net(x), world_size, {"0", "2", "3", "6", "7", "9"})


class _Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up = nn.Linear(8, 16, bias=False), nn.Linear(8, 16)
        self.down = nn.Linear(16, 8)
        self.norm = nn.LayerNorm(8)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.down(functional.silu(self.gate(x)) * self.up(x) / 2)
        return x + self.norm(y)


def gated_mlp(rank: int, world_size: int) -> None:
    x = _inputs(2, 5, 8)
    _expect_same(_Gated, lambda net: net(x), world_size, {"gate", "up", "down"})


def built_in_cnn(rank: int, world_size: int) -> None:
    x = _inputs(3, 1, 28, 28)
    _expect_same(
        BUILTIN["fashion-mnist"]().model, lambda net: net(x), world_size, {"0", "3", "7", "9"}
    )


class _Residual(nn.Module):
    """What convolutional models have between their convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.activation, self.drop = nn.PReLU(), nn.Dropout2d(0.3)
        self.depthwise = nn.Conv2d(8, 16, 3, padding=1, groups=8)
        self.groups = nn.GroupNorm(8, 16)
        self.second = nn.Conv2d(16, 3, 1)
        self.third, self.out = nn.Conv2d(3, 4, 3, stride=2), nn.Linear(4, 5)
        self.frozen = nn.Linear(5, 8).requires_grad_(False)
        self.last = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        y = self.drop(self.activation(self.norm(self.first(x))))
        y = functional.relu(self.groups(self.depthwise(y)), inplace=True)
        x = x + self.second(y)
        x = functional.max_pool2d(torch.relu(self.third(x)), 2)
        x = self.out(x.mean(dim=(2, 3)))
        z: Tensor = self.last(self.frozen(x).relu())
        return z


def cnn_with_norms(rank: int, world_size: int) -> None:
    x = _inputs(4, 3, 9, 9)
    between = {"norm", "activation", "drop", "depthwise", "groups"}
    divided = {"first", *between, "second", "third", "out", "frozen", "last"}
    ours = _expect_same(_Residual, lambda net: net(x), world_size, divided)
    mean = ours.norm.running_mean
    assert isinstance(mean, DTensor)
    assert mean.to_local().numel() == 8 // world_size


def built_in_transformer(rank: int, world_size: int) -> None:
    symbols = torch.arange(24).view(3, 8) % 11
    make = functools.partial(language_models.transformer, 12, 8, width=16, heads=4, blocks=1)
    names = ("attention.query", "attention.key", "attention.value", "attention.out", "up", "down")
    divided = {f"block1.{name}" for name in names}
    _expect_same(make, lambda net: net(symbols), world_size, divided)


def torch_transformer(rank: int, world_size: int) -> None:
    """Encoder and decoder with dropout, masks, and samples second; the fused path stands back."""
    make = functools.partial(nn.Transformer, 16, 4, 1, 1, 32, dropout=0.2, norm_first=True)
    x, y = _inputs(5, 3, 16), _inputs(4, 3, 16).flip(0)
    causal = nn.Transformer.generate_square_subsequent_mask(4, dtype=torch.float64)
    padding = torch.zeros(3, 5, dtype=torch.bool)
    padding[1, 3:] = True

    def call(net: nn.Module) -> Tensor:
        found: Tensor = net(
            *(x, y),
            tgt_mask=causal,
            src_key_padding_mask=padding,
            memory_key_padding_mask=padding,
        )
        return found

    divided = set()
    for part, attentions in (
        ("encoder", ("self_attn",)),
        ("decoder", ("self_attn", "multihead_attn")),
    ):
        names = (*attentions, "linear1", "dropout", "linear2")
        divided |= {f"{part}.layers.0.{name}" for name in names}
    _expect_same(make, call, world_size, divided)


class _Attentions(nn.Module):
    """MultiheadAttention in each way it can be asked."""

    def __init__(self) -> None:
        super().__init__()
        self.packed = nn.MultiheadAttention(16, 4, dropout=0.3, batch_first=True)
        self.apart = nn.MultiheadAttention(16, 8, bias=False, kdim=6, vdim=10)

    def forward(self, x: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
        y, weights = self.packed(x, x, x, attn_mask=mask, need_weights=True)
        z, by_head = self.apart(y[0], key, value, average_attn_weights=False)
        return torch.cat([each.flatten() for each in (y, weights, z, by_head)])


def attention_by_heads(rank: int, world_size: int) -> None:
    x, key, value = _inputs(2, 5, 16), _inputs(7, 6), _inputs(7, 10)
    mask = _inputs(8, 5, 5) > 1.5  # one for each head of each sample
    _expect_same(_Attentions, lambda net: net(x, key, value, mask), world_size, {"packed", "apart"})


class _Unfollowable(nn.Module):
    """A forward that branches by the values it is given, around parts that do not."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(4100, 4, padding_idx=0)
        self.rnn = nn.GRU(4, 8, batch_first=True)
        self.parts = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.ReLU()) for _ in range(2))
        self.block = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))
        self.head = nn.Linear(8, 2000)

    def forward(self, symbols: Tensor) -> Tensor:
        x, _ = self.rnn(self.embedding(symbols))
        for part in self.parts:
            x = part(x)
        if x.sum() > -1e9:
            x = self.block(x)
        y: Tensor = self.head(x)
        return y


def large_layers_alone(rank: int, world_size: int) -> None:
    """An embedding and a head are gathered; of what cannot be followed, the parts that can are."""
    symbols = torch.tensor([[0, 3, 4099, 3], [0, 0, 17, 2048]])
    divided = {"embedding", "block.0", "block.2", "head"}
    _expect_same(_Unfollowable, lambda net: net(symbols), world_size, divided)

    def convolution() -> nn.Module:
        return nn.Sequential(nn.Conv1d(8, 256, 9), nn.Softmax(dim=1))

    x = _inputs(2, 8, 11)
    _expect_same(convolution, lambda net: net(x), world_size, {"0"})


def plan_by_hand(rank: int, world_size: int) -> None:
    """In torch's styles, for a model of which nothing shows how it can be divided."""

    def make() -> nn.Module:
        blocks = (nn.ModuleDict({"up": nn.Linear(6, 8), "down": nn.Linear(8, 6)}) for _ in range(2))
        return nn.ModuleList(blocks)

    def call(net: nn.Module) -> Tensor:
        y = x
        for block in net.children():
            y = block["down"](block["up"](y).relu())  # type: ignore[index]
        return y

    x = _inputs(3, 6)
    styles = {"*.up": ColwiseParallel(), "*.down": RowwiseParallel()}
    names = {f"{number}.{part}" for number in range(2) for part in ("up", "down")}
    _expect_same(make, call, world_size, names, functools.partial(written, styles=styles))


def what_does_not_fit(rank: int, world_size: int) -> None:
    """Each is refused on every rank, and leaves the model usable."""
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))
    plan, mesh = derive(model, world_size), _mesh(world_size)
    with pytest.raises(MeshError, match=f"a plan for 1 ranks cannot be applied on {world_size}"):
        apply(model, mesh, derive(model, 1))
    with pytest.raises(MeshError, match="divides '1', which the model does not have"):
        apply(nn.Sequential(nn.Linear(4, 8)), mesh, plan)
    apply(model, mesh, plan)
    with pytest.raises(MeshError, match="a BatchNorm1d got an input of 3 dimensions"):
        model(torch.zeros(5, 8, 4))
    assert torch.isfinite(model(torch.zeros(5, 4))).all()
    assert isinstance(model[1].weight, DTensor)


CHECKS = (
    mlp_with_dropout,
    gated_mlp,
    built_in_cnn,
    cnn_with_norms,
    built_in_transformer,
    torch_transformer,
    attention_by_heads,
    large_layers_alone,
    plan_by_hand,
    what_does_not_fit,
)
