"""The Trainer of ``transformers``: as the plain loop, resumed as uninterrupted."""

import logging
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn, optim
from torch.utils.data import Dataset

from codecl import Method
from tests.integrations.plain import (
    BATCH,
    TASKS,
    Network,
    assert_equal,
    assert_held,
    assert_same,
    attach,
    dataset,
    learn_all,
    network,
    outputs,
)

pytest.importorskip("accelerate")
transformers = pytest.importorskip("transformers")
continual = pytest.importorskip("codecl.integrations.huggingface").continual

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
STEPS = 10  # two epochs of a task


@pytest.fixture(autouse=True)
def quiet():
    logging.getLogger("transformers").setLevel(logging.ERROR)


class Named(Dataset):
    """The inputs of a task by name, as a Trainer wants them."""

    def __init__(self, task):
        self.x, self.y = dataset(task).tensors

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return {"x": self.x[i], "labels": self.y[i]}


def trainer_of(model, task, folder, callbacks=(), optimizers=(None, None), batch=BATCH, **settings):
    settings = {
        "optim": "sgd",
        "learning_rate": 0.1,
        "lr_scheduler_type": "constant",
        "train_sampling_strategy": "sequential",
        "max_grad_norm": 0.2,
        "save_strategy": "no",
    } | settings
    args = transformers.TrainingArguments(
        str(folder / str(task)), per_device_train_batch_size=batch, num_train_epochs=2, report_to=[],
        disable_tqdm=True, use_cpu=True, logging_strategy="no", seed=task, **settings,
    )  # fmt: skip
    return transformers.Trainer(
        model, args, train_dataset=Named(task), eval_dataset=Named(task), callbacks=list(callbacks),
        optimizers=optimizers,
    )  # fmt: skip


def decaying(model):
    """Groups as the Trainer makes them: biases do not decay."""
    named = list(model.named_parameters())
    return [
        {"params": [p for n, p in named if p.requires_grad and "bias" not in n], "weight_decay": 0.01},
        {"params": [p for n, p in named if p.requires_grad and "bias" in n], "weight_decay": 0.0},
    ]


OPTIMIZERS = {
    "sgd": ({}, lambda model: optim.SGD(model.parameters(), lr=0.1)),
    "adamw": (
        {"optim": "adamw_torch", "learning_rate": 0.01, "weight_decay": 0.01},
        lambda model: optim.AdamW(decaying(model), lr=0.01),
    ),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_it_is_the_plain_loop(name, tmp_path):
    settings, make_optimizer = OPTIMIZERS[name]
    expected, kept = learn_all(make_optimizer, clip=0.2)
    model, seen = network(), []
    method = attach(model)
    for t in range(TASKS):
        continual(trainer_of(model, t, tmp_path, **settings), method, t).train()
        seen.append(outputs(method, 0))
    assert_same(method, expected)
    assert_equal(seen, kept)
    assert_held(seen)


def test_a_trainer_and_its_optimizer_may_learn_task_after_task(tmp_path):
    model = network()
    method, optimizer = attach(model), optim.SGD(model.parameters(), lr=0.1)
    constant = optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
    trainer = trainer_of(model, 0, tmp_path, optimizers=(optimizer, constant))
    for t in range(TASKS):
        trainer.train_dataset = Named(t)
        assert continual(trainer, method, t) is trainer
        trainer.train()
    assert_same(method, learn_all(OPTIMIZERS["sgd"][1], clip=0.2)[0])
    assert not {"create_optimizer", "training_step"} & vars(trainer).keys()
    assert "clip_grad_norm_" not in vars(trainer.accelerator)


def test_fine_tuning_is_the_trainer_by_itself(tmp_path):
    """Dropout and a drawn order: looking at batches leaves the random states as they were."""
    alone, together = network(dropout=0.5), network(dropout=0.5)
    trainer_of(alone, 0, tmp_path, train_sampling_strategy="random").train()
    continual(trainer_of(together, 0, tmp_path, train_sampling_strategy="random"), Method(together), 0).train()
    assert_equal(together.state_dict(), alone.state_dict())


class Stop(transformers.TrainerCallback):
    """Ends the process, as it were, at a step."""

    def __init__(self, step):
        self.step = step

    def on_step_begin(self, args, state, control, **kwargs):
        if state.global_step == self.step:
            raise KeyboardInterrupt


@pytest.mark.parametrize(("name", "step"), [("adamw", 3), ("sgd", 5), ("adamw", 8)])  # an epoch is five steps
def test_resumed_in_the_second_task_it_ends_as_if_never_stopped(name, step, tmp_path):
    settings = OPTIMIZERS[name][0] | {"train_sampling_strategy": "random"}
    saving = settings | {"save_strategy": "steps", "save_steps": step}

    def first_task(folder):
        model = network(dropout=0.2)
        method = attach(model)
        continual(trainer_of(model, 0, folder, **settings), method, 0).train()
        return model, method

    model, expected = first_task(tmp_path / "whole")
    continual(trainer_of(model, 1, tmp_path / "whole", **settings), expected, 1).train()

    model, method = first_task(tmp_path / "stopped")
    trainer = trainer_of(model, 1, tmp_path / "stopped", [Stop(step)], **saving)
    with pytest.raises(KeyboardInterrupt):
        continual(trainer, method, 1).train()

    torch.manual_seed(5)  # another process, with other weights and nothing learned
    model = Network(dropout=0.2)
    method = attach(model)
    trainer = trainer_of(model, 1, tmp_path / "stopped", **saving)
    continual(trainer, method, 1).train(resume_from_checkpoint=True)
    assert trainer.state.global_step == STEPS
    assert_same(method, expected)


class Keep(transformers.TrainerCallback):
    """Keeps what the network says at each evaluation, and makes the third of them the best."""

    def __init__(self, model):
        self.model, self.seen = model, []

    def on_evaluate(self, args, state, control, metrics, **kwargs):
        with torch.no_grad():
            self.seen.append(self.model.eval()(Named(1).x))


def test_the_best_model_comes_back_with_what_the_task_added(tmp_path):
    model = network()
    method = attach(model)
    continual(trainer_of(model, 0, tmp_path), method, 0).train()
    keep, values = Keep(model), iter([0.1, 0.2, 0.9, 0.3, 0.4])
    trainer = trainer_of(
        model, 1, tmp_path, [keep], save_strategy="steps", save_steps=2, eval_strategy="steps", eval_steps=2,
        load_best_model_at_end=True, metric_for_best_model="score", greater_is_better=True,
    )  # fmt: skip
    trainer.compute_metrics = lambda _: {"score": next(values)}
    continual(trainer, method, 1).train()
    assert trainer.state.best_global_step == 6
    assert_equal(outputs(method, 1), keep.seen[2])
    assert (keep.seen[2] - keep.seen[-1]).abs().max() > 1e-3
    assert method.per_task.effective[1]


def test_clipping_sees_what_the_task_added(tmp_path):
    norms = []

    class Look(transformers.TrainerCallback):
        def on_pre_optimizer_step(self, *_, **__):
            of_all = [p.grad for p in (*model.parameters(), *method.parameters()) if p.grad is not None]
            norms.append((len([p for p in method.parameters() if p.grad is not None]), nn.utils.get_total_norm(of_all)))

    model = network()
    method = attach(model)
    continual(trainer_of(model, 0, tmp_path), method, 0).train()
    continual(trainer_of(model, 1, tmp_path, [Look()], max_grad_norm=0.01), method, 1).train()
    assert len(norms) == STEPS
    for added, norm in norms:
        assert added > 0
        assert norm.item() == pytest.approx(0.01, rel=1e-3)


def test_what_cannot_be_is_refused(tmp_path):
    model = network()
    method = attach(model)
    with pytest.raises(ValueError, match="trains another model"):
        continual(trainer_of(network(), 0, tmp_path), method, 0)
    trainer = trainer_of(model, 0, tmp_path, save_strategy="epoch")
    with pytest.raises(ValueError, match="has a task already"):
        continual(continual(trainer, method, 0), method, 1)
    trainer.train()
    folder = tmp_path / "0/checkpoint-5"
    with pytest.raises(ValueError, match="the checkpoint is of task 0, and the trainer goes on with task 1"):
        continual(trainer_of(model, 1, tmp_path), method, 1).train(
            resume_from_checkpoint=str(tmp_path / "0/checkpoint-5")
        )
    (folder / "codecl.pt").unlink()
    with pytest.raises(FileNotFoundError, match=r"holds no codecl.pt"):
        continual(trainer_of(model, 0, tmp_path), method, 0).train(
            resume_from_checkpoint=str(tmp_path / "0/checkpoint-5")
        )


def test_two_processes_learn_what_one_learns(tmp_path):
    """Each with half of every batch; what the tasks add is the same on both."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    variables = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
    variables |= {"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    command = [sys.executable, "-m", "tests.integrations.distributed_trainer", str(tmp_path / "out")]
    workers = [
        subprocess.Popen(
            command, env=os.environ | variables | {"RANK": rank, "LOCAL_RANK": rank}, stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL, text=True, cwd=tmp_path,
        )
        for rank in "01"
    ]  # fmt: skip
    errors = [process.communicate(timeout=300)[1] for process in workers]
    assert [process.returncode for process in workers] == [0, 0], "\n".join(errors)[-3000:]
    first, second = (torch.load(f"{tmp_path / 'out'}.{rank}", weights_only=True) for rank in "01")
    assert_equal(first, second)
    torch.manual_seed(0)
    model = Network()
    method = attach(model)
    for t in range(TASKS):
        continual(trainer_of(model, t, tmp_path / "one"), method, t).train()
    for name, value in model.state_dict().items():
        torch.testing.assert_close(first["model"][name], value, rtol=0, atol=2e-6)
    both = attach(network())
    both.model.load_state_dict(first["model"])
    both.load_state_dict(first["method"])
    for t in range(TASKS):
        torch.testing.assert_close(outputs(both, t), outputs(method, t), rtol=0, atol=1e-5)
