"""Names of metrics, subsets and folders lead to no file outside of the folder asked for."""

from pathlib import Path

import pytest
from stored_rows import row

from repdyn import open_store
from repdyn.cli.main import main
from repdyn.store import MeasurementKey
from repdyn.utils.files import safe_file_name

OUTSIDE = "x/../../../../y"


def stored(path: Path, **fields: str) -> Path:
    """Make a store with two steps of a metric, subset, stack, run or probe of a given name."""
    store = open_store(path)
    run = fields.get("run", "run")
    for step in (0, 8):
        rows = [row(**{"run": run, "step": step, "layer": layer} | fields) for layer in range(3)]
        store.write(MeasurementKey(run=run, step=step, probe="p", metrics="m"), rows)
    return path


@pytest.mark.parametrize("field", ["metric", "subset", "stack", "probe", "run"])
@pytest.mark.parametrize("command", ["figures", "report", "export"])
def test_every_view_writes_inside_the_folder_asked_for(tmp_path, command, field):
    store = stored(tmp_path / "1" / "2" / "3" / "store", **{field: OUTSIDE})
    output = tmp_path / "4" / "5" / "6" / "output"
    output.parent.mkdir(parents=True)
    arguments = [str(store), "-o", str(output / "page.html" if command == "report" else output)]
    main(
        [
            command,
            *arguments,
            *(("--to", "csv", "tensorboard", "wandb") if command == "export" else ()),
        ]
    )
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert any(path.is_relative_to(output) for path in written)
    assert all(path.is_relative_to(output) or path.is_relative_to(store) for path in written)


def test_two_names_have_two_stems():
    names = ["a/b", "a%2Fb", "a", "", "%", "x" * 200, "x" * 201, "x" * 201 + "y", ".a", "%2Ea"]
    assert len({safe_file_name(name) for name in names}) == len(names)
