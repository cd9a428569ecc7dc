"""Five experiences of two digits each in Avalanche: its naive strategy alone, and with CODE-CL as a plugin.

What CODE-CL adds are the lines marked with an arrow.

    pip install 'codecl[demo,avalanche]'
    python examples/avalanche_digits.py
"""

import torch
from avalanche.benchmarks import benchmark_from_datasets
from avalanche.benchmarks.utils import as_classification_dataset
from avalanche.evaluation.metrics import accuracy_metrics
from avalanche.training.plugins import EvaluationPlugin
from avalanche.training.supervised import Naive
from common import Rows, compare
from torch.utils.data import TensorDataset
from vit_digits import network, tasks

from codecl import Method
from codecl.integrations.avalanche import Continual

TASKS, EPOCHS, SEED = 5, 8, 0


def labelled(data: TensorDataset) -> TensorDataset:
    data.targets = data.tensors[1].tolist()  # where Avalanche looks for them
    return data


def learn_all(make_method: type[Method], **settings: object) -> Rows:
    """``rows[i][j]``: the accuracy on task j after learning task i."""
    train, test = zip(*tasks()[:TASKS], strict=True)
    benchmark = benchmark_from_datasets(
        train=[as_classification_dataset(labelled(data)) for data in train],
        test=[as_classification_dataset(labelled(data)) for data in test],
    )
    model = network()
    method = make_method(model, **settings)  # ←
    strategy = Naive(
        model=model,
        optimizer=torch.optim.AdamW(model.parameters(), lr=2e-3),
        train_mb_size=32,
        train_epochs=EPOCHS,
        evaluator=EvaluationPlugin(accuracy_metrics(experience=True), loggers=[]),
        plugins=[Continual(method)],  # ←
    )
    rows: Rows = []
    for t, experience in enumerate(benchmark.train_stream):
        strategy.train(experience)
        found = strategy.eval(benchmark.test_stream[: t + 1])
        rows.append([100 * found[key] for key in sorted(found) if "Top1_Acc_Exp" in key])
    return rows


def main() -> None:
    compare([f"{2 * t}, {2 * t + 1}" for t in range(TASKS)], learn_all, {"aperture": 120.0, "free_dims": 16})


if __name__ == "__main__":
    main()
