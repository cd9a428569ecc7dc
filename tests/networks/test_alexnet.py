"""AlexNet against methods in plain functions, and against the published sizes."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.testing import assert_close

from codecl.methods import GPM
from codecl.networks import AlexNet, Dropout, MultiHead
from codecl.training.engine import Trainer
from codecl.training.plan import Plan
from codecl.training.stream import Stream, Task, Tensors
from tests.marks import slow_but
from tests.training.storage import Interrupted, Storage


def reference(values: dict[str, Tensor], x: Tensor, light: nn.Module, heavy: nn.Module) -> Tensor:
    """Every operation as the network is described, on tensors in torch's usual memory order."""

    def normalised(x: Tensor, i: int) -> Tensor:
        return F.batch_norm(x, None, None, values[f"bn{i}.weight"], values[f"bn{i}.bias"], training=True)

    x = x.contiguous()
    for i, drop in (1, light), (2, light), (3, heavy):
        x = F.max_pool2d(drop(F.relu(normalised(F.conv2d(x, values[f"conv{i}.weight"]), i))), 2)
    x = heavy(F.relu(normalised(x.reshape(-1, 1024) @ values["fc1.weight"].T, 4)))
    return heavy(F.relu(normalised(x @ values["fc2.weight"].T, 5)))


def drawn(net: nn.Module) -> nn.Module:
    """``net`` in float64 with batch-norm parameters other than 1 and 0."""
    for m in net.modules():
        if isinstance(m, (nn.BatchNorm1d, nn.BatchNorm2d)):
            nn.init.uniform_(m.weight, 0.5, 1.5)
            nn.init.normal_(m.bias)
    return net.double()


@pytest.mark.parametrize("memory", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("n", slow_but([3, 8], 3))
@pytest.mark.parametrize(("dropout", "training"), [(True, True), (True, False), (False, True)])
def test_values_and_gradients(memory: torch.memory_format, n: int, dropout: bool, training: bool) -> None:
    torch.manual_seed(0)
    net = drawn(AlexNet(dropout=dropout)).train(training)
    x = torch.randn(n, 3, 32, 32, dtype=torch.float64).contiguous(memory_format=memory).requires_grad_()
    values = {"x": x, **dict(net.named_parameters())}
    rates = (0.2, 0.5) if dropout and training else (0.0, 0.0)
    outputs, gradients = [], []
    for run in (net, lambda x: reference(values, x, *map(Dropout, rates))):
        torch.manual_seed(1)  # the same elements are dropped
        y = run(x)
        outputs.append(y)
        weights = torch.linspace(-1, 1, y.numel(), dtype=torch.float64).reshape(y.shape)
        gradients.append(torch.autograd.grad((y * weights).sum(), list(values.values())))
    assert outputs[0].shape == (n, net.features)
    assert_close(*outputs)
    for ours, theirs in zip(*gradients, strict=True):
        assert_close(ours, theirs, rtol=1e-6, atol=1e-7)  # norms of few inputs magnify rounding
    assert gradients[0][0].abs().max() > 1e-3


@pytest.mark.slow
def test_a_run_that_was_stopped_goes_on_to_the_same_bits() -> None:
    def train(storage: Storage) -> Trainer:
        torch.manual_seed(0)
        parts = [Tensors(torch.randn(n, 3, 32, 32), torch.arange(n) % 3) for n in (6, 4, 4)]
        stream = Stream("small", [Task(str(t), 3, *parts) for t in range(2)])
        method = GPM(MultiHead(AlexNet(), AlexNet.features, 3))
        trainer = Trainer(method, stream, Plan(epochs=2, batch_size=3, rule="annealed", lr=0.1), storage)
        trainer.run()
        return trainer

    whole, storage = train(Storage(-1)), Storage(5)  # in the second task, after its first epoch
    with pytest.raises(Interrupted):
        train(storage)
    resumed = train(storage)
    assert resumed.progress.accuracy == whole.progress.accuracy
    assert all(map(torch.equal, resumed.model.state_dict().values(), whole.model.state_dict().values()))


def test_parameters() -> None:
    net = AlexNet()
    weights = [W for W in net.parameters() if W.dim() > 1]
    d = [W[0].numel() for W in weights]
    assert d == [48, 576, 512, 1024, 2048]
    assert [len(W) for W in weights] == [64, 128, 256, 2048, 2048]
    assert sum(W.numel() for W in weights) == 6_499_328
    assert sum(b.numel() for b in net.parameters() if b.dim() == 1) == 9088
    assert not list(net.buffers())


def test_a_head_of_ten_classes() -> None:
    net = MultiHead(AlexNet(), AlexNet.features, 10)
    assert sum(W.numel() for W in net.heads.parameters()) == 20_480
    assert net(torch.randn(2, 3, 32, 32)).shape == (2, 10)


def test_maps() -> None:
    net, sizes = AlexNet(), []
    for m in (net.conv1, net.conv2, net.conv3):
        m.register_forward_hook(lambda _, x, y: sizes.append((x[0].shape[-1], y.shape[-1])))
    net(torch.randn(2, 3, 32, 32))
    assert sizes == [(32, 29), (14, 12), (6, 5)]


def test_dropout_rates_in_order() -> None:
    net, rates = AlexNet(), []
    for m in net.modules():
        if isinstance(m, Dropout):
            m.register_forward_hook(lambda m, x, _: rates.append((m.p, *x[0].shape[1:])))
    net(torch.randn(2, 3, 32, 32))
    assert rates == [(0.2, 64, 29, 29), (0.2, 128, 12, 12), (0.5, 256, 5, 5), (0.5, 2048), (0.5, 2048)]


def test_evaluation_uses_batch_statistics() -> None:
    torch.manual_seed(0)
    net, x = AlexNet().eval(), torch.randn(4, 3, 32, 32)
    assert not torch.allclose(net(x)[:2], net(x[:2]), atol=1e-3)
