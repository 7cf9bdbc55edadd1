"""Writes llm_microscope.txt. In an environment with it: python make_llm_microscope.py >
llm_microscope.txt

Run it on a processor by Intel: the package takes logarithms in float32, which torch rounds
correctly there; elsewhere their last bit may differ, and the dimension by 1e-8 of it.
"""

from importlib.metadata import version

import torch
from clouds import REPEATING
from llm_microscope import intrinsic_dimension

print("# package version cloud dimension (see make_llm_microscope.py)")
for name, build in REPEATING.items():
    value = intrinsic_dimension(torch.from_numpy(build()), "cpu", reduction_factor=5)
    print("llm_microscope", version("llm_microscope"), name, repr(value))
