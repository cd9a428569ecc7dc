"""Accelerate: as the plain loop, and its checkpoints load in the right order."""

import pytest
import torch
from torch import optim
from torch.nn.functional import cross_entropy

from codecl import CodeCL
from codecl.networks import MultiHead
from tests.integrations.plain import (
    SETTINGS,
    TASKS,
    Network,
    assert_equal,
    assert_held,
    assert_same,
    attach,
    learn_all,
    loader,
    network,
    outputs,
)

accelerate = pytest.importorskip("accelerate")
register_for_checkpointing = pytest.importorskip("codecl.integrations.accelerate").register_for_checkpointing


@pytest.fixture
def accelerator():
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    accelerate.state.GradientState._reset_state()
    return accelerate.Accelerator(cpu=True)


def adamw(model):
    return optim.AdamW(model.parameters(), lr=0.01)


def learn(accelerator, method, model, optimizer, batches):
    model.train()
    for x, y in batches:
        optimizer.zero_grad()
        accelerator.backward(cross_entropy(model(x), y))
        if accelerator.sync_gradients:
            accelerator.clip_grad_norm_([*model.parameters(), *method.parameters()], 0.2)
        optimizer.step()


def test_it_is_the_plain_loop(accelerator):
    expected, kept = learn_all(adamw, clip=0.2)
    model, seen = network(), []
    method = attach(model)
    for t in range(TASKS):
        wrapped, optimizer, batches = accelerator.prepare(model, adamw(model), loader(t))
        method.guard(optimizer)
        method.begin_task(t, batches)
        for _ in range(2):
            learn(accelerator, method, wrapped, optimizer, batches)
        method.end_task(batches)
        seen.append(outputs(method, 0))
    assert_same(method, expected)
    assert_equal(seen, kept)
    assert_held(seen)


def begun(model, t=1):
    """A method that has learned a task, or none in a new process."""
    method = attach(model)
    for task in range(t):
        method.begin_task(task, loader(task))
        method.end_task(loader(task))
    return method


def test_a_state_loads_before_the_optimizer_and_goes_on_as_if_never_stopped(accelerator, tmp_path):
    model, optimizer = accelerator.prepare(plain := network(), adamw(plain))
    method = begun(plain)
    method.guard(optimizer)
    register_for_checkpointing(accelerator, method)
    method.begin_task(1, loader(1))
    learn(accelerator, method, model, optimizer, loader(1))
    accelerator.save_state(tmp_path)
    learn(accelerator, method, model, optimizer, loader(1))
    method.end_task(loader(1))

    accelerator.free_memory()
    accelerator._load_model_state_pre_hook.clear()
    torch.manual_seed(5)  # another process, with other weights and nothing learned
    model, optimizer = accelerator.prepare(plain := Network(), adamw(plain))
    resumed = begun(plain, 0)
    resumed.guard(optimizer)
    register_for_checkpointing(accelerator, resumed)
    accelerator.load_state(tmp_path)
    assert resumed.effective
    assert all(parameter in optimizer.state for parameter in resumed.parameters())
    learn(accelerator, resumed, model, optimizer, loader(1))
    resumed.end_task(loader(1))
    assert_same(resumed, method)


def test_heads_that_a_task_added_are_loaded(accelerator, tmp_path):
    def make():
        return MultiHead(network().body, 16, 3)

    settings = {key: value for key, value in SETTINGS.items() if key != "heads"}
    expected = CodeCL(accelerator.prepare(make()), **settings)
    for t in range(2):
        expected.begin_task(t, loader(t))
        expected.end_task(loader(t))
    register_for_checkpointing(accelerator, expected)
    accelerator.save_state(tmp_path)
    accelerator.free_memory()
    accelerator._load_model_state_pre_hook.clear()
    torch.manual_seed(5)
    method = CodeCL(accelerator.prepare(make()), **settings)
    register_for_checkpointing(accelerator, method)
    accelerator.load_state(tmp_path)
    assert_same(method, expected)


def test_a_checkpoint_without_the_method_is_refused(accelerator, tmp_path):
    method = attach(accelerator.prepare(network()))
    accelerator.save_state(tmp_path)
    register_for_checkpointing(accelerator, method)
    with pytest.raises(FileNotFoundError, match=r"holds no codecl.pt"):
        accelerator.load_state(tmp_path)
