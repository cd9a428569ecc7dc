"""What the tests of several processes share."""

from collections.abc import Iterator

import pytest
import torch.distributed as dist


@pytest.fixture
def one_process() -> Iterator[dist.ProcessGroup]:
    """A process group of one."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield dist.group.WORLD
    dist.destroy_process_group()
