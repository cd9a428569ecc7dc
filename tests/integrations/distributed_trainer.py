"""What each process of a distributed test of the Trainer runs: three tasks, on its share of every batch.

python -m tests.integrations.distributed_trainer OUT    with the variables that torchrun sets
"""

import logging
import sys
import warnings
from pathlib import Path

import torch
import torch.distributed as dist

from codecl import CodeCL
from codecl.integrations.huggingface import continual
from tests.integrations.plain import BATCH, SETTINGS, TASKS, Network, inputs
from tests.integrations.test_huggingface import trainer_of

FORWARD = {"forward": lambda model, batch: model(inputs(batch))}


def main(out):
    warnings.simplefilter("ignore")
    logging.getLogger("transformers").setLevel(logging.ERROR)
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())  # the weights of process 0 count
    model = Network()
    method = CodeCL(model, group=dist.group.WORLD, **SETTINGS, **FORWARD)
    for t in range(TASKS):
        trainer = trainer_of(model, t, Path(f"{out}.folder"), batch=BATCH // 2, ddp_backend="gloo")
        continual(trainer, method, t).train()
    state = {"model": model.state_dict(), "method": method.state_dict()}
    torch.save(state, f"{out}.{dist.get_rank()}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
