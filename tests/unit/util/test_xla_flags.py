"""What XLA is told in the environment, and what TensorFlow does with it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bert_tf.model.compilation import stop_using_kept_code
from bert_tf.util import environment as subject
from tests.helpers.programs import ROOT, environment

INSTALLED = subject.Platform(tensorflow="2.21.0", gpus=("NVIDIA H200",), prefix="/venv")
NONE_KEPT = "--tf_xla_persistent_cache_directory="


def variables(cache, given=(), platform=INSTALLED, *, deterministic=False):
    return subject.xla_variables(dict(given), platform, cache, deterministic=deterministic)


def directory_of(*arguments, **named):
    """The directory that XLA is told to keep code in."""
    [flag, *_] = variables(*arguments, **named)["TF_XLA_FLAGS"].split()
    return Path(flag.partition("=")[2].strip('"'))


def test_what_is_set(tmp_path):
    directory = directory_of(tmp_path / "xla")
    assert directory.parent == tmp_path / "xla"
    assert directory.name.startswith("2.21.0-")
    assert directory.stat().st_mode & 0o777 == 0o700
    assert not list(directory.iterdir())
    assert variables(tmp_path / "xla") == {
        "TF_XLA_FLAGS": f'--tf_xla_persistent_cache_directory="{directory}" '
        "--tf_xla_persistent_cache_device_types=GPU,XLA_GPU_JIT",
        "XLA_FLAGS": f'--xla_gpu_per_fusion_autotune_cache_dir="{directory}"',
    }


def test_an_older_tensorflow_is_not_given_a_flag_at_which_it_aborts(tmp_path):
    assert list(variables(tmp_path, platform=subject.Platform("2.15.1"))) == ["TF_XLA_FLAGS"]


def test_flags_of_the_user_replace_ours(tmp_path):
    directory = directory_of(tmp_path)
    own = {"TF_XLA_FLAGS": "--tf_xla_persistent_cache_device_types=CPU --tf_xla_min_cluster_size=2"}
    assert variables(tmp_path, own)["TF_XLA_FLAGS"] == (
        f'--tf_xla_persistent_cache_directory="{directory}" {own["TF_XLA_FLAGS"]}'
    )
    off = {
        "TF_XLA_FLAGS": NONE_KEPT,
        "XLA_FLAGS": "--xla_gpu_per_fusion_autotune_cache_dir= --xla_gpu_cuda_data_dir=/cuda",
    }
    found = variables(tmp_path, off, subject.Platform("2.21.0", cuda=Path("/nvcc")))
    assert found["XLA_FLAGS"] == off["XLA_FLAGS"]
    assert found["TF_XLA_FLAGS"].endswith(f" {NONE_KEPT}")
    assert found["TF_XLA_FLAGS"].count("cache_directory") == 1


def test_a_file_of_flags_stands_alone(tmp_path):
    given = {"XLA_FLAGS": "/etc/xla.flags"}
    assert variables(tmp_path, given)["XLA_FLAGS"] == "/etc/xla.flags"


@pytest.mark.parametrize(
    "named",
    [
        {"platform": subject.Platform("2.21.1", INSTALLED.gpus, prefix="/venv")},
        {"platform": subject.Platform("2.21.0", ("NVIDIA L4",), prefix="/venv")},
        {"platform": subject.Platform("2.21.0", INSTALLED.gpus, prefix="/other")},
        {"deterministic": True},
        {"given": {"XLA_FLAGS": "--xla_dump_to=/tmp/dump"}},
        {"given": {"TF_DETERMINISTIC_OPS": "1"}},
        {"given": {"NVIDIA_TF32_OVERRIDE": "0"}},
    ],
)
def test_code_that_would_differ_is_kept_apart(tmp_path, named):
    assert directory_of(tmp_path, **named) != directory_of(tmp_path)


@pytest.mark.parametrize("models", [1, 2])
def test_the_choice_among_gpus_matters_where_their_models_differ(tmp_path, models):
    platform = subject.Platform("2.21.0", ("NVIDIA H200", "NVIDIA L4")[:models])
    chosen = {directory_of(tmp_path, {"CUDA_VISIBLE_DEVICES": n}, platform) for n in "01"}
    assert len(chosen) == models


def test_what_a_parent_process_chose_stays(tmp_path):
    parent = variables(tmp_path / "cache", {"XLA_FLAGS": "--xla_dump_to=/d"})
    assert variables(tmp_path / "cache", parent) == parent


def unwritable_file(directory):
    directory.parent.mkdir(parents=True)
    directory.touch()


def open_to_others(directory):
    directory.mkdir(parents=True)
    directory.chmod(0o777)


def elsewhere(directory):
    directory.parent.mkdir(parents=True)
    directory.symlink_to(directory.parent)


@pytest.mark.parametrize("damage", [unwritable_file, open_to_others, elsewhere])
def test_without_a_directory_of_the_users_own_nothing_is_kept(tmp_path, damage):
    name = directory_of(tmp_path / "good").name
    damage(tmp_path / "bad" / name)
    assert variables(tmp_path / "bad") == {}
    platform = subject.Platform("2.21.0", INSTALLED.gpus, Path("/nvcc"), "/venv")
    assert variables(tmp_path / "bad", platform=platform) == {
        "XLA_FLAGS": '--xla_gpu_cuda_data_dir="/nvcc"'
    }


def test_without_a_home_or_tensorflow_nothing_is_kept(tmp_path):
    assert variables(None) == {}
    assert variables(tmp_path, platform=subject.Platform()) == {}
    assert not list(tmp_path.iterdir())


def field(number, content):
    length, rest = [], len(content)
    while rest > 127:
        length.append(rest & 127 | 128)
        rest >>= 7
    return bytes([number << 3 | 2, *length, rest]) + content


ENTRY = field(1, b"key") + field(2, b"module" * 100) + field(3, b"code" * 5000)


def test_a_directory_whose_code_failed_is_not_used_again(tmp_path):
    directory, given = directory_of(tmp_path), variables(tmp_path)
    assert stop_using_kept_code(given) is None  # there is no code yet
    (directory / "entry.pb").write_bytes(b"code")
    assert stop_using_kept_code({}) is None
    assert stop_using_kept_code(given) == directory
    assert "tf_xla_persistent_cache_directory" not in variables(tmp_path).get("TF_XLA_FLAGS", "")


def nvidia_package(root, *files):
    for name in files:
        path = root / "nvidia" / "cuda_nvcc" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return [str(root)]


def test_nvidias_compiler_is_found_where_its_package_is(tmp_path):
    # The files of nvidia-cuda-nvcc-cu12 12.9.86; 12.2.140 has __init__.py files, too.
    files = ["bin/ptxas", "nvvm/libdevice/libdevice.10.bc", "nvvm/lib64/libnvvm.so"]
    for release, more in (("newer", []), ("older", ["__init__.py", "../__init__.py"])):
        path = nvidia_package(tmp_path / release, *files, *more)
        platform = subject.this_platform(search_path=["/nowhere", *path])
        assert platform.cuda == tmp_path / release / "nvidia" / "cuda_nvcc"
        flags = variables(None, {"XLA_FLAGS": "--xla_dump_to=/d"}, platform)["XLA_FLAGS"]
        assert flags == f'--xla_gpu_cuda_data_dir="{platform.cuda}" --xla_dump_to=/d'


@pytest.mark.parametrize("files", [[], ["bin/ptxas"], ["nvvm/libdevice/libdevice.10.bc"]])
def test_half_a_compiler_is_none(tmp_path, files):
    assert subject.this_platform(search_path=nvidia_package(tmp_path, *files)).cuda is None


def test_gpus_are_the_models_that_the_driver_lists(tmp_path):
    for address, model in (("01", "NVIDIA L4"), ("02", "NVIDIA H200"), ("03", "NVIDIA L4")):
        path = tmp_path / "gpus" / f"0000:{address}:00.0" / "information"
        path.parent.mkdir(parents=True)
        path.write_text(f"Model: \t\t {model}\nIRQ:   \t\t 45\nGPU UUID: \t GPU-{address}\n")
    assert subject.this_platform(str(tmp_path)).gpus == ("NVIDIA H200", "NVIDIA L4")
    assert subject.this_platform(str(tmp_path / "none")).gpus == ()


@pytest.mark.each_tensorflow
def test_the_version_is_the_installed_one():
    import tensorflow

    assert subject.this_platform().tensorflow == tensorflow.__version__


COMPILES = """
import sys
from bert_tf.util.environment import prepare_environment
from bert_tf.util.errors import exit_on_user_error
prepare_environment(verbose=False)
import tensorflow.compat.v1 as tf
from bert_tf.model.compilation import compiled, explained_compilation
def main():
    with tf.Graph().as_default(), tf.Session() as session:
        for _ in range(int(sys.argv[1])):
            compiled(lambda: tf.zeros([2]) + 1)  # TensorFlow counts what is built
            tf.constant(1.0)
    with tf.Graph().as_default(), tf.Session() as session, explained_compilation():
        x = tf.placeholder(tf.float32, [2, 2])
        y = compiled(lambda: tf.matmul(x, x) + 1)()
        print(session.run(y, {x: [[1.0, 2.0], [3.0, 4.0]]}).tolist())
exit_on_user_error(main)
"""
PRODUCT = "[[8.0, 11.0], [16.0, 23.0]]\n"


def run(cache, given=None, *, built_before=0):
    """A program that compiles a function, after it has ended."""
    inherited = {n: v for n, v in environment().items() if n not in ("TF_XLA_FLAGS", "XLA_FLAGS")}
    return subprocess.run(
        [sys.executable, "-c", COMPILES, str(built_before)],
        cwd=ROOT,
        env={
            **inherited,
            "TF_CPP_MIN_LOG_LEVEL": "0",
            "XDG_CACHE_HOME": str(cache),
            **(given or {}),
        },
        capture_output=True,
        text=True,
        check=False,
    )


def compiled(cache, given=None, **how):
    """What the program prints, and the code kept, by inode."""
    done = run(cache, given, **how)
    assert done.returncode == 0, done.stderr
    assert "Compiled cluster using XLA" in done.stderr
    [directory] = (cache / "bert_tf" / "xla").iterdir()
    return done.stdout, {path: path.stat().st_ino for path in directory.iterdir()}


@pytest.mark.each_tensorflow
def test_code_for_a_cpu_is_not_kept(tmp_path):
    package = nvidia_package(tmp_path, "bin/ptxas", "nvvm/libdevice/libdevice.10.bc")
    given = {"PYTHONPATH": os.pathsep.join([str(ROOT), *package])}  # XLA accepts that flag, too
    assert compiled(tmp_path / "a cache", given) == (PRODUCT, {})


@pytest.mark.each_tensorflow
def test_kept_code_is_used_again_until_it_fails(tmp_path):
    if subject.this_platform().tensorflow.startswith("2.15."):
        pytest.skip("TensorFlow 2.15 fails where code for a CPU is to be kept")
    given = {"TF_XLA_FLAGS": "--tf_xla_persistent_cache_device_types=CPU"}
    printed, kept = compiled(tmp_path, given)
    assert printed == PRODUCT
    [path] = kept
    assert compiled(tmp_path, given, built_before=3) == (PRODUCT, kept)
    path.write_bytes(path.read_bytes()[:1000])
    failed = run(tmp_path, given)
    assert failed.returncode == 2
    assert f"{path.parent} will not be used again: start again" in failed.stderr
    done = run(tmp_path, given)
    assert (done.returncode, done.stdout) == (0, PRODUCT)
