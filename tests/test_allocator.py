"""Freed memory is kept where the C library can be asked to, and a setting from outside is respected."""

import os
import platform
import subprocess
import sys

import pytest

FAULTS = """
import resource, torch
from codecl.allocator import keep_freed_memory

print(keep_freed_memory())

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

for _ in range(3):
    torch.ones(2**22)
before = faults()
for _ in range(10):
    torch.ones(2**22), torch.ones(2**23)
print(faults() - before)
"""


def kept(**environment: str) -> tuple[str, int]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    done = subprocess.run(
        [sys.executable, "-c", FAULTS], capture_output=True, text=True, check=True, env=clean | environment
    )
    answer, faults = done.stdout.split()
    return answer, int(faults)


@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries have no such setting")
def test_pages_are_reused() -> None:
    pages = 10 * (2**22 + 2**23) * 4 // os.sysconf("SC_PAGE_SIZE")
    answer, faults = kept()
    assert answer == "True"
    assert faults < pages // 4


@pytest.mark.slow
def test_settings_from_outside_stay() -> None:
    assert kept(MALLOC_TRIM_THRESHOLD_="100000", MALLOC_MMAP_THRESHOLD_="100000")[0] == "False"
