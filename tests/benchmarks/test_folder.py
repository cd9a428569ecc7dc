"""A folder of images as a data set."""

import numpy as np
import pytest
import torch

from codecl.benchmarks.data.folder import ImageFolder
from codecl.benchmarks.data.images import DamagedData, MissingData
from codecl.errors import UsageError
from codecl.training.stream import as_part
from tests.benchmarks import files


@pytest.fixture
def animals(tmp_path):
    for i, name in enumerate(["owl", "cat", "dog"]):
        for j in range(2):
            files.picture(tmp_path / name / f"{j}.png", files.pixels(8, 8, 3, seed=10 * i + j))
    (tmp_path / "cat" / "notes.txt").write_text("not an image")
    return tmp_path


def test_images_come_with_the_place_of_their_class_in_alphabetical_order(animals):
    data = ImageFolder(animals, size=8)
    assert data.classes == ["cat", "dog", "owl"]
    assert [label for _, label in data.files] == [0, 0, 1, 1, 2, 2]
    image, label = data[1]
    expected = torch.from_numpy(files.pixels(8, 8, 3, seed=11)).permute(2, 0, 1).float() / 255
    assert label == 0
    assert torch.equal(image, expected)


def test_a_task_may_have_some_of_the_classes_in_its_own_order(animals):
    x, y = as_part(ImageFolder(animals, size=8, classes=["owl", "dog"])).take(torch.arange(4))
    assert y.tolist() == [0, 0, 1, 1]
    assert torch.equal(x[0], torch.from_numpy(files.pixels(8, 8, 3, seed=0)).permute(2, 0, 1).float() / 255)


def test_images_are_resized(animals):
    files.picture(animals / "cat" / "0.png", np.full((5, 20, 3), 51, dtype=np.uint8))
    image, _ = ImageFolder(animals, size=6)[0]
    torch.testing.assert_close(image, torch.full((3, 6, 6), 0.2))


def test_what_is_not_there_or_not_an_image_is_named(animals, tmp_path):
    with pytest.raises(MissingData, match="nowhere"):
        ImageFolder(animals / "nowhere", size=8)
    with pytest.raises(UsageError, match=r"no class \['cow'\].*'cat', 'dog', 'owl'"):
        ImageFolder(animals, size=8, classes=["cow"])
    (animals / "cat" / "0.png").write_bytes(b"\x89PNG broken")
    with pytest.raises(DamagedData, match=r"0\.png cannot be read"):
        ImageFolder(animals, size=8)[0]
    (tmp_path / "empty" / "nothing").mkdir(parents=True)
    with pytest.raises(UsageError, match="holds no images"):
        ImageFolder(tmp_path / "empty", size=8)
