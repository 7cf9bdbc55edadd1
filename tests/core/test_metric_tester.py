"""Every metric against its definition, whatever the precision, the device and the coordinates."""

from dataclasses import replace

import pytest
import torch
from hostile import HOSTILE
from metric_cases import CASES, as_clouds, one, two
from metric_tester import DTYPES, MetricTester, case_tester
from pairs import after_a_block

from repdyn.kernels import UndefinedError, cloud
from repdyn.metrics import METRICS

each_metric = pytest.mark.parametrize("name", CASES)


def test_every_metric_has_a_case():
    """A metric that is registered without one would be tested by nothing."""
    assert CASES.keys() == METRICS.keys()


@each_metric
def test_the_value_is_the_definition_in_float64(name):
    for dtype in DTYPES:
        case_tester(name).check_definition(dtype)


@each_metric
def test_changes_of_the_coordinates_move_it_where_its_case_says_so(name):
    case_tester(name).check_invariances()


@each_metric
def test_where_there_is_no_value_there_is_a_code(name):
    case_tester(name).check_undefined()


@each_metric
def test_many_chunks_give_the_value_of_one(name, monkeypatch):
    case_tester(name).check_chunks(monkeypatch)


@each_metric
def test_the_surroundings_of_a_call_matter_neither_to_it_nor_are_they_changed(name):
    case_tester(name).check_surroundings()


@each_metric
def test_the_value_is_that_of_the_cpu_on_a_device(name):
    case_tester(name).check_device()


# they have no value on some of these clouds, or take directions of rounding for none
OTHERS = {"massive_activation_share", "alpha_req", "linearity", "linearity_step"}
OF_CLOUDS = [
    name
    for name, case in CASES.items()
    if case.inputs in (one, two) and case.wrap is as_clouds and name not in OTHERS
]


@pytest.mark.parametrize("hostile", ["gaussian", "low_rank", "std_500", "sinks", "scale_1e-6"])
@pytest.mark.parametrize("name", OF_CLOUDS)
def test_clouds_that_break_a_careless_kernel(name, hostile):
    x = HOSTILE[hostile]()
    inputs = [x] if CASES[name].inputs is one else [x, after_a_block(x)]
    # directions that rounding makes up add to the sum of singular values
    case_tester(name).check_value(inputs, 2e-3 if name == "effective_rank" else 1e-6)


def sabotaged(name, change):
    """Return the tester of a metric whose kernel is another: ``change`` of it and its inputs."""
    metric = METRICS[name]

    def kernel(*inputs, **settings):
        return change(metric.function.or_raise, *inputs, **settings)

    return MetricTester(replace(metric, kernel=kernel), CASES[name])


def without_codes(kernel, *inputs, **settings):
    try:
        return kernel(*inputs, **settings)
    except UndefinedError as error:
        raise UndefinedError(error.reason) from error


def zero_if_undefined(kernel, *inputs, **settings):
    try:
        return kernel(*inputs, **settings)
    except UndefinedError:
        return torch.zeros((), dtype=torch.float64)


MISTAKES = {
    "it depends on where the origin is": (
        "check_invariances",
        lambda kernel, x, **settings: kernel(x, **settings) * (1 + 1e-4 * x.x.double().mean()),
    ),
    "its reasons have no code": ("check_undefined", without_codes),
    "it has a value where there is none": ("check_undefined", zero_if_undefined),
    "it leaves the device": (
        "check_device",
        lambda kernel, x, **settings: kernel(x, **settings).cpu(),
    ),
    "it takes the user's default precision": (
        "check_surroundings",
        lambda kernel, x, **settings: kernel(x, **settings).to(torch.get_default_dtype()),
    ),
    "it forgets all chunks but the first": (
        "check_chunks",
        lambda kernel, x, **settings: kernel(x.x[: cloud._CHUNK // 20], **settings),
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_the_tester_notices_a_mistake(mistake, monkeypatch):
    """A tester that accepts anything would be worse than none."""
    check, change = MISTAKES[mistake]
    arguments = [monkeypatch] if check == "check_chunks" else []
    with pytest.raises(AssertionError):
        getattr(sabotaged("anisotropy", change), check)(*arguments)


@pytest.mark.parametrize(
    "name",
    ["two_nn", "components_90", "linearity", "token_rank", "attention_evenness", "curvature"],
)
def test_the_tester_notices_a_thousandth(name):
    tester = sabotaged(name, lambda kernel, *inputs, **how: 1.001 * kernel(*inputs, **how))
    for dtype in DTYPES:
        with pytest.raises(AssertionError):
            tester.check_definition(dtype)
    as_float32 = sabotaged(name, lambda kernel, *inputs, **how: kernel(*inputs, **how).float())
    with pytest.raises(AssertionError):
        as_float32.check_definition(torch.float64)
