"""The process's environment: cores, and TensorFlow's settings for logging and XLA.

TensorFlow reads its environment variables once, when it is loaded. This module does not import it,
and only entry scripts prepare the environment.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.abc
import importlib.machinery
import importlib.util
import logging
import math
import os
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Callable

from bert_tf.util import xla_flags
from bert_tf.util.temporary import user_cache


def prepare_environment(*, verbose: bool, deterministic: bool = False) -> None:
    """Sets variables that TensorFlow reads when imported; what the user set takes precedence.

    Code that XLA compiles for GPUs is kept in the user's cache directory, if it can be written,
    apart for a run that demands the same bits every time (``deterministic``). ``verbose`` shows
    TensorFlow's start-up and deprecation messages. Raises RuntimeError after TensorFlow's import.
    """
    if "tensorflow" in sys.modules:
        raise RuntimeError("prepare_environment must run before TensorFlow is imported")
    if not verbose:
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
        logging.getLogger("tensorflow").setLevel(logging.ERROR)
        logging.getLogger("absl").setLevel(logging.ERROR)
        warnings.filterwarnings("ignore")
        sys.meta_path.insert(0, _QuietLoading())
    platform, cache = xla_flags.this_platform(), user_cache("xla")
    variables = xla_flags.xla_variables(os.environ, platform, cache, deterministic=deterministic)
    os.environ.update(variables)


class _QuietLoading(importlib.abc.MetaPathFinder):
    """Suppresses stderr while TensorFlow is loaded, whenever that happens.

    Its C++ code writes to the file descriptor directly, before it reads its log settings.
    """

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """TensorFlow's spec, with a silent loader; None for all other modules."""
        del path, target  # unused for a top-level package
        if name != "tensorflow":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)  # asks the remaining finders
        if spec is not None and spec.loader is not None:
            load = functools.partial(_quietly, spec.loader.exec_module)
            spec.loader.exec_module = load  # type: ignore[method-assign]
        return spec


def _quietly(load: Callable[[ModuleType], None], module: ModuleType) -> None:
    with suppressed_stderr():
        load(module)


@contextlib.contextmanager
def suppressed_stderr() -> Iterator[None]:
    """Discards everything written to the stderr file descriptor, whatever the log level."""
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


def launched_rank() -> int:
    """The rank that a launcher assigned to this process; 0 without a launcher."""
    variable = launcher_variable(os.environ)
    return 0 if variable is None else int(variable.partition("=")[2])


def launcher_variable(variables: Mapping[str, str]) -> str | None:
    """``NAME=rank`` as set by this process's launcher; None without a launcher."""
    return next(
        (f"{n}={variables[n]}" for n in _RANK_VARIABLES if variables.get(n, "").isdigit()), None
    )


# Set by Open MPI, Horovod's Gloo launcher, MPICH and Slurm for each process they start.
_RANK_VARIABLES = ("OMPI_COMM_WORLD_RANK", "HOROVOD_RANK", "PMI_RANK", "SLURM_PROCID")


def limit_stalls(timeout_seconds: float) -> None:
    """Sets when Horovod warns about ranks that keep others waiting, and when it aborts.

    Horovod cannot distinguish a hanging rank from a busy one, which may make records for minutes,
    so it aborts only after twice the timeout, at least two minutes, and up to three of its checks
    later. Call this before Horovod starts. Variables set by the user are kept; 0 changes nothing.
    """
    if timeout_seconds:
        give_up = max(_STALL_TIMEOUT_FACTOR * timeout_seconds, _LEAST_STALL_SECONDS)
        os.environ.setdefault("HOROVOD_STALL_CHECK_TIME_SECONDS", f"{timeout_seconds / 2:.0f}")
        os.environ.setdefault("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", f"{give_up:.0f}")


_STALL_TIMEOUT_FACTOR = 2
_LEAST_STALL_SECONDS = 120


def seconds_since_launch() -> float | None:
    """Seconds since this process was started, to a hundredth; None without /proc."""
    try:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        uptime = float(Path("/proc/uptime").read_text().split()[0])
    except OSError:
        return None
    ticks = int(fields[_STARTTIME_AFTER_NAME])
    return round(uptime - ticks / os.sysconf("SC_CLK_TCK"), 2)


# proc(5): starttime is field 22; field 2 is the process's name, which may contain spaces.
_STARTTIME_AFTER_NAME = 22 - 3


def allowed_cores() -> int:
    """The number of cores on which this process may run."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def available_cores() -> int:
    """The number of cores that this process can keep busy, given a container's CPU quota."""
    quota = cpu_quota()
    return allowed_cores() if quota is None else min(allowed_cores(), max(1, math.ceil(quota)))


def cpu_quota(groups: str = "/proc/self/cgroup", root: str = "/sys/fs/cgroup") -> float | None:
    """The CPU quota of this process's control groups, in cores; None without a limit.

    Set by ``docker run --cpus``, Kubernetes and systemd. Reads both versions of control groups
    (cgroups(7)), for the process's own group and its ancestors.
    """
    try:
        lines = Path(groups).read_text().splitlines()
    except OSError:
        return None
    quotas = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        mounts = ["", "unified"]  # version 2, alone or alongside version 1
        if controllers:
            mounts = [controllers, "cpu"] if "cpu" in controllers.split(",") else []
        own_group = Path(path.lstrip("/"))
        quotas += [
            _quota(Path(root, mount, group))
            for mount in mounts
            for group in (own_group, *own_group.parents)
        ]
    return min((quota for quota in quotas if quota is not None), default=None)


def _quota(group: Path) -> float | None:
    """The CPU limit of one control group, in cores."""
    try:
        if (group / "cpu.max").is_file():
            quota, period = (group / "cpu.max").read_text().split()
        else:
            quota, period = (
                (group / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period")
            )
        return int(quota) / int(period) if int(quota) > 0 else None
    except (OSError, ValueError, ZeroDivisionError):  # "max" is not a number
        return None


def memory_bytes() -> int:
    """The physical memory of this machine."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def quiet_tensorflow(*, verbose: bool) -> None:
    """Silences TensorFlow's Python messages; call this after its import."""
    if verbose:
        return
    import tensorflow.compat.v1 as tf

    tf.logging.set_verbosity(tf.logging.ERROR)
