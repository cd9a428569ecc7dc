"""What is fuzzed: each target has whole files to begin with, and says what may come of a damaged one.

A target returns or raises nothing but what is caught here: whatever else is raised is a finding.
"""

import functools
import hashlib
import io
import json
import math
import pickle
import shutil
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from codecl.benchmarks.data import cifar, miniimagenet, mnist, notmnist, svhn
from codecl.benchmarks.data.folder import ImageFolder
from codecl.errors import UsageError
from codecl.report.inspection import inspect
from codecl.report.write import write_report
from codecl.runs import trackers
from codecl.runs.events import parse_log
from codecl.runs.recipe import make_recipe, read_recipe, refuse_foreign
from codecl.runs.records import Result, read_run
from codecl.runs.run import make_method, run
from codecl.runs.rundir import RunDirectory
from codecl.runs.untrusted import decode
from codecl.training import checkpoint
from codecl.training.check import small_stream
from codecl.training.engine import Trainer
from codecl.training.schedule import Diverged
from tests.benchmarks import files

TINY = "tests.soak.tiny:TINY"


@dataclass(frozen=True)
class Target:
    """``seeds`` are whole files, and ``take`` reads one that may be damaged, in a directory that it may write to."""

    seeds: Sequence[bytes]
    take: Callable[[bytes, Path], None]
    kind: str = "binary"


class Accepted(Exception):
    """What was accepted is not what it must be."""


def make_targets(place):
    """All targets by name; what they begin with is made in the directory ``place``."""
    whole = a_run(place / "run")
    recipe, log, result = ((whole / name).read_bytes() for name in ("recipe.toml", "log.jsonl", "result.json"))
    final = (whole / "final.ckpt").read_bytes()
    small = place / "small.ckpt"
    checkpoint.save(small, {"a": torch.arange(6).reshape(2, 3), "b": [1, 2.5, None, "text", (True,)], 3: torch.ones(2)})

    def with_file(name):
        """A copy of the run with this file changed."""

        def copy(data, folder):
            path = shutil.copytree(whole, folder / "run")
            (path / name).write_bytes(data)
            return path

        return copy

    targets = {
        "checkpoint": Target([small.read_bytes(), final], take_checkpoint),
        "checkpoint-sealed": Target(
            [small.read_bytes(), final], lambda data, folder: take_checkpoint(seal(data), folder)
        ),
        "result": Target([result], take_result, "json"),
        "log": Target([log], take_log, "jsonl"),
        "trackers": Target([b'{"fuzzed": "1", "mlflow": "0a1b"}\n'], take_trackers, "json"),
        "recipe": Target([recipe, *every_recipe()], take_recipe, "toml"),
    }
    kinds = {"recipe.toml": ("toml", recipe), "log.jsonl": ("jsonl", log), "result.json": ("json", result)}
    for name, (kind, data) in kinds.items():
        for command, take in (("inspect", take_inspected), ("report", take_reported)):
            copy = with_file(name)
            targets[f"{command} {name}"] = Target([data], lambda d, f, c=copy, t=take: t(c(d, f)), kind)
    return targets | data_targets(place / "data")


def a_run(path):
    """A finished run, as one of the embedded benchmark, whose data need not be there."""
    run(
        make_recipe({"method": "code-cl", "benchmark": TINY}, {"batch_size": 24}, epochs=2),
        RunDirectory(path, trust=True),
    )
    for name in ("recipe.toml", "result.json"):
        (path / name).write_text((path / name).read_text().replace(TINY, "permuted-digits"))
    return path


def every_recipe():
    from codecl.methods import METHODS

    return [make_recipe({"method": method}, {}, epochs=1).to_toml().encode() for method in METHODS]


def seal(data):
    """``data`` with the checksum that a checkpoint has."""
    body = data[: -checkpoint.SEAL]
    return body + checkpoint.COMMENT_LENGTH + hashlib.sha256(body).digest()


def take_checkpoint(data, folder):
    (folder / "file").write_bytes(data)
    with suppress(checkpoint.BrokenCheckpoint):
        checkpoint.save(folder / "again", checkpoint.load(folder / "file"))


def take_result(data, folder):
    with suppress(ValueError):
        result = Result.from_json(decode(data))
        if not all(math.isfinite(value) for value in (result.acc, result.total_seconds)):
            raise Accepted(f"ACC {result.acc}, {result.total_seconds} s")
        if Result.from_json(result.to_json()) != result:
            raise Accepted("it does not come back as it was")


def take_log(data, folder):
    events, _ = parse_log(data)
    if parse_log("".join(event.to_line() for event in events).encode()) != (events, ""):
        raise Accepted("its events do not come back as they were")


def take_trackers(data, folder):
    class Fuzzed:
        def __init__(self, directory, parameters, known, parent):
            self.id = known or "new"

    (folder / trackers.IDS).write_bytes(data)
    trackers.TRACKERS["fuzzed"] = Fuzzed
    try:
        with suppress(ValueError):
            trackers.open_backend("fuzzed", folder, {})
            json.loads((folder / trackers.IDS).read_text())["fuzzed"].encode()
    finally:
        del trackers.TRACKERS["fuzzed"]


def take_recipe(data, folder):
    """Read, completed, and, if all of it is accepted, run for an epoch of a task."""
    (folder / "recipe.toml").write_bytes(data)
    with suppress(UsageError, Diverged):
        stated = read_recipe(folder / "recipe.toml")
        refuse_foreign(stated, folder)
        recipe = make_recipe(stated, {})
        (folder / "recipe.toml").write_text(recipe.to_toml())
        if differences := recipe.differences(make_recipe(read_recipe(folder / "recipe.toml"), {})):
            raise Accepted(f"it does not come back as it was: {differences}")
        plan = replace(recipe.plan(), epochs=1, workers=0, device="cpu")
        method = make_method(replace(recipe, benchmark=TINY, data={}, device="cpu"), small_stream(2))
        try:
            trainer = Trainer(method, small_stream(2), plan)
        except ValueError:
            return
        trainer.run()


def take_inspected(path):
    read_run(path)
    with suppress(UsageError):
        found = inspect(path)
        found.to_text().encode()
        json.dumps(found.to_fields(), allow_nan=False).encode()


def take_reported(path):
    with suppress(UsageError), redirect_stdout(io.StringIO()):
        write_report([path], path.parent / "report", figures=False)


def data_targets(place):
    """A target for every file of every data set, the others beside it being whole."""

    def folder_of_images(root):
        for i, options in enumerate(({"format": "PNG"}, {"format": "JPEG"}, {"format": "GIF"})):
            files.picture(root / "pictures" / "a" / f"{i}.png", files.pixels(9, 9, 3), **options)

    def caches(root):
        for i, part in enumerate(miniimagenet.CLASS_GROUPS):
            table = {"image_data": files.pixels(1, 84, 84, 3, seed=i), "class_dict": {f"n{i}": [0]}}
            files.write(root / "miniimagenet" / f"mini-imagenet-cache-{part}.pkl", pickle.dumps(table, 2 + i))

    makers = {
        "cifar10": (lambda root: files.cifar10(root), cifar.cifar10),
        "miniimagenet": (caches, miniimagenet.miniimagenet),
        "cifar100": (lambda root: files.cifar100(root, 100), cifar.superclasses),
        "idx": (lambda root: files.mnist(root / "MNIST" / "raw", packed=False), mnist.mnist),
        "idx.gz": (lambda root: files.mnist(root / "MNIST" / "raw"), mnist.mnist),
        "mat": (lambda root: files.svhn(root, compressed=False), svhn.svhn),
        "mat.z": (lambda root: files.svhn(root), svhn.svhn),
        "notmnist": (lambda root: files.notmnist(root, ["a.png"]), notmnist.notmnist),
        "folder": (folder_of_images, lambda root: [*map(ImageFolder(root / "pictures", 8).__getitem__, range(3))]),
    }
    targets = {}
    for name, (make, read) in makers.items():
        make(place / name)
        paths = sorted(path for path in (place / name).rglob("*") if path.is_file())
        seeds = list(dict.fromkeys(path.read_bytes() for path in paths))[:4]
        targets[name] = Target(seeds, functools.partial(take_data, paths[0], functools.partial(read, place / name)))
    return targets


def take_data(victim, read, data, folder):
    victim.write_bytes(data)
    with suppress(UsageError):
        read()
