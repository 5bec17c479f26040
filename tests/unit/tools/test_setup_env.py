"""The set-up reports what is missing and skips finished steps."""

import contextlib
import importlib.util
import os
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = ROOT / "tools" / "setup_env.py"

BASE_PYTHON = os.path.realpath(sys._base_executable)

spec = importlib.util.spec_from_file_location("setup_env", SCRIPT)
setup_env = importlib.util.module_from_spec(spec)
spec.loader.exec_module(setup_env)


def run_setup(tmp_path, *, path=None, args=()):
    environment = {**os.environ}
    if path is not None:
        environment["PATH"] = str(path)
    return subprocess.run(
        [sys.executable, SCRIPT, "--venv", tmp_path / "venv", *args],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_no_compiler_is_one_sentence(tmp_path):
    done = run_setup(tmp_path, path=tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith("setup: no C++ compiler (g++) was found")
    assert "HOROVOD=0" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize("version", [(3, 8, 20), (3, 14, 0), (2, 7, 18)])
def test_wrong_python_is_one_sentence(monkeypatch, version):
    monkeypatch.setattr(setup_env.sys, "version_info", version)
    monkeypatch.setattr(setup_env.shutil, "which", lambda _: None)
    found = ".".join(map(str, version[:2]))
    with pytest.raises(setup_env.SetupError, match=rf"Python 3\.9 to 3\.13 is needed.*{found}"):
        setup_env.find_python()


@pytest.mark.parametrize("minor", [9, 10, 11, 12, 13])
def test_a_supported_running_python_is_used(monkeypatch, minor):
    monkeypatch.setattr(setup_env.sys, "version_info", (3, minor, 0))
    assert setup_env.find_python() == BASE_PYTHON


def test_another_python_on_the_path_is_used(monkeypatch, tmp_path):
    other = tmp_path / "python3.10"
    other.symlink_to(sys.executable)
    monkeypatch.setattr(setup_env.sys, "version_info", (3, 14, 1))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert setup_env.find_python() == str(other)


def test_a_requested_tensorflow_determines_the_python(monkeypatch, tmp_path):
    older = tmp_path / "python3.11"
    older.symlink_to(sys.executable)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(setup_env.sys, "version_info", (3, 13, 1))
    assert setup_env.find_python("2.21") == BASE_PYTHON
    assert setup_env.find_python("2.15") == str(older)
    older.unlink()
    with pytest.raises(setup_env.SetupError, match=r"3\.9 to 3\.11 is needed for TensorFlow 2\.15"):
        setup_env.find_python("2.15")


def pinned_in(constraints):
    """The requirements of a file with pinned versions."""
    lines = re.findall(r"^[^#\n]+", constraints.read_text(), flags=re.MULTILINE)
    return list(map(Requirement, lines))


def releases_of_tensorflow(minor, accelerator):
    """The TensorFlow that setup.py requires for Python 3.``minor``, and the pinned one."""
    spec = importlib.util.spec_from_file_location("its_setup", ROOT / "setup.py")
    with pytest.MonkeyPatch.context() as patch:
        asked = {}
        patch.setattr("setuptools.setup", lambda **values: asked.update(values))
        spec.loader.exec_module(importlib.util.module_from_spec(spec))
    beside = {"python_version": f"3.{minor}", "sys_platform": "linux"}
    wanted = map(Requirement, asked["extras_require"][accelerator])
    pinned = pinned_in(setup_env.constraints_of(setup_env.default_tensorflow(minor)))
    name = Requirement(setup_env.tensorflow_package(accelerator)).name
    return [
        [str(r.specifier) for r in requirements if r.marker is None or r.marker.evaluate(beside)]
        for requirements in (wanted, (r for r in pinned if r.name == name))
    ]


@pytest.mark.parametrize("accelerator", ["cpu", "gpu"])
@pytest.mark.parametrize("minor", [9, 10, 11, 12, 13])
def test_setup_and_constraints_mean_the_same_tensorflow(minor, accelerator):
    [wanted], [pinned] = releases_of_tensorflow(minor, accelerator)
    assert wanted == pinned
    assert wanted.startswith(f"=={setup_env.default_tensorflow(minor)}.")


def test_the_package_for_gpus_brings_nvidias():
    package = Requirement(setup_env.tensorflow_package("gpu"))
    assert (package.name, package.extras) == ("tensorflow", {"and-cuda"})


def installed_tensorflow():
    """The installed release and what it requires; its package for CPUs lists that of GPUs, too."""
    for name in ("tensorflow", "tensorflow-cpu"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            return metadata.version(name), list(map(Requirement, metadata.requires(name)))
    raise AssertionError("TensorFlow is not installed")


@pytest.mark.each_tensorflow
def test_nvidias_packages_are_pinned_here_or_by_tensorflow():
    version, requirements = installed_tensorflow()
    constraints = setup_env.constraints_of(version.rpartition(".")[0])
    pins = {r.name: r for r in pinned_in(constraints) if r.name.startswith("nvidia-")}
    used = {r.name: r for r in requirements if r.marker and "and-cuda" in str(r.marker)}
    assert "nvidia-cuda-nvcc-cu12" in used
    exact = {name for name, r in used.items() if str(r.specifier).startswith("==")}
    assert pins.keys() == used.keys() - exact
    for name, pin in pins.items():
        [one] = pin.specifier
        assert one.operator == "=="
        assert used[name].specifier.contains(one.version)


def test_a_failed_step_names_its_log(tmp_path):
    environment = setup_env.Environment(tmp_path, sys.executable)
    failing = [sys.executable, "-c", "print('the reason'); raise SystemExit(3)"]
    with pytest.raises(setup_env.SetupError, match=r"'horovod' failed.*setup\.log"):
        environment.step("horovod", "key", [failing])
    assert "the reason" in (tmp_path / "setup.log").read_text()


def test_a_step_runs_once_for_one_key(tmp_path):
    environment = setup_env.Environment(tmp_path, sys.executable)
    count = tmp_path / "count"
    command = [sys.executable, "-c", f"open({str(count)!r}, 'a').write('x')"]
    for key in ("one", "one", "two", "two"):
        environment.step("packages", key, [command])
    assert count.read_text() == "xx"


def test_a_step_that_failed_runs_again(tmp_path):
    environment = setup_env.Environment(tmp_path, sys.executable)
    flag = tmp_path / "flag"
    command = [sys.executable, "-c", f"import os, sys; sys.exit(not os.path.exists({str(flag)!r}))"]
    with pytest.raises(setup_env.SetupError):
        environment.step("packages", "key", [command])
    flag.touch()
    environment.step("packages", "key", [command])
    assert list(tmp_path.glob(".done-packages*"))


@pytest.fixture
def native(tmp_path, monkeypatch):
    """A directory with one source, and an environment whose python records its arguments."""
    room = tmp_path / "native"
    room.mkdir()
    (room / "some_ops.cc").write_text("// source")
    python = tmp_path / "venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/asked\ntouch {room}/some_ops-1.so\n')
    python.chmod(0o755)
    monkeypatch.setattr(setup_env, "NATIVE", room)
    monkeypatch.setenv("CXX", sys.executable)
    return setup_env.Environment(tmp_path / "venv", sys.executable)


def times_built(native):
    asked = native.directory.parent / "asked"
    return asked.read_text().count("-m bert_tf.native.build") if asked.exists() else 0


def test_native_operations_are_built_once_per_source(native):
    for _ in range(2):
        setup_env.build_native_operations(native, "pins")
    assert times_built(native) == 1
    (setup_env.NATIVE / "some_ops.cc").write_text("// another source")
    setup_env.build_native_operations(native, "pins")
    assert times_built(native) == 2
    (setup_env.NATIVE / "some_ops-1.so").unlink()
    setup_env.build_native_operations(native, "pins")
    assert times_built(native) == 3


def test_without_a_compiler_native_operations_are_left_out(native, monkeypatch, capsys):
    monkeypatch.setenv("CXX", "no-such-compiler -flag")
    setup_env.build_native_operations(native, "pins")
    assert times_built(native) == 0
    [line] = capsys.readouterr().out.splitlines()
    assert "not built" in line
    assert line.endswith("(no C++ compiler: no-such-compiler)")


def test_native_operations_that_cannot_be_built_are_reported(native, capsys):
    native.python.write_text("#!/bin/sh\necho the reason\nexit 2\n")
    setup_env.build_native_operations(native, "pins")
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("setup: the native operations are not built; training uses TensorFlow's")
    assert "setup.log" in last
    assert "the reason" in native.log.read_text()


def test_existing_programs_are_not_installed(tmp_path, capsys):
    environment = setup_env.Environment(tmp_path, sys.executable)
    setup_env.install_programs(environment, "hosts", ["sh", "ls"], ["no-such-package"])
    assert capsys.readouterr().out == "setup: hosts is up to date\n"
    assert not (tmp_path / "setup.log").exists()


def test_programs_that_cannot_be_installed_are_reported(tmp_path, monkeypatch, capsys):
    package_manager = tmp_path / "apt-get"
    package_manager.write_text("#!/bin/sh\necho asked: $*\nexit 100\n")
    package_manager.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    environment = setup_env.Environment(tmp_path, sys.executable)
    setup_env.install_programs(environment, "hosts", ["sh", "no-such-program"], ["a-package"])
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("setup: sh and no-such-program could not be installed")
    assert "will fail" in last
    assert "asked: update" in (tmp_path / "setup.log").read_text()


def test_missing_gpu_tools_are_one_sentence(tmp_path, monkeypatch):
    for name in ("g++", "make"):
        (tmp_path / name).symlink_to(sys.executable)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(setup_env.SetupError, match="nvcc was not found"):
        setup_env.check_tools(sys.executable, with_horovod=True, accelerator="gpu")
    setup_env.check_tools(sys.executable, with_horovod=False, accelerator="gpu")


def test_horovod_for_gpus_uses_nccl(tmp_path):
    def variables(accelerator):
        return setup_env.horovod_build_env(tmp_path, accelerator, "2.15").items()

    assert variables("gpu") - variables("cpu") == {("HOROVOD_GPU_OPERATIONS", "NCCL")}


def test_our_headers_come_first_if_tensorflow_lacks_them(tmp_path, monkeypatch):
    def search_path(tensorflow):
        return setup_env.horovod_build_env(tmp_path, "cpu", tensorflow).get("CPATH")

    monkeypatch.delenv("CPATH", raising=False)
    assert search_path("2.15") is None
    assert search_path("2.21") == str(setup_env.HOROVOD_HEADERS)
    monkeypatch.setenv("CPATH", "/theirs")
    assert search_path("2.21") == f"{setup_env.HOROVOD_HEADERS}{os.pathsep}/theirs"


def test_one_set_up_at_a_time(tmp_path):
    venv = tmp_path / "venv"
    with setup_env.setup_lock(venv):
        code = f"""
import importlib.util, sys
from pathlib import Path
spec = importlib.util.spec_from_file_location("setup_env", {str(SCRIPT)!r})
setup_env = importlib.util.module_from_spec(spec)
spec.loader.exec_module(setup_env)
with setup_env.setup_lock(Path({str(venv)!r})):
    print("alone")
"""
        other = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        assert other.stdout.readline() == f"setup: waiting for another set-up of {venv}\n"
        assert other.poll() is None
    assert other.communicate()[0] == "alone\n"


def test_an_unusable_directory_is_one_sentence(tmp_path):
    (tmp_path / "file").touch()
    with (
        pytest.raises(setup_env.SetupError, match=r"file/venv cannot be written \(Not a directory"),
        setup_env.setup_lock(tmp_path / "file" / "venv"),
    ):
        pass


def test_horovod_is_rebuilt_only_for_another_tensorflow(tmp_path, monkeypatch):
    def key(text, version="3.11.4"):
        constraints = tmp_path / "constraints.txt"
        constraints.write_text(text)
        return setup_env.horovod_key(constraints, version)

    pins = "numpy==1\nopenmpi==4\ntensorflow-cpu==2\n"
    first = key(pins)
    assert key(pins.replace("numpy==1", "numpy==2")) == first
    assert key(pins.replace("tensorflow-cpu==2", "tensorflow-cpu==3")) != first
    assert key(pins, "3.12.1") != first
    monkeypatch.setattr(setup_env, "HOROVOD_HEADERS", tmp_path)
    assert key(pins) != first


FACTS = {"Python": "3.11.4", "TensorFlow": "2.15", "accelerator": "cpu"}


@pytest.mark.parametrize(
    ("fact", "other", "sentence"),
    [
        ("Python", "3.13.0", "Python 3.11, not 3.13; .* PYTHON=python3.13 VENV=.venv-3.13'"),
        (
            "TensorFlow",
            "2.21",
            "TensorFlow 2.15, not 2.21; .* TENSORFLOW=2.21 VENV=.venv-tf2",
        ),
        ("accelerator", "gpu", "accelerator cpu, not gpu; .* ACCELERATOR=gpu VENV=.venv-gp"),
    ],
)
def test_an_environment_keeps_its_versions(tmp_path, fact, other, sentence):
    wanted = {**FACTS, fact: other}
    setup_env.check_environment(tmp_path, wanted)
    environment = setup_env.Environment(tmp_path, sys.executable)
    environment.step("environment", FACTS, [[sys.executable, "-c", ""]])
    setup_env.check_environment(tmp_path, {**FACTS, "Python": "3.11.9"})
    with pytest.raises(setup_env.SetupError, match=sentence):
        setup_env.check_environment(tmp_path, wanted)


def test_what_an_environment_was_built_for(tmp_path):
    assert setup_env.built_for(tmp_path) == {}
    environment = setup_env.Environment(tmp_path, sys.executable)
    environment.step("environment", FACTS, [[sys.executable, "-c", ""]])
    assert setup_env.built_for(tmp_path) == FACTS


def test_an_environment_that_records_only_its_python_is_used(tmp_path):
    environment = setup_env.Environment(tmp_path, sys.executable)
    environment.step("environment", "3.11.4", [[sys.executable, "-c", ""]])
    assert setup_env.built_for(tmp_path)["TensorFlow"] == "2.15"
    environment.step("environment", "3.9.18", [[sys.executable, "-c", ""]])
    assert setup_env.built_for(tmp_path) == {"Python": "3.9.18", "TensorFlow": "2.15"}
    environment.step("environment", "3.11.4", [[sys.executable, "-c", ""]])
    setup_env.check_environment(tmp_path, FACTS)
    with pytest.raises(setup_env.SetupError, match=r"built for Python 3\.11, not 3\.12"):
        setup_env.check_environment(tmp_path, {**FACTS, "Python": "3.12.1"})
