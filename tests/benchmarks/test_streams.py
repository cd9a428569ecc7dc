"""The paper's streams, on small files in the publishers' formats: which image is in which part of which task."""

from itertools import pairwise

import numpy as np
import pytest
import torch

from codecl.benchmarks import cifar100, five_datasets, miniimagenet, permuted_mnist, splits
from codecl.benchmarks.data.images import Images
from codecl.benchmarks.data.miniimagenet import ByClass
from codecl.benchmarks.registry import BENCHMARKS
from tests.benchmarks import files


def everything(part):
    return part.take(torch.arange(len(part)))


def raw(part):
    """The images of a part as they are held, as a set of bytes."""
    return {image.numpy().tobytes() for image in part.inputs}


def parts(count, seed):
    """The indices of the training and of the validation images of a task, which its labels tell."""
    images = Images(torch.zeros(count, 1, 1, 1, dtype=torch.uint8), torch.arange(count))
    task = splits.make_task("a task", count, images, images, splits.CIFAR, 0.05, seed)
    return task.train.labels, task.validation.labels


def test_the_validation_images_are_those_of_the_published_split():
    for seed, first in ((0, [398, 3833, 4836, 4572, 636]), (1, [2764, 4767, 3814, 3499, 2735])):
        train, validation = parts(5000, seed)
        assert validation[:5].tolist() == first
        assert len(validation) == 250
        assert sorted(train.tolist() + validation.tolist()) == list(range(5000))


@pytest.mark.parametrize(
    ("count", "published"), [(50_000, 2500), (60_000, 3000), (73_257, 3662), (16_853, 842), (2500, 125)]
)
def test_the_parts_have_the_sizes_of_the_papers_tables(count, published):
    train, validation = parts(count, 1)
    assert (len(train), len(validation)) == (count - published, published)


def test_normalising_is_the_formula():
    x = torch.randint(0, 256, (4, 3, 5, 5), dtype=torch.uint8)
    mean, std = torch.tensor(splits.CIFAR.mean), torch.tensor(splits.CIFAR.std)
    expected = (x.double() / 255 - mean.double().reshape(3, 1, 1)) / std.double().reshape(3, 1, 1)
    kept = x.clone()
    torch.testing.assert_close(splits.CIFAR(x).double(), expected, atol=1e-6, rtol=0)
    assert torch.equal(x, kept)


def test_grey_images_become_three_equal_channels():
    x = torch.randint(0, 256, (2, 1, 3, 3), dtype=torch.uint8)
    out = splits.Normalise((0.1,), (0.2752,), repeat=3)(x)
    expected = ((x.double() / 255 - 0.1) / 0.2752).float()
    for channel in range(3):
        torch.testing.assert_close(out[:, channel : channel + 1], expected)


def test_split_cifar100_has_ten_classes_a_task_in_natural_order(tmp_path):
    x, y = files.cifar100(tmp_path, n=2000)
    stream = cifar100.split(tmp_path, seed=7)
    assert len(stream) == BENCHMARKS["split-cifar100"].tasks
    assert stream.data == "subset"
    for t, task in enumerate(stream.tasks):
        of_task = {x[i].tobytes() for i in np.flatnonzero((y >= 10 * t) & (y < 10 * t + 10))}
        assert raw(task.train) | raw(task.validation) == of_task == raw(task.test)
        assert (len(task.train), len(task.validation)) == (190, 10)
        by_image = {x[i].tobytes(): y[i] % 10 for i in range(len(y))}
        for image, label in zip(task.train.inputs, task.train.labels, strict=True):
            assert by_image[image.numpy().tobytes()] == label


def test_the_seed_of_the_split_is_fixed_or_that_of_the_run(tmp_path):
    files.cifar100(tmp_path, n=2000)
    fixed = [cifar100.split(tmp_path, seed=s).tasks[0].validation.inputs for s in (0, 5)]
    of_run = [cifar100.split(tmp_path, seed=s, split_seed="run").tasks[0].validation.inputs for s in (0, 5)]
    assert torch.equal(fixed[0], fixed[1])
    assert torch.equal(of_run[0], fixed[0])
    assert not torch.equal(of_run[0], of_run[1])


def test_overlapping_tasks_share_the_images_of_shared_classes(tmp_path):
    files.cifar100(tmp_path, n=2000)
    tasks = cifar100.overlapping(tmp_path, seed=0).tasks
    assert len(tasks) == BENCHMARKS["ol-cifar100"].tasks == 7
    shared = [len(raw(a.test) & raw(b.test)) for a, b in pairwise(tasks)]
    assert shared == [100, 100, 0, 100, 100, 0]
    assert tasks[1].test.labels.min() == 0  # class 5 is the first of the second task
    first, second = tasks[0].test, tasks[1].test
    place = {image.numpy().tobytes(): int(label) for image, label in zip(first.inputs, first.labels, strict=True)}
    for image, label in zip(second.inputs, second.labels, strict=True):
        assert place.get(image.numpy().tobytes(), int(label) + 5) == int(label) + 5


def test_superclasses_group_the_fine_classes_and_may_be_scrambled(tmp_path):
    x, y = files.cifar100(tmp_path, n=500)  # coarse class = fine class // 5
    true = cifar100.superclass(tmp_path, seed=0)
    assert len(true) == 20
    assert raw(true.tasks[3].test) == {x[i].tobytes() for i in np.flatnonzero(y // 5 == 3)}
    scrambled = cifar100.superclass(tmp_path, seed=0, pixels="scrambled")
    image = torch.from_numpy(x[np.flatnonzero(y // 5 == 3)[0]])
    seen = next(i for i in scrambled.tasks[3].test.inputs if i[1, 0, 2] == image[2 * 3 + 1] and i[0, 1, 0] == image[96])
    for c, h, w in ((0, 0, 0), (1, 0, 2), (2, 31, 31), (0, 7, 9)):
        assert seen[c, h, w] == image[96 * h + 3 * w + c]
    assert everything(true.tasks[0].test)[0].max() <= 1
    assert raw(cifar100.superclass(tmp_path, seed=0, order="1").tasks[0].test) == raw(true.tasks[15].test)


def five(root):
    files.cifar10(root, n=20)
    files.mnist(root / "MNIST" / "raw", n=100)
    files.svhn(root, n=20)
    x, _ = files.mnist(root / "FashionMNIST" / "raw", n=60)
    files.notmnist(root, ["train_0.png", "train_1.png", "test_0.png"])
    return x


def test_five_datasets_in_both_orders_with_the_right_fashion(tmp_path):
    fashion = five(tmp_path)
    stream = five_datasets.stream(tmp_path, seed=3)
    assert [task.name for task in stream.tasks] == ["CIFAR-10", "MNIST", "SVHN", "Fashion-MNIST", "notMNIST"]
    assert [len(task.train) + len(task.validation) for task in stream.tasks] == [100, 100, 20, 60, 20]
    text = five_datasets.stream(tmp_path, seed=3, order="text")
    assert [task.name for task in text.tasks] == ["CIFAR-10", "MNIST", "SVHN", "notMNIST", "Fashion-MNIST"]
    inner = {image[0, 2:30, 2:30].numpy().tobytes() for image in stream.tasks[3].test.inputs}
    assert inner == {image.tobytes() for image in fashion}
    bug = five_datasets.stream(tmp_path, seed=3, fashion="mnist")
    assert raw(bug.tasks[3].test) == raw(stream.tasks[1].test)
    assert bug.tasks[3].test.prepare == stream.tasks[3].test.prepare != stream.tasks[1].test.prepare
    x, _ = everything(stream.tasks[1].test)
    assert x.shape == (100, 3, 32, 32)
    border = torch.tensor(-0.1 / 0.2752)
    torch.testing.assert_close(x[:, :, 0, :], border.expand(100, 3, 32), atol=1e-6, rtol=0)
    assert stream.data == "subset"


def test_permuted_mnist_is_mnist_in_the_published_permutations(tmp_path):
    x, y = files.mnist(tmp_path / "MNIST" / "raw", n=50)
    stream = permuted_mnist.stream(tmp_path, seed=2)
    assert [task.name.split()[1] for task in stream.tasks] == list("4150723698")
    order = np.arange(784)
    np.random.RandomState(100 * 1 + 1).shuffle(order)  # the second task, of list value 1
    seen, labels = everything(stream.tasks[1].test)
    expected = (x.reshape(50, 784)[:, order] / 255 - 0.1307) / 0.3081
    torch.testing.assert_close(seen, torch.from_numpy(expected).float(), atol=1e-5, rtol=0)
    assert labels.tolist() == y.tolist()
    assert (len(stream.tasks[0].train), len(stream.tasks[0].validation)) == (45, 5)
    assert torch.equal(stream.tasks[0].validation.labels, torch.from_numpy(y[:5]).long())
    fixed = permuted_mnist.stream(tmp_path, seed=9, list_seed="2")
    assert [task.name for task in fixed.tasks] == [task.name for task in stream.tasks]


@pytest.fixture
def hundred_classes(monkeypatch):
    """100 classes of 90 tiny images that say their number."""
    y = torch.arange(100).repeat_interleave(90)
    x = torch.arange(9000).reshape(-1, 1, 1, 1).expand(-1, 3, 2, 2)
    data = ByClass((x % 256).to(torch.uint8), y, tuple(f"n{i:08d}" for i in range(100)), "subset")
    monkeypatch.setattr(miniimagenet, "miniimagenet", lambda root: data)
    return data


def test_both_protocols_of_miniimagenet(hundred_classes, tmp_path):
    avalanche = miniimagenet.stream(tmp_path, seed=0)
    assert [task.name for task in avalanche.tasks[:2]] == ["classes 75 67 30 51 48", "classes 19 18 34 1 46"]
    sizes = [sum(len(getattr(task, part)) for task in avalanche.tasks) for part in ("train", "validation", "test")]
    assert sizes == [7125, 375, 1500]
    gpm = miniimagenet.stream(tmp_path, seed=5, protocol="gpm")
    assert [task.name for task in gpm.tasks[:2]] == ["classes 61 49 86 78 5", "classes 91 81 82 89 18"]
    assert gpm.tasks[-1].name == "classes 22 53 92 76 15"
    assert all(len(task.test) == 75 for task in gpm.tasks)
    assert sum(len(task.validation) for task in gpm.tasks) == 150
    assert gpm.tasks[0].test.prepare.mean == (0.485, 0.456, 0.406)
    other = miniimagenet.stream(tmp_path, seed=5, protocol="gpm", class_seed="run")
    assert other.tasks[0].name != gpm.tasks[0].name


@pytest.mark.parametrize(("protocol", "features"), [("avalanche", 640), ("gpm", 1440)])
def test_the_network_of_miniimagenet_follows_the_protocol(hundred_classes, tmp_path, protocol, features):
    stream = miniimagenet.stream(tmp_path, seed=0, protocol=protocol)
    assert miniimagenet.network(stream, protocol=protocol).features == features


def test_classes_are_taken_in_file_order_with_their_place_as_label():
    images = Images(torch.arange(6, dtype=torch.uint8).reshape(6, 1, 1, 1), torch.tensor([4, 2, 4, 0, 2, 1]))
    chosen = splits.select_classes(images, torch.tensor([4, 1]))
    assert chosen.x.flatten().tolist() == [0, 2, 5]
    assert chosen.y.tolist() == [0, 0, 1]
