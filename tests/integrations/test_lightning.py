"""Lightning: as the plain loop, resumed as uninterrupted."""

import logging
import warnings

import pytest
import torch
from torch import optim
from torch.nn.functional import cross_entropy
from torch.testing import assert_close

from codecl import Method, UnsafeOptimizer
from codecl.methods.owm import OWM
from tests.integrations.plain import (
    TASKS,
    Network,
    assert_equal,
    assert_held,
    assert_same,
    attach,
    dataset,
    learn_all,
    loader,
    network,
    outputs,
)

lightning = pytest.importorskip("lightning.pytorch")
Continual = pytest.importorskip("codecl.integrations.lightning").Continual

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def quiet(recwarn):
    """Lightning recommends workers for the loader, and tells where it saves."""
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning")
    warnings.filterwarnings("ignore", message=".*(does not have many workers|is not empty|isinstance.treespec).*")


OPTIMIZERS = {
    "momentum": lambda parameters: optim.SGD(parameters, lr=0.1, momentum=0.9),
    "adamw": lambda parameters: optim.AdamW(parameters, lr=0.01),
}


class Module(lightning.LightningModule):
    def __init__(self, model, name="momentum"):
        super().__init__()
        self.model, self.name = model, name

    def training_step(self, batch):
        x, y = batch
        return cross_entropy(self.model(x), y)

    def configure_optimizers(self):
        return OPTIMIZERS[self.name](self.model.parameters())


def trainer_of(folder, *callbacks, epochs=2, **settings):
    return lightning.Trainer(
        accelerator="cpu", max_epochs=epochs, logger=False, enable_progress_bar=False, enable_model_summary=False,
        default_root_dir=folder, callbacks=list(callbacks),
        **{"enable_checkpointing": False, "gradient_clip_val": 0.2, **settings},
    )  # fmt: skip


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_it_is_the_plain_loop(name, tmp_path):
    expected, kept = learn_all(lambda model: OPTIMIZERS[name](model.parameters()), clip=0.2)
    model, seen = network(), []
    method = attach(model)
    for t in range(TASKS):
        trainer_of(tmp_path, Continual(method, t, loader(t))).fit(Module(model, name), loader(t))
        seen.append(outputs(method, 0))
    assert_same(method, expected)
    assert_equal(seen, kept)
    assert_held(seen)


class Stop(lightning.Callback):
    def on_train_epoch_start(self, trainer, pl_module):
        if trainer.current_epoch == 2:
            raise RuntimeError("the power is out")


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_resumed_in_the_second_task_it_ends_as_if_never_stopped(name, tmp_path):
    def first_task():
        model = network()
        method = attach(model)
        trainer_of(tmp_path, Continual(method, 0, loader(0))).fit(Module(model, name), loader(0))
        return model, method

    model, expected = first_task()
    trainer_of(tmp_path, Continual(expected, 1, loader(1)), epochs=4).fit(Module(model, name), loader(1))

    model, method = first_task()
    saving = lightning.callbacks.ModelCheckpoint(tmp_path, filename="{epoch}")
    trainer = trainer_of(tmp_path, Continual(method, 1, loader(1)), Stop(), saving, epochs=4, enable_checkpointing=True)
    with pytest.raises(RuntimeError, match="power"):
        trainer.fit(Module(model, name), loader(1))

    torch.manual_seed(5)  # another process, with other weights and nothing learned
    model = Network()
    method = attach(model)
    trainer = trainer_of(tmp_path, Continual(method, 1, loader(1)), epochs=4)
    trainer.fit(Module(model, name), loader(1), ckpt_path=saving.best_model_path)
    assert trainer.current_epoch == 4
    assert_same(method, expected)


def test_a_checkpoint_from_the_end_ends_the_task_again(tmp_path):
    model = network()
    expected = attach(model)
    trainer = trainer_of(tmp_path, Continual(expected, 0, loader(0)))
    trainer.fit(Module(model), loader(0))
    trainer.save_checkpoint(tmp_path / "last.ckpt")
    model = Network()
    method = attach(model)
    trainer = trainer_of(tmp_path, Continual(method, 0, loader(0)))
    trainer.fit(Module(model), loader(0), ckpt_path=tmp_path / "last.ckpt")
    assert not method.is_learning
    assert_same(method, expected)


def test_a_method_that_looks_at_batches_sees_them_and_how_far_the_task_is(tmp_path):
    """OWM, which changes a setting on the way, as with ``method.watch``."""
    settings = {"heads": ["head"], "alpha": 1.0, "alpha_end": 0.01}
    expected, method = OWM(alone := network(), **settings), OWM(together := network(), **settings)
    for t in range(2):
        expected.guard(optimizer := OPTIMIZERS["momentum"](alone.parameters()))
        expected.begin_task(t, loader(t))
        for epoch in range(2):
            for x, y in expected.watch(loader(t), epoch, 2):
                optimizer.zero_grad()
                cross_entropy(alone(x), y).backward()
                optimizer.step()
        expected.end_task(loader(t))
        trainer_of(tmp_path, Continual(method, t, loader(t)), gradient_clip_val=None).fit(Module(together), loader(t))
    for name, P in expected.memory.items():
        assert_close(method.memory[name], P)
    assert_close(together.state_dict(), alone.state_dict())


def test_a_wrapped_optimizer_is_guarded_by_what_it_wraps():
    from lightning.pytorch.core.optimizer import LightningOptimizer

    model = network()
    method = attach(model)
    method.begin_task(0, loader(0))
    method.end_task(loader(0))
    x, y = dataset(1).tensors
    bare = optim.Adam(model.parameters(), lr=0.1)
    cross_entropy(model(x), y).backward()
    with pytest.raises(UnsafeOptimizer, match="not guarded"):
        bare.step()
    before = outputs(method, 0)
    method.guard(LightningOptimizer(bare))
    method.begin_task(1, loader(1))
    bare.step()
    assert (outputs(method, 0) - before).abs().max() <= 1e-5
    assert (model(x) - before).abs().max() > 1e-2


def test_what_cannot_be_is_refused(tmp_path):
    model = network()
    with pytest.raises(ValueError, match="does not hold the model"):
        trainer_of(tmp_path, Continual(Method(network()), 0, loader(0))).fit(Module(model), loader(0))
    trainer = trainer_of(tmp_path, Continual(attach(model), 0, loader(0)))
    trainer.fit(Module(model), loader(0))
    trainer.save_checkpoint(tmp_path / "last.ckpt")
    trainer = trainer_of(tmp_path, Continual(attach(other := network()), 1, loader(1)))
    with pytest.raises(ValueError, match="the checkpoint is of task 0, and the trainer goes on with task 1"):
        trainer.fit(Module(other), loader(1), ckpt_path=tmp_path / "last.ckpt")
