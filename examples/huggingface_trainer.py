"""A BERT of ``transformers`` learns what is praise in three domains, under its Trainer.

The sentences are those of ``text_domains.py``; the model starts from random weights, so that nothing is downloaded.
What CODE-CL adds to an ordinary Trainer are the lines marked with an arrow.

    pip install 'codecl[demo,integrations]'
    python examples/huggingface_trainer.py
"""

import tempfile

import torch
from common import Rows, compare
from text_domains import DOMAINS, LENGTH, NUMBER, tasks
from torch.utils.data import Dataset, TensorDataset
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

from codecl import Method
from codecl.integrations.huggingface import continual

EPOCHS, SEED = 12, 0


class Sentences(Dataset):
    """Each sentence by the names of BERT's arguments."""

    def __init__(self, data: TensorDataset) -> None:
        self.ids, self.praise = data.tensors

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, i: int) -> dict[str, torch.Tensor]:
        return {
            "input_ids": self.ids[i],
            "attention_mask": (self.ids[i] != NUMBER["<pad>"]).long(),
            "labels": self.praise[i],
        }


def network() -> BertForSequenceClassification:
    torch.manual_seed(SEED)
    config = BertConfig(
        vocab_size=len(NUMBER),
        max_position_embeddings=LENGTH,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        initializer_range=0.1,
        pad_token_id=NUMBER["<pad>"],
    )
    return BertForSequenceClassification(config)


def learn_all(make_method: type[Method], **settings: object) -> Rows:
    """``rows[i][j]``: the accuracy on domain j after learning domain i."""
    model = network()
    method = make_method(model, heads=["classifier"], **settings)  # ←
    rows: Rows = []
    stream = tasks()
    with tempfile.TemporaryDirectory() as folder:
        for t, (learn, _) in enumerate(stream):
            args = TrainingArguments(
                f"{folder}/{t}",
                num_train_epochs=EPOCHS,
                per_device_train_batch_size=32,
                learning_rate=2e-3,
                lr_scheduler_type="constant",
                save_strategy="no",
                logging_strategy="no",
                report_to=[],
                disable_tqdm=True,
                use_cpu=True,
            )
            trainer = Trainer(model, args, train_dataset=Sentences(learn))
            continual(trainer, method, t).train()  # ←
            row = []
            for seen in range(t + 1):
                with method.task(seen):  # the network, and the head, as that domain knows them
                    told = trainer.predict(Sentences(stream[seen][1]))
                row.append(100 * float((told.predictions.argmax(1) == told.label_ids).mean()))
            rows.append(row)
    return rows


def main() -> None:
    compare(list(DOMAINS), learn_all, {"aperture": {"*embeddings*": 300.0, "*": 16.0}, "free_dims": 8})


if __name__ == "__main__":
    main()
