"""Importing torchvision where its compiled operators do not fit the installed torch.

Its wheels need the CUDA libraries. With a CPU build of torch the import ends at "operator torchvision::nms does not
exist", although timm and Avalanche need the Python part alone. The two operators that the import asks for are declared
here, without a kernel: no test detects objects.
"""

import torch

DECLARED = []


def declare():
    """Make ``import torchvision`` work, if it is installed; calling an operator of it still fails."""
    try:
        import torchvision  # noqa: F401
    except RuntimeError as error:
        if "operator torchvision::" not in str(error):
            raise
        library = torch.library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        DECLARED.append(library)  # they last as long as the library lives
    except ModuleNotFoundError:
        pass
