"""A tree of control groups of the second version that keeps the kernel's rules, on any disk."""

from __future__ import annotations

import errno
import os
from pathlib import Path

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


class Tree(type(Path())):
    """A group: files that the kernel makes, and rules about what may be written into them."""

    @staticmethod
    def grown(path: Path, controllers: str = "cpu memory pids") -> Tree:
        """The top of a tree, which has these controllers."""
        root = Tree(path)
        for name, text in ALWAYS.items():
            Path(path, name).write_text(text)
        Path(path, "cgroup.controllers").write_text(controllers)
        Path(path, ".top").touch()
        return root

    def mkdir(self, mode: int = 0o777, parents: bool = False, exist_ok: bool = False) -> None:
        if self.exists() and exist_ok:
            return
        if not self.parent.exists() and parents:
            Tree(self.parent).mkdir(parents=True)
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
            raise PermissionError(errno.EACCES, "Permission denied")  # the kernel makes files, and nobody else
        if self.name == "cgroup.subtree_control":
            return self._hand_on(data)
        if self.name == "cgroup.procs":
            return self._move(data.strip())
        if self.name == "cpu.max" and data != "max":
            quota, period = map(int, data.split())
            if quota < 1000 or not 1000 <= period <= 1_000_000:
                raise OSError(errno.EINVAL, "Invalid argument")
        return Path(self).write_text(data)

    def _hand_on(self, data: str) -> int:
        group = Path(self.parent)
        if Path(group, "cgroup.procs").read_text().split() and not Path(group, ".top").exists():
            raise OSError(errno.EBUSY, "Device or resource busy")  # it has processes of its own
        wanted = [word.removeprefix("+") for word in data.split()]
        if missing := set(wanted) - set(Path(group, "cgroup.controllers").read_text().split()):
            raise OSError(errno.ENOENT, f"No such file or directory: {missing}")
        before = Path(self).read_text().split()
        for inner in (each for each in group.iterdir() if each.is_dir()):  # groups that are there get the files, too
            for name in wanted:
                for file, text in OF_CONTROLLER.get(name, {}).items():
                    if name not in before:
                        Path(inner, file).write_text(text)
            Path(inner, "cgroup.controllers").write_text(" ".join(dict.fromkeys([*before, *wanted])))
        return Path(self).write_text(" ".join(dict.fromkeys([*before, *wanted])))

    def _move(self, pid: str) -> int:
        group = Path(self.parent)
        if Path(group, "cgroup.subtree_control").read_text().split() and not Path(group, ".top").exists():
            raise OSError(errno.EBUSY, "Device or resource busy")  # it hands resources on
        root = next(each for each in (group, *group.parents) if Path(each, ".top").exists())
        for folder, _, _ in os.walk(root):
            file = Path(folder, "cgroup.procs")
            file.write_text("".join(f"{each}\n" for each in file.read_text().split() if each != pid))
        return Path(self).write_text(Path(self).read_text() + f"{pid}\n")
