"""Any loop: mixed precision, checkpointing, compiled models, memory formats; each against the plain path."""

import copy
import shutil

import pytest
import torch
from torch import nn, optim
from torch.nn.functional import cross_entropy
from torch.testing import assert_close
from torch.utils.checkpoint import checkpoint

from codecl import GPM, CodeCL, Method
from tests.layers.cases import normal, redrawn

pytestmark = pytest.mark.slow


class Net(nn.Module):
    """A convolution, attention over its positions, a layer that is used twice, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 6, 3, groups=2)
        self.attention = nn.MultiheadAttention(6, 2, batch_first=True)
        self.twice = nn.Linear(6, 6)
        self.head = nn.Linear(6, 3)

    def features(self, x):
        tokens = self.conv(x).tanh().flatten(2).mT
        tokens = tokens + self.attention(tokens, tokens, tokens, need_weights=False)[0]
        return self.twice(self.twice(tokens).tanh())

    def forward(self, x):
        return self.head(self.features(x).mean(1))


class Checkpointed(Net):
    reentrant = False

    def forward(self, x):
        return self.head(checkpoint(self.features, x, use_reentrant=self.reentrant).mean(1))


class Reentrant(Checkpointed):
    reentrant = True


def batches(task: int, dtype: torch.dtype = torch.float32) -> list:
    """Images in a two-dimensional space of their own, so that there is something left to learn."""
    x = normal(task, 8, 2) @ normal(100 + task, 2, 4 * 25)
    return [(x.reshape(8, 4, 5, 5).to(dtype), torch.arange(8) % 3)]


def remembering(model: nn.Module, dtype: torch.dtype = torch.float32, **settings) -> CodeCL:
    """A method in the middle of its second task, with directions freed and moved."""
    method = CodeCL(model, heads=["head"], aperture=3.0, free_dims=2, overlap=0.0, **settings)
    for task in range(2):
        method.begin_task(task, batches(task, dtype))
        if task == 0:
            method.end_task(batches(task, dtype))
    with torch.no_grad():
        for i, parameter in enumerate(method.parameters()):
            parameter.copy_(normal(i, *parameter.shape).to(dtype) / 5)
    assert len(method.effective) == 4
    return method


def gradients(method: Method, loss: torch.Tensor) -> dict[str, torch.Tensor]:
    method.model.zero_grad()
    for parameter in method.parameters():
        parameter.grad = None
    loss.backward()
    found = {name: weight.parameter.grad for name, weight in method.weights.items()}
    return found | {f"extra {i}": parameter.grad for i, parameter in enumerate(method.parameters())}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_rounds_the_network_and_not_the_projection(dtype):
    """The gradient is that of a bare network of effective weights under autocast, projected in float32."""
    model = redrawn(Net(), dtype=torch.float32)
    method = remembering(model)
    bare = method.export(1)
    ((x, y),) = batches(1)
    with torch.autocast("cpu", dtype=dtype):
        output, expected = model(x), bare(x)
        assert output.dtype == dtype
        assert_close(output, expected, rtol=0, atol=0.02)
        found = gradients(method, cross_entropy(output.float(), y))
        cross_entropy(expected.float(), y).backward()
    for name, weight in method.weights.items():
        G = weight.matrices(bare.get_parameter(name).grad).double()
        U, M = method.effective[name].U.double(), method.effective[name].M.detach().double()
        C = torch.stack([c.dense() for c in method.memory[name]])
        eye = torch.eye(C.shape[-1], dtype=torch.float64)
        wanted = weight.uses[0].parameter(G @ (eye + U @ M.mT @ U.mT) @ (eye - C)).float()
        assert_close(found[name], wanted, rtol=0, atol=0.02 * float(wanted.abs().max()))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_hard_subspace_leaks_nothing_under_autocast(dtype):
    model = redrawn(Net(), dtype=torch.float32)
    method = GPM(model, heads=["head"], threshold=0.9)
    method.begin_task(0, batches(0))
    method.end_task(batches(0))
    method.begin_task(1, batches(1))
    ((x, y),) = batches(1)
    with torch.autocast("cpu", dtype=dtype):
        found = gradients(method, cross_entropy(model(x).float(), y))
    for name, weight in method.weights.items():
        parts = weight.matrices(found[name]).double()
        assert float(parts.abs().max()) > 1e-4
        for part, B in zip(parts, method.memory[name], strict=True):
            assert B.rank > 0
            assert float((part @ B.basis).abs().max()) < 1e-5 * float(parts.abs().max())


@pytest.mark.parametrize("optimizer", ["SGD", "AdamW"])
def test_a_gradient_scaler_changes_nothing(optimizer):
    models = [redrawn(Net(), dtype=torch.float32) for _ in range(2)]
    methods = [remembering(model) for model in models]
    ((x, y),) = batches(1)
    for scaled, (model, method) in enumerate(zip(models, methods, strict=True)):
        opt = getattr(optim, optimizer)(model.parameters(), lr=0.01)
        method.guard(opt)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, enabled=bool(scaled))
        for _ in range(3):
            opt.zero_grad()
            scaler.scale(cross_entropy(model(x), y)).backward()
            scaler.unscale_(opt)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(opt)
            scaler.update()
    for name, value in models[0].state_dict().items():
        assert_close(models[1].state_dict()[name], value, rtol=1e-4, atol=1e-6)
    assert not torch.equal(models[0].conv.weight, redrawn(Net(), dtype=torch.float32).conv.weight)


def test_a_step_that_the_scaler_skips_moves_nothing():
    model = redrawn(Net(), dtype=torch.float32)
    method = remembering(model)
    opt = optim.AdamW(model.parameters(), lr=0.01)
    method.guard(opt)
    before = copy.deepcopy(model.state_dict())
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    ((x, y),) = batches(1)
    scaler.scale(cross_entropy(model(x * float("inf")).nan_to_num(nan=float("inf")), y)).backward()
    model.conv.weight.grad = torch.full_like(model.conv.weight, float("inf"))
    scaler.step(opt)
    for name, value in before.items():
        assert torch.equal(model.state_dict()[name], value)


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")  # while it is only looked at
@pytest.mark.parametrize("kind", [Checkpointed, Reentrant])
def test_checkpointing_gives_the_same_gradients(kind):
    ((x, y),) = batches(1, torch.float64)
    found = []
    for net in (Net, kind):
        method = remembering(redrawn(net()), torch.float64)
        found.append(gradients(method, cross_entropy(method.model(x.requires_grad_()), y)))
    for name, value in found[0].items():
        assert_close(found[1][name], value, rtol=1e-10, atol=1e-12)


def test_channels_last_gives_the_same_gradients():
    ((x, y),) = batches(1, torch.float64)
    found = []
    for layout in (torch.contiguous_format, torch.channels_last):
        model = redrawn(Net()).to(memory_format=layout)
        method = remembering(model, torch.float64)
        method.guard(opt := optim.SGD(model.parameters(), lr=0.1, weight_decay=0.1))
        grads = gradients(method, cross_entropy(model(x.to(memory_format=layout)), y))
        opt.step()
        found.append(grads | dict(model.state_dict()) | {"export": method.export(1)(x)})
    assert model.conv.weight.is_contiguous(memory_format=torch.channels_last)
    for name, value in found[0].items():
        assert_close(found[1][name], value, rtol=1e-10, atol=1e-12)


def test_a_model_in_float64_stays_there():
    method = remembering(redrawn(Net()), torch.float64)
    ((x, y),) = batches(1, torch.float64)
    found = gradients(method, cross_entropy(method.model(x), y))
    assert {value.dtype for value in found.values()} == {torch.float64}
    assert {p.dtype for p in method.export(1).parameters()} == {torch.float64}


def test_a_lazy_model_is_one_like_any_other_once_a_batch_has_passed():
    ((x, y),) = batches(0)
    model = nn.Sequential(nn.LazyConv2d(4, 3), nn.Flatten(), nn.LazyLinear(3))
    model(x)
    method = GPM(model)
    method.begin_task(0, [(x, y)])
    method.end_task([(x, y)])
    assert set(method.memory) == {"0.weight", "2.weight"}
    for name, weight in method.weights.items():
        rows = x.unfold(2, 3, 1).unfold(3, 3, 1).permute(0, 2, 3, 1, 4, 5).reshape(-1, 36)
        if name == "0.weight":
            assert float((weight.project(rows[:4].reshape(4, 4, 3, 3))).norm()) < 0.3 * float(rows[:4].norm())


ORDERS = ["attached, then compiled", "compiled, then attached", "attached inside"]
NO_COMPILER = pytest.mark.skipif(shutil.which("g++") is None, reason="no compiler is found")
COMPILED = [*(("eager", order) for order in ORDERS), pytest.param("inductor", ORDERS[0], marks=NO_COMPILER)]


@pytest.mark.filterwarnings("ignore")  # the compiler's own
@pytest.mark.parametrize(("backend", "order"), COMPILED)
def test_a_compiled_model_learns_the_same(backend, order):
    """Compiled around our layers: what changes from task to task is never baked in."""
    torch._dynamo.reset()
    outputs = []
    for compiled in (False, True):
        torch.manual_seed(0)
        model = run = redrawn(nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3)))
        if compiled and order != ORDERS[0]:
            run = torch.compile(model, backend=backend)
        method = CodeCL(run if order == ORDERS[1] else model, aperture=2.0, free_dims=2, overlap=0.0)
        if compiled and order == ORDERS[0]:
            run = torch.compile(model, backend=backend)
        method.guard(opt := optim.SGD(model.parameters(), lr=0.1))
        for task in range(2):
            data = [(normal(task, 8, 4), torch.arange(8) % 3)]
            method.begin_task(task, data)
            for x, y in data * 3:
                opt.zero_grad()
                cross_entropy(run(x), y).backward()
                opt.step()
            method.end_task(data)
        shown = []
        for task in range(2):
            with method.task(task), torch.no_grad():
                shown.append(run(data[0][0]))
        outputs.append(shown)
        assert len(method.per_task.effective[1]) == 3
    for plain, other in zip(*outputs, strict=True):
        assert_close(other, plain, rtol=1e-9, atol=1e-9)
    assert not torch.equal(outputs[0][0], outputs[0][1])


class DistributedDataParallel(nn.Module):
    """Stands for torch's, which wants a process group."""

    __module__ = "torch.nn.parallel.distributed"

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module


def test_wrappers_past_which_nothing_can_be_protected_are_refused_by_name():
    with pytest.raises(
        TypeError, match="a DistributedDataParallel model is made anew for each task: attach to the module"
    ):
        CodeCL(DistributedDataParallel(Net()))
    with pytest.raises(TypeError, match="'inner': a DataParallel model runs copies past the forwards"):
        CodeCL(nn.ModuleDict({"inner": nn.DataParallel(nn.Linear(2, 2))}))


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
def test_a_scripted_model_is_refused_by_name():
    with pytest.raises(TypeError, match="a ScriptModule model computes what was fixed before"):
        CodeCL(torch.jit.script(nn.Linear(2, 2)))
