"""Labs in study files: equal and different nodes, machines by name, prices, and errors."""

import pytest

from trainoff import engines, study
from trainoff.errors import TrainoffError
from trainoff.study.machines import NodeSpec, nodes_of, shipped

HEAD = """
workload = "digits-mlp"
engines = ["numpy", "torch-ddp"]
[cluster]
kind = "lab"
"""


def trials(tmp_path, text):
    path = tmp_path / "lab.toml"
    path.write_text(text if "workload" in text else HEAD + text)
    return study.read(path, engines.facts()).trials()


def distributed(tmp_path, text):
    return [trial for trial in trials(tmp_path, text) if trial.engine == "torch-ddp"]


def test_equal_nodes(tmp_path):
    found = trials(tmp_path, "cores = 0.1\nmemory_gb = 1\nbandwidth_mbit = 1000\n[grid]\nnodes = [1, 17]")
    assert sorted((trial.engine, trial.workers) for trial in found) == [
        ("numpy", 1),
        ("torch-ddp", 1),
        ("torch-ddp", 17),
    ]
    (large,) = [trial for trial in found if trial.workers == 17]
    assert nodes_of(large) == [NodeSpec(0.1, 1.0, 1000.0)] * 17


def test_a_machine_by_its_name_and_scale(tmp_path):
    (trial,) = distributed(tmp_path, 'nodes = 2\nmachine = "m4.xlarge"\nscale = 0.1\nmemory_scale = 0.2')
    assert nodes_of(trial) == [NodeSpec(0.4, 3.2)] * 2
    assert (trial.cores, trial.memory_gb, trial.params["machine"]) == (0.4, 3.2, "m4.xlarge")


def test_keys_of_the_study_override_the_machine(tmp_path):
    (trial,) = distributed(tmp_path, 'nodes = 2\nmachine = "m4.xlarge"\nscale = 0.1\ncores = 0.2')
    assert nodes_of(trial) == [NodeSpec(0.2, 1.6)] * 2


def test_different_nodes(tmp_path):
    nodes = 'nodes = [{ cores = 0.5, memory_gb = 2 }, { machine = "c3.xlarge", bandwidth_mbit = 10 }]\nscale = 0.05'
    (trial,) = distributed(tmp_path, nodes)
    assert nodes_of(trial) == [NodeSpec(0.5, 2.0), NodeSpec(0.2, 0.375, 10.0)]
    assert (trial.workers, trial.cores, trial.memory_gb) == (2, 0.5, 0.375)


def test_nodes_inherit_what_they_leave_out(tmp_path):
    sizes = "cores = 0.1\nmemory_gb = 4\nnodes = [{ cores = 0.5, memory_gb = 2 }, { bandwidth_mbit = 10 }]"
    (trial,) = distributed(tmp_path, sizes)
    assert nodes_of(trial) == [NodeSpec(0.5, 2.0), NodeSpec(0.1, 4.0, 10.0)]
    (trial,) = distributed(tmp_path, 'cores = 0.2\nmachine = "m4.xlarge"\nscale = 0.1\nnodes = [{}, { cores = 0.3 }]')
    assert nodes_of(trial) == [NodeSpec(0.2, 1.6), NodeSpec(0.3, 1.6)]
    (trial,) = distributed(tmp_path, "cores = 0.2\nnodes = [{}, { memory_gb = 1 }]")
    assert nodes_of(trial) == [NodeSpec(0.2), NodeSpec(0.2, 1.0)]


def test_a_larger_first_node(tmp_path):
    (trial,) = distributed(tmp_path, "cores = 0.1\nmemory_gb = 1\nnodes = 3\nfirst = { memory_gb = 3 }")
    assert nodes_of(trial) == [NodeSpec(0.1, 3.0), NodeSpec(0.1, 1.0), NodeSpec(0.1, 1.0)]
    (alone,) = [each for each in trials(tmp_path, "memory_gb = 1\nfirst = { memory_gb = 3 }") if each.engine == "numpy"]
    assert nodes_of(alone) == [NodeSpec(1.0, 3.0)]


def test_an_own_machine(tmp_path):
    own = "[machine.box]\ncores = 2\nmemory_gb = 4\nbandwidth_mbit = 100"
    (trial,) = distributed(tmp_path, f'machine = "box"\nscale = 0.5\n{own}')
    assert nodes_of(trial) == [NodeSpec(1.0, 2.0, 100.0)]


def test_nodes_have_the_price_of_their_machines(tmp_path):
    (trial,) = distributed(tmp_path, 'machine = "m4.xlarge"\nscale = 0.1\nnodes = 3')
    assert trial.usd_per_hour == pytest.approx(3 * 0.02)
    (trial,) = distributed(tmp_path, 'nodes = [{ machine = "m4.xlarge" }, { machine = "c3.xlarge" }]\nscale = 0.5')
    assert trial.usd_per_hour == pytest.approx((0.2 + 0.21) / 2)
    (trial,) = distributed(tmp_path, 'machine = "m4.xlarge"\nfirst = { machine = "m4.2xlarge" }\nnodes = 2')
    assert trial.usd_per_hour == pytest.approx(0.6)
    own = "[machine.box]\ncores = 2\nmemory_gb = 4"
    (trial,) = distributed(tmp_path, f'machine = "box"\n{own}\nusd_per_hour = 1.5')
    assert trial.usd_per_hour == 1.5
    for text in (f'machine = "box"\n{own}', f'nodes = [{{ machine = "box" }}, {{ machine = "m4.xlarge" }}]\n{own}'):
        assert distributed(tmp_path, text)[0].usd_per_hour is None, "an unknown price of one node makes the sum unknown"
    (alone,) = [each for each in trials(tmp_path, 'machine = "m4.xlarge"\nnodes = 3') if each.engine == "numpy"]
    assert alone.usd_per_hour == 0.2


def test_a_trials_id_does_not_depend_on_prices(tmp_path):
    own = 'machine = "box"\n[machine.box]\ncores = 2\nmemory_gb = 4\nusd_per_hour = '
    (cheap,), (expensive,) = (distributed(tmp_path, f"{own}{price}") for price in (1, 2))
    assert cheap.id() == expensive.id()
    assert "usd_per_hour" not in cheap.params


def test_trials_without_a_lab_have_no_keys_of_labs(tmp_path):
    text = HEAD.replace('[cluster]\nkind = "lab"', "")
    assert not {"nodes", "machine", "scale", "bandwidth_mbit"} & set(trials(tmp_path, text)[0].params)


def test_the_catalogue_has_the_eleven_types_of_the_study():
    assert len(shipped()) == 11
    assert shipped()["r3.4xlarge"] == {"cores": 16, "memory_gb": 122, "usd_per_hour": 1.33}


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('machine = "m4.xlage"', r"line 6: `m4.xlage` is not a machine; did you mean `m4.xlarge`\?"),
        ('nodes = [{ machine = "big" }]', r"line 6: `big` is not a machine; the machines are"),
        ("nodes = 0", r"line 6: `nodes` is 0; expected a whole number from 1 to 1,000"),
        ("nodes = [{ core = 1 }]", r"line 6: `core` is not a key of `nodes`"),
        ("nodes = 2\n[params]\nworkers = 3", r"line 6: a lab has one worker on each of its nodes; leave out `workers`"),
        ("nodes = 3\nscale = 0.5", r"line 7: `scale` is of a machine, and none is named"),
        ("nodes = [{ cores = 1 }]\nfirst = { cores = 2 }", r"line 7: `first` is one of nodes that are alike"),
        ("[machine.box]\ncores = 2", r"line 6: machine `box` lacks `memory_gb`"),
        ("bandwidth_mbit = -1", r"line 6: `bandwidth_mbit` is -1; expected a number above 0"),
    ],
)
def test_mistakes(tmp_path, text, sentence):
    with pytest.raises(TrainoffError, match=sentence):
        trials(tmp_path, text)


def test_keys_of_labs_are_errors_elsewhere(tmp_path):
    with pytest.raises(TrainoffError, match=r'line 5: `nodes` is of an emulated cluster; write kind = "lab"'):
        trials(tmp_path, HEAD.replace('kind = "lab"', "nodes = 3"))
