"""Build the C core.

REPLAYLOG_CLIENT_ONLY=1 leaves it out: `replaylog.client` alone needs no compiler.
"""

import os
import sys

from setuptools import Extension, setup

MODULES = ("_frame", "_ring", "_judge", "_journal", "_session")


def extensions() -> list[Extension]:
    if os.environ.get("REPLAYLOG_CLIENT_ONLY") == "1":
        return []
    from Cython.Build import cythonize

    flags = ["-O3", "-fno-strict-aliasing", *os.environ.get("REPLAYLOG_CFLAGS", "").split()]
    modules = [
        Extension(
            f"replaylog.{name}",
            [f"ext/replaylog/{name}.pyx"],
            include_dirs=["ext/replaylog"],
            depends=["ext/replaylog/native.h"],
            extra_compile_args=flags,
            extra_link_args=os.environ.get("REPLAYLOG_LDFLAGS", "").split(),
        )
        for name in MODULES
    ]
    return cythonize(
        modules,
        include_path=["ext"],
        build_dir="build/cython",
        compiler_directives={
            "language_level": 3,
            "boundscheck": False,
            "wraparound": False,
            "cdivision": True,
            "initializedcheck": False,
        },
        annotate="--annotate" in sys.argv,
    )


setup(ext_modules=extensions())
