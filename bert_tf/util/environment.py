"""The process's environment: cores, and TensorFlow's settings for logging and XLA.

TensorFlow reads its environment variables once, when it is loaded. This module does not import it,
and only entry scripts prepare the environment.

TensorFlow keeps the functions that XLA compiled for a GPU in a directory, so that the next start
does not compile them again. It finds a function there by its operations and shapes alone, and a run
fails if what it finds is damaged or was compiled for something else. So the directory's name
contains whatever else compiled code depends on, and after a failure it is not used again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib.abc
import importlib.machinery
import importlib.metadata
import importlib.util
import json
import logging
import math
import os
import re
import sys
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Callable

from bert_tf.util.digest import digest_of
from bert_tf.util.temporary import make_private, user_cache


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
    platform, cache = this_platform(), user_cache("xla")
    variables = xla_variables(os.environ, platform, cache, deterministic=deterministic)
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


_NAMES = ("TF_XLA_FLAGS", "XLA_FLAGS")
# With either name, TensorFlow means GPUs: the first without, the second with its device API. Code
# for CPUs is not kept: TensorFlow 2.15 cannot, and 2.21 prints errors when it loads it.
_KEPT_DEVICES = "GPU,XLA_GPU_JIT"
DIRECTORY = "tf_xla_persistent_cache_directory"
UNUSABLE = "unusable"
# Other variables that change what XLA compiles from the same function.
_CODE_DEPENDS_ON = ("TF_DETERMINISTIC_OPS", "NVIDIA_TF32_OVERRIDE")


@dataclasses.dataclass(frozen=True)
class Platform:
    """What compiled code depends on besides the function, the user's settings and the run.

    Attributes:
      tensorflow: its version; None if it is not installed.
      gpus: the different models of this machine's GPUs, as NVIDIA's driver names them.
      cuda: the directory of NVIDIA's package with ``bin/ptxas`` and ``nvvm/libdevice``, or None.
      prefix: the environment of this Python, whose other packages may differ.
    """

    tensorflow: str | None = None
    gpus: tuple[str, ...] = ()
    cuda: Path | None = None
    prefix: str = sys.prefix


def this_platform(
    driver: str = "/proc/driver/nvidia", search_path: Sequence[str] | None = None
) -> Platform:
    """This machine and environment.

    ``driver`` is the directory in which NVIDIA's driver lists GPUs; packages are looked for in
    ``search_path`` instead of ``sys.path``.
    """
    return Platform(_tensorflow_version(), _gpu_models(driver), _cuda_package(search_path))


def _tensorflow_version() -> str | None:
    for package in ("tensorflow", "tensorflow-cpu"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return importlib.metadata.version(package)
    return None


def _gpu_models(driver: str) -> tuple[str, ...]:
    models = set()
    for path in Path(driver).glob("gpus/*/information"):
        with contextlib.suppress(OSError):
            models.update(re.findall(r"^Model:\s*(.+)", path.read_text(), re.MULTILINE))
    return tuple(sorted(models))


def _cuda_package(search_path: Sequence[str] | None) -> Path | None:
    """Where nvidia-cuda-nvcc-cu12 is installed, a part of ``tensorflow[and-cuda]``."""
    spec = importlib.machinery.PathFinder.find_spec("nvidia", search_path)
    for place in (spec and spec.submodule_search_locations) or ():
        directory = Path(place, "cuda_nvcc")
        if (directory / "bin/ptxas").is_file() and (directory / "nvvm/libdevice").is_dir():
            return directory
    return None


def xla_variables(
    given: Mapping[str, str], platform: Platform, cache: Path | None, *, deterministic: bool
) -> dict[str, str]:
    """``TF_XLA_FLAGS`` and ``XLA_FLAGS``: our flags, then the user's, which replace ours.

    Creates the directory for compiled code in ``cache``, the directory of such directories; without
    it, no code is kept. ``given`` is the environment; a ``deterministic`` run demands the same bits
    every time, so XLA compiles other code.
    """
    users = {name: given.get(name, "") for name in _NAMES}
    ours: dict[str, dict[str, str]] = {name: {} for name in _NAMES}
    if cache is not None and platform.tensorflow is not None:
        depends_on = [
            *(platform.gpus, platform.prefix, users["XLA_FLAGS"], deterministic),
            *(given.get(name) for name in _CODE_DEPENDS_ON),
            len(platform.gpus) > 1 and given.get("CUDA_VISIBLE_DEVICES"),
        ]
        digest = digest_of(repr(depends_on).encode())[:12]
        directory = cache / f"{platform.tensorflow}-{digest}"
        if _is_usable(directory):
            ours["TF_XLA_FLAGS"] = {
                DIRECTORY: _quoted(directory),
                "tf_xla_persistent_cache_device_types": _KEPT_DEVICES,
            }
            if not platform.tensorflow.startswith("2.15."):  # which aborts at an unknown flag
                ours["XLA_FLAGS"]["xla_gpu_per_fusion_autotune_cache_dir"] = _quoted(directory)
    if platform.cuda is not None:
        ours["XLA_FLAGS"]["xla_gpu_cuda_data_dir"] = _quoted(platform.cuda)
    flags = {name: _joined(ours[name], users[name]) for name in _NAMES}
    return {name: text for name, text in flags.items() if text or name in given}


def _quoted(path: Path) -> str:
    """A path as XLA reads it, spaces and quotes included."""
    return json.dumps(str(path), ensure_ascii=False)


def _joined(ours: Mapping[str, str], users: str) -> str:
    if users.strip() and not users.lstrip().startswith("-"):
        return users  # the name of a file with flags, which stands alone
    named = re.findall(r"--(\w+)", users)
    flags = [f"--{name}={value}" for name, value in ours.items() if name not in named]
    return " ".join([*flags, users]).strip()


def _is_usable(directory: Path) -> bool:
    """Creates the directory; False if files cannot be written there, or after a failure."""
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        make_private(directory)
        with tempfile.TemporaryFile(dir=directory, buffering=0) as file:
            file.write(b"\0")  # fails on a full disk
        return not directory.joinpath(UNUSABLE).exists()
    except OSError:
        return False
