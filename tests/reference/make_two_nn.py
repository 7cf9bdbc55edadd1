"""Writes two_nn.txt. In an environment with dadapy (or scikit-dimension): python make_two_nn.py >>
two_nn.txt
"""

from importlib.metadata import version

from clouds import CLOUDS

try:
    from dadapy import Data

    def estimates(points):
        regression = Data(coordinates=points).compute_id_2NN(algorithm="base", mu_fraction=0.9)[0]
        return regression, Data(coordinates=points).compute_id_2NN(algorithm="ml")[0]

    package = "dadapy"
except ImportError:
    from skdim.id import TwoNN

    def estimates(points):
        regression = TwoNN(discard_fraction=0.1).fit(points).dimension_
        return regression, TwoNN(discard_fraction=0, method="mle").fit(points).dimension_

    package = "scikit-dimension"

for name, build in CLOUDS.items():
    for method, value in zip(("regression", "maximum_likelihood"), estimates(build()), strict=True):
        print(package, version(package), name, method, f"{value:.10g}")
