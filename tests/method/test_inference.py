"""Inferring the task: what is stored tells tasks apart, and every way of asking answers the same."""

import copy
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from codecl.method.inference import task_scores
from codecl.method.task_evidence import APERTURE, POSITIONS
from codecl.methods import GPM, OWM, CodeCL, Method
from codecl.networks import MLP, MultiHead

D, TASKS = 12, 3


def make_batches(task: int, seed: int = 0, n: int = 60) -> list[tuple[Tensor, Tensor]]:
    """Inputs in a plane of their own for each task, with two classes."""
    draw = torch.Generator().manual_seed(100 * seed + task)
    plane = torch.linalg.qr(torch.randn(D, D, generator=torch.Generator().manual_seed(7)))[0][
        :, 3 * task : 3 * task + 3
    ]
    x = torch.randn(n, 3, generator=draw) @ plane.mT + 0.05 * torch.randn(n, D, generator=draw)
    return [(x[:30], (x[:30] @ plane[:, 0] > 0).long()), (x[30:], (x[30:] @ plane[:, 0] > 0).long())]


def learn(method: Method, tasks: int = TASKS) -> Method:
    torch.manual_seed(1)
    for t in range(len(method.tasks), tasks):
        method.begin_task(t, make_batches(t))
        optimizer = torch.optim.SGD(method.model.parameters(), lr=0.2)
        method.guard(optimizer)
        for x, y in make_batches(t) * 10:
            optimizer.zero_grad()
            nn.functional.cross_entropy(method.model(x), y).backward()
            optimizer.step()
        method.end_task(make_batches(t))
    return method


def make_model() -> MultiHead:
    torch.manual_seed(0)
    return MultiHead(MLP((D, 16, 16)), 16, [2] * TASKS, bias=True)


def make_sequential() -> nn.Sequential:
    """A model that does not mind a single input."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(D, 16), nn.ReLU(), nn.Linear(16, 2))


@pytest.fixture(params=[CodeCL, GPM, OWM])
def method(request: pytest.FixtureRequest) -> Method:
    return learn(request.param(make_model(), evidence="auto"))


def test_tasks_are_told_apart_one_input_at_a_time(method: Method) -> None:
    for t in range(TASKS):
        x, _ = make_batches(t, seed=1)[0]
        assert (method.infer_task(x) == t).float().mean() > 0.95
        assert bool((method.infer_task(x, together=True) == t).all())


def test_evidence_is_that_of_conceptors_fitted_by_hand() -> None:
    """One weight, whose rows are the inputs themselves."""
    method = learn(CodeCL(make_model(), evidence=["backbone.hidden.0.weight"]))
    x = torch.cat([make_batches(t, seed=2)[0][0] for t in range(TASKS)]).double()
    rows = [torch.cat([x for x, _ in make_batches(t)]).double() for t in range(TASKS)]
    unit = rows[0].square().mean().sqrt()
    expected = []
    for X in rows:
        covariance = (X / unit).mT @ (X / unit) / len(X) + torch.eye(D).double() / APERTURE**2
        gaussian = torch.distributions.MultivariateNormal(torch.zeros(D).double(), covariance)
        expected.append(gaussian.log_prob(x / unit))
    assert torch.equal(method.infer_task(x.float()), torch.stack(expected, 1).argmax(1))


def test_the_log_densities_of_all_weights_are_added_per_dimension() -> None:
    """A convolution, judged by evenly spread patches, and the layer behind it, each with conceptors fitted by hand."""
    torch.manual_seed(0)
    conv, linear = nn.Conv2d(1, 4, 3), nn.Linear(4 * 81, 5)
    model = nn.Sequential(conv, nn.ReLU(), nn.Flatten(), linear)
    method = CodeCL(model, evidence="auto", samples=None)
    x = [torch.randn(40, 1, 11, 11).cumsum(axis) for axis in (2, 3)]
    for t in range(2):
        method.begin_task(t, [x[t]])
        method.end_task([x[t]])

    def rows_of(images: Tensor) -> dict[str, Tensor]:
        patches = nn.functional.unfold(images, 3).mT  # [inputs, positions, d]
        return {"0.weight": patches.double(), "3.weight": model[:3](images).detach()[:, None].double()}

    new = torch.randn(6, 1, 11, 11)
    expected = torch.zeros(6, 2, dtype=torch.float64)
    for name, fitted in rows_of(x[0]).items():
        unit, d = fitted.square().mean().sqrt(), fitted.shape[-1]
        seen = rows_of(new)[name]
        count = seen.shape[1]
        some = [int((i + 0.5) * count / POSITIONS) for i in range(POSITIONS)] if name == "0.weight" else [0]
        for t in range(2):
            X = (rows_of(x[t])[name] / unit).flatten(0, 1)
            covariance = X.mT @ X / len(X) + torch.eye(d).double() / APERTURE**2
            gaussian = torch.distributions.MultivariateNormal(torch.zeros(d).double(), covariance)
            expected[:, t] += gaussian.log_prob(seen[:, some] / unit).mean(1) / d
    difference = task_scores(method, new) - expected
    torch.testing.assert_close(difference, difference[:1, :1].expand(6, 2), atol=1e-4, rtol=0)  # a constant of units


def test_predict_answers_as_the_inferred_task(method: Method) -> None:
    x = torch.cat([make_batches(t, seed=3)[0][0] for t in range(TASKS)])
    predicted = method.predict(x)
    assert torch.equal(predicted.task, method.infer_task(x))
    method.model.eval()
    for i in range(0, len(x), 7):
        with torch.no_grad(), method.task(int(predicted.task[i])):
            assert int(method.model(x).argmax(1)[i]) == int(predicted.label[i])


def test_auto_shows_the_task_that_the_batch_belongs_to(method: Method) -> None:
    method.model.eval()
    for t in range(TASKS):
        x, _ = make_batches(t, seed=4)[0]
        inferred = int(method.infer_task(x, together=True)[0])
        with torch.no_grad(), method.task(inferred):
            expected = method.model(x)
        with torch.no_grad(), method.task("auto"):
            assert torch.equal(method.model(x), expected)
        with torch.no_grad(), method.task(TASKS - 1):
            again = method.model(x)
        with torch.no_grad():
            assert torch.equal(method.model(x), again), "what was shown before is back"


def test_without_evidence_the_surest_head_decides() -> None:
    method = learn(CodeCL(make_model()))
    x, _ = make_batches(1, seed=5)[0]
    method.model.eval()
    entropies = []
    for t in range(TASKS):
        with torch.no_grad(), method.task(t):
            entropies.append(torch.distributions.Categorical(logits=method.model(x)).entropy())
    assert torch.equal(method.infer_task(x), torch.stack(entropies, 1).argmin(1))


def test_known_inputs_are_not_novel_and_new_ones_are() -> None:
    method = CodeCL(make_model(), evidence="auto")
    for t in range(2):
        method.begin_task(t, make_batches(t))
        method.end_task(make_batches(t, n=400))
    known = [batch for t in range(2) for batch in make_batches(t, seed=6, n=400)]
    assert method.novelty(known) < 0.05
    assert method.novelty(make_batches(2, seed=6)) > 0.95


def test_inferring_leaves_the_method_as_it_was(method: Method) -> None:
    before, state = copy.deepcopy(method.model.state_dict()), torch.get_rng_state()
    method.model.train()
    method.predict(make_batches(0)[0][0])
    method.novelty(make_batches(0))
    assert method.model.training
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(value, before[name]) for name, value in method.model.state_dict().items())


def test_the_state_carries_the_evidence(method: Method, tmp_path: Path) -> None:
    torch.save({"model": method.model.state_dict(), "method": method.state_dict()}, tmp_path / "state.pt")
    saved = torch.load(tmp_path / "state.pt", weights_only=True)
    other = type(method)(make_model(), evidence="auto")
    other.model.load_state_dict(saved["model"])
    other.load_state_dict(saved["method"])
    x = torch.cat([make_batches(t, seed=7)[0][0] for t in range(TASKS)])
    assert torch.equal(other.infer_task(x), method.infer_task(x))
    assert other.bytes()["memory"] == method.bytes()["memory"] > type(method)(make_model()).bytes()["memory"]


def test_training_is_the_same_with_and_without_evidence() -> None:
    plain, with_evidence = learn(CodeCL(make_model())), learn(CodeCL(make_model(), evidence="auto"))
    for name, value in plain.model.state_dict().items():
        assert torch.equal(with_evidence.model.state_dict()[name], value), name


def test_a_failed_end_of_a_task_stores_nothing() -> None:
    method = learn(CodeCL(make_model(), evidence="auto"), tasks=1)
    method.begin_task(1, make_batches(1))
    bad = [(torch.full((30, D), torch.nan), torch.zeros(30).long())]
    with pytest.raises(ValueError, match="NaN"):
        method.end_task(bad)
    assert method.evidence is not None
    assert len(method.evidence.tasks) == 1
    method.end_task(make_batches(1))
    assert len(method.evidence.tasks) == 2


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda: CodeCL(make_model(), evidence="auto").infer_task(torch.ones(2, D)), "no task has been learned"),
        (lambda: learn(CodeCL(make_model()), 1).infer_task(torch.ones(0, D)), "no inputs"),
        (lambda: learn(CodeCL(make_model()), 1).novelty(make_batches(0)), "evidence='auto'"),
        (lambda: CodeCL(make_model(), evidence=["nolayer*"]), "matches none of the weights"),
        (lambda: CodeCL(make_model(), evidence=["nolayer"]), "evidence: there is no weight 'nolayer'. Known:"),
        (lambda: Method(make_model(), evidence="auto"), "protects no weights"),
        (lambda: CodeCL(make_model()).begin_task("auto"), "another name"),
        (lambda: learn(CodeCL(MLP((D, 16, 2))), 1).infer_task(torch.ones(2, D)), "no task has a head of its own"),
    ],
)
def test_what_cannot_be_is_said(ask, message: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises((ValueError, RuntimeError), match=message):
        ask()


@pytest.mark.parametrize("evidence", ["auto", ()], ids=["conceptors", "heads"])
def test_what_is_no_batch_is_said(evidence: str) -> None:
    method = learn(CodeCL(make_sequential(), heads=["2"], evidence=evidence), tasks=2)
    x, _ = make_batches(0)[0]
    for nothing in (None, "text", [], (), [1.0, 2.0]):
        with pytest.raises(TypeError, match="a batch is a tensor of inputs, or a tuple or dict that begins with one"):
            method.infer_task(nothing)
    for loader in (make_batches(0), DataLoader(make_batches(0))):
        with pytest.raises(TypeError, match="one batch is expected; got several, as of a loader"):
            method.predict(loader)
    with pytest.raises(ValueError, match=r"A single input is a batch of one: x\.unsqueeze\(0\)"):
        method.predict(x[0])
    assert torch.equal(method.infer_task([x, None]), method.infer_task(x))  # a list is a batch too
    broken = x.clone()
    broken[3, 0] = torch.nan
    with pytest.raises(ValueError, match="hold NaN or infinite values: no task fits"):
        method.infer_task(broken)
    with method.task("auto"):
        for bad, message in ((x[:0], "no inputs"), (x[0], "batch of one"), (broken, "NaN")):
            with pytest.raises(ValueError, match=message):
                method.model(bad)


def test_novelty_of_what_is_no_loader_of_batches() -> None:
    method = learn(CodeCL(make_sequential(), heads=["2"], evidence="auto"), tasks=2)
    x, _ = make_batches(0)[0]
    with pytest.raises(ValueError, match="the loader yielded no inputs"):
        method.novelty([(x[:0],)])
    with pytest.raises(ValueError, match="A single input is a batch of one"):
        method.novelty(x)
    known = method.novelty([(x,)])
    assert method.novelty([(x[:0],), (x,)]) == known
    assert method.novelty([(x * torch.nan,)]) == 1.0
    assert method.novelty([(x,), (x * torch.nan,)]) == pytest.approx((known + 1) / 2)


def test_masked_classes_do_not_count_against_a_head() -> None:
    """An output of −∞ has probability 0, and adds nothing to the entropy."""

    class Masked(MultiHead):
        def forward(self, x: Tensor) -> Tensor:
            return torch.cat([super().forward(x), x.new_full((len(x), 1), -torch.inf)], 1)

    torch.manual_seed(0)
    masked = learn(CodeCL(Masked(MLP((D, 16, 16)), 16, [2] * TASKS, bias=True)))
    plain = learn(CodeCL(make_model()))
    x = torch.cat([make_batches(t, seed=8)[0][0] for t in range(TASKS)])
    assert torch.equal(masked.infer_task(x), plain.infer_task(x))


def test_evidence_of_another_number_of_tasks_is_refused() -> None:
    method = learn(CodeCL(make_model(), evidence="auto"), tasks=2)
    state = method.state_dict()
    state["evidence"]["tasks"] = state["evidence"]["tasks"][:1]
    with pytest.raises(ValueError, match="evidence of 1 tasks"):
        method.load_state_dict(state)
