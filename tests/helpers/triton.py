"""NVIDIA's Triton server, from the package nvidia-pytriton.

The package has the server, but of its backends only that for Python. Those for ONNX and SavedModels
are stood in for by Python-based backends of the same names, which call onnxruntime and TensorFlow.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import sysconfig
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

# The interpreter in Triton's process does not read PYTHONPATH.
_BACKEND = """
import json, sys
from pathlib import Path

sys.path[:0] = {path!r}

import triton_python_backend_utils as triton

class TritonPythonModel:
    def initialize(self, args):
        config = json.loads(args["model_config"])
        self.inputs, self.outputs = (
            [tensor["name"] for tensor in config[side]] for side in ("input", "output")
        )
        version = Path(args["model_repository"], args["model_version"])
        self.run = self.open(version / config["default_model_filename"])

    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        values = {{n: triton.get_input_tensor_by_name(request, n).as_numpy() for n in self.inputs}}
        found = self.run(values)
        return triton.InferenceResponse([triton.Tensor(n, found[n]) for n in self.outputs])

    def open(self, path):
{open}
"""
_OPEN = {
    "onnxruntime": """
        import onnxruntime
        session = onnxruntime.InferenceSession(path)
        return lambda values: dict(zip(self.outputs, session.run(self.outputs, values)))
""",
    "tensorflow": """
        import tensorflow as tf
        self.loaded = tf.saved_model.load(str(path))
        signature = self.loaded.signatures["serving_default"]
        def run(values):
            found = signature(**{n: tf.constant(value) for n, value in values.items()})
            return {n: value.numpy() for n, value in found.items()}
        return run
""",
}
_STARTED = "Started HTTPService"


class _Package(NamedTuple):
    """What nvidia-pytriton has.

    Attributes:
      server: the directory of the server and its backends.
      libraries: that of the libraries that it needs.
      stub: the program of Python backends, for the running Python.
    """

    server: Path
    libraries: Path
    stub: Path

    @property
    def environment(self) -> dict[str, str]:
        """The variables with which the server and the stub find their libraries."""
        places = [str(self.libraries), sysconfig.get_config_var("LIBDIR")]
        return {**os.environ, "LD_LIBRARY_PATH": os.pathsep.join(places)}


def _package() -> _Package:
    """The server for the running Python; the test is skipped if there is none."""
    spec = importlib.util.find_spec("pytriton")
    if spec is None or spec.origin is None:
        pytest.skip("nvidia-pytriton, which has the Triton server, is not installed")
    root = Path(spec.origin).parent / "tritonserver"
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    stub = root / "python_backend_stubs" / version / "triton_python_backend_stub"
    package = _Package(root, root.parents[1] / "nvidia_pytriton.libs", stub)
    if not stub.exists():
        pytest.skip(f"nvidia-pytriton has no part for Python {version}")
    needed = subprocess.run(
        ["ldd", stub], env=package.environment, capture_output=True, text=True, check=False
    )
    missing = re.findall(r"(\S+) => not found", needed.stdout)
    if missing:
        pytest.skip(f"Triton's part for Python needs {', '.join(missing)}")
    return package


@contextlib.contextmanager
def triton_server(repository: Path, directory: Path) -> Iterator[str]:
    """Runs Triton on a model repository, and yields its address.

    ``directory`` receives the backends. Skips the test where there is no Triton.
    """
    package = _package()
    backends = directory / "backends"
    shutil.copytree(package.server / "backends/python", backends / "python")
    shutil.copy(package.stub, backends / "python")
    for name, code in _OPEN.items():
        (backends / name).mkdir()
        source = _BACKEND.format(path=sys.path, open=code)
        (backends / name / "model.py").write_text(source, encoding="utf-8")
    with _reserved_port() as port:
        yield from _served(package, repository, backends, port)


@contextlib.contextmanager
def _reserved_port() -> Iterator[int]:
    """A free port that only programs get which share it."""
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


def _served(package: _Package, repository: Path, backends: Path, port: int) -> Iterator[str]:
    command = [
        str(package.server / "bin/tritonserver"),
        f"--model-repository={repository}",
        f"--backend-directory={backends}",
        *("--http-address=127.0.0.1", f"--http-port={port}", "--reuse-http-port=true"),
        *("--allow-grpc=false", "--allow-metrics=false"),
    ]
    log = []
    with subprocess.Popen(
        command,
        env=package.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as server:
        try:
            assert server.stdout is not None
            for line in server.stdout:
                log.append(line)
                if _STARTED in line:
                    _connect(port)
                    yield f"http://127.0.0.1:{port}"
                    return
            pytest.fail("".join(log))
        finally:
            server.kill()


def _connect(port: int) -> None:
    """Waits until the server listens, which is right after it says so."""
    while True:
        with contextlib.suppress(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port)).close()
            return


def infer(address: str, model: str, inputs: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """A model's answer to integers, by version 2 of KServe's protocol in JSON."""
    tensors = [
        {
            "name": name,
            "shape": value.shape,
            "datatype": value.dtype.name.upper(),
            "data": value.ravel().tolist(),
        }
        for name, value in inputs.items()
    ]
    with urllib.request.urlopen(
        f"{address}/v2/models/{model}/infer", data=json.dumps({"inputs": tensors}).encode()
    ) as response:
        outputs = json.load(response)["outputs"]
    return {tensor["name"]: np.reshape(tensor["data"], tensor["shape"]) for tensor in outputs}
