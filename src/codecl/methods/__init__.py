"""Methods, one paper per file. The base class, ``Method``, is plain fine-tuning."""

from codecl.method.guard import UnsafeOptimizer
from codecl.method.method import Method
from codecl.methods.a_gem import AGEM
from codecl.methods.api import API
from codecl.methods.code_cl import CodeCL
from codecl.methods.cuber import CUBER
from codecl.methods.dfgp import DFGP
from codecl.methods.er import ER
from codecl.methods.ewc import EWC
from codecl.methods.gpm import GPM
from codecl.methods.hat import HAT
from codecl.methods.multitask import Multitask
from codecl.methods.owm import OWM
from codecl.methods.sgp import SGP
from codecl.methods.trgp import TRGP
from codecl.methods.trgp_sd import TRGPSD

METHODS: dict[str, type[Method]] = {
    method.name: method
    for method in (
        *(CodeCL, GPM, SGP, TRGP, CUBER, TRGPSD, DFGP, API, OWM),  # gradient projection
        *(EWC, HAT, AGEM, ER, Multitask, Method),  # the other schools
    )
}
"""The methods by the names that recipes and commands use."""

__all__ = [
    "AGEM",
    "API",
    "CUBER",
    "DFGP",
    "ER",
    "EWC",
    "GPM",
    "HAT",
    "METHODS",
    "OWM",
    "SGP",
    "TRGP",
    "TRGPSD",
    "CodeCL",
    "Method",
    "Multitask",
    "UnsafeOptimizer",
]
