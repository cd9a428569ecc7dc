"""The memory allocator of the C library, asked to keep what a training step frees for the next one.

By default glibc returns large blocks to the system when they are freed. A step then gets its activations and gradients
as fresh pages every time, and the system clears page by page what is overwritten at once.
"""

import ctypes
import os

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of malloc.h
LARGEST = 2**30


def keep_freed_memory() -> bool:
    """Let this process reuse freed memory instead of returning it, for blocks up to 1 GiB.

    Settings made from outside (``MALLOC_TRIM_THRESHOLD_``, ``MALLOC_MMAP_THRESHOLD_``) are left as they are.

    Returns:
        Whether it is done; without glibc nothing is.
    """
    if any(name in os.environ for name in ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_")):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # another C library, or another system
        return False
    return bool(mallopt(M_MMAP_THRESHOLD, LARGEST)) and bool(mallopt(M_TRIM_THRESHOLD, LARGEST))
