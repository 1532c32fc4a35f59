"""Control groups of a lab's nodes: the second version by a tree that keeps its rules, the first for real."""

import errno
from pathlib import Path

import pytest

from cgroup_tree import Tree
from trainoff.clusters.lab.cgroups import ASIDE, OURS, CgroupsV2, Usage, find_groups, groups_at, own_group, quota_of
from trainoff.errors import TrainoffError


@pytest.fixture
def top(tmp_path):
    return Tree.grown(tmp_path)


def test_a_node_gets_its_share_and_its_limit(top):
    group = CgroupsV2.found(top).make("1-2-0", "node-0")
    group.set_cores(0.4)
    group.set_memory(2**30)
    path = Path(top, OURS, "1-2-0", "node-0")
    assert [Path(path, name).read_text() for name in ("cpu.max", "memory.max", "memory.swap.max")] == [
        "8000 20000",
        str(2**30),
        "0",
    ]
    assert group.throttled
    group.set_cores(None)
    assert (Path(path, "cpu.max").read_text(), group.throttled) == ("max", False)


def test_what_a_node_used_is_read_from_the_kernels_counters(top):
    group = CgroupsV2.found(top).make("1-2-0", "node-0")
    path = Path(top, OURS, "1-2-0", "node-0")
    Path(path, "cpu.stat").write_text("usage_usec 2500000\nnr_throttled 3\nthrottled_usec 750000\n")
    Path(path, "memory.stat").write_text("anon 4096\nfile 8192\n")
    Path(path, "memory.peak").write_text("12288\n")
    Path(path, "memory.events").write_text("oom 1\noom_kill 1\n")
    assert group.usage() == Usage(2.5, 0.75, 4096, 12288, 1)
    Path(path, "memory.peak").unlink()  # as on a kernel before 5.19
    Path(path, "memory.current").write_text("8192\n")
    assert group.usage().peak_memory_bytes == 8192


def test_a_process_moves_in_by_its_files(top):
    group = CgroupsV2.found(top).make("1-2-0", "node-0")
    for file in group.process_files:
        file.write_text("77")
    assert group.pids() == CgroupsV2.found(top).pids("1-2-0") == [77]


def test_a_user_to_whom_a_group_was_handed_steps_aside_in_it(top):
    Tree(top, "cgroup.subtree_control").write_text("+cpu +memory")
    own = Tree(top, "user.scope")
    own.mkdir()
    Tree(own, "cgroup.procs").write_text("1001")
    Tree(own, "cgroup.procs").write_text("1002")
    Path(top, "cgroup.subtree_control").write_text("pids")  # the top is not ours, and hands nothing on
    Path(top, "cgroup.controllers").write_text("pids")
    groups = CgroupsV2.found(top, own)
    assert groups.place == Path(own, OURS)
    groups.make("1-2-0", "node-0").set_cores(0.5)
    assert Path(own, ASIDE, "cgroup.procs").read_text().split() == ["1001", "1002"]
    told = Path(top, "told")
    told.write_text(f"0::/user.scope/{ASIDE}\n")  # as the kernel says it from then on
    again = CgroupsV2.found(top, Tree(own_group(top, told)))
    assert (again.place, again.labs()) == (groups.place, ["1-2-0"])


def test_nothing_is_left_when_a_lab_is_removed(top):
    groups = CgroupsV2.found(top)
    before = sorted(Path(top).iterdir())
    for lab in ("1-2-0", "1-2-1"):
        for node in ("node-0", "node-1"):
            groups.make(lab, node)
    groups.remove("1-2-0")
    assert groups.labs() == ["1-2-1"]
    groups.remove("1-2-1")
    assert sorted(Path(top).iterdir()) == before


def test_a_group_that_still_has_processes_is_not_given_up_on_in_silence(top, monkeypatch):
    monkeypatch.setattr("trainoff.clusters.lab.cgroups.LEAVE_S", 0.0)
    groups = CgroupsV2.found(top)
    group = groups.make("1-2-0", "node-0")
    group.process_files[0].write_text("77")
    with pytest.raises(OSError, match="busy") as raised:
        groups.remove("1-2-0")
    assert raised.value.errno == errno.EBUSY


def test_another_process_finds_the_same_groups(top):
    groups = CgroupsV2.found(top)
    groups.make("1-2-0", "node-0")
    assert groups_at(groups.version, groups.place).labs() == ["1-2-0"]


def test_without_controllers_there_is_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setattr("trainoff.clusters.lab.cgroups.own_group", lambda root: root)  # not this machine's
    with pytest.raises(TrainoffError, match=r"may not make control groups here \(No such file"):
        find_groups(Tree.grown(tmp_path, controllers="pids"))
    with pytest.raises(TrainoffError, match="needs control groups with cpu and memory"):
        find_groups(tmp_path / "nowhere")


def test_the_own_group_is_found_among_those_of_the_first_version(tmp_path):
    told = tmp_path / "cgroup"
    told.write_text("4:memory:/a\n0::/user.slice/b.scope\n")
    assert own_group(Path("/sys"), told) == Path("/sys/user.slice/b.scope")


@pytest.mark.parametrize(("cores", "expected"), [(0.4, (8000, 20000)), (1.6, (32000, 20000)), (0.01, (1000, 100000))])
def test_a_quota_is_as_fine_as_the_kernel_allows(cores, expected):
    assert quota_of(cores) == expected
