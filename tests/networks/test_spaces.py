"""NAS-Bench-201 has the published order, cell strings, classes, costs and meta.json; every space is consistent."""

import hashlib

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from robust201.core.errors import ArchitectureError, ConfigError
from robust201.networks.nb201 import cells as nasbench201
from robust201.networks.nb201.cells import EDGES, N_ARCHITECTURES, OPERATIONS, specs
from robust201.networks.spaces import DEFAULT_SPACE, SPACES, cell_space, find_architecture
from robust201.tasks import TASKS

CELL_INDICES = st.integers(0, N_ARCHITECTURES - 1)
CELL_OPERATIONS = st.tuples(*[st.sampled_from(OPERATIONS)] * len(EDGES))
PUBLISHED_EPSILONS = {
    TASKS[key].published_key: TASKS[key].parameters().strengths for key in ("aa_apgd-ce", "aa_square", "fgsm", "pgd")
}


def test_specs_have_the_published_order():
    specs = nasbench201.specs()
    assert len(set(specs)) == N_ARCHITECTURES
    digest = hashlib.sha256("\n".join(specs).encode()).hexdigest()
    assert digest == "83abc799e45cf34e9d2163654668ab998b9a54d01c39e72ca1f71f2cdf356d84"


def test_isomorphism_classes_equal_published_classes():
    isomorphs = nasbench201.isomorphs()
    evaluated = nasbench201.evaluated_indices()
    assert len(evaluated) == len(set(isomorphs)) == 6466
    assert set(evaluated) == set(isomorphs)
    digest = hashlib.sha1(",".join(map(str, evaluated)).encode()).hexdigest()
    assert digest == "2b5efef3b1e2c9d83c2e719bf428eda58bf736af"
    assert (isomorphs[1832], isomorphs[3365], isomorphs[21]) == (309, 991, 21)
    assert (isomorphs[1651], isomorphs[11472]) == (10, 2528)


@given(CELL_INDICES)
def test_isomorphism_class_is_represented_by_its_lowest_index(index):
    isomorph = nasbench201.isomorphs()[index]
    assert isomorph <= index
    assert nasbench201.isomorphs()[isomorph] == isomorph


@given(CELL_OPERATIONS)
def test_parse_inverts_format_spec(operations):
    spec = nasbench201.format_spec(operations)
    assert nasbench201.parse(spec) == operations
    assert nasbench201.specs()[nasbench201.resolve(spec)] == spec


@given(CELL_INDICES)
def test_resolve_accepts_index_digits_and_string(index):
    for name in (index, str(index), nasbench201.specs()[index]):
        assert nasbench201.resolve(name) == index


@given(st.text(alphabet="|+~012noesk_3x", max_size=60))
@example("+0")
def test_resolve_rejects_invalid_text(text):
    if text.strip().isdecimal():
        return
    with pytest.raises(ArchitectureError, match="failed for"):
        nasbench201.resolve(text)


UNKNOWN_OPERATION = "|nor_conv_3x3~0|+|none~0|none~1|+|none~0|none~1|nor_conv3x3~2|"


@pytest.mark.parametrize("name", [-1, 15_625, "-3", "+3", "9" * 5000, "|none~0|", "resnet", "", UNKNOWN_OPERATION])
def test_resolve_rejects_other_names(name):
    with pytest.raises(ArchitectureError, match=r"index|architecture 0|node 2 to node 3.*Did you mean 'nor_conv_"):
        nasbench201.resolve(name)


def test_constant_nodes_finds_cells_without_a_path():
    cells_without_path = [
        index for index, spec in enumerate(nasbench201.specs()) if 3 in nasbench201.constant_nodes(spec)
    ]
    assert len(cells_without_path) == 341
    assert [index for index in cells_without_path if nasbench201.isomorphs()[index] == index] == [10, 12, 74, 172, 879]


# Parameters, and millions of multiply-accumulates, of the published networks for cifar10, cifar100 and ImageNet16-120.
PUBLISHED_COSTS = {
    0: ((129_306, 15.64737), (135_156, 15.65322), (136_456, 3.91948)),
    1: ((802_426, 113.95137), (808_276, 113.95722), (809_576, 28.49548)),
    9: ((316_346, 43.17249),),
    21: ((372_346, 51.03681),),
    991: ((615_386, 86.42625),),
    1462: ((1_531_546, 220.11969),),
    1651: ((73_306, 7.78305),),
    9930: ((1_288_506, 184.73025),),
    11472: ((559_386, 78.56193),),
    13714: ((1_073_466, 153.27297),),
}


@pytest.mark.parametrize("index", PUBLISHED_COSTS)
def test_costs_equal_published_costs(index):
    spec = nasbench201.specs()[index]
    classes_and_sizes = ((10, 32), (100, 32), (120, 16))
    for (parameters, mega_macs), (n_classes, image_size) in zip(
        PUBLISHED_COSTS[index], classes_and_sizes, strict=False
    ):
        sizes = {"channels": 16, "cells": 5, "n_classes": n_classes}
        assert nasbench201.parameter_count(spec, **sizes) == parameters
        macs = nasbench201.multiply_accumulates(spec, **sizes, image_size=image_size)
        assert macs / 1e6 == pytest.approx(mega_macs, abs=5.1e-6)


def test_meta_text_equals_the_published_file():
    text = nasbench201.meta_text(PUBLISHED_EPSILONS)
    digest = hashlib.sha256(text.encode()).hexdigest()
    assert digest == "54b6d2c2780cfb63de98e9d67e72db9cb0c02be426191d429dbe02c898d4577e"


all_spaces = pytest.mark.parametrize("space", SPACES.values(), ids=lambda space: space.name)


@all_spaces
def test_space_ids_have_the_declared_type(space):
    ids = space.select("evaluated")
    assert len(set(ids)) == len(ids) > 0
    assert all(isinstance(architecture, str if space.has_text_ids else int) for architecture in ids)
    assert all(str(architecture)[0].isalpha() == space.has_text_ids for architecture in ids)
    assert space.resolve(ids[-1]) == ids[-1]
    assert space.select([ids[-1]]) == ids[-1:]
    assert find_architecture(ids[-1]) == (space, ids[-1])
    with pytest.raises(ArchitectureError):
        space.resolve("no-network" if space.has_text_ids else -1)


@all_spaces
def test_space_builds_networks_with_the_declared_shapes(space):
    architecture = space.select("evaluated")[-1]
    assert space.macs(architecture, n_classes=10, image_size=32) > 0
    network = space.build(architecture, n_classes=10).eval()
    shapes = {name: tuple(tensor.shape) for name, tensor in network.state_dict().items()}
    assert space.tensor_shapes(architecture, n_classes=10) in (None, shapes)
    assert network(torch.zeros(2, 3, 32, 32)).shape == (2, 10)


@all_spaces
def test_with_size_is_supported_only_if_declared(space):
    if space.is_sized:
        assert space.with_size(channels=4, cells=1).identity() == {"channels": 4, "cells": 1}
    else:
        with pytest.raises(ConfigError, match=f"the space {space.name}: its networks have a fixed size"):
            space.with_size(channels=4, cells=1)


def test_find_architecture_rejects_ranges_and_unknown_names():
    assert cell_space(DEFAULT_SPACE) is SPACES[DEFAULT_SPACE]
    for name in ("0-9", "resnet19", "|none~0|"):
        with pytest.raises(ArchitectureError):
            find_architecture(name)


@given(CELL_INDICES)
def test_neighbours_differ_on_one_edge(index):
    spec = specs()[index]
    neighbours = nasbench201.neighbours(spec)
    assert len({spec, *(neighbour for _, _, neighbour in neighbours)}) == 25
    for edge, operation, neighbour in neighbours:
        assert nasbench201.edit_distance(spec, neighbour) == 1
        assert nasbench201.parse(neighbour)[edge] == operation
