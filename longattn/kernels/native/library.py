"""Compiles the C++ operators once for this CPU, this torch and this compiler, and loads them."""

from __future__ import annotations

import fcntl
import functools
import hashlib
import logging
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

import torch

_log = logging.getLogger(__name__)

_FOLDER = Path(__file__).parent
_FLAGS = ("-std=c++20", "-O3", "-march=native", "-fopenmp", "-fPIC", "-shared")  # no -ffast-math: -inf has a meaning


def known_missing() -> str | None:
    """Return why the operators cannot be had, as far as can be told without compiling them."""
    return missing() if missing.cache_info().currsize else _no_compiler()


@functools.cache
def missing() -> str | None:
    """Load the operators `torch.ops.longattn.*`, compiling them if need be; return why that fails, or None."""
    if (reason := _no_compiler()) is not None:
        return reason
    compiler = _compiler()
    try:
        path = _cache_folder() / f"attention-{_fingerprint(compiler)}.so"
        with open(path.with_suffix(".lock"), "w") as lock:  # which the system opens again, should the holder die
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not path.exists():
                _compile(compiler, path)
        torch.ops.load_library(path)
    except subprocess.CalledProcessError as error:
        complaint = next((line for line in error.stderr.splitlines() if "error" in line), "it gave no reason")
        return f"{compiler} cannot compile it: {complaint.strip()}"
    except OSError as error:
        return f"it cannot be loaded: {error}"
    return None


def _compiler() -> str:
    return os.environ.get("CXX", "c++")


@functools.cache
def _no_compiler() -> str | None:
    if shutil.which(_compiler()) is None:
        return f"there is no C++ compiler {_compiler()!r}: install one, or name it by CXX"
    return None


def _cache_folder() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(home) / "longattn"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _fingerprint(compiler: str) -> str:
    """Return a name for all that the compiled code depends on; nodes of a cluster may share the folder."""
    version = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=True).stdout
    sources = [path.read_text() for path in sorted(_FOLDER.glob("*.[hc]*")) if path.suffix in (".h", ".cpp")]
    parts = [torch.__version__, version, _cpu(), *_flags(), *sources]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def _flags() -> list[str]:
    return [*_FLAGS, *shlex.split(os.environ.get("CXXFLAGS", ""))]


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine() + platform.processor()
    wanted = ("flags", "model name", "Features", "CPU part")
    return "\n".join(sorted({line for line in lines if line.startswith(wanted)}))


def _compile(compiler: str, path: Path) -> None:
    _log.warning("compiling the C++ attention for this CPU: half a minute, once")
    torch_folder = Path(torch.__file__).parent
    includes = (torch_folder / "include", torch_folder / "include/torch/csrc/api/include")
    abi = f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"
    with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
        built = Path(scratch) / path.name
        command = [compiler, *_flags(), abi, *(f"-I{folder}" for folder in includes), str(_FOLDER / "binding.cpp")]
        command += [f"-L{torch_folder / 'lib'}", "-ltorch_cpu", "-lc10", "-o", str(built)]
        subprocess.run(command, capture_output=True, text=True, check=True)
        built.replace(path)
