"""The process's environment: its cores, and TensorFlow's noise and XLA before it is imported.

TensorFlow reads its variables once, when it is loaded. This module imports none of it, and only
entry scripts prepare the environment.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.abc
import importlib.machinery
import importlib.util
import logging
import math
import os
import platform
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Callable


def prepare_environment(*, verbose: bool, use_xla: bool) -> None:
    """Sets what TensorFlow reads when it is imported. Variables that the user set are kept.

    Args:
      verbose: let TensorFlow's start-up and deprecation messages through.
      use_xla: let XLA cluster, on CPUs too, what ``XLA_FLAGS`` says.
    """
    if "tensorflow" in sys.modules:
        raise RuntimeError("prepare_environment must run before TensorFlow is imported")
    if not verbose:
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
        logging.getLogger("tensorflow").setLevel(logging.ERROR)
        logging.getLogger("absl").setLevel(logging.ERROR)
        warnings.filterwarnings("ignore")
        sys.meta_path.insert(0, _QuietLoading())
    if use_xla:
        flags = os.environ.get("TF_XLA_FLAGS", "")
        os.environ["TF_XLA_FLAGS"] = f"{XLA_FLAGS} {flags}".strip()


class _QuietLoading(importlib.abc.MetaPathFinder):
    """Turns stderr away while TensorFlow is loaded, whenever that is.

    Its C++ half writes to the descriptor itself, before it has read its own settings.
    """

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """TensorFlow's spec, with a loader that says nothing; None for all other modules."""
        del path, target  # a package at the top has neither
        if name != "tensorflow":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)  # of the finders after this one
        if spec is not None and spec.loader is not None:
            spec.loader.exec_module = functools.partial(_quietly, spec.loader.exec_module)
        return spec


def _quietly(load: Callable[[ModuleType], None], module: ModuleType) -> None:
    with stderr_turned_away():
        load(module)


@contextlib.contextmanager
def stderr_turned_away() -> Iterator[None]:
    """What is written to the descriptor of stderr meanwhile, past every log level, is lost."""
    sys.stderr.flush()
    kept = os.dup(_STDERR)
    try:
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), _STDERR)
        yield
    finally:
        os.dup2(kept, _STDERR)
        os.close(kept)


_STDERR = 2


# On CPUs, which auto-clustering leaves alone otherwise; and what lies between matrix products.
# Compiled for a CPU these are several times slower than TensorFlow's, which are oneDNN's. They part
# the clusters, so that a gradient can leave for other ranks as soon as its layer is done. Of random
# numbers those of dropout alone are the same in XLA: initial values would not be what a seed means.
XLA_FLAGS = (
    "--tf_xla_cpu_global_jit --tf_xla_ops_to_cluster=FUSIBLE,StatelessRandomUniformFullIntV2"
)


def launched_rank() -> int:
    """The number that a launcher gave this process among those that it started; 0 without one."""
    variable = launcher_variable(os.environ)
    return 0 if variable is None else int(variable.partition("=")[2])


def launcher_variable(variables: Mapping[str, str]) -> str | None:
    """``NAME=rank`` as a launcher set it for this process; None without one."""
    return next(
        (f"{n}={variables[n]}" for n in _LAUNCHERS_RANKS if variables.get(n, "").isdigit()), None
    )


# Set by Open MPI, by Horovod's Gloo launcher, by MPICH and by Slurm for each process they start.
_LAUNCHERS_RANKS = ("OMPI_COMM_WORLD_RANK", "HOROVOD_RANK", "PMI_RANK", "SLURM_PROCID")


def limit_stalls(timeout_seconds: float) -> None:
    """Sets after how long Horovod warns of ranks that others wait for, and when it gives up.

    It cannot tell a rank that hangs from one that works on its own for long, and so has a multiple
    of the time, and two minutes at least. To be called before Horovod starts. Variables that the
    user set are kept; 0 changes nothing.
    """
    if timeout_seconds:
        give_up = max(_STALLED_TIMEOUTS * timeout_seconds, _LEAST_STALL_SECONDS)
        os.environ.setdefault("HOROVOD_STALL_CHECK_TIME_SECONDS", f"{timeout_seconds:.0f}")
        os.environ.setdefault("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", f"{give_up:.0f}")


_STALLED_TIMEOUTS = 4
_LEAST_STALL_SECONDS = 120


def seconds_since_launch() -> float | None:
    """Seconds since this process was started, to a hundredth; None where there is no /proc."""
    try:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        uptime = float(Path("/proc/uptime").read_text().split()[0])
    except OSError:
        return None
    ticks = int(fields[_STARTTIME_AFTER_NAME])
    return round(uptime - ticks / os.sysconf("SC_CLK_TCK"), 2)


# proc(5): starttime is field 22, the process's name, which may hold blanks, is field 2.
_STARTTIME_AFTER_NAME = 22 - 3


def allowed_cores() -> int:
    """The number of cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def available_cores() -> int:
    """The number of cores that this process can keep busy: a container may have less time."""
    quota = cpu_quota()
    return allowed_cores() if quota is None else min(allowed_cores(), max(1, math.ceil(quota)))


def cpu_quota(groups: str = "/proc/self/cgroup", root: str = "/sys/fs/cgroup") -> float | None:
    """The processor time that this process's control groups give it, in cores; None without limit.

    ``docker run --cpus``, Kubernetes and systemd set it. Both versions of control groups are read
    (cgroups(7)), of the own group and of those around it.
    """
    try:
        lines = Path(groups).read_text().splitlines()
    except OSError:
        return None
    quotas = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        mounts = ["", "unified"]  # of the second version, alone or beside the first
        if controllers:
            mounts = [controllers, "cpu"] if "cpu" in controllers.split(",") else []
        own = Path(path.lstrip("/"))
        quotas += [
            _quota(Path(root, mount, group)) for mount in mounts for group in (own, *own.parents)
        ]
    return min((quota for quota in quotas if quota is not None), default=None)


def _quota(group: Path) -> float | None:
    """The limit of one control group, in cores."""
    try:
        if (group / "cpu.max").is_file():
            quota, period = (group / "cpu.max").read_text().split()
        else:
            quota, period = (
                (group / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period")
            )
        return int(quota) / int(period) if int(quota) > 0 else None
    except (OSError, ValueError, ZeroDivisionError):  # "max" is no number
        return None


def busy_seconds(stat: str = "/proc/stat") -> float | None:
    """For how long the cores that this process may run on were not idle since the start, added up.

    What another virtual machine took of them counts too. A hundredth of a second is the unit. None
    where the system does not tell.
    """
    own = {f"cpu{core}" for core in getattr(os, "sched_getaffinity", lambda _: ())(0)}
    ticks = 0
    try:
        for line in Path(stat).read_text().splitlines():
            name, *fields = line.split()
            if name in own:
                user, nice, system, _idle, _waiting, *interrupts_and_stolen = map(int, fields[:8])
                ticks += user + nice + system + sum(interrupts_and_stolen)
    except (OSError, ValueError):
        return None
    return ticks / os.sysconf("SC_CLK_TCK") if ticks else None


def give_sessions_their_own_threads() -> None:
    """From now on a session has as many threads as it is told, and not those of the first one."""
    os.environ["TF_OVERRIDE_GLOBAL_THREADPOOL"] = "1"


def processor(cpuinfo: str = "/proc/cpuinfo") -> str:
    """The processor's name and a hash of its features, which a name does not tell alone."""
    try:
        lines = Path(cpuinfo).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    found: dict[str, str] = {}
    for line in lines:
        key, _, value = line.partition(":")
        found.setdefault(key.strip(), value.strip())
    name = found.get("model name") or platform.machine()
    features = found.get("flags") or found.get("Features", "")
    return f"{name} ({hashlib.sha256(features.encode()).hexdigest()[:8]})"


def memory_bytes() -> int:
    """The memory of this machine."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def quiet_tensorflow(*, verbose: bool) -> None:
    """Silences the messages of TensorFlow's Python half, once it is imported."""
    if verbose:
        return
    import tensorflow.compat.v1 as tf

    tf.logging.set_verbosity(tf.logging.ERROR)
