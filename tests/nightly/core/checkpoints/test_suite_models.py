"""The shipped suites: names, runs, checkpoints and documentation."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from repdyn.checkpoints.revisions import match_revisions, parse_revision, select_revisions
from repdyn.checkpoints.suites import PublishedModel, Suite, find_models, shipped_suites
from repdyn.views.tables.seeds import model_of

ROOT = Path(__file__).parents[4]
FOLDER = ROOT / "configs" / "suites"
NAMES = sorted(path.stem for path in FOLDER.glob("*.yaml"))


@pytest.fixture(scope="module")
def models() -> dict[str, PublishedModel]:
    return {model.name: model for suite in shipped_suites().values() for model in suite.models}


@pytest.mark.parametrize("name", NAMES)
def test_a_shipped_suite_loads_and_documents_its_command(name):
    suite = shipped_suites()[name]
    assert isinstance(suite, Suite)
    assert suite.name == name
    assert bool(suite.title)
    assert suite.card.startswith("https://")
    lines = (FOLDER / f"{name}.yaml").read_text().splitlines()
    command = re.fullmatch(
        (
            r"# (?:python analyze_checkpoints.py --suite|repdyn audit) '?([\w.*-]+)'?(?: "
            r"--revisions (\S+))?(?: --trust-remote-code)?"
        ),
        lines[0],
    )
    assert command
    meant = find_models([command[1]])
    assert meant
    assert {model.suite for model in meant} == {name}
    assert {"GB"} <= set(
        re.findall(r"\w+", " ".join(line for line in lines if line.startswith("#")))
    )
    if command[2]:
        promised, _ = match_revisions([f"step{step}" for step in meant[0].expected])
        assert len(select_revisions(promised, command[2])) <= 30
    assert max(map(len, lines)) <= 120


def test_names_and_runs_are_distinct_over_all_suites():
    models = [model for suite in shipped_suites().values() for model in suite.models]
    assert len({model.name for model in models}) == len(models)
    assert len({model.run for model in models}) == len(models)
    same = {model.name for model in models} & set(NAMES)
    assert all(len(shipped_suites()[name].models) == 1 for name in same)


def test_faults_that_users_reported(models):
    faults = {
        name: [len(fault.steps) for fault in models[name].known_faults]
        for name in ("pythia-2.8b", "pythia-12b")
    }
    assert faults == {"pythia-2.8b": [76, 10, 17, 2, 2], "pythia-12b": [2, 10, 2, 2]}
    assert [fault.steps for fault in models["olmo2-7b"].known_faults] == [(101000, 175000, 300000)]
    assert [fault.steps for fault in models["bloom-560m"].known_faults] == [(10000, 500000)]
    assert models["pythia-1b"].known_faults[0].steps == (116000,)
    assert [fault.what for fault in models["pythia-410m-seed9"].known_faults] == ["missing weights"]
    page = (ROOT / "docs" / "suites.md").read_text()
    assert all(
        f"]({fault.report})" in page for model in models.values() for fault in model.known_faults
    )


# Names of branches and tags, and titles of commits, as cards, issues and published code show them;
# None: not a checkpoint of this history.
PUBLISHED_NAMES = [
    ("pythia-70m", "step0", 0, 0, None),
    ("pythia-70m", "step143000", 143000, 299892736000, None),
    ("pythia-70m", "main", None, None, None),
    ("bloom-560m", "global_step1000", 1000, None, None),
    ("olmo2-1b-early", "stage1-step1000-tokens3B", 1000, 2097152000, "stage1"),
    ("olmo2-1b", "stage1-step140000-tokens294B", 140000, 293601280000, "stage1"),
    ("olmo2-1b", "stage2-ingredient3-step23852-tokens51B", None, None, None),
    (
        "olmo2-1b-ingredient3",
        "stage2-ingredient3-step23852-tokens51B",
        23852,
        None,
        "stage2-ingredient3",
    ),
    ("olmo2-7b", "step150-tokens1B", None, None, None),
    ("olmo3-7b", "stage1-step1413814", 1413814, 5929965715456, "stage1"),
    ("olmo3-7b-stage2", "stage2-step47684", 47684, None, "stage2"),
    ("olmo3-7b-stage2", "stage2-step47684-mix-1-from-2T-ckpt", None, None, None),
    ("olmo3-7b-stage3", "stage3-step11921", 11921, None, "stage3"),
    ("ettin-encoder-17m", "step599525", 599525, None, None),
    ("ettin-decoder-1b", "ext1000", None, None, None),
    ("ettin-decoder-1b-ext", "ext50854", 50854, None, "ext"),
    ("ettin-encoder-150m-decay", "decay8210", 8210, None, "decay"),
    ("smollm2-135m", "step-240000", 240000, 251658240000, None),
    ("smollm3-3b", "stage1-step-40000", 40000, 94371840000, "stage1"),
    ("smollm3-3b", "lc-4k-to-32k-step-4000", None, None, None),
    ("smollm3-3b-lc-4k-to-32k", "lc-4k-to-32k-step-4000", 4000, None, "lc-4k-to-32k"),
    ("smollm3-3b-lc-32k-to-64k", "lc-4k-to-32k-step-4000", None, None, None),
    ("amber", "ckpt_000", 0, None, None),
    ("alias-gpt2-small-x21", "checkpoint-400000", 400000, 209715200000, None),
    ("OLMo-2-0425-1B-post-rlvr1", "step_200", 200, None, None),
    ("olmo3-7b-post-think-sft", "step43000", 43000, None, None),
    ("olmo3-7b-post-think-rlvr", "step_0025", 25, None, None),
    ("olmo3-7b-post-instruct-rlvr", "step_050", 50, None, None),
    ("apertus-8B", "step50000-tokens210B", 50000, 210 * 10**9, None),
    ("apertus-8B", "step2627139-tokens15T", 2627139, 15 * 10**12, None),
    ("apertus-70B", "longctx-step50", None, None, None),
    ("apertus-70B-longctx", "longctx-step1700", 1700, None, "longctx"),
    ("apertus-8B-longctx", "step50000-tokens210B", None, None, None),
    ("datadecide-dolma1_7-1B", "step69369-seed-default", 69369, None, None),
    ("datadecide-c4-6M", "step1250-seed-large-aux-2", None, None, None),
    ("pico-decoder-tiny", "Saving HF Model -- Step 0", 0, 0, None),
    ("pico-decoder-tiny", "Saving Learning Dynamics Data -- Step 1000", None, None, None),
]


@pytest.mark.parametrize(
    ("model", "name", "step", "tokens", "stage"),
    PUBLISHED_NAMES,
    ids=[f"{row[0]}:{row[1]}" for row in PUBLISHED_NAMES],
)
def test_names_of_published_revisions_are_parsed(models, model, name, step, tokens, stage):
    model = models[model]
    found = parse_revision(name, model.revisions or model.commits, model.tokens_per_step)
    assert (found and (found.step, found.tokens_seen, found.stage)) == (
        None if step is None else (step, tokens, stage)
    )


def test_the_names_of_runs_tell_which_are_seeds_of_one_model(models):
    groups: dict[str, list[str]] = {}
    for model in models.values():
        if (name := model_of(model.run)) is not None:
            groups.setdefault(name, []).append(model.suite)
    sizes = {
        f"EleutherAI/pythia-{size}": ["polypythias"] * 9
        for size in ("14m", "31m", "70m", "160m", "410m")
    }
    reseeded = {
        f"EleutherAI/pythia-160m-{what}": ["polypythias"] * 3 for what in ("data", "weight")
    }
    crfm = {f"stanford-crfm/gpt2-{size}": ["crfm-gpt2"] * 5 for size in ("small", "medium")}
    assert groups == {**sizes, **reseeded, **crfm, "google/multiberts": ["multiberts"] * 5}


STAGES = {
    "OLMo-2-0425-1B-post-*": ["base", "sft", "dpo", "rlvr1", "instruct"],
    "OLMo-2-1124-13B-post-*": ["base", "sft", "dpo", "instruct"],
    "olmo3-7b-post-think-*": ["sft", "dpo", "rlvr"],
    "smollm3-post": ["base", "mid-training", "sft", "apo", "lc-expert", "final"],
    "evolm-1B-*": ["base", "cpt", "sft"],
}


@pytest.mark.parametrize("names", STAGES)
def test_stages_are_runs_whose_names_are_in_order(names):
    ordered = sorted(find_models([names]), key=lambda model: model.run)
    assert [re.split("-post-(?:think-)?|evolm-1B-", model.name)[1] for model in ordered] == STAGES[
        names
    ]
    for model in ordered:
        assert bool(model.checkpoints) != bool(model.repository)
        assert all((at.step, at.stage) == (0, "finished") for at in model.checkpoints)
    tokenizers = {model.tokenizer or model.checkpoints[0].repository for model in ordered}
    assert len(tokenizers) == 1


def test_the_documentation_lists_every_shipped_suite():
    page = (ROOT / "docs" / "suites.md").read_text()
    rows = dict(
        re.findall(
            r"^\| \[`([\w-]+)`\]\(\.\./configs/suites/\1\.yaml\) \|.*?\| (\d+) \|",
            page,
            re.MULTILINE,
        )
    )
    assert rows == {name: str(len(suite.models)) for name, suite in shipped_suites().items()}


def test_the_documented_example_loads(tmp_path):
    (example,) = re.findall(
        r"```yaml\n(.*?)```", (ROOT / "docs" / "suites.md").read_text(), re.DOTALL
    )
    path = tmp_path / "mine.yaml"
    path.write_text(example)
    models = find_models([str(path)])
    assert [model.name for model in models] == [
        "mine-small",
        "mine-large",
        "committed",
        "three-repositories",
    ]
    assert models[0].expected == (0, 100, *range(1000, 20001, 1000))
    assert [at.step for at in models[-1].checkpoints] == [0, 10000, 20000]
    # the page explains each key that there is
    keys = {key for model in yaml.safe_load(example)["models"] for key in model}
    assert keys == {
        *("name", "for", "repository", "revisions", "commits", "branch", "checkpoints"),
        *("tokens_per_step", "expected", "tokenizer", "run", "checked_against", "unverified"),
    }
