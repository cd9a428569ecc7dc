"""A data set of one's own: a folder with a folder of images for every class."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor
from torch.utils.data import Dataset

from codecl.benchmarks.data.images import MissingData, read_square
from codecl.errors import UsageError

ENDINGS = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp"}
FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP")


class ImageFolder(Dataset[tuple[Tensor, int]]):
    """``FOLDER/CLASS/*.png`` (or jpg, bmp, gif, webp), read as they are needed.

    An item is a float image ``[3, size, size]`` in [0, 1] and the place of its class among the sorted class names, or
    in ``classes`` where a task has only some of them.
    """

    def __init__(self, folder: Path | str, size: int, classes: list[str] | None = None) -> None:
        self.folder, self.size = Path(folder), size
        if not self.folder.is_dir():
            raise MissingData("a folder of images", self.folder)
        found = sorted(path.name for path in self.folder.iterdir() if path.is_dir())
        if absent := set(classes or ()) - set(found):
            raise UsageError(f"{self.folder} has no class {sorted(absent)}; it has {found}.")
        self.classes = classes or found
        self.files = [
            (path, label)
            for label, name in enumerate(self.classes)
            for path in sorted((self.folder / name).iterdir())
            if path.suffix.lower() in ENDINGS
        ]
        if not self.files:
            raise UsageError(f"{self.folder} holds no images; expected FOLDER/CLASS/*.png or the like.")

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        path, label = self.files[index]
        return read_square(path, self.size, FORMATS).float() / 255, label
