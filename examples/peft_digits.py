"""LoRA adapters of ``peft`` learn five tasks of two digits each on a frozen vision transformer.

The transformer is one of ``transformers`` that has learned the digits 0 and 1; it stands for a model that was
downloaded. Its adapters are the protected weights. An export is a model of ``peft``, and ``merge_and_unload`` makes it
a plain transformer for one task. What CODE-CL adds are the lines marked with an arrow.

    pip install 'codecl[demo,integrations]'
    python examples/peft_digits.py
"""

import copy
from functools import cache

import torch
from common import Rows, accuracy, compare, train
from peft import LoraConfig, PeftModel, get_peft_model
from torch import Tensor, nn
from torch.utils.data import DataLoader
from transformers import ViTConfig, ViTForImageClassification
from vit_digits import tasks

from codecl import Method

TASKS, EPOCHS, SEED = 5, 8, 0


class Network(ViTForImageClassification):
    """Says its logits alone, as the loop of the examples expects."""

    def forward(self, pixel_values: Tensor) -> Tensor:
        return super().forward(pixel_values).logits


@cache
def pretrained() -> nn.Module:
    """16 patches of 2 × 2 pixels, two blocks of width 32."""
    torch.manual_seed(SEED)
    config = ViTConfig(
        image_size=8,
        patch_size=2,
        num_channels=1,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
    )
    model = Network(config)
    loader = DataLoader(tasks()[0][0], batch_size=32, shuffle=True)
    train(model, loader, torch.optim.AdamW(model.parameters(), lr=2e-3), EPOCHS)
    return model


def with_adapters() -> PeftModel:
    base = copy.deepcopy(pretrained())
    torch.manual_seed(SEED)
    config = LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", modules_to_save=["classifier"])
    return get_peft_model(base, config)


def learn_all(make_method: type[Method], **settings: object) -> Rows:
    """``rows[i][j]``: the accuracy on task j after learning task i."""
    model = with_adapters()
    method = make_method(model, heads=["base_model.model.classifier"], **settings)  # ←
    rows: Rows = []
    stream = tasks()[:TASKS]
    for t, (learn, _) in enumerate(stream):
        loader = DataLoader(learn, batch_size=32, shuffle=True)
        optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=4e-3)
        method.guard(optimizer)  # ←
        method.begin_task(t, loader)  # ←
        train(model, loader, optimizer, EPOCHS)
        method.end_task(loader)  # ←
        plain = [method.export(seen).merge_and_unload() for seen in range(t + 1)]  # a transformer for each task
        rows.append([accuracy(plain[seen], stream[seen][1]) for seen in range(t + 1)])
    return rows


def main() -> None:
    compare([f"{2 * t}, {2 * t + 1}" for t in range(TASKS)], learn_all, {"aperture": 60.0, "free_dims": 16})


if __name__ == "__main__":
    main()
