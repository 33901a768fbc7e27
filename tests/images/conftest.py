"""Fixtures of the tests of images: the images."""

from __future__ import annotations

import pytest

from tests.images.buildah import DOCKERFILES, Image, build, make_bases


@pytest.fixture(scope="session")
def bases() -> None:
    """The base images."""
    make_bases()


@pytest.fixture(scope="session")
def pipeline(bases: None) -> Image:
    return _build("pipeline")


@pytest.fixture(scope="session")
def trainer(bases: None) -> Image:
    return _build("trainer:cpu")


@pytest.fixture(scope="session")
def pjrt_trainer(bases: None) -> Image:
    return _build("trainer:pjrt")


@pytest.fixture(scope="session")
def tpu_trainer(bases: None) -> Image:
    return _build("trainer:tpu")


def _build(name: str) -> Image:
    return build(DOCKERFILES[name], f"localhost/{name}")
