"""One method on several processes: the replicas of a model under ``torch.distributed``.

Every process has the whole model and a share of the data. While a task is learned, ``DistributedDataParallel`` averages
the gradients; between tasks all processes look at the inputs of all, so that each computes the same memory, and nothing
in a method needs to know. The model of process 0 counts, and so does its method where rounding has set others apart.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from codecl.attach.heads import TaskHeads
from codecl.attach.probe import Probe
from codecl.attach.shards import is_sharded, reshard
from codecl.attach.usage import uses_everything
from codecl.method.shards import check_shards, in_shards, shard_new_heads

if TYPE_CHECKING:
    from codecl.method.method import Method

Group = dist.ProcessGroup | Literal["alone"] | None
Found = TypeVar("Found", str, int)


class Replicas:
    """The processes that learn together, one method on each.

    Args:
        group: The process group; None where there is one process, ``"alone"`` where each learns by itself.
    """

    def __init__(self, group: Group) -> None:
        if group not in (None, "alone") and not isinstance(group, dist.ProcessGroup):
            raise TypeError(
                f"group must be a process group of torch.distributed, such as dist.group.WORLD; got {group!r}."
            )
        self.group: dist.ProcessGroup | None = None
        if isinstance(group, dist.ProcessGroup) and dist.get_world_size(group) > 1:
            self.group = group
        self.alone = group == "alone"
        self.sharded = False
        """Whether the model is in shards."""
        self.counts = True
        """Whether what this process took as its share of a batch counts."""
        self.same_batches = False
        """Whether all processes are handed the same batches, and not a share each."""
        self._net: nn.parallel.DistributedDataParallel | None = None

    @property
    def several(self) -> bool:
        return self.group is not None

    @property
    def rank(self) -> int:
        return 0 if self.group is None else dist.get_rank(self.group)

    def share(self, batch: tuple[Tensor, ...]) -> tuple[tuple[Tensor, ...], float]:
        """The inputs of a batch that are this process's, and what its loss counts for in the mean of all processes.

        With fewer inputs than processes some have the last of them, and count for nothing.
        """
        if self.group is None:
            return batch, 1.0
        inputs, processes = len(batch[0]), dist.get_world_size(self.group)
        begin, end = (inputs * r // processes for r in (self.rank, self.rank + 1))
        self.counts = begin < end
        some = slice(begin, end) if begin < end else slice(inputs - 1, inputs)
        return tuple(value[some] for value in batch), (end - begin) * processes / inputs

    def mean_of(self, value: Tensor) -> Tensor:
        """The mean of a tensor over all processes; ``value`` itself is not needed afterwards."""
        if self.group is not None:
            value = value.contiguous()
            dist.all_reduce(value, group=self.group)
            value = value / dist.get_world_size(self.group)
        return value

    def mean_over_inputs(self, mean: Tensor, inputs: int) -> Tensor:
        """Of the mean over the ``inputs`` of each process, that over the inputs of all."""
        if self.group is None:
            return mean
        self.check_all_step()
        size = torch.tensor([mean.numel(), -mean.numel()], device=mean.device)
        dist.all_reduce(size, dist.ReduceOp.MAX, group=self.group)
        if size.sum() != 0:
            raise ValueError(
                "the processes have inputs of different sizes in one step, so that there is no mean of them: give all "
                "the same, texts of one length, say."
            )
        n = inputs if self.counts else 0
        total = torch.cat([mean.flatten() * n, mean.new_tensor([n])])
        dist.all_reduce(total, group=self.group)
        return (total[:-1] / total[-1]).reshape(mean.shape)

    def first_of(self, value: Tensor) -> Tensor:
        """What process 0 has as ``value``, on all of them."""
        if self.group is not None:
            dist.broadcast(value, src=dist.get_global_rank(self.group, 0), group=self.group)
        return value

    def joined(self, batch: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """What the batches of all processes have together, one after the other, unless all have the same."""
        if self.group is None or self.same_batches:
            return tuple(batch)
        self.check_all_step()
        every = list(_Gathered([tuple(batch)], self.group))
        return tuple(torch.cat(parts).to(own.device) for own, *parts in zip(batch, *every, strict=True))

    @torch.no_grad()
    def average(self, parameters: Iterable[nn.Parameter]) -> None:
        """Give each of ``parameters`` the mean of its gradients in all processes; one that is none counts as zero."""
        if self.group is None:
            return
        self.check_all_step()
        learned = [parameter for parameter in parameters if parameter.requires_grad]
        found = torch.tensor([parameter.grad is not None for parameter in learned], dtype=torch.int)
        dist.all_reduce(found, group=self.group)
        for parameter in (parameter for parameter, count in zip(learned, found.tolist(), strict=True) if count):
            parameter.grad = self.mean_of(torch.zeros_like(parameter) if parameter.grad is None else parameter.grad)

    def check_all_step(self) -> None:
        """Refuse to wait for processes that have no batches left."""
        if self._net is not None and self._net._join_config.enable:
            raise RuntimeError(
                "within net.join() some processes no longer step, and this method asks all of them in each: give every "
                "process as many batches."
            )

    def check(self, method: Method) -> None:
        """Refuse to learn where other processes would learn something else without a word."""
        reshard(method.model)
        self.sharded = in_shards(method.model)
        if self.several and not method.distributed:
            raise ValueError(
                f"{method.name} draws or keeps samples of its own on each process and cannot learn on several. "
                "Learn it on one, or choose another method."
            )
        told = self.group is not None or self.alone
        if not told and dist.is_available() and dist.is_initialized() and (processes := dist.get_world_size()) > 1:
            raise RuntimeError(
                f"this is one of {processes} processes, and the method was not told: each would remember other inputs. "
                "Make it with group=torch.distributed.group.WORLD and train net = method.replicate(), or with "
                "group='alone' if every process learns for itself."
            )
        if self.sharded:
            check_shards(method, self.group)

    def reshard(self, model: nn.Module) -> None:
        """Let every process hold its shards alone, if there are any."""
        if self.sharded:
            reshard(model)

    def shard(self, model: nn.Module, heads: TaskHeads) -> None:
        """Cut heads that were made since, if there are shards."""
        if self.sharded:
            reshard(model)
            shard_new_heads(model, heads, self.group)

    def union(self, found_here: Iterable[Found]) -> list[Found]:
        """What processes found in their shards and shares, on each of them; without shards each goes by its own."""
        own = list(found_here)
        if self.group is None or not self.sharded:
            return own
        found: list[Any] = [None] * dist.get_world_size(self.group)
        dist.all_gather_object(found, own, group=self.group)
        return list(dict.fromkeys(one for of_process in found for one in of_process))

    def whole(self, loader: Iterable[Any] | None) -> Iterable[Any] | None:
        """The batches of all processes, the same on each; a loader with ``same_on_all`` has them already."""
        if self.group is None or loader is None or getattr(loader, "same_on_all", False):
            return loader
        return _Gathered(loader, self.group)

    def mean(self, gradients: Mapping[str, Tensor], inputs: int) -> dict[str, Tensor]:
        """The mean of what the processes found, each weighted by its ``inputs``; all have the same names."""
        if self.group is None:
            return dict(gradients)
        total = self._sum(inputs)
        mean = {name: G * (inputs / total) for name, G in gradients.items()}
        for name in sorted(mean):
            dist.all_reduce(mean[name], group=self.group)
        return mean

    def _sum(self, number: int) -> int:
        found: list[Any] = [None] * dist.get_world_size(self.group)
        dist.all_gather_object(found, number, group=self.group)
        return sum(found)

    def share_products(self, probes: Mapping[str, Probe]) -> bool:
        """Tell the probes of all processes what was delivered in each, since ``.grad`` is the mean of all.

        Returns:
            False where that cannot be known: within ``net.join()`` some processes no longer step.
        """
        if self.group is None or not probes:
            return True
        if self._net is not None and self._net._join_config.enable:
            return False
        if not self.sharded and self._share_sums(list(probes.values())):
            return True
        found: list[Any] = [None] * dist.get_world_size(self.group)
        dist.all_gather_object(found, {name: probe.share() for name, probe in probes.items()}, group=self.group)
        for name, probe in probes.items():
            probe.receive([of_process[name] for of_process in found if name in of_process])
        return True

    def _share_sums(self, probes: Sequence[Probe]) -> bool:
        """Add up what was delivered: ``.grad`` is a multiple of it, if no process made more than one backward pass.

        Says whether that is so. Every step waits for this, so that it is one operation on a few numbers.
        """
        passes = [probe.passes() for probe in probes]
        own = [of[0] if of else probe.R.new_zeros(probe.size) for of, probe in zip(passes, probes, strict=True)]
        several = probes[0].R.new_tensor([any(len(of) > 1 for of in passes)])
        total = torch.cat([v.to(several.device, torch.float64) for v in (*own, several)])
        dist.all_reduce(total, group=self.group)
        *sums, found_several = torch.split(total, [*map(len, own), 1])
        if found_several > 0:
            return False
        for probe, v in zip(probes, sums, strict=True):
            probe.receive_sum(v)
        return True

    @torch.no_grad()
    def same_model(self, model: nn.Module) -> None:
        """Parameters and buffers as process 0 has them, but for those in shards, of which each has its own part."""
        self.reshard(model)
        if self.group is not None:
            for value in (value for value in (*model.parameters(), *model.buffers()) if not is_sharded(value)):
                dist.broadcast(value.data, src=dist.get_global_rank(self.group, 0), group=self.group)

    def same_method(self, method: Method) -> None:
        """The state of the method as process 0 has it, where they differ: machines may round differently."""
        if self.group is None:
            return
        state = method.state_dict()
        seals: list[Any] = [None] * dist.get_world_size(self.group)
        dist.all_gather_object(seals, _digest(state), group=self.group)
        if len(set(seals)) > 1:
            shared = [state]
            dist.broadcast_object_list(shared, src=dist.get_global_rank(self.group, 0), group=self.group)
            method.load_state_dict(shared[0])

    def wrap(self, method: Method, **options: Any) -> nn.Module:
        """``model`` and what the task adds to it under DistributedDataParallel; the model itself in one process."""
        if self.group is None or self.sharded:
            return method.model
        together = _WithTask(method.model, list(method.parameters()))
        unused = {"find_unused_parameters": not _all_used(method)}
        self._net = nn.parallel.DistributedDataParallel(together, process_group=self.group, **(unused | options))
        return self._net


def _all_used(method: Method) -> bool:
    """Whether every call of the model is known to use all that the task trains."""
    heads = method.layers.task_heads
    others = heads.unselected() if heads is not None else []
    return uses_everything(method.model) and not any(parameter.requires_grad for parameter in others)


class _WithTask(nn.Module):
    """A model, with the parameters that its task adds beside it."""

    def __init__(self, model: nn.Module, added: list[nn.Parameter]) -> None:
        super().__init__()
        self.model, self.added = model, nn.ParameterList(added)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.model(*args, **kwargs)


class _Gathered:
    """The batches of a loader on every process, one of each in turn."""

    def __init__(self, loader: Iterable[Any], group: dist.ProcessGroup) -> None:
        self.loader, self.group = loader, group

    def __iter__(self) -> Iterator[Any]:
        batches = iter(self.loader)
        while True:
            found: list[Any] = [None] * dist.get_world_size(self.group)
            own = next(batches, None)
            dist.all_gather_object(found, None if own is None else (_on_cpu(own),), group=self.group)
            present = [each[0] for each in found if each is not None]
            if not present:
                return
            yield from present


def _on_cpu(batch: Any) -> Any:
    if isinstance(batch, Tensor):
        return batch.cpu()
    if isinstance(batch, Mapping):
        return {key: _on_cpu(value) for key, value in batch.items()}
    if isinstance(batch, (tuple, list)):
        moved = [_on_cpu(value) for value in batch]
        return type(batch)(*moved) if hasattr(batch, "_fields") else type(batch)(moved)
    return batch


def _digest(state: Any) -> str:
    file = io.BytesIO()
    torch.save(_copied(state), file)
    return hashlib.sha256(file.getvalue()).hexdigest()


def _copied(state: Any) -> Any:
    """The same with every tensor in a storage of its own: what lies around a view is not part of the state."""
    if isinstance(state, Tensor):
        return state.detach().cpu().clone(memory_format=torch.contiguous_format)
    if isinstance(state, Mapping):
        return {key: _copied(value) for key, value in state.items()}
    return [_copied(value) for value in state] if isinstance(state, (tuple, list)) else state
