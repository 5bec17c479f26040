"""XLA's settings in the environment: where compiled code is kept, and where NVIDIA's tools are.

TensorFlow keeps the functions that XLA compiled for a GPU in a directory, so that the next start
does not compile them again. It finds a function there by its operations and shapes alone, and a run
fails if what it finds is damaged or was compiled for something else. So the directory's name
contains whatever else compiled code depends on, and after a failure it is not used again.

This module does not import TensorFlow.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.machinery
import importlib.metadata
import json
import re
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from bert_tf.util.digest import digest_of
from bert_tf.util.temporary import make_private

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
