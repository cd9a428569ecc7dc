"""Tasks in a ``transformers.Trainer``: ``continual(trainer, method, task).train()``.

The trainer knows nothing of what a task adds to the model, and loads a checkpoint in an order of its own:

    when the optimizer is made       the task begins, then the optimizer is guarded before it is wrapped
    when a checkpoint is loaded      the method's state follows the model's and comes before the optimizer's
    when the model is wrapped        on several processes, what the task added is wrapped with it
    when gradients are clipped       those of what the task added count, too
    when the best model is loaded    what the task added goes back with it
    when training ends               the task ends
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from codecl.integrations import checkpoint
from codecl.integrations.batches import Batches
from codecl.integrations.needs import needs
from codecl.method import Method
from codecl.method.method import Task

with needs("transformers", "accelerate", extra="integrations"):
    import accelerate  # noqa: F401  (a Trainer cannot be made without it)
    from transformers import Trainer, TrainerCallback
    from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR


def continual(trainer: Trainer, method: Method, task: Task, loader: Iterable[Any] | None = None) -> Trainer:
    """Let ``trainer.train()`` learn ``task`` with ``method``; returns the trainer.

    Args:
        trainer: its model is the one that the method is attached to, or has it inside.
        method: attached to the model as it is, before anything wraps it.
        task: a new name or number.
        loader: the batches that the method looks at before and after; by default those that the trainer trains on.
    """
    if trainer.model_init is not None:
        raise ValueError("this trainer has a model_init, which makes another model than the method is attached to.")
    if all(module is not method.model for module in trainer.model.modules()):
        raise ValueError(
            "the trainer trains another model than the one that the method is attached to. Pass the same model to both."
        )
    if trainer.is_deepspeed_enabled or trainer.is_fsdp_enabled:
        raise ValueError("DeepSpeed and the Trainer's FSDP keep weights where no projection reaches: train without.")
    if trainer.args.n_gpu > 1:
        raise ValueError(
            f"in one process with {trainer.args.n_gpu} devices the Trainer uses DataParallel, which copies the model: "
            "start it with torchrun, or let it see one device."
        )
    if method.replicas.several and trainer.model is not method.model:
        raise ValueError("on several processes the method must be attached to the whole model of the trainer.")
    if any(isinstance(callback, _Continual) for callback in trainer.callback_handler.callbacks):
        raise ValueError("this trainer has a task already that was not trained to its end: make a new Trainer.")
    trainer.add_callback(_Continual(trainer, method, task, loader))
    return trainer


class _Continual(TrainerCallback):
    """One task of one trainer. What it puts on the trainer is taken off when the task ends."""

    def __init__(self, trainer: Trainer, method: Method, task: Task, loader: Iterable[Any] | None) -> None:
        self.trainer, self.method, self.task, self.loader = trainer, method, task, loader
        self.batches = Batches(method)
        self.resumed = False
        self._patched: list[tuple[Any, str]] = []
        self._patch(trainer, "create_optimizer", self._create_optimizer)
        self._patch(trainer, "_load_from_checkpoint", self._load_from_checkpoint)
        self._patch(trainer, "_load_best_model", self._load_best_model)
        self._patch(trainer, "training_step", self._training_step)
        self._patch(trainer, "_wrap_model", self._wrap_model)
        self._patch(trainer.accelerator, "clip_grad_norm_", self._clip)

    # In place of what the trainer does.

    def _create_optimizer(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self._with_loader(lambda loader: checkpoint.begin_or_go_on(self.method, self.task, loader, self.resumed))
        optimizer = original(*args, **kwargs)
        self.method.guard(self.trainer.optimizer)
        return optimizer

    def _load_from_checkpoint(self, original: Callable[..., Any], folder: str, *args: Any, **kwargs: Any) -> None:
        original(folder, *args, **kwargs)
        checkpoint.load(self.method, folder)
        self.resumed = True

    def _load_best_model(self, original: Callable[..., Any]) -> None:
        original()
        checkpoint.load(self.method, self.trainer.state.best_model_checkpoint, part="best")

    def _training_step(self, original: Callable[..., Any], model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        state = self.trainer.state
        self.batches.show(inputs, progress=min(1.0, state.global_step / max(1, state.max_steps)))
        return original(model, inputs, *args, **kwargs)

    def _wrap_model(self, original: Callable[..., Any], model: Any, training: bool = True, **kwargs: Any) -> Any:
        """On several processes the gradients of what the task added are averaged as well."""
        if training and self.method.replicas.several:
            return self.method.replicate()
        return original(model, training=training, **kwargs)

    def _clip(self, original: Callable[..., Any], parameters: Iterable[Any], *args: Any, **kwargs: Any) -> Any:
        return original(list(dict.fromkeys([*parameters, *self.method.parameters()])), *args, **kwargs)

    # What the trainer reports.

    def on_epoch_begin(self, *_: Any, **__: Any) -> None:
        self.batches.begin_epoch()

    def on_epoch_end(self, *_: Any, **__: Any) -> None:
        self.batches.end_epoch()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        for parameter in self.method.parameters():  # zero_grad() of a wrapped model does not reach them
            parameter.grad = None

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if args.should_save:
            folder = self.trainer._get_output_dir(trial=None)
            checkpoint.save(self.method, f"{folder}/{PREFIX_CHECKPOINT_DIR}-{state.global_step}")

    def on_train_end(self, *_: Any, **__: Any) -> None:
        self.batches.stop()
        self._with_loader(self.method.end_task)
        for owner, name in self._patched:
            delattr(owner, name)
        self.trainer.remove_callback(self)

    # Private.

    def _patch(self, owner: Any, name: str, replacement: Callable[..., Any]) -> None:
        original = getattr(owner, name)
        setattr(owner, name, lambda *args, **kwargs: replacement(original, *args, **kwargs))
        self._patched.append((owner, name))

    def _with_loader(self, use: Callable[[Any], None]) -> None:
        loader = self.trainer.get_train_dataloader() if self.loader is None else self.loader
        try:
            use(loader)
        finally:
            if self.loader is None and hasattr(loader, "end"):
                loader.end()  # accelerate takes a loader that was left halfway for the one that is trained on
