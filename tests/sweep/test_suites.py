"""Suites: the shipped ones, the form they have, and every way of getting it wrong."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

import repdyn
from repdyn.hub.revisions import DEFAULT_PATTERN, match_revisions, parse_revision, select_revisions
from repdyn.sweep.suites import PublishedCheckpoint, PublishedModel, Suite, find_models, read_suite, shipped_suites

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "configs" / "suites"
NAMES = sorted(path.stem for path in FOLDER.glob("*.yaml"))
PYTHIA = (0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, *range(1000, 143001, 1000))


@pytest.fixture(scope="module")
def models() -> dict[str, PublishedModel]:
    return {model.name: model for suite in shipped_suites().values() for model in suite.models}


@pytest.fixture
def write(tmp_path):
    """Writes a suite of one model with these lines, and gives its path."""

    def write(*lines: str, head: str = "title: mine\ncard: here\nmodels:\n") -> Path:
        path = tmp_path / "mine.yaml"
        path.write_text(head + "".join(f"{'  - ' if i == 0 else '    '}{line}\n" for i, line in enumerate(lines)))
        return path

    return write


def test_the_package_has_the_suites_of_the_checkout():
    assert list(shipped_suites()) == NAMES
    assert sorted(path.stem for path in (Path(repdyn.__file__).parent / "suites").glob("*.yaml")) == NAMES
    assert {"pythia", "bloom", "finished"} <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_shipped_suite_loads_and_is_headed_by_its_command(name):
    suite = shipped_suites()[name]
    assert isinstance(suite, Suite)
    assert (suite.name, bool(suite.title), suite.card.startswith("https://")) == (name, True, True)
    lines = (FOLDER / f"{name}.yaml").read_text().splitlines()
    command = re.fullmatch(r"# python analyze_checkpoints.py --suite '?([\w.*-]+)'?(?: --revisions (\S+))?", lines[0])
    assert command
    meant = find_models([command[1]])
    assert meant
    assert {model.suite for model in meant} == {name}
    assert {"GB"} <= set(re.findall(r"\w+", " ".join(line for line in lines if line.startswith("#"))))
    if command[2]:
        promised, _ = match_revisions([f"step{step}" for step in meant[0].expected])
        assert len(select_revisions(promised, command[2])) <= 30
    assert max(map(len, lines)) <= 120


def test_names_are_distinct_over_all_suites_and_so_are_runs():
    models = [model for suite in shipped_suites().values() for model in suite.models]
    assert len({model.name for model in models}) == len(models)
    assert len({model.run for model in models}) == len(models)
    same = {model.name for model in models} & set(NAMES)
    assert all(len(shipped_suites()[name].models) == 1 for name in same)


def test_every_history_says_where_its_checkpoints_are(models):
    for model in models.values():
        places = [model.revisions, model.subfolders, model.checkpoints or None]
        assert sum(place is not None for place in places) == 1
        repositories = [model.repository] if model.repository else [at.repository for at in model.checkpoints]
        for repository in [*repositories, *filter(None, [model.tokenizer])]:
            assert re.fullmatch(r"[\w.-]+/[\w.-]+", repository), repository


def test_pythia():
    suite = shipped_suites()["pythia"]
    sizes = ["14m", "31m", "70m", "160m", "410m", "1b", "1.4b", "2.8b", "6.9b", "12b"]
    assert [model.name for model in suite.models] == [
        *(f"pythia-{size}" for size in sizes),
        *(f"pythia-{size}-deduped" for size in sizes[2:]),
    ]
    assert len(PYTHIA) == 154
    assert suite.models[2] == PublishedModel(
        name="pythia-70m",
        suite="pythia",
        run="EleutherAI/pythia-70m",
        repository="EleutherAI/pythia-70m",
        revisions=r"step(?P<step>\d+)",
        tokens_per_step=2**21,
        expected=PYTHIA,
    )
    assert all(model.expected == PYTHIA for model in suite.models)


# Names of branches and tags as cards, issues and published code show them; None: not a checkpoint of this history.
SEEN = [
    ("pythia-70m", "step0", 0, 0, None),
    ("pythia-70m", "step143000", 143000, 299892736000, None),
    ("pythia-70m", "main", None, None, None),
    ("pythia-12b-deduped", "step512", 512, 1073741824, None),
    ("pythia-14m-seed9", "step1000", 1000, 2097152000, None),
    ("pythia-160m-data-seed1", "step1", 1, 2097152, None),
    ("bloom-560m", "global_step1000", 1000, None, None),
    ("bloom-7b1", "global_step300000", 300000, None, None),
    ("olmo2-1b-early", "stage1-step0-tokens0B", 0, 0, "stage1"),
    ("olmo2-1b-early", "stage1-step1000-tokens3B", 1000, 2097152000, "stage1"),
    ("olmo2-1b", "stage1-step140000-tokens294B", 140000, 293601280000, "stage1"),
    ("olmo2-1b", "stage2-ingredient3-step23852-tokens51B", None, None, None),
    ("olmo2-1b-ingredient3", "stage2-ingredient3-step23852-tokens51B", 23852, None, "stage2-ingredient3"),
    ("olmo2-1b-ingredient1", "stage2-ingredient3-step23852-tokens51B", None, None, None),
    ("olmo2-7b", "stage1-step928646-tokens3896B", 928646, 3895023632384, "stage1"),
    ("olmo2-7b", "step150-tokens1B", None, None, None),
    ("olmo2-7b-ingredient2", "stage2-ingredient2-step11931-tokens50B", 11931, None, "stage2-ingredient2"),
    ("olmo3-7b", "stage1-step1413814", 1413814, 5929965715456, "stage1"),
    ("olmo3-7b-stage2", "stage2-step47684", 47684, None, "stage2"),
    ("olmo3-7b-stage2", "stage2-step47684-mix-1-from-2T-ckpt", None, None, None),
    ("olmo3-7b-stage3", "stage3-step11921", 11921, None, "stage3"),
    ("ettin-encoder-17m", "step599525", 599525, None, None),
    ("ettin-decoder-1b", "ext1000", None, None, None),
    ("ettin-decoder-1b-ext", "ext50854", 50854, None, "ext"),
    ("ettin-encoder-150m-decay", "decay8210", 8210, None, "decay"),
    ("smollm2-135m", "step-240000", 240000, 251658240000, None),
    ("smollm2-360m", "step-2560000", 2560000, 4026531840000, None),
    ("smollm2-1.7b", "step-125000", 125000, 262144000000, None),
    ("smollm3-3b", "stage1-step-40000", 40000, 94371840000, "stage1"),
    ("smollm3-3b", "stage3-step-4720000", 4720000, 11135877120000, "stage3"),
    ("smollm3-3b", "lc-4k-to-32k-step-4000", None, None, None),
    ("smollm3-3b-lc-4k-to-32k", "lc-4k-to-32k-step-4000", 4000, None, "lc-4k-to-32k"),
    ("smollm3-3b-lc-32k-to-64k", "lc-4k-to-32k-step-4000", None, None, None),
    ("amber", "ckpt_000", 0, None, None),
    ("amber", "ckpt_358", 358, None, None),
    ("alias-gpt2-small-x21", "checkpoint-400000", 400000, 209715200000, None),
    ("eowyn-gpt2-medium-x777", "checkpoint-10", 10, 5242880, None),
]


@pytest.mark.parametrize(("model", "name", "step", "tokens", "stage"), SEEN, ids=[f"{row[0]}:{row[1]}" for row in SEEN])
def test_published_names_are_read(models, model, name, step, tokens, stage):
    model = models[model]
    found = parse_revision(name, model.revisions, model.tokens_per_step)
    assert (found and (found.step, found.tokens_seen, found.stage)) == (None if step is None else (step, tokens, stage))


def test_every_suite_of_revisions_is_in_the_table_of_names():
    by_revision = {name for name, suite in shipped_suites().items() if any(model.revisions for model in suite.models)}
    seen = {model.suite for row in SEEN for model in find_models([row[0]])}
    assert by_revision == seen


@pytest.mark.parametrize("row", [row for row in SEEN if row[0].startswith("olmo2") and row[3]], ids=lambda row: row[1])
def test_the_batch_agrees_with_the_tokens_that_olmo_names_round_up(row):
    billions = parse_revision(row[1], DEFAULT_PATTERN)
    assert billions
    assert billions.tokens_seen == -(-row[3] // 10**9) * 10**9


@pytest.mark.parametrize(
    ("model", "count", "last"),
    [
        ("bloom-560m", 8, 600000),
        ("bloom-1b7", 8, 300000),
        ("olmo2-1b-ingredient1", 24, 23852),
        ("olmo2-7b-ingredient1", 12, 11931),
        ("olmo3-7b-stage2", 49, 47684),
        ("olmo3-7b-stage3", 13, 11921),
        ("smollm2-135m", 8, 1920000),
        ("smollm2-360m", 16, 2560000),
        ("smollm2-1.7b", 41, 5125000),
        ("smollm3-3b", 118, 4720000),
        ("smollm3-3b-lc-32k-to-64k", 5, 20000),
        ("amber", 359, 358),
        ("alias-gpt2-small-x21", 609, 400000),
    ],
)
def test_promised_steps(models, model, count, last):
    expected = models[model].expected
    assert (len(expected), expected[-1]) == (count, last)
    assert list(expected) == sorted(set(expected))


def test_multiberts_have_a_repository_for_each_checkpoint(models):
    seed = models["multiberts-seed3"]
    thousands = [*range(0, 201, 20), *range(300, 2001, 100)]
    assert [at.step for at in seed.checkpoints] == [1000 * thousand for thousand in thousands]
    assert len(thousands) == 29
    assert seed.checkpoints[1] == PublishedCheckpoint(
        "google/multiberts-seed_3-step_20k", "main", "", 20000, None, None
    )
    assert seed.run == "google/multiberts-seed_3"
    assert [model.name for model in shipped_suites()["multiberts"].models] == [f"multiberts-seed{n}" for n in range(5)]


def test_tinyllama_lists_what_its_names_say(models):
    for at in models["tinyllama-1.1b"].checkpoints:
        said = re.fullmatch(r"TinyLlama/TinyLlama-1\.1B-.*step-(\d+)k-(?:token-)?([\d.]+)([bT])", at.repository, re.I)
        assert said
        assert at.step == 1000 * int(said[1])
        assert at.tokens_seen == round(float(said[2]) * {"b": 1e9, "t": 1e12}[said[3].lower()])


def test_finished_models_are_one_checkpoint_each(models):
    finished = shipped_suites()["finished"].models
    assert all(
        (at.revision, at.step, at.stage) == ("main", 0, "finished") and len(model.checkpoints) == 1
        for model in finished
        for at in model.checkpoints
    )
    assert models["gpt2"].run == "openai-community/gpt2"
    # under the name of the history, a finished model would take the place of its step 0
    assert models["finished-pythia-70m"].run == "EleutherAI/pythia-70m/finished"
    families = {"bert", "roberta", "albert", "distilbert", "ModernBERT", "gpt2", "opt", "Llama", "gpt", "falcon"}
    assert families <= {re.split(r"-", model.name)[0] for model in finished}


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (["pythia-70m"], ["pythia-70m"]),
        (["amber"], ["amber"]),
        (["pythia-1.?b-deduped", "pythia-70m"], ["pythia-1.4b-deduped", "pythia-70m"]),
        (["bloom", "bloom-3b"], ["bloom-560m", "bloom-1b1", "bloom-7b1", "bloom-1b7", "bloom-3b"]),
        (["ettin-*coder-17m"], ["ettin-encoder-17m", "ettin-decoder-17m"]),
        ([], []),
    ],
    ids=str,
)
def test_find_histories(names, found):
    assert [model.name for model in find_models(names)] == found


def test_find_histories_reads_a_file(write):
    path = write("name: mine", "repository: me/model", "revisions: 'step(?P<step>\\d+)'")
    assert find_models([str(path)]) == [
        PublishedModel(name="mine", suite="mine", run="me/model", repository="me/model", revisions=r"step(?P<step>\d+)")
    ]
    with pytest.raises(FileNotFoundError, match=r"none\.yaml"):
        find_models(["none.yaml"])


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("pythia-70", r"; did you mean pythia-70m, .*\?$"),
        ("phytia", r"; did you mean pythia.*\?$"),
        ("pythia-*-dedup", r"; did you mean pythia-.*-deduped.*\?$"),
        ("zzz", r"got 'zzz'$"),
    ],
)
def test_find_histories_suggests(name, hint):
    message = (
        rf"^expected a suite \({', '.join(NAMES)}\), one of their models, a pattern such as pythia-\*-deduped, or a "
        rf"file ending in \.yaml, got {re.escape(repr(name))}"
    )
    with pytest.raises(ValueError, match=message) as refusal:
        find_models([name])
    assert re.search(hint, str(refusal.value))


def test_all_that_a_model_may_say(write):
    path = write(
        "name: '{size}-{seed}'",
        "for: {size: [1.4b, small], seed: ['1..3:2']}",
        "run: runs/{size}/{seed}",
        "checkpoints:",
        "  - for: {k: [5, '10..20:10']}",
        "    repository: me/{size}",
        "    revision: seed{seed}",
        "    subfolder: at-{k}k",
        "    step: '{k}k'",
        "  - {repository: me/final, step: 0, tokens: 0, stage: start}",
        "tokens_per_step: 2k",
        "tokenizer: me/{size}-tokens",
    )
    suite = read_suite(path)
    assert (suite.name, suite.title, suite.card) == ("mine", "mine", "here")
    assert [model.name for model in suite.models] == ["1.4b-1", "1.4b-3", "small-1", "small-3"]
    model = suite.models[1]
    assert (model.run, model.tokenizer, model.tokens_per_step) == ("runs/1.4b/3", "me/1.4b-tokens", 2000)
    assert (model.repository, model.revisions, model.subfolders, model.expected) == (None, None, None, ())
    assert model.checkpoints == (
        PublishedCheckpoint("me/final", "main", "", 0, 0, "start"),
        PublishedCheckpoint("me/1.4b", "seed3", "at-5k", 5000, 10**7, None),
        PublishedCheckpoint("me/1.4b", "seed3", "at-10k", 10000, 2 * 10**7, None),
        PublishedCheckpoint("me/1.4b", "seed3", "at-20k", 20000, 4 * 10**7, None),
    )


def test_placeholders_in_a_pattern_stand_for_their_letters(write):
    path = write("name: m", "for: {size: [1.4b]}", "repository: me/m", "subfolders: '{size}/step(?P<step>\\d{1,6})'")
    (model,) = read_suite(path).models
    assert parse_revision("1.4b/step10", model.subfolders)
    assert parse_revision("1x4b/step10", model.subfolders) is None


PATTERN = "revisions: 'step(?P<step>\\d+)'"
ITEM = "  - {repository: me/m, step: 0}"


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (
            ["name: m", "repository: me/m", "revision: x"],
            "expected keys among name, for, repository, revisions, subfolders, checkpoints, tokens_per_step, expected, "
            "tokenizer, run in FILE, model 1, got 'revision'; did you mean 'revisions'?",
        ),
        (
            ["name: m", "checkpoints:", "  - {repository: me/m, steps: 0}"],
            "expected keys among for, repository, revision, subfolder, step, tokens, stage in FILE, model 1, "
            "checkpoint 1, got 'steps'; did you mean 'step'?",
        ),
        (["name: m", "checkpoints:", "  - me/m"], "expected a mapping with keys among for, repository,"),
        (
            ["name: m", "repository: me/m"],
            "expected one of revisions, subfolders and checkpoints in FILE, model 1, got",
        ),
        (
            ["name: m", "repository: me/m", PATTERN, "subfolders: 'step(?P<step>\\d+)'"],
            "got 'revisions, subfolders'; keep one",
        ),
        (["repository: me/m", PATTERN], "expected the key name in FILE, model 1, got None; add it"),
        (["name: m", PATTERN], "expected the key repository in FILE, model 1, got None; add it"),
        (
            ["name: a/b", "repository: me/m", PATTERN],
            "expected a name of letters, digits and . _ + - in FILE, model 1,",
        ),
        (
            ["name: m", "repository: me/m", "revisions: step(?P<stp>.*)"],
            "got stp; write the step as (?P<step>\\d+) (revisions in FILE, model 1)",
        ),
        (
            ["name: m", "repository: me/m", "checkpoints:", ITEM],
            "expected neither repository nor expected beside checkpoints in FILE, model 1, got ['repository']; leave it "
            "to the items",
        ),
        (["name: m", "checkpoints: []"], "expected a list under checkpoints in FILE, model 1, got []; begin each item"),
        (
            ["name: m", "checkpoints:", ITEM, "  - {repository: me/n, step: 0}", "run: m"],
            "expected one checkpoint for each step in FILE, model 1, got 'me/m@main and me/n@main for 0'; make two",
        ),
        (
            ["name: m", "checkpoints:", ITEM, "  - {repository: me/n, step: 1}"],
            "expected the key run for checkpoints of several repositories in FILE, model 1, got 'none'; name the run",
        ),
        (
            ["name: m", "checkpoints:", "  - {repository: me/m}"],
            "expected the key step in FILE, model 1, checkpoint 1,",
        ),
        (
            ["name: m", "checkpoints:", "  - {repository: me/m, step: 0, tokens: many}"],
            "expected a whole number such as 1000, 240k, 1.5T as tokens in FILE, model 1, checkpoint 1, got 'many'",
        ),
        (
            ["name: 'm-{siez}'", "for: {size: [1]}", "repository: me/m", PATTERN],
            "expected placeholders that for lists, under name in FILE, model 1, got 'siez'; did you mean 'size'?",
        ),
        (
            ["name: 'm-{size}'", "repository: me/m", PATTERN],
            "under name in FILE, model 1, got 'size'; known: none",
        ),
        (
            ["name: m", "for: [1]", "repository: me/m", PATTERN],
            "expected a mapping of names to lists under for in FILE,",
        ),
        (
            ["name: m", "for: {size: 7}", "repository: me/m", PATTERN],
            "expected a list under size in FILE, model 1, for,",
        ),
        (
            ["name: 'm-{size}'", "for: {size: [1.4]}", "repository: me/m", PATTERN],
            "expected a text or an integer under size in FILE, model 1, for, got 1.4; put it in quotes",
        ),
        (
            ["name: m", "repository: yes", PATTERN],
            "expected a text or an integer under repository in FILE, model 1, got",
        ),
        (
            ["name: m", "repository: me/m", PATTERN, "expected: ['0..10:3']"],
            "expected a range first..last:step that reaches its last value in FILE, model 1, got '0..10:3'; check its",
        ),
        (
            ["name: m", "repository: me/m", PATTERN, "expected: [one]"],
            "expected a whole number such as 1000, 240k, 1.5T as step in FILE, model 1, got 'one'",
        ),
        (
            ["name: m", "repository: me/m", PATTERN, "tokens_per_step: 0"],
            "expected tokens_per_step of at least 1 in FILE, model 1, got 0; leave it out where it is not known",
        ),
        (
            ["name: m", "for: {size: [1, 2]}", "repository: 'me/{size}'", PATTERN],
            "expected another name for each model in FILE, got 'm' twice; give each its own with the key name",
        ),
        (
            ["name: 'm{size}'", "for: {size: [1, 2]}", "repository: me/m", PATTERN],
            "expected another run for each model in FILE, got 'me/m' twice; give each its own with the key run",
        ),
    ],
    ids=lambda value: None if isinstance(value, list) else value[-40:],
)
def test_a_wrong_model_is_refused_with_file_and_entry(write, lines, message):
    path = write(*lines)
    with pytest.raises(ValueError, match=re.escape(message.replace("FILE", str(path)))):
        read_suite(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected a mapping with keys among title, card, models in FILE, got None; see docs/suites.md"),
        ("titel: x", "expected keys among title, card, models in FILE, got 'titel'; did you mean 'title'?"),
        ("title: x\ncard: y", "expected a list under models in FILE, got None; begin each item with a dash"),
        ("card: y\nmodels: [{name: m, repository: a/b, revisions: '(?P<step>.*)'}]", "expected the key title in FILE,"),
        ("title: [", "expected YAML in FILE, got something that does not parse: while parsing"),
        ("title: !!python/name:os.system", "expected YAML in FILE, got something that does not parse: could not"),
    ],
)
def test_a_wrong_file_is_refused(tmp_path, text, message):
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(ValueError, match=re.escape(message.replace("FILE", str(path)))):
        read_suite(path)


def test_the_page_names_every_shipped_suite_and_how_many_models_it_has():
    page = (ROOT / "docs" / "suites.md").read_text()
    rows = dict(re.findall(r"^\| \[`([\w-]+)`\]\(\.\./configs/suites/\1\.yaml\) \|.*?\| (\d+) \|", page, re.MULTILINE))
    assert rows == {name: str(len(suite.models)) for name, suite in shipped_suites().items()}


def test_the_example_of_the_page_loads(tmp_path):
    (example,) = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs" / "suites.md").read_text(), re.DOTALL)
    path = tmp_path / "mine.yaml"
    path.write_text(example)
    models = find_models([str(path)])
    assert [model.name for model in models] == ["mine-small", "mine-large", "uploaded", "three-repositories"]
    assert models[0].expected == (0, 100, *range(1000, 20001, 1000))
    assert [at.step for at in models[-1].checkpoints] == [0, 10000, 20000]
    # the page explains each key that there is
    keys = {key for model in yaml.safe_load(example)["models"] for key in model}
    assert keys == {
        "name", "for", "repository", "revisions", "subfolders", "checkpoints", "tokens_per_step", "expected", "tokenizer", "run",
    }  # fmt: skip
