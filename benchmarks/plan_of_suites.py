"""Plan a sweep over all shipped suites by the command itself, against a simulated hub that answers with delays.

    python benchmarks/plan_of_suites.py --latency 0.1 --csv plan.csv
    python benchmarks/plan_of_suites.py --suites 'smollm2' 'pythia-70m' --revisions all

The simulated hub has the branches, folders and commits that the suites describe. The size of a checkpoint is two bytes
for each parameter in the name of its model ("70m", "1.4b"). What `repdyn sweep --dry-run` plans is compared with what
this hub would send, model by model.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import os
import re
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from hashlib import sha1, sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote

from repdyn.checkpoints.revisions import parse_revision
from repdyn.checkpoints.suites import PublishedModel, shipped_suites

BYTES_PER_PARAMETER = 2
CONFIG_BYTES = 700
DEFAULT_PARAMETERS = 1e9
"""Of a model without a number of parameters in its name."""
_STEPS_NOT_STATED = (0, 1000, 2000, 4000, 8000)


@dataclass
class Repository:
    """Commits by branch, files and their bytes by commit, and the titles of the commits of a branch."""

    branches: dict[str, str] = field(default_factory=dict)
    files: dict[str, dict[str, int]] = field(default_factory=dict)
    titles: dict[str, list[tuple[str, str]]] = field(default_factory=dict)

    def publish(self, name: str, branch: str, files: dict[str, int], title: str = "Publish") -> None:
        commit = sha1(f"{name} {branch} {title} {sorted(files)}".encode()).hexdigest()
        self.branches[branch] = commit
        self.files[commit] = files
        self.titles.setdefault(branch, []).insert(0, (commit, title))


class SimulatedHub(ThreadingHTTPServer):
    """A hub in threads of this process, which answers each request after some seconds."""

    request_queue_size = 64

    def __init__(self, repositories: dict[str, Repository], latency: float) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.repositories, self.latency, self.n_requests = repositories, latency, 0
        self.lock = threading.Lock()
        threading.Thread(target=self.serve_forever, daemon=True).start()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: SimulatedHub  # pyright: ignore[reportIncompatibleVariableOverride]

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""

    def do_GET(self) -> None:
        with self.server.lock:
            self.server.n_requests += 1
        time.sleep(self.server.latency)
        content = self._answer(unquote(self.path.partition("?")[0]))
        body = json.dumps({"error": "not found"} if content is None else content).encode()
        self.send_response(404 if content is None else 200)
        if content is None:
            self.send_header("X-Error-Code", "RepoNotFound")
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _answer(self, path: str) -> object:
        if "/resolve/" in path:  # the configuration of a model, which is asked for its shape and names none
            return {"": "x" * (CONFIG_BYTES - 8)}
        name = next((name for name in self.server.repositories if path.startswith(f"/api/models/{name}/")), None)
        if name is None:
            return None
        repository, (kind, _, revision) = self.server.repositories[name], path.split(name + "/", 1)[1].partition("/")
        commit = repository.branches.get(revision, revision)
        if kind == "refs":
            branches = repository.branches.items()
            return {
                "branches": [{"name": one, "ref": f"refs/heads/{one}", "targetCommit": at} for one, at in branches],
                "tags": [],
                "converts": [],
            }
        if kind == "revision":
            return {"id": name, "sha": commit, "siblings": [], "tags": []}
        if kind == "commits":
            day = {"message": "", "date": "2024-01-01T00:00:00.000Z", "authors": []}
            return [{"id": one, "title": title} | day for one, title in repository.titles.get(revision, [])]
        files = repository.files.get(commit)
        return None if files is None else [_entry(commit, file, size) for file, size in files.items()]


def _entry(commit: str, path: str, size: int) -> object:
    digest = sha256(f"{commit} {path}".encode()).hexdigest()  # no checkpoint is a copy of another
    described = {"type": "file", "path": path, "size": size, "oid": digest[:40]}
    is_large = path.endswith(".safetensors")
    return described | ({"lfs": {"oid": digest, "size": size, "pointerSize": 134}} if is_large else {})


def parameters_of(name: str) -> float:
    """Return the number of parameters that a name states.

    >>> parameters_of("EleutherAI/pythia-1.4b-deduped"), parameters_of("bloom-560m"), parameters_of("lab/none")
    (1400000000.0, 560000000.0, 1000000000.0)
    """
    found = re.findall(r"(?<![\w.])(\d+(?:\.\d+)?)([mb])(?![a-z])", name.lower().replace("_", "-"))
    return float(found[-1][0]) * {"m": 1e6, "b": 1e9}[found[-1][1]] if found else DEFAULT_PARAMETERS


def name_of(pattern: str, step: int) -> str:
    r"""Return a name that a pattern of a suite reads as a step.

    >>> name_of(r"stage1-step(?P<step>\d+)-tokens\d+B", 1000), name_of(r"ckpt_(?P<step>\d{3})", 7)
    ('stage1-step1000-tokens1B', 'ckpt_007')
    """
    text = re.sub(r"\(\?P<step>\\d(?:\+|\{(\d+)\})\)", lambda found: str(step).zfill(int(found[1] or 1)), pattern)
    text = re.sub(r"\(\?P<tokens>[^)]*\)", "1B", text)
    text = re.sub(r"\(\?P<stage>([^)|]*)[^)]*\)", r"\1", text)
    text = re.sub(r"\[(.)[^\]]*\]", r"\1", text.replace(r"\d+", "1"))
    return re.sub(r"\\(.)", r"\1", text)


def publish(model: PublishedModel, repositories: dict[str, Repository]) -> int:
    """Put what a suite describes of a model into the simulated hub; return the number of its checkpoints."""
    size = {"model.safetensors": round(BYTES_PER_PARAMETER * parameters_of(model.name)), "config.json": CONFIG_BYTES}
    for one in model.checkpoints:
        folder = f"{one.subfolder}/" if one.subfolder else ""
        files = {f"{folder}{file}": n_bytes for file, n_bytes in size.items()}
        repositories.setdefault(one.repository, Repository()).publish(one.repository, one.revision, files)
    if model.repository is None:
        return len(model.checkpoints)
    repository = repositories.setdefault(model.repository, Repository())
    pattern = model.revisions or model.subfolders or model.commits or ""
    steps = model.expected or _STEPS_NOT_STATED
    names = [name for step in steps if (name := name_of(pattern, step)) and parse_revision(name, pattern)]
    if model.subfolders:
        folders = {f"{name}/{file}": n_bytes for name in names for file, n_bytes in size.items()}
        repository.publish(model.repository, "main", folders)
    for name in names if not model.subfolders else ():
        branch, title = (model.branch, name) if model.commits else (name, "Publish")
        repository.publish(model.repository, branch, size, title)
    return len(names)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--suites", nargs="+", default=["*"], help="suites, models, patterns (default: all)")
    parser.add_argument("--revisions", default="log", help="as for a sweep (default: %(default)s)")
    parser.add_argument("--latency", type=float, default=0.1, help="seconds before each answer (default: %(default)s)")
    parser.add_argument("--csv", type=Path, help="write the plan here")
    options = parser.parse_args()
    repositories: dict[str, Repository] = {}
    models = {model.run: model for suite in shipped_suites().values() for model in suite.models}
    published = {run: publish(model, repositories) for run, model in models.items()}
    hub = SimulatedHub(repositories, options.latency)
    environment = os.environ | {"HF_ENDPOINT": f"http://127.0.0.1:{hub.server_port}", "HF_HUB_OFFLINE": "0"}
    environment |= {"NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}
    command = [sys.executable, "-m", "repdyn", "sweep", "--suite", *options.suites, "--revisions", options.revisions]
    started = time.perf_counter()
    done = subprocess.run([*command, "--dry-run", "--json"], env=environment, capture_output=True, text=True)
    seconds = time.perf_counter() - started
    if done.returncode or not done.stdout:
        raise RuntimeError(f"the plan ended with {done.returncode}: {done.stderr}")
    plan = json.loads(done.stdout)
    for line in report(plan, models, published, every_checkpoint=options.revisions == "all"):
        print(line)
    if options.suites == ["*"] and (missing := sorted(set(models) - {one["model"] for one in plan})):
        print(f"{len(missing)} models not planned: {', '.join(missing)}")
    print(f"{hub.n_requests} requests of {options.latency:g} s each, {seconds:.0f} s")
    if options.csv:
        options.csv.write_text(as_csv(plan))


def report(
    plan: list[dict], models: dict[str, PublishedModel], published: dict[str, int], *, every_checkpoint: bool
) -> list[str]:
    """Return a line for each suite, the total, and how far the plan is from what the hub would send.

    Args:
        plan: printed by the command.
        models: by run.
        published: number of checkpoints on the simulated hub, by run.
        every_checkpoint: whether all checkpoints were to be planned, and not a selection of them.
    """
    lines = [f"{'suite':>22} {'models':>6} {'checkpoints':>11} {'TB':>8} {'hours':>9} {'dollars':>9}"]
    by_suite: dict[str, list[dict]] = {}
    wrong = 0
    for one in plan:
        model = models[one["model"]]
        by_suite.setdefault(model.suite, []).append(one)
        size = round(BYTES_PER_PARAMETER * parameters_of(model.name)) + CONFIG_BYTES
        n_checkpoints, n_published = len(one["checkpoints"]), published[model.run]
        wrong += one["download_bytes"] != size * len(one["waiting"]) or n_checkpoints > n_published
        wrong += every_checkpoint and n_checkpoints < n_published
    for suite, ones in [*sorted(by_suite.items()), ("all", plan)]:
        n_checkpoints = sum(len(one["waiting"]) for one in ones)
        sums = [sum(one[name] for one in ones) for name in ("download_bytes", "hours", "dollars")]
        lines.append(
            f"{suite:>22} {len(ones):>6} {n_checkpoints:>11} {sums[0] / 1e12:8.2f} {sums[1]:9.1f} {sums[2]:9.2f}"
        )
    copies = sum(len(one["same_as"]) for one in plan)
    planned = f"{wrong} of {len(plan)} models planned with other bytes or checkpoints than published"
    lines.append(f"{copies} checkpoints taken for copies of others; {planned}")
    return [*lines, *plan[0]["assumptions"]]


def as_csv(plan: list[dict]) -> str:
    """Return a line for each model of a plan."""
    columns = ["model", "checkpoints", "download_bytes", "hours", "dollars"]
    out = io.StringIO()
    writer = csv.DictWriter(out, columns, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows([one | {"checkpoints": len(one["waiting"])} for one in plan])
    return out.getvalue()


if __name__ == "__main__":
    main()
