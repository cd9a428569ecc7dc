"""Small data sets in the formats of their publishers, made anew for each test."""

import gzip
import pickle
import struct
import zlib
from pathlib import Path

import numpy as np

rng = np.random.default_rng


def pixels(*shape: int, seed: int = 0) -> np.ndarray:
    return rng(seed).integers(0, 256, shape, dtype=np.uint8)


def write(path: Path, data: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def cifar10(root: Path, n: int = 4, protocol: int = 2) -> tuple[np.ndarray, np.ndarray]:
    """Five batches of ``n`` and a test batch; the training rows and their labels."""
    x, y = pixels(6 * n, 3072), rng(1).integers(0, 10, 6 * n)
    for i, name in enumerate([*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]):
        part = slice(i * n, (i + 1) * n)
        table = {b"data": x[part], b"labels": y[part].tolist()}
        write(root / "cifar-10-batches-py" / name, pickle.dumps(table, protocol=protocol))
    return x[: 5 * n], y[: 5 * n]


def cifar100(root: Path, n: int = 200) -> tuple[np.ndarray, np.ndarray]:
    x, y = pixels(n, 3072), np.arange(n) % 100
    for name in ("train", "test"):
        table = {b"data": x, b"fine_labels": y.tolist(), b"coarse_labels": (y // 5).tolist(), b"filenames": [b"a"] * n}
        write(root / "cifar-100-python" / name, pickle.dumps(table, protocol=2))
    return x, y


def idx(x: np.ndarray) -> bytes:
    return struct.pack(f">{1 + x.ndim}I", 0x0800 + x.ndim, *x.shape) + x.tobytes()


def mnist(folder: Path, n: int = 6, packed: bool = True, dotted: bool = False) -> tuple[np.ndarray, np.ndarray]:
    for stem in ("train", "t10k"):
        x, y = pixels(n, 28, 28), np.arange(n, dtype=np.uint8) % 10
        for name, data in (("images-idx3-ubyte", idx(x)), ("labels-idx1-ubyte", idx(y))):
            name = name.replace("-idx", ".idx") if dotted else name
            write(folder / f"{stem}-{name}{'.gz' if packed else ''}", gzip.compress(data) if packed else data)
    return x, y


def mat_element(kind: int, data: bytes, order: str = "<") -> bytes:
    if 0 < len(data) <= 4:
        return struct.pack(f"{order}I", len(data) << 16 | kind) + data.ljust(4, b"\0")
    return struct.pack(f"{order}II", kind, len(data)) + data + b"\0" * (-len(data) % 8)


def mat_array(name: str, x: np.ndarray, array_class: int, stored: int, order: str = "<", flags: int = 0) -> bytes:
    body = mat_element(6, struct.pack(f"{order}II", array_class | flags << 8, 0), order)
    body += mat_element(5, struct.pack(f"{order}{x.ndim}i", *x.shape), order)
    body += mat_element(1, name.encode(), order)
    body += mat_element(stored, x.astype(x.dtype.newbyteorder(order)).tobytes("F"), order)
    return mat_element(14, body, order)


def mat_file(arrays: list[bytes], compressed: bool = True, order: str = "<") -> bytes:
    head = b"MATLAB 5.0 MAT-file".ljust(124) + struct.pack(f"{order}H", 0x0100) + (b"IM" if order == "<" else b"MI")
    if not compressed:
        return head + b"".join(arrays)
    return head + b"".join(struct.pack(f"{order}II", 15, len(z)) + z for z in map(zlib.compress, arrays))


def svhn(root: Path, n: int = 5, compressed: bool = True, order: str = "<") -> tuple[np.ndarray, np.ndarray]:
    x, y = pixels(32, 32, 3, n), (np.arange(n, dtype=np.uint8) % 10 + 1)[:, None]
    y[-1] = 10
    data = mat_file([mat_array("X", x, 9, 2, order), mat_array("y", y, 6, 2, order)], compressed, order)
    for name in ("train", "test"):
        write(root / "SVHN" / f"{name}_32x32.mat", data)
    return x, y[:, 0]


def picture(path: Path, x: np.ndarray, **options: object) -> Path:
    from PIL import Image

    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(x).save(path, **options)
    return path


def notmnist(root: Path, names: list[str]) -> dict[str, np.ndarray]:
    """The same file names in each of the ten folders."""
    made = {}
    for i, letter in enumerate("ABCDEFGHIJ"):
        for j, name in enumerate(names):
            made[f"{letter}/{name}"] = x = pixels(28, 28, seed=100 * i + j)
            picture(root / "notMNIST_small" / letter / name, x)
    return made
