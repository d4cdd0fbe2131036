"""setuptools' build backend; asks for PyPI's CUDA toolkit where a GPU is here without one."""

from __future__ import annotations

from setuptools import build_meta
from setuptools.build_meta import *  # noqa: F403

from build_cuda import missing_toolkit


def get_requires_for_build_wheel(config_settings: dict | None = None) -> list[str]:
    """What pip installs before it builds, besides what pyproject.toml lists."""
    return [*build_meta.get_requires_for_build_wheel(config_settings), *missing_toolkit()]


def get_requires_for_build_editable(config_settings: dict | None = None) -> list[str]:
    """The same for an editable install."""
    return [*build_meta.get_requires_for_build_editable(config_settings), *missing_toolkit()]
