"""The probe: the fixed tokens on which every checkpoint is measured, and the design by which they are sampled.

probe            ``Probe``: token sequences with a seeded plan of the vectors to measure
design           sampling designs: windows, vectors per window, and whether neighbours of one window count
windows          texts cut into windows of token ids
sampling         metric batches drawn from windows
content          validation, hash and batches of a probe's tokens
word_classes     classes of words: function and content, frequent and rare
function_words   the closed word classes of English
io               probes saved as safetensors files
"""

from repdyn.probe.content import ProbeBatch
from repdyn.probe.design import Design
from repdyn.probe.probe import Probe

__all__ = ["Design", "Probe", "ProbeBatch"]
