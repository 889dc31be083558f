"""The built-in language model: real text, options in words, and a loss that falls."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from gputune_tui.domain.study import WorkloadRef
from gputune_tui.trainer.workload import AdaptedWorkload, WorkloadRefused, load_workload

Lm = Callable[..., AdaptedWorkload]


@pytest.fixture
def lm(fresh_imports: None) -> Lm:
    """Load the workload with these options."""
    return lambda **options: load_workload(WorkloadRef("lm", {"size": "tiny", **options}))


def batch_of(workload: AdaptedWorkload, size: int) -> Any:
    dataset = workload.user.build_dataset()
    return torch.stack([dataset[i] for i in range(size)])


def test_the_loss_falls_on_real_text(lm: Lm) -> None:
    torch.manual_seed(0)
    workload = lm(sequence="32")
    model = workload.build_model()
    optimizer = workload.build_optimizer(model.parameters())
    losses = []
    for batch in batch_of(workload, 240).split(8):
        result = workload.loss(model, batch)
        optimizer.zero_grad()
        result.loss.backward()
        optimizer.step()
        losses.append(result.loss.item())
    assert losses[0] == pytest.approx(5.545, abs=0.3)  # ln 256: nothing known yet
    assert losses[-1] < losses[0] - 0.5


def test_tokens_are_counted_and_samples_too(lm: Lm) -> None:
    workload = lm()
    batch = batch_of(workload, 3)
    result = workload.loss(workload.build_model(), batch)
    assert (result.items, workload.batch_size_of(batch)) == (3 * 64, 3)


def test_samples_are_consecutive_pieces_of_the_text(lm: Lm, tmp_path: Path) -> None:
    path = tmp_path / "my text.txt"
    path.write_bytes(bytes(range(256)) + b"end")
    dataset = lm(data=str(path)).user.build_dataset()
    assert len(dataset) == 4
    assert dataset[1].tolist() == list(range(64, 129))
    assert [len(dataset[i]) for i in range(4)] == [65] * 4


def test_the_librarys_text_is_the_same_each_time(lm: Lm) -> None:
    one, two = lm().user.build_dataset(), lm().user.build_dataset()
    assert torch.equal(one.text, two.text)
    assert len(one) > 10_000


def test_initial_weights_follow_the_seed(lm: Lm) -> None:
    def weights() -> list[torch.Tensor]:
        torch.manual_seed(3)
        return list(lm().build_model().state_dict().values())

    assert all(torch.equal(a, b) for a, b in zip(weights(), weights(), strict=True))


def test_the_output_layer_shares_the_embedding(lm: Lm) -> None:
    model = lm().build_model()
    assert model.head.weight is model.tokens.weight
    names = [name for name, _ in model.named_parameters()]
    assert "head.weight" not in names


def test_no_later_token_is_seen(lm: Lm) -> None:
    model = lm().build_model().eval()
    tokens = torch.randint(0, 256, (1, 64))
    changed = tokens.clone()
    changed[0, 40:] = 0
    with torch.no_grad():
        assert torch.allclose(model(tokens)[:, :40], model(changed)[:, :40], atol=1e-5)


def test_blocks_and_the_largest_batch(lm: Lm) -> None:
    workload = lm()
    model = workload.build_model()
    blocks = workload.checkpoint_blocks(model)
    assert blocks is not None
    assert len(blocks) == 2
    largest = workload.user.largest_batch(5)
    assert (workload.batch_size_of(largest), largest.shape[1]) == (5, 65)
    workload.loss(model, largest).loss.backward()


def test_a_tiny_gradient_is_no_denormal(lm: Lm) -> None:
    workload = lm()
    model = workload.build_model()
    workload.loss(model, batch_of(workload, 4)).loss.backward()
    smallest = torch.finfo(torch.float32).tiny
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        magnitudes = parameter.grad.abs()
        denormal = ((magnitudes > 0) & (magnitudes < smallest)).float().mean().item()
        assert denormal < 0.01, name


def test_dropout_and_sequence_are_options(lm: Lm) -> None:
    workload = lm(dropout="0.25", sequence="16")
    model = workload.build_model()
    assert model.blocks[0].dropout == 0.25
    assert workload.user.build_dataset()[0].shape == (17,)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"size": "huge"}, "size=huge is not one of tiny, small, base"),
        ({"dropout": "lots"}, "dropout=lots is not a probability"),
        ({"dropout": "1.5"}, "dropout=1.5 is not a probability"),
        ({"dropout": "nan"}, "dropout=nan is not a probability"),
        ({"sequence": "0"}, "sequence=0 is not a number of tokens"),
        ({"sequence": "-3"}, "sequence=-3 is not a number of tokens"),
        ({"sequence": "1e3"}, "sequence=1e3 is not a number of tokens"),
        ({"layers": "3"}, "unexpected keyword argument 'layers'; it takes size, data, dropout, sequence"),
    ],
)
def test_options_are_refused_in_one_sentence(lm: Lm, options: dict[str, str], words: str) -> None:
    with pytest.raises(WorkloadRefused, match=words) as caught:
        lm(**options)
    assert "\n" not in str(caught.value)
    assert ".py" not in str(caught.value)


def test_data_that_is_missing_empty_or_too_short(lm: Lm, tmp_path: Path) -> None:
    empty, short = tmp_path / "empty.txt", tmp_path / "short.txt"
    empty.touch()
    short.write_text("x" * 64)
    with pytest.raises(WorkloadRefused, match=r"missing.txt is not a file; give a text file, or leave data out$"):
        lm(data=str(tmp_path / "missing.txt"))
    with pytest.raises(WorkloadRefused, match="is not a file"):
        lm(data=str(tmp_path))
    for path, count in ((empty, 0), (short, 64)):
        with pytest.raises(ValueError, match=f"is too short: it has {count} bytes, one sample needs 65"):
            lm(data=str(path)).user.build_dataset()
    short.write_text("x" * 65)
    assert len(lm(data=str(short)).user.build_dataset()) == 1
