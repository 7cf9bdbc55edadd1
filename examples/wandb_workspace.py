"""Save a W&B workspace for repdyn: python examples/wandb_workspace.py ENTITY PROJECT (pip install
wandb-workspaces).
"""

import sys

import wandb_workspaces.reports.v2 as wr
import wandb_workspaces.workspaces as ws

entity, project = sys.argv[1:3]
STEP = "repdyn/step"
SECTIONS = ("two_nn", "anisotropy", "anisotropy_no_sink")


def lines(title, **curves):
    return wr.LinePlot(title=title, x=STEP, log_x=True, **curves)


first = [lines(name, y=[f"{name}/mean"]) for name in ("two_nn", "anisotropy_no_sink")]
loss = lines("loss", y=["repdyn/loss", "repdyn/val_loss"])
layers = [lines(f"{name}, each layer", metric_regex=f"{name}/layer_.*") for name in SECTIONS]
figures = [
    "figures/mean_over_layers",
    "figures/heatmap_two_nn_all",
    "figures/heatmap_anisotropy_no_sink",
]
workspace = ws.Workspace(
    entity=entity,
    project=project,
    name="Representation dynamics",
    sections=[
        ws.Section("Geometry", [*first, loss], is_open=True, pinned=True),
        ws.Section("Layers", layers, is_open=True),
        ws.Section("Figures", [wr.MediaBrowser(media_keys=figures)], is_open=True),
        ws.Section("Report", [wr.MediaBrowser(media_keys=["report"])]),
    ],
)
print(workspace.save().url)
