"""Tasks on text: what their data is, that each learns, and that none looks ahead."""

import math

import pytest
import torch

from doubletime.errors import DataError
from doubletime.training import loop, session
from doubletime.training.builtin import BUILTIN
from doubletime.training.recipe import Recipe
from doubletime.training.tasks import language, text

PYDOC = (language.PydocTransformer, language.PydocLstm, language.PydocGru)
JARGON = (language.TextTransformer, language.TextLstm, language.TextGru)


def test_rows_hold_every_byte_once():
    content = bytes(range(256)) * 20 + b"rest"
    parts = {is_test: text.rows(content, is_test=is_test) for is_test in (False, True)}
    count = len(content) // (text.LENGTH + 1)
    assert [len(inputs) for inputs, _ in parts.values()] == [count - count // 16, count // 16]
    whole = {}
    for is_test, (inputs, targets) in parts.items():
        assert inputs.dtype == targets.dtype == torch.int64
        assert torch.equal(inputs[:, 1:], targets[:, :-1])
        numbers = [row for row in range(count) if (row % 16 == 15) == is_test]
        for number, row, last in zip(
            numbers, inputs.tolist(), targets[:, -1].tolist(), strict=True
        ):
            whole[number] = bytes([*row, last])
    assert b"".join(whole[number] for number in range(count)) == content[: count * 129]


def test_python_documents_itself():
    content = text.python_documentation()
    assert len(content) > 300_000
    assert b'The "assert" statement' in content


@pytest.mark.timeout(300)
def test_the_jargon_file():
    task = language.TextGru()
    try:
        task.prepare()
    except DataError as error:
        pytest.skip(str(error))
    content = task.text()
    assert len(content) == 1_681_817
    assert "(version 4.4.7)" in content.decode()[:100]
    assert task.train_data()[0].shape == (12_223, 128)
    assert task.test_data()[0].shape == (814, 128)


@pytest.mark.parametrize("kind", JARGON)
def test_without_the_jargon_file_python_s_documentation_stands_in(kind, tmp_path, monkeypatch):
    monkeypatch.setenv("DOUBLETIME_DATA", str(tmp_path))
    with pytest.raises(DataError, match=r"there is no jargon\.txt\.gz in"):
        kind().prepare()
    other = kind().substitute()
    assert other.name == kind.name.replace("text", "pydoc")
    assert BUILTIN[other.name] is type(other)
    assert str(other.model()) == str(kind().model())


@pytest.mark.parametrize("kind", PYDOC)
def test_what_comes_later_changes_no_guess(kind):
    model = kind().model().double()
    first = torch.randint(256, (2, text.LENGTH), generator=torch.Generator().manual_seed(0))
    second = first.clone()
    second[:, 70:] = (second[:, 70:] + 1) % 256
    before, after = model(first), model(second)
    assert before.shape == (2, text.LENGTH, text.SYMBOLS)
    assert torch.equal(before[:, :70], after[:, :70])
    assert not torch.isclose(before[:, 70:], after[:, 70:]).all(dim=-1).any()


def test_heads_that_ranks_share_give_what_all_give():
    """The attention of two ranks that hold half of the heads each adds up to that of one."""
    torch.manual_seed(0)
    whole = language.language_models.Attention(16, 4).double()
    features = torch.randn(2, 5, 16, dtype=torch.float64)
    expected = whole(features)
    added = torch.zeros_like(expected)
    for half in (slice(0, 8), slice(8, 16)):
        part = language.language_models.Attention(16, 4).double()
        for name in ("query", "key", "value"):
            layer, source = getattr(part, name), getattr(whole, name)
            layer.weight = torch.nn.Parameter(source.weight[half])
            layer.bias = torch.nn.Parameter(source.bias[half])
        part.out.weight = torch.nn.Parameter(whole.out.weight[:, half])
        part.out.bias = torch.nn.Parameter(whole.out.bias / 2)
        added += part(features)
    torch.testing.assert_close(added, expected, rtol=1e-12, atol=1e-12)


def _entropy(targets):
    """In nats, of bytes that are guessed by how often each is there."""
    shares = torch.bincount(targets.flatten()).double() / targets.numel()
    return float(-(shares * shares.clamp_min(1e-12).log()).sum())


@pytest.mark.timeout(180)
@pytest.mark.parametrize(("kind", "steps"), list(zip(PYDOC, (100, 240, 70), strict=True)))
def test_each_learns_more_than_how_often_a_byte_is_there(kind, steps):
    """In batches so small that it takes little time."""

    class Quick(kind):
        global_batch, epochs = 4, 1

        def test_data(self):
            return tuple(part[:60] for part in super().test_data())

    task = Quick()
    try:
        done = loop.run(task, Recipe.of(task, limit=4 * steps), lambda _: None)
    finally:
        session.leave()
    metrics, targets = done.metrics, task.test_data()[1]
    assert metrics["loss"] < _entropy(targets)
    assert metrics["bits_per_byte"] == pytest.approx(metrics["loss"] / math.log(2))
    assert metrics["accuracy"] > float(torch.bincount(targets.flatten()).max()) / targets.numel()
