"""Prints what TensorFlow sees of the GPUs and of the libraries that XLA needs, as a JSON line."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

from bert_tf.util import environment

_CUDA = "/usr/local/cuda"
_QUERY = "name,driver_version,compute_cap,memory.total"


def driver_report() -> list[dict[str, str]]:
    """What nvidia-smi says of each GPU; empty where there is none.

    Keys: ``name``, ``driver``, ``compute_capability`` (such as 9.0) and ``memory_mib``.
    """
    if shutil.which("nvidia-smi") is None:
        return []
    command = ["nvidia-smi", f"--query-gpu={_QUERY}", "--format=csv,noheader,nounits"]
    said = subprocess.run(command, capture_output=True, text=True, check=False)
    names = ("name", "driver", "compute_capability", "memory_mib")
    rows = [line.split(", ") for line in said.stdout.splitlines()]
    return [dict(zip(names, row)) for row in rows if len(row) == len(names)]


def find_tool(relative: str) -> str | None:
    """The path of a file of CUDA, such as ``bin/ptxas``, where XLA looks for it; None if missing.

    These are the directory that XLA_FLAGS name (``tensorflow[and-cuda]``'s is set by us), CUDA_HOME
    and /usr/local/cuda, and PATH for programs.
    """
    given = re.search(
        r'--xla_gpu_cuda_data_dir=(?:"([^"]+)"|(\S+))', os.environ.get("XLA_FLAGS", "")
    )
    roots = [*(given.groups() if given else ()), os.environ.get("CUDA_HOME"), _CUDA]
    paths = [Path(root, relative) for root in roots if root]
    on_path = shutil.which(paths[0].name) if relative.startswith("bin/") else None
    return next((str(path) for path in paths if path.is_file()), on_path)


def describe() -> dict[str, Any]:
    """Versions, GPUs as TensorFlow and the driver see them, paths of ptxas and libdevice."""
    import tensorflow as tf

    build = tf.sysconfig.get_build_info()
    gpus = tf.config.list_physical_devices("GPU")
    return {
        "tensorflow": tf.__version__,
        "cuda": build.get("cuda_version"),
        "cudnn": build.get("cudnn_version"),
        "gpus": [tf.config.experimental.get_device_details(gpu) for gpu in gpus],
        "driver": driver_report(),
        "ptxas": find_tool("bin/ptxas"),
        "libdevice": find_tool("nvvm/libdevice/libdevice.10.bc"),
    }


if __name__ == "__main__":
    environment.prepare_environment(verbose=False)
    print(json.dumps(describe()), flush=True)
