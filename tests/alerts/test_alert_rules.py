"""Rules as they are written: refused where they make no sense, read as they were written."""

import re

import pytest

from repdyn.alerts import RULES, Rule, as_yaml, read_rules, resolve_rules, stored_rules, write_rules

SOUND = {"name": "mine", "when": "falls", "bound": 0.5, "metrics": ("two_nn",)}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"when": "sinks"},
            "expected a rule to have when: undefined | falls | rises | above | below | jumps, got 'sinks' in 'mine'",
        ),
        ({"bound": None}, "expected a bound between 0 and 1 with when: falls, got None in 'mine'"),
        ({"bound": 1.0}, "expected a bound between 0 and 1 with when: falls, got 1.0 in 'mine'"),
        ({"bound": "half"}, "expected a bound between 0 and 1 with when: falls, got 'half' in 'mine'"),
        ({"bound": True}, "expected a bound between 0 and 1 with when: falls, got True in 'mine'"),
        ({"bound": float("nan")}, "expected a bound between 0 and 1 with when: falls, got nan in 'mine'"),
        ({"when": "jumps", "bound": 1}, "expected a bound between 1 and inf with when: jumps, got 1 in 'mine'"),
        ({"when": "undefined"}, "expected no bound with when: undefined, got 0.5 in 'mine'; leave it out"),
        ({"name": 1}, "expected a rule to have a name of printable text, got 1"),
        ({"name": "a\nb"}, "expected a rule to have a name of printable text, got 'a\\nb'"),
        (
            {"when": ["above"]},
            "expected a rule to have when: undefined | falls | rises | above | below | jumps, got ['above'] in 'mine'",
        ),
        ({"bound": 10**400}, "expected a bound between 0 and 1 with when: falls, got 1000"),
        ({"name": ""}, "expected a rule to have a name and metrics, got name '', metrics ('two_nn',)"),
        ({"metrics": ()}, "expected a rule to have a name and metrics, got name 'mine', metrics ()"),
        ({"metrics": [1]}, "expected metrics of the rule 'mine' to be a list of names, got [1]"),
        ({"subsets": {"all": 1}}, "expected subsets of the rule 'mine' to be a list of names, got {'all': 1}"),
        ({"stop": "yes"}, "expected stop: true or false, got 'yes' in 'mine'"),
    ],
)
def test_invalid_rules(change, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        Rule(**{**SOUND, **change})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name: mine", "expected a list of rules in {path}, got dict; begin each with '- name: ...'"),
        (
            "- falls",
            "{path}: expected each rule to be a mapping with name, when, metrics, bound, subsets, stop, got 'falls'",
        ),
        (
            "- {name: a, when: falls}",
            "{path}: expected a rule to have name, when and metrics, got no metrics in ",
        ),
        (
            "- {name: a, when: falls, metric: two_nn}",
            "{path}: expected a rule to have name, when, metrics, bound, subsets, stop, got 'metric'",
        ),
        (
            "- {name: a, when: undefined, metrics: '*'}\n- {name: a, when: undefined, metrics: '*'}",
            "{path}: expected rules with distinct names, got 'a' twice",
        ),
        ("- !!python/object:os.system x", "expected YAML in {path}, got something that does not parse: "),
    ],
)
def test_invalid_files(text, message, tmp_path):
    path = tmp_path / "alerts.yaml"
    path.write_text(text)
    with pytest.raises(ValueError, match=re.escape(message.format(path=path))):
        read_rules(path)


def test_rules_are_read_as_written(tmp_path):
    rules = (*RULES, Rule(name="halt", when="above", bound=0.99, metrics=("anisotropy",), stop=True))
    rules += (Rule(name="zero", when="below", bound=0.0, metrics=("isoscore",), subsets=("all", "rare")),)
    write_rules(rules, tmp_path / "alerts.yaml")
    assert read_rules(tmp_path / "alerts.yaml") == stored_rules(tmp_path / "alerts.yaml") == rules
    assert (tmp_path / "alerts.yaml").read_text() == as_yaml(rules)


def test_an_empty_list_of_rules(tmp_path):
    write_rules((), tmp_path / "alerts.yaml")
    assert stored_rules(tmp_path / "alerts.yaml") == ()
    assert stored_rules(tmp_path / "missing.yaml") == RULES


def test_arguments_that_stand_for_rules(tmp_path):
    write_rules(RULES[:2], tmp_path / "mine.yaml")
    assert resolve_rules("default") == RULES
    assert resolve_rules(None) == ()
    assert resolve_rules(str(tmp_path / "mine.yaml")) == resolve_rules(tmp_path / "mine.yaml") == RULES[:2]
    assert resolve_rules(list(RULES[1:])) == RULES[1:]
    with pytest.raises(ValueError, match=r"expected rules as repdyn\.alerts\.Rule, got 'two_nn'"):
        resolve_rules(["two_nn"])
    with pytest.raises(ValueError, match="expected rules with distinct names, got 'no value' twice"):
        resolve_rules([RULES[0], RULES[0]])


def test_patterns_of_metrics():
    rule = Rule(name="a", when="undefined", metrics="gride_*", subsets="all")
    assert rule.applies_to("gride_2", "all")
    assert not rule.applies_to("gride_2", "no_sink")
    assert not rule.applies_to("two_nn", "all")
    assert not rule.applies_to("gride_2", None)
