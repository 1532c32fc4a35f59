"""Control groups of a lab's nodes: version 2 by an emulated tree, version 1 by the kernel's."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from trainoff.clusters.lab.cgroups import ASIDE, OURS, CgroupsV2, Usage, current_group, find_groups, groups_at, quota_of
from trainoff.errors import TrainoffError

ALWAYS = {"cgroup.procs": "", "cgroup.controllers": "", "cgroup.subtree_control": "", "cpu.stat": "usage_usec 0\n"}
OF_CONTROLLER = {
    "cpu": {"cpu.max": "max 100000\n", "cpu.stat": "usage_usec 0\nnr_throttled 0\nthrottled_usec 0\n"},
    "memory": {
        "memory.max": "max\n",
        "memory.swap.max": "max\n",
        "memory.current": "0\n",
        "memory.peak": "0\n",
        "memory.stat": "anon 0\nfile 0\n",
        "memory.events": "low 0\nhigh 0\nmax 0\noom 0\noom_kill 0\n",
    },
}


class CgroupTree(type(Path())):
    """A control group, version 2, emulated on any file system: its files, and the kernel's rules for writes."""

    @staticmethod
    def create(path: Path, controllers: str = "cpu memory pids") -> CgroupTree:
        """Return the root of a tree with these controllers."""
        root = CgroupTree(path)
        for name, text in ALWAYS.items():
            Path(path, name).write_text(text)
        Path(path, "cgroup.controllers").write_text(controllers)
        Path(path, ".top").touch()
        return root

    def mkdir(self, mode: int = 0o777, parents: bool = False, exist_ok: bool = False) -> None:
        if self.exists() and exist_ok:
            return
        if not self.parent.exists() and parents:
            CgroupTree(self.parent).mkdir(parents=True)
        super().mkdir(mode)
        given = Path(self.parent, "cgroup.subtree_control").read_text().split()
        files = dict(ALWAYS)
        for controller in given:
            files |= OF_CONTROLLER.get(controller, {})
        for name, text in files.items():
            Path(self, name).write_text(text)
        Path(self, "cgroup.controllers").write_text(" ".join(given))

    def rmdir(self) -> None:
        if Path(self, "cgroup.procs").read_text().split() or any(each.is_dir() for each in Path(self).iterdir()):
            raise OSError(errno.EBUSY, "Device or resource busy")
        for file in Path(self).iterdir():
            file.unlink()
        super().rmdir()

    def write_text(self, data: str, *rest: object, **more: object) -> int:
        if not self.exists():
            raise PermissionError(errno.EACCES, "Permission denied")  # only the kernel makes files
        if self.name == "cgroup.subtree_control":
            return self._enable_controllers(data)
        if self.name == "cgroup.procs":
            return self._add_process(data.strip())
        if self.name == "cpu.max" and data != "max":
            quota, period = map(int, data.split())
            if quota < 1000 or not 1000 <= period <= 1_000_000:
                raise OSError(errno.EINVAL, "Invalid argument")
        return Path(self).write_text(data)

    def _enable_controllers(self, data: str) -> int:
        group = Path(self.parent)
        if Path(group, "cgroup.procs").read_text().split() and not Path(group, ".top").exists():
            raise OSError(errno.EBUSY, "Device or resource busy")  # it has processes
        wanted = [controller.removeprefix("+") for controller in data.split()]
        if missing := set(wanted) - set(Path(group, "cgroup.controllers").read_text().split()):
            raise OSError(errno.ENOENT, f"No such file or directory: {missing}")
        before = Path(self).read_text().split()
        for inner in (each for each in group.iterdir() if each.is_dir()):  # existing groups get the files, too
            for name in wanted:
                for file, text in OF_CONTROLLER.get(name, {}).items():
                    if name not in before:
                        Path(inner, file).write_text(text)
            Path(inner, "cgroup.controllers").write_text(" ".join(dict.fromkeys([*before, *wanted])))
        return Path(self).write_text(" ".join(dict.fromkeys([*before, *wanted])))

    def _add_process(self, pid: str) -> int:
        group = Path(self.parent)
        if Path(group, "cgroup.subtree_control").read_text().split() and not Path(group, ".top").exists():
            raise OSError(errno.EBUSY, "Device or resource busy")  # its controllers are enabled below
        root = next(each for each in (group, *group.parents) if Path(each, ".top").exists())
        for folder, _, _ in os.walk(root):
            file = Path(folder, "cgroup.procs")
            file.write_text("".join(f"{each}\n" for each in file.read_text().split() if each != pid))
        return Path(self).write_text(Path(self).read_text() + f"{pid}\n")


@pytest.fixture
def top(tmp_path):
    return CgroupTree.create(tmp_path)


def test_a_node_has_its_cpu_quota_and_memory_limit(top):
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


def test_usage_is_read_from_the_kernels_counters(top):
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


def test_a_process_is_added_by_writing_its_pid(top):
    group = CgroupsV2.found(top).make("1-2-0", "node-0")
    for file in group.process_files:
        file.write_text("77")
    assert group.pids() == CgroupsV2.found(top).pids("1-2-0") == [77]


def test_a_delegated_group_moves_its_processes_into_a_child_group(top):
    CgroupTree(top, "cgroup.subtree_control").write_text("+cpu +memory")
    own = CgroupTree(top, "user.scope")
    own.mkdir()
    CgroupTree(own, "cgroup.procs").write_text("1001")
    CgroupTree(own, "cgroup.procs").write_text("1002")
    Path(top, "cgroup.subtree_control").write_text("pids")  # the root is not ours and enables nothing below it
    Path(top, "cgroup.controllers").write_text("pids")
    groups = CgroupsV2.found(top, own)
    assert groups.place == Path(own, OURS)
    groups.make("1-2-0", "node-0").set_cores(0.5)
    assert Path(own, ASIDE, "cgroup.procs").read_text().split() == ["1001", "1002"]
    listing = Path(top, "listing")
    listing.write_text(f"0::/user.scope/{ASIDE}\n")  # as the kernel lists it from then on
    again = CgroupsV2.found(top, CgroupTree(current_group(top, listing)))
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


def test_removing_a_group_that_still_has_processes_raises(top, monkeypatch):
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


def test_missing_controllers_are_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr("trainoff.clusters.lab.cgroups.current_group", lambda root: root)  # not this machine's
    with pytest.raises(TrainoffError, match=r"may not make control groups here \(No such file"):
        find_groups(CgroupTree.create(tmp_path, controllers="pids"))
    with pytest.raises(TrainoffError, match="needs control groups with cpu and memory"):
        find_groups(tmp_path / "nowhere")


def test_the_own_group_is_found_beside_version_1_groups(tmp_path):
    listing = tmp_path / "cgroup"
    listing.write_text("4:memory:/a\n0::/user.slice/b.scope\n")
    assert current_group(Path("/sys"), listing) == Path("/sys/user.slice/b.scope")


@pytest.mark.parametrize(("cores", "expected"), [(0.4, (8000, 20000)), (1.6, (32000, 20000)), (0.01, (1000, 100000))])
def test_a_quota_respects_the_kernels_limits(cores, expected):
    assert quota_of(cores) == expected
