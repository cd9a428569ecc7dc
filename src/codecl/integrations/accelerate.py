"""The state of a method in the checkpoints of an ``accelerate.Accelerator``.

The loop stays yours; ``method.guard`` takes the optimizer that ``prepare`` returned. ``Accelerator.load_state`` would
load registered objects after the optimizers, whose groups do not fit before a task has added its parameters.
"""

from __future__ import annotations

from typing import Any

from codecl.integrations import checkpoint
from codecl.integrations.needs import needs
from codecl.method import Method

with needs("accelerate", extra="integrations"):
    from accelerate import Accelerator


def register_for_checkpointing(accelerator: Accelerator, method: Method) -> None:
    """Let ``save_state`` save the method and ``load_state`` load it, after the model and before the optimizers.

    Use it in place of ``accelerator.register_for_checkpointing(method)``, once the optimizer has been guarded.
    """

    def save(models: Any, weights: Any, folder: str) -> None:
        if accelerator.is_main_process:
            checkpoint.save(method, folder)

    def load(models: Any, folder: str) -> None:
        def after_the_model(*_: Any) -> None:
            handle.remove()
            checkpoint.load(method, folder)

        checkpoint.find(folder)
        handle = method.model.register_load_state_dict_post_hook(after_the_model)  # type: ignore[no-untyped-call]

    accelerator.register_save_state_pre_hook(save)
    accelerator.register_load_state_pre_hook(load)
