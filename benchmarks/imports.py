"""What a tracked training loads: the seconds of ``import repdyn``, and the packages of others that
are loaded by then, after its steps and at its end.

    python benchmarks/imports.py

The training is a small one, with the default metrics and alerts: once as a tracker is by default,
once without its report, and once without the packages of the extra views, as after ``pip install
repdyn``. What ``import torch`` loads on its own is left out.
"""

import json
import re
import subprocess
import sys

VIEWS = ("cyclopts", "matplotlib", "pandas", "plotly", "rich", "starlette")
TRAINING = """
import json, sys, tempfile

import torch
import torch._dynamo  # which asks for pandas in a way that a finder cannot answer
from torch import nn

is_reported, *blocked = json.loads(sys.argv[1])

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in blocked:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Blocker())

def loaded():
    files = {name: getattr(module, "__file__", None) or "" for name, module in sys.modules.items()}
    return {name for name, file in files.items() if f"site-packages/{name}/" in file}

of_torch = loaded() | {"repdyn"}
said = {}

import repdyn

said["import repdyn"] = sorted(loaded() - of_torch)

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(16, 16)

    def forward(self, states):
        return states + self.linear(states).tanh()

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(50, 16)
        self.blocks = nn.ModuleList([Block(), Block()])
        self.head = nn.Linear(16, 50)

    def forward(self, ids):
        states = self.embed(ids)
        for block in self.blocks:
            states = block(states)
        return self.head(states)

tokens = torch.randint(0, 50, (64, 16))
probe = repdyn.Probe.from_tokens(tokens, max_vectors=256, batch_vectors=128)
model = Model()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
with tempfile.TemporaryDirectory() as folder:
    store = f"{folder}/store"
    with repdyn.Tracker(model, probe, schedule=1, store=store, report=is_reported) as tracker:
        for batch in tokens.split(32):
            logits = model(batch)[:, :-1].flatten(0, 1)
            loss = nn.functional.cross_entropy(logits, batch[:, 1:].flatten())
            loss.backward()
            optimizer.step()
            tracker.step(loss=loss)
        said["steps"] = sorted(loaded() - of_torch)
    said["end"] = sorted(loaded() - of_torch)
print(json.dumps(said))
"""
CASES = {
    "by default": (True,),
    "without the report": (False,),
    "without the extra views": (True, *VIEWS),
}


def main() -> None:
    """Print the seconds, and the packages by case and moment."""
    timed = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", "import repdyn"],
        capture_output=True,
        text=True,
        check=True,
    )
    (microseconds,) = re.findall(r"\| +(\d+) \| repdyn$", timed.stderr, re.MULTILINE)
    print(f"import repdyn: {int(microseconds) / 1e6:.3f} s")
    for case, arguments in CASES.items():
        given = [sys.executable, "-c", TRAINING, json.dumps(arguments)]
        done = subprocess.run(given, capture_output=True, text=True, check=True)
        print(f"{case}:")
        for moment, packages in json.loads(done.stdout.splitlines()[-1]).items():
            print(f"    {moment}: {', '.join(packages) or 'none'}")


if __name__ == "__main__":
    main()
