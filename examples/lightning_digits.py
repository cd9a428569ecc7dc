"""Five tasks of two digits each in Lightning: plain fine-tuning beside CODE-CL.

An ordinary LightningModule and Trainer; what CODE-CL adds are the lines marked with an arrow.

    pip install 'codecl[demo,integrations]'
    python examples/lightning_digits.py
"""

import logging

import lightning.pytorch as lightning
import torch
from common import Rows, accuracies, compare
from torch import Tensor, nn
from torch.utils.data import DataLoader
from vit_digits import network, tasks

from codecl import Method
from codecl.integrations.lightning import Continual

TASKS, EPOCHS, SEED = 5, 8, 0


class Digits(lightning.LightningModule):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def training_step(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        x, y = batch
        return nn.functional.cross_entropy(self.model(x), y)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.model.parameters(), lr=2e-3)


def learn_all(make_method: type[Method], **settings: object) -> Rows:
    """``rows[i][j]``: the accuracy on task j after learning task i."""
    model = network()
    method = make_method(model, **settings)  # ←
    rows: Rows = []
    stream = tasks()[:TASKS]
    for t, (learn, _) in enumerate(stream):
        loader = DataLoader(learn, batch_size=32, shuffle=True)
        trainer = lightning.Trainer(
            max_epochs=EPOCHS,
            callbacks=[Continual(method, t, loader)],  # ←
            accelerator="cpu",
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(Digits(model), loader)
        rows.append(accuracies(method, [test for _, test in stream[: t + 1]]))
    return rows


def main() -> None:
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    compare([f"{2 * t}, {2 * t + 1}" for t in range(TASKS)], learn_all, {"aperture": 60.0, "free_dims": 16})


if __name__ == "__main__":
    main()
